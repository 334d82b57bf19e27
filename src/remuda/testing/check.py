"""One function for both conformance suites."""

from __future__ import annotations

from typing import Any

from remuda.core.learner import Learner
from remuda.games.registry import user_module
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
        module, colon, name = target.partition(":")
        if not colon:
            return target in learner_names()
        try:
            target = getattr(user_module(module), name)
        except (ImportError, AttributeError, ValueError, TypeError):  # a library, or the suite for games will tell
            return False
    return isinstance(target, type) and issubclass(target, Learner)
