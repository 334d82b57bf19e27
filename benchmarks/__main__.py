"""`python -m benchmarks [NAME…]`: runs the named benchmarks, or all but the soak test."""

from __future__ import annotations

import sys
from importlib import import_module

NAMES = (
    "worlds", "collecting", "updates", "memory", "engines", "transport", "two_cores", "cage2", "cage2_training",
    "comparison", "peers", "rivals", "learning", "two_cores_learning", "cage2_learning", "workflows",
    "workflow_search", "study_cores", "ray_actors", "ray_learners", "board", "recall",
)  # fmt: skip
ONLY_BY_NAME = ("soak",)
"""These take an hour each and run only when named."""


def main() -> None:
    """Run the benchmarks in order."""
    names = sys.argv[1:] or NAMES
    for name in names:
        if name not in NAMES + ONLY_BY_NAME:
            sys.exit(f"unknown benchmark {name!r}: valid: {', '.join(NAMES + ONLY_BY_NAME)}")
        import_module(f"benchmarks.{name}").main()


main()
