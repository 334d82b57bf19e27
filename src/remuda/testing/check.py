"""One function for both conformance suites."""

from __future__ import annotations

from typing import Any

from remuda.adapters.inbound.factories import LIBRARIES
from remuda.core import session
from remuda.core.code_names import is_code_name, load_code
from remuda.core.learner import Learner
from remuda.learners.registry import learner_names
from remuda.testing.finding import Finding
from remuda.testing.game_conformance import check_game
from remuda.testing.learner_conformance import check_learner


def check(target: Any, **options: Any) -> list[Finding]:
    """Run the conformance suite on a game or a learner, with these options of its own.

    A game is given by name, entry or factory, a learner by name or class. What it raises becomes a finding.
    """
    return check_learner(target, **options) if _is_learner(target) else check_game(target, **options)


def _is_learner(target: Any) -> bool:
    if isinstance(target, str):
        if ":" not in target:
            return target in learner_names()
        if session.is_session_name(target) or not is_code_name(target) or target.partition(":")[0] in LIBRARIES:
            return False
        target = load_code(target, f"{target!r}")
    return isinstance(target, type) and issubclass(target, Learner)
