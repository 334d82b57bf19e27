"""Keeps the books of a run: what was collected, learned, evaluated and saved."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.errors import StorageError
from remuda.core.fragment import Fragment
from remuda.core.timeline import span
from remuda.engines.context import EngineContext
from remuda.engines.interfaces import Rows, TimeSpent, Update
from remuda.engines.loop import Loop
from remuda.learners.herd import bind_policy, weights_sha256
from remuda.learners.registry import LEARNERS
from remuda.runs import checkpoint
from remuda.runs.callbacks.progress import Progress
from remuda.runs.callbacks.tables import CsvTable, keep_rounds
from remuda.runs.callbacks.tensorboard import TensorBoard

Row = dict[str, Any]
SYSTEM = (
    "round", "episodes", "wall_s", "lag_mean", "lag_max", "episodes_dropped", "versions_published",
    "loop_waited_s", "collectors_waited_s", "learners_waited_s", "slots_used",
    "collect_wall_s", "collect_cpu_s", "learn_wall_s", "learn_cpu_s",
)  # fmt: skip


@dataclass
class EpisodeTotals:
    """Sums over the episodes of one round, per group."""

    episodes: int = 0
    steps: int = 0
    returns: list[NDArray[np.float64]] = field(default_factory=list)  # (agents,)
    metrics: list[NDArray[np.float64]] = field(default_factory=list)  # (agents, metrics)

    def add(self, fragments: Sequence[Fragment]) -> None:
        """Count what one task brought."""
        if not self.returns:
            self.returns = [np.zeros(f.returns.shape[1]) for f in fragments]
            self.metrics = [np.zeros(f.metrics.shape[1:]) for f in fragments]
        self.episodes += len(fragments[0].origin.episodes)
        for g, fragment in enumerate(fragments):
            self.steps += fragment.agent_steps
            self.returns[g] += fragment.returns.sum(axis=0)
            self.metrics[g] += fragment.metrics.sum(axis=0)


class Recorder:
    """Listens to the loop and writes the run directory."""

    def __init__(
        self,
        folder: Path,
        context: EngineContext,
        progress: Progress,
        callback: Callable[[list[Row]], bool | None] | None,
        request_stop: Callable[[], None],
    ) -> None:
        self.folder = folder
        self.plan, self.spec, self.parts = context.plan, context.spec, context.parts
        self.bindings = [bind_policy(part, context.plan, context.spec, context.device) for part in context.parts]
        self.progress = progress
        self.callback = callback
        self.request_stop = request_stop
        self.steps = 0
        self.learning = TimeSpent()
        self.wall_before = 0.0
        self.best: float | None = None
        self.evaluation: Row | None = None
        self._tallies: dict[int, EpisodeTotals] = {}
        self._lags_before: Counter[int] = Counter()
        self._began = time.perf_counter()
        self._outputs: list[CsvTable | TensorBoard] = []
        self._writer = checkpoint.Writer()

    def open(self, rounds: int, settled: int) -> None:
        """Open the tables to go on after so many rounds; rows of later ones will be written again."""
        games = [name for group in self.spec.groups for name in group.metrics]
        own = list(dict.fromkeys(["return", *games]))
        learned = [name for part in self.parts if part.learns for name in LEARNERS[part.player].metrics]
        with storage(self.folder):
            keep_rounds(self.folder / "metrics.csv", rounds)
            keep_rounds(self.folder / "evaluations.csv", settled)
            keep_rounds(self.folder / "system.csv", rounds)
            self._system = CsvTable(self.folder / "system.csv", SYSTEM, keys=())
            self._training = CsvTable(self.folder / "metrics.csv", list(dict.fromkeys([*own, *learned])))
            self._testing = CsvTable(self.folder / "evaluations.csv", [*own, "return_se"])
            later = self.plan.episodes_after(rounds) + 1
            self._board = TensorBoard(self.folder / "tensorboard", purge_step=later if rounds else None)
        self._outputs = [self._training, self._testing, self._system, self._board]
        self._began = time.perf_counter()

    @property
    def wall_s(self) -> float:
        """Seconds of training, interruptions left out."""
        return self.wall_before + time.perf_counter() - self._began

    def collected(self, round_: int, fragments: Sequence[Fragment]) -> None:
        """Count episodes."""
        tally = self._tallies.setdefault(round_, EpisodeTotals())
        tally.add(fragments)
        done = self.plan.episodes_after(round_ - 1) + tally.episodes
        self.progress.played(done, self.steps + sum(t.steps for t in self._tallies.values()))

    def learned(self, loop: Loop, update: Update) -> None:
        """One row per agent: what the round brought and what was learned from it."""
        tally = self._tallies.pop(update.version)
        self.steps += tally.steps
        self.learning.add(update.spent)
        rows = self._rows(update.version, tally)
        for index, part in enumerate(self.parts):
            for name, values in update.metrics.get(index, {}).items():
                for i, value in enumerate(values):
                    rows[part.herd_first + i][name] = float(value)
        with storage(self.folder):
            self._training.write(rows)
            self._board.write("train", rows)
            self._system.write([self._system_row(loop, update.version)])
        self.progress.learned(rows, update.spent)
        if self.callback is not None and self.callback(rows) is False:
            self.request_stop()

    def _system_row(self, loop: Loop, round_: int) -> Row:
        """How the engine is doing."""
        trainers, collectors = loop.trainers, loop.collectors
        lags = trainers.lags - self._lags_before
        self._lags_before = trainers.lags.copy()
        turns = sum(lags.values())
        return {
            "round": round_,
            "episodes": self.plan.episodes_after(round_),
            "wall_s": self.wall_s,
            "lag_mean": sum(lag * count for lag, count in lags.items()) / turns if turns else float("nan"),
            "lag_max": max(lags, default=0),
            "episodes_dropped": loop.dropped,
            "versions_published": trainers.versions_after(trainers.version),
            "loop_waited_s": trainers.waited_s,
            "collectors_waited_s": collectors.waited_s,
            "learners_waited_s": trainers.learners_waited_s,
            "slots_used": collectors.slots_used,
            "collect_wall_s": collectors.spent.wall,
            "collect_cpu_s": collectors.spent.cpu,
            "learn_wall_s": self.learning.wall,
            "learn_cpu_s": self.learning.cpu,
        }

    def _rows(self, round_: int, tally: EpisodeTotals) -> list[Row]:
        rows: list[Row] = []
        players = [part.player for part in self.parts for _ in range(part.agents)]
        for g, group in enumerate(self.spec.groups):
            for agent in range(group.size):
                row: Row = {
                    "round": round_,
                    "episodes": self.plan.episodes_after(round_),
                    "agent_steps": self.steps,
                    "wall_s": self.wall_s,
                    "group": group.name,
                    "agent": len(rows),
                    "player": players[len(rows)],
                    "return": float(tally.returns[g][agent] / tally.episodes),
                }
                means = tally.metrics[g][agent] / tally.episodes
                row.update({name: float(m) for name, m in zip(group.metrics, means, strict=True)})
                rows.append(row)
        return rows

    def evaluated(self, rounds: int, published: Update, results: Sequence[Sequence[Fragment]]) -> None:
        """Write the scores down; keep the weights if they are the best so far."""
        tally = EpisodeTotals()
        for fragments in results:
            tally.add(fragments)
        rows = self._rows(rounds, tally)
        returns = [
            np.concatenate([fragments[g].returns for fragments in results])  # (episodes, agents)
            for g in range(len(self.spec.groups))
        ]
        errors = np.concatenate([standard_error(r) for r in returns])
        for row, error in zip(rows, errors, strict=True):
            row["return_se"] = float(error)
        with storage(self.folder):
            self._testing.write(rows)
            self._board.write("evaluate", rows)
        total = np.concatenate(returns, axis=1).sum(axis=1)
        self.evaluation = {
            "episodes": tally.episodes,
            "mean_return": [row["return"] for row in rows],
            "total_return": float(total.mean()),
            "total_return_se": float(standard_error(total)),
        }
        self.progress.evaluated(self.evaluation)
        if np.isfinite(total.mean()) and (self.best is None or total.mean() > self.best):
            self.best = float(total.mean())
            facts = {"version": published.version, "total_return": self.best, **self.identity()}
            files = {"policy": self._named(published.rows or {})}
            self._writer.do(lambda: checkpoint.write(self.folder / "best", files, facts))

    def save(self, loop: Loop) -> None:
        """Take a snapshot of the last whole round; it is written in the background, and the oldest is forgotten."""
        self._writer.wait()
        with span("snapshot"):
            files, facts = self._snapshot(loop)

        def write() -> None:
            with span("save"):
                folder = self.folder / checkpoint.CHECKPOINTS
                checkpoint.write(folder / f"{facts['episodes']:09d}", files, facts)
                for old in sorted(folder.glob("[0-9]*"))[: -self.plan.keep_checkpoints]:
                    remove(old)
                self.progress.saved(facts["episodes"])

        self._writer.do(write)

    def _snapshot(self, loop: Loop) -> tuple[dict[str, checkpoint.Arrays], Row]:
        """Everything the next update depends on, in memory of its own."""
        spent = loop.collectors.spent
        facts = {
            **self.identity(),
            "rounds": loop.rounds,
            "settled": loop.settled,
            "episodes": self.plan.episodes_after(loop.rounds),
            "version": loop.trainers.version,
            "published": loop.published.version,
            "agent_steps": self.steps,
            "wall_s": self.wall_s,
            "collect": [spent.wall, spent.cpu],
            "learn": [self.learning.wall, self.learning.cpu],
            "waited_s": loop.trainers.waited_s,
            "unfinished": loop.unfinished,
            "set_aside": loop.failure_log.set_aside.copy(),
            "best": self.best,
            "evaluation": self.evaluation,
        }
        files: dict[str, checkpoint.Arrays] = {
            "learner": loop.trainers.state(),
            "policy": self._named(loop.trainers.rows()),
        }
        acting = loop.published.rows
        if loop.published.version != loop.trainers.version and acting is not None:
            files["acting"] = {str(part): rows for part, rows in acting.items()}
        return files, facts

    def identity(self) -> Row:
        """What a checkpoint must agree on to be of this run."""
        return {
            "game": self.plan.game,
            "players": [part.player for part in self.parts],
            "agents": self.spec.agents,
        }

    def load(self, rows: Rows) -> None:
        """Hold these rows, for the fingerprint."""
        for part, own in rows.items():
            self.bindings[part].policy.load(own, 0)

    def _named(self, rows: Rows) -> checkpoint.Arrays:
        """Weights of the learning agents, by agent and name."""
        return {
            f"{self.parts[part].herd_first + i}/{name}": array
            for part, own in rows.items()
            for i, arrays in enumerate(self.bindings[part].policy.named_arrays(own))
            for name, array in arrays.items()
        }

    def fingerprint(self) -> str:
        """The hash of the weights held."""
        return weights_sha256(binding.policy for binding in self.bindings)

    def wait(self) -> None:
        """Until everything that was saved is on disk."""
        self._writer.wait()

    def close(self) -> None:
        """Close every file; what a full disk did not take is lost anyway."""
        self._writer.close()
        for output in self._outputs:
            with suppress(OSError):
                output.close()


@contextmanager
def storage(folder: Path) -> Iterator[None]:
    """Turn what the disk says into a sentence."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{folder} could not be written ({checkpoint.storage_reason(error)})") from error


def standard_error(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of the mean along the first axis; nan for a single value."""
    if len(values) < 2:
        return np.full(values.shape[1:], np.nan)
    error: NDArray[np.float64] = np.asarray(values.std(axis=0, ddof=1) / np.sqrt(len(values)))
    return error


def remove(folder: Path) -> None:
    """Delete a checkpoint, its index first so that half of one is never taken for a whole."""
    if not folder.is_dir():  # nor ever was one
        folder.unlink()
        return
    with suppress(OSError):
        (folder / checkpoint.INDEX).unlink()
    shutil.rmtree(folder)
