"""`python -m benchmarks [NAME…]`: run all benchmarks but the soak, or those named."""

from __future__ import annotations

import sys
from importlib import import_module

NAMES = (
    "worlds", "collecting", "updates", "memory", "engines", "transport", "two_cores", "cage2", "cage2_training",
    "comparison", "peers", "rivals", "learning", "two_cores_learning", "cage2_learning", "workflows",
    "workflow_search",
)  # fmt: skip
ALONE = ("soak",)
"""An hour each: only when named."""


def main() -> None:
    """Run the benchmarks in order."""
    names = sys.argv[1:] or NAMES
    for name in names:
        if name not in NAMES + ALONE:
            sys.exit(f"unknown benchmark {name!r}: valid: {', '.join(NAMES + ALONE)}")
        import_module(f"benchmarks.{name}").main()


main()
