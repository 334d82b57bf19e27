"""An actor-learner run once more, in one process: the schedule it logged decides who plays and learns what when."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.collect import Manner, Player, Players, Task
from remuda.errors import RunError
from remuda.fragment import Fragment, cut
from remuda.games import find_game
from remuda.herd import assign, make_learner, make_seat, weights_sha256
from remuda.placement.processes import SCHEDULE, Slice, batches
from remuda.run import Run
from remuda.threads import one_thread_each


@dataclass(frozen=True)
class Entry:
    """Some worlds of a task: which versions played them, and where each slice stood when it took them."""

    episodes: tuple[int, ...]
    worlds: tuple[int, int]
    versions: dict[int, list[list[int]]]  # by turn, where they change: per group and agent
    taken_at: list[int]  # per slice


def replay(path: Path | str) -> str:
    """Play and learn everything again as the run's schedule says; returns the weights' fingerprint."""
    run = Run(path)
    with one_thread_each():
        return Replay(run, *_read(run.path / SCHEDULE)).run()


def _read(path: Path) -> tuple[list[Slice], list[Entry]]:
    """The slices of the herd, learner after learner, and what happened."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        slices = [tuple(own) for learner in json.loads(lines[0])["slices"] for own in learner]
        return slices, [_entry(json.loads(line)) for line in lines[1:]]
    except OSError:
        raise RunError(f"{path.parent} has no schedule to replay: train with log_schedule=true") from None
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise RunError(f"{path} is not a schedule: {error!r}") from None


def _entry(values: dict[str, Any]) -> Entry:
    return Entry(
        tuple(values["episodes"]),
        (int(values["worlds"][0]), int(values["worlds"][1])),
        {int(turn): versions for turn, versions in values["versions"]},
        [int(version) for worker in values["taken_at"] for version in worker],
    )


class Replay:
    """One process that is all the actors and all the learners of a run, one after the other."""

    def __init__(self, run: Run, slices: list[Slice], entries: list[Entry]) -> None:
        plan, spec = run.plan, run.spec
        self.plan, self.spec, self.slices, self.entries = plan, spec, slices, entries
        self.parts = assign(plan, spec)
        self.seats = [make_seat(part, plan, spec, "cpu") for part in self.parts]
        self.learners = [make_learner(self.parts[p], plan, spec, "cpu", (a, b)) for p, a, b in slices]
        self.rows = [{0: learner.rows()} for learner in self.learners]  # per slice, by version
        self.versions = [0] * len(slices)
        manner = Manner.of(plan)
        self.players = Players(
            find_game(plan.game), plan.options, manner, lambda game: Player(game, self.seats, manner)
        )
        self._have = 0
        self._round = 0

    def run(self) -> str:
        """Everything, in order."""
        needed = self._needed()
        for entry, least in zip(self.entries, needed, strict=True):
            self._learn(entry, self._play(entry))
            for kept, version in zip(self.rows, least, strict=True):
                for old in [v for v in kept if v < version]:
                    del kept[old]
        for part, rows in self._newest().items():
            self.seats[part].policy.load(rows, 0)
        return weights_sha256(seat.policy for seat in self.seats)

    def _needed(self) -> list[list[int]]:
        """After each entry, the oldest version of every slice that anybody still plays with."""
        least: list[list[int]] = []
        now = [np.iinfo(np.int64).max] * len(self.slices)
        for entry in reversed(self.entries):
            least.append(now)
            used = [self._of_slices(versions) for versions in entry.versions.values()]
            now = [min(column) for column in zip(now, *used, strict=True)]
        return least[::-1]

    def _of_slices(self, versions: list[list[int]]) -> list[int]:
        """The version each slice had, from those of groups and agents."""
        return [versions[self.parts[p].group][self.parts[p].first + a] for p, a, _ in self.slices]

    def _play(self, entry: Entry) -> list[Fragment]:
        player = self.players.begin(Task(entry.episodes))
        turns: Iterator[int] = iter(range(self.spec.turns))

        def before_turn() -> None:
            versions = entry.versions.get(next(turns))
            if versions is not None:
                self._load(self._of_slices(versions))

        return player.play(player.room(), before_turn)

    def _load(self, versions: list[int]) -> None:
        rows: dict[int, list[NDArray[np.float32]]] = {}
        for (part, _, _), kept, version in zip(self.slices, self.rows, versions, strict=True):
            if version not in kept:
                raise RunError(f"the schedule plays with a version that nobody has learned by then: {version}")
            rows.setdefault(part, []).append(kept[version])
        for part, own in rows.items():
            self.seats[part].policy.load(np.concatenate(own), 0)

    def _learn(self, entry: Entry, fragments: list[Fragment]) -> None:
        """Let every slice take its part when it did, and make the round's updates when it is whole."""
        for index, learner in enumerate(self.learners):
            while self.versions[index] < entry.taken_at[index]:
                self._update(index, self.plan.publish_interval)
            learner.take(cut(fragments[learner.post.group_index], slice(*entry.worlds)))
        self._have += entry.worlds[1] - entry.worlds[0]
        if self._have == self.plan.episodes_after(self._round + 1) - self.plan.episodes_after(self._round):
            self._round, self._have = self._round + 1, 0
            for index in range(len(self.learners)):
                self._learn_round(index)

    def _learn_round(self, index: int) -> None:
        for count in batches(self.plan, self.learners[index].piecemeal, self._round):
            self._update(index, count)

    def _update(self, index: int, count: int) -> None:
        self.learners[index].update(count)
        self.versions[index] += 1
        self.rows[index][self.versions[index]] = self.learners[index].rows()

    def _newest(self) -> dict[int, NDArray[np.float32]]:
        rows: dict[int, list[NDArray[np.float32]]] = {}
        for (part, _, _), learner in zip(self.slices, self.learners, strict=True):
            rows.setdefault(part, []).append(learner.rows())
        return {part: np.concatenate(own) for part, own in rows.items()}
