"""Tasks: episodes to play, and samples in them that nobody can learn from."""

from __future__ import annotations

from dataclasses import dataclass

from remuda.core.fragment import Purpose


@dataclass(frozen=True)
class Task:
    """Episodes to play; each decides its own world and all of its chance."""

    episodes: tuple[int, ...]
    purpose: Purpose = Purpose.TRAIN
    exploration: float | None = None  # see Sight

    def __str__(self) -> str:
        first, last = self.episodes[0], self.episodes[-1]
        return f"{self.purpose} " + (f"episode {first}" if first == last else f"episodes {first} to {last}")


@dataclass(frozen=True)
class InvalidSample:
    """Numbers nobody can learn from, in an agent's episode."""

    purpose: Purpose
    episode: int
    world: int
    agent: int  # herd-wide number
    turn: int
    what: str

    def __str__(self) -> str:
        where = f"turn {self.turn} of {self.purpose} episode {self.episode}, world {self.world}"
        return f"{self.what} for agent {self.agent} in {where}"
