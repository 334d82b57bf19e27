"""Counting episodes into rounds."""

from __future__ import annotations

from remuda.core.plan import Plan


class RoundCounter:
    """Counts the episodes of a plan into its rounds."""

    def __init__(self, plan: Plan, complete: int = 0, episodes: int = 0) -> None:
        self._plan = plan
        self.complete = complete  # rounds with all their episodes
        self.episodes = episodes  # received of the next round

    @property
    def missing(self) -> int:
        """Episodes that the next round still needs."""
        return self._plan.episodes_in(self.complete + 1) - self.episodes

    def add(self, episodes: int) -> bool:
        """Count episodes of the next round, at most the missing ones; returns whether they complete it."""
        self.episodes += episodes
        if self.missing:
            return False
        self.complete, self.episodes = self.complete + 1, 0
        return True
