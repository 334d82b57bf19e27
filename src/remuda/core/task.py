"""Tasks: episodes to play, and reports about samples in them that cannot be learned from."""

from __future__ import annotations

from dataclasses import dataclass

from remuda.core.fragment import Purpose


@dataclass(frozen=True)
class Task:
    """Episodes to play, one per world. An episode's number decides its world and all of its randomness."""

    episodes: tuple[int, ...]
    purpose: Purpose = Purpose.TRAIN
    exploration: float | None = None  # as in PolicyInput

    def __str__(self) -> str:
        first, last = self.episodes[0], self.episodes[-1]
        return f"{self.purpose} " + (f"episode {first}" if first == last else f"episodes {first} to {last}")


@dataclass(frozen=True)
class InvalidSample:
    """A reward or observation, in one agent's episode, that is not finite or out of range."""

    purpose: Purpose
    episode: int
    world: int
    agent: int  # herd-wide number
    turn: int
    message: str

    def __str__(self) -> str:
        where = f"turn {self.turn} of {self.purpose} episode {self.episode}, world {self.world}"
        return f"{self.message} for agent {self.agent} in {where}"
