"""When learner processes publish, and the log of who learned what when."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from remuda.core.plan import Plan
from remuda.engines.interfaces import RoundPiece
from remuda.engines.trainers.slices import AgentSlice

SCHEDULE = "schedule.jsonl"
"""The file of a run that says who learned what when."""


def batches(plan: Plan, incremental: bool, number: int, agent: int) -> list[int]:
    """An agent's updates in a round, in the batches after which they are published: one, unless incremental."""
    due = plan.updates_in(number, agent)
    size = plan.publish_interval if incremental else due + 1
    return [min(size, due - done) for done in range(0, max(due, 1), size)]


def publications(plan: Plan, incremental: bool, rounds: int, agent: int) -> int:
    """Versions that the learner of an agent has published after so many rounds, its first weights not counted."""
    return sum(len(batches(plan, incremental, number, agent)) for number in range(1, rounds + 1))


class ScheduleLog:
    """Writes what a replay needs: which versions played an episode, and which version each slice had when it took it.

    A log that cannot be replayed any more, because a learner process was lost or the log of a resumed run is not
    there, is deleted.
    """

    def __init__(self, folder: Path) -> None:
        self._path: Path | None = folder / SCHEDULE

    def begin(self, slices: Sequence[Sequence[AgentSlice]]) -> None:
        """Start the log of a new run."""
        if self._path is not None:
            self._path.write_text(json.dumps({"slices": slices}) + "\n", encoding="utf-8")

    def rewind(self, rounds: int) -> None:
        """Remove what was logged after the state of so many rounds was saved: it will be played and learned again."""
        if self._path is None:
            return
        mark = _saved_mark(rounds)
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
        except OSError:
            lines = []
        if mark not in lines:
            self.discard()
            return
        last = len(lines) - lines[::-1].index(mark)
        self._path.write_text("".join(lines[:last]), encoding="utf-8")

    def add(self, piece: RoundPiece, taken_at: Sequence[Sequence[int]]) -> None:
        """Log a piece that all slices have taken; `taken_at` is the version of each slice, per process."""
        if self._path is None:
            return
        fragments = piece.delivery.fragments
        versions = [[fragment.versions[turn].tolist() for fragment in fragments] for turn in range(fragments[0].turns)]
        entry: dict[str, Any] = {
            "episodes": piece.delivery.task.episodes,
            "worlds": (piece.worlds.start, piece.worlds.stop),
            "versions": [(turn, now) for turn, now in enumerate(versions) if turn == 0 or now != versions[turn - 1]],
            "taken_at": taken_at,
        }
        self._append(json.dumps(entry) + "\n")

    def mark_saved(self, rounds: int) -> None:
        """Log that the state of so many rounds holds everything up to here."""
        self._append(_saved_mark(rounds))

    def _append(self, line: str) -> None:
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line)

    def discard(self) -> None:
        """Delete the log, and log nothing more."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None


def _saved_mark(rounds: int) -> str:
    return json.dumps({"saved": rounds}) + "\n"
