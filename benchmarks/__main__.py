"""`python -m benchmarks [NAME…] [--record]`: runs the named benchmarks, or all that take minutes.

With `--record`, what they print is kept, and `docs/benchmarks.md` is written anew.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from importlib import import_module

from benchmarks.results import recorded

NAMES = (
    "worlds", "collecting", "updates", "memory", "engines", "transport", "two_cores", "cage2", "cage2_training",
    "comparison", "peers", "rivals", "workflows", "workflow_search", "study_cores", "tournament", "sweeps",
    "ray_actors", "ray_learners", "board", "speed", "social", "stacking", "batch_sizes", "evaluations",
    "auto_shipped", "auto_foreign", "exactness",
)  # fmt: skip
ONLY_BY_NAME = ("soak", "yardsticks", "speed_learning")
"""These take an hour each and run only when named."""


def main() -> None:
    """Run the benchmarks in order."""
    record = "--record" in sys.argv
    names = [word for word in sys.argv[1:] if word != "--record"] or NAMES
    for name in names:
        if name not in NAMES + ONLY_BY_NAME:
            sys.exit(f"unknown benchmark {name!r}: valid: {', '.join(NAMES + ONLY_BY_NAME)}")
        with recorded(name) if record else nullcontext():
            import_module(f"benchmarks.{name}").main()


main()
