"""The recorder of a run: turns what happens in the loop into rows, tells the callbacks, and writes checkpoints."""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from remuda.core.policy import PolicyBinding
from remuda.core.rewards import GAME_RETURN
from remuda.core.saved_state import SavedState
from remuda.core.timeline import span
from remuda.engines.context import EngineContext
from remuda.engines.interfaces import LostRounds, Rows, StateSlices, TimeSpent, Update
from remuda.engines.loop import Loop
from remuda.engines.summary import EpisodeSummary
from remuda.learners.herd import bind_policy, weights_sha256
from remuda.learners.registry import find_learner
from remuda.runs import checkpoint
from remuda.runs.callbacks.base import Callback, Row, Training
from remuda.runs.callbacks.registry import callback_name
from remuda.runs.directory import RunDirectory

MAX_SAVES = 3
"""Times that saving is begun again because a learner was lost meanwhile."""
Snapshot = Callable[[Loop], tuple[dict[str, checkpoint.Arrays], Row]]
"""Takes the state of training: arrays by file, and the index."""


@dataclass
class EpisodeTotals:
    """Sums over some episodes, per group."""

    episodes: int = 0
    steps: int = 0
    returns: list[NDArray[np.float64]] = field(default_factory=list)  # (agents,)
    metrics: list[NDArray[np.float64]] = field(default_factory=list)  # (agents, metrics)

    def add(self, summaries: Sequence[EpisodeSummary]) -> None:
        """Add the episodes of one delivery, one summary per group."""
        if not self.returns:
            self.returns = [np.zeros(own.returns.shape[1]) for own in summaries]
            self.metrics = [np.zeros(own.metrics.shape[1:]) for own in summaries]
        self.episodes += len(summaries[0].origin.episodes)
        for g, own in enumerate(summaries):
            self.steps += int(own.steps.sum())
            self.returns[g] += own.returns.sum(axis=0)
            self.metrics[g] += own.metrics.sum(axis=0)


class ProcessTotals(SavedState):
    """What a worker used so far, over all starts of the run."""

    peak_memory_bytes: int = Field(0, ge=0)
    restarts: int = Field(0, ge=0)


class RecorderState(SavedState):
    """The part of the state of training that belongs to the recorder."""

    agent_steps: int = Field(0, ge=0)
    wall_s: float = Field(0.0, ge=0)
    cpu_s: float = Field(0.0, ge=0)
    peak_memory_bytes: int = Field(0, ge=0)
    learn_wall_s: float = Field(0.0, ge=0)
    learn_cpu_s: float = Field(0.0, ge=0)
    best: float | None = None
    evaluation: dict[str, Any] | None = None
    processes: dict[str, ProcessTotals] = Field(default_factory=dict)


class BackgroundWriter:
    """Does one piece of work after the other in a thread, so that training does not wait for the disk."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "save")
        self._under_way: Future[None] | None = None

    def submit(self, work: Callable[[], None]) -> None:
        """Start this once the last piece is done; an error of the last piece is raised here."""
        self.wait()
        self._under_way = self._pool.submit(work)

    def wait(self) -> None:
        """Wait until everything is on disk."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()

    def close(self) -> None:
        """Wait, and end the thread."""
        try:
            self.wait()
        finally:
            self._pool.shutdown()


class Recorder:
    """Listens to the loop. Callbacks get rows; checkpoints are written in the background."""

    def __init__(
        self,
        context: EngineContext,
        run: RunDirectory,
        callbacks: Sequence[Callback],
        request_stop: Callable[[str], None],
        snapshot: Snapshot,
    ) -> None:
        self.run, self.folder = run, run.path
        self.plan, self.spec, self.parts = context.plan, context.spec, context.parts
        self.bindings = [bind_policy(part, context.plan, context.spec, context.device) for part in context.parts]
        self.callbacks = callbacks
        self.learning = TimeSpent()
        self.best: float | None = None
        self.evaluation: Row | None = None
        self.steps = 0
        self._request_stop, self._snapshot = request_stop, snapshot
        self._before = RecorderState()
        self._totals: dict[int, EpisodeTotals] = {}  # by round
        self._lags_before: Counter[int] = Counter()
        self._began = time.perf_counter()
        self._cpu_began = _cpu_s()
        self._writer = BackgroundWriter()
        self._started: list[Callback] = []
        self.training: Training | None = None
        self._newest: Callable[[], Rows] | None = None  # gives the weights that were learned last
        self._evaluated = -1  # the newest round whose evaluation was told: after a rewind it is played again
        self._lost: LostRounds | None = None  # a callback asked for weights that were lost with their learner

    def start(self, rounds: int, settled: int) -> None:
        """Tell the callbacks that training starts after so many rounds."""
        of_game = dict.fromkeys(["return", *(name for group in self.spec.groups for name in group.metrics)])
        of_learners = [name for part in self.parts if part.learns for name in find_learner(part.player).metrics]
        self.training = Training(
            config=self.plan,
            run=self.run,
            rounds=rounds,
            settled=settled,
            agents=self.spec.agents,
            metrics=list(dict.fromkeys([*of_game, *of_learners])),
            evaluation_metrics=[*dict.fromkeys([*of_game, GAME_RETURN]), "return_se"],
            stop=self._request_stop,
            policies=self._newest_policies,
        )
        for callback in self.callbacks:
            self._started.append(callback)  # also one that fails on the way has something to close
            self._stop_if_false(callback, callback.start(self.training))
        self._began = time.perf_counter()

    @property
    def wall_s(self) -> float:
        """Seconds of training, without interruptions."""
        return self._before.wall_s + max(0.0, time.perf_counter() - self._began)  # a game may replace the clock

    def state(self, processes: dict[str, ProcessTotals]) -> RecorderState:
        """Everything that later rows and the result depend on."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return RecorderState(
            agent_steps=self.steps,
            wall_s=self.wall_s,
            cpu_s=self._before.cpu_s + _cpu_s() - self._cpu_began,
            peak_memory_bytes=max(self._before.peak_memory_bytes, peak),
            learn_wall_s=self.learning.wall,
            learn_cpu_s=self.learning.cpu,
            best=self.best,
            evaluation=self.evaluation,
            processes={**self._before.processes, **{n: self._with_before(n, own) for n, own in processes.items()}},
        )

    def _with_before(self, name: str, own: ProcessTotals) -> ProcessTotals:
        before = self._before.processes.get(name, ProcessTotals())
        return ProcessTotals(
            peak_memory_bytes=max(before.peak_memory_bytes, own.peak_memory_bytes),
            restarts=before.restarts + own.restarts,
        )

    def restore(self, state: RecorderState, lags: Counter[int]) -> None:
        """Go on from `state`; `lags` are those counted so far."""
        self._before, self._lags_before = state, lags.copy()
        self.steps, self.best, self.evaluation = state.agent_steps, state.best, state.evaluation
        self.learning = TimeSpent(state.learn_wall_s, state.learn_cpu_s)

    def rewound(self, round_: int) -> None:
        """Forget the episodes of later rounds: they come again."""
        self._totals = {number: totals for number, totals in self._totals.items() if number <= round_}

    def collected(self, round_: int, summaries: Sequence[EpisodeSummary]) -> None:
        """Count the episodes."""
        totals = self._totals.setdefault(round_, EpisodeTotals())
        totals.add(summaries)
        done = self.plan.episodes_after(round_ - 1) + totals.episodes
        steps = self.steps + sum(own.steps for own in self._totals.values())
        self._tell(lambda callback, training: callback.collected(training, done, steps))

    def learned(self, loop: Loop, update: Update) -> None:
        """One row per agent: what the round brought, and what the learners report."""
        totals = self._totals.pop(update.version)
        self.steps += totals.steps
        self.learning.add(update.spent)
        rows = self._rows(update.version, totals)
        for index, part in enumerate(self.parts):
            for name, values in update.metrics.get(index, {}).items():
                for i, value in enumerate(values):
                    rows[part.herd_first + i][name] = float(value)
        system = self._system_row(loop, update.version)
        self._newest = lambda: loop.trainers.rows() if update.rows is None else update.rows
        self._tell(lambda callback, training: callback.learned(training, *_rows_for(callback, rows, system)))

    def _tell(self, tell: Callable[[Callback, Training], bool | None]) -> None:
        """Tell every callback, each once: that learners are lost, which one of them may meet, is raised afterwards."""
        assert self.training is not None, "start() first"
        for callback in self.callbacks:
            with suppress(LostRounds):
                self._stop_if_false(callback, tell(callback, self.training))
        lost, self._lost = self._lost, None
        if lost is not None:
            raise lost

    def _stop_if_false(self, callback: Callback, answer: bool | None) -> None:
        if isinstance(answer, bool | np.bool_) and not answer:  # a comparison of numpy's numbers is no bool
            self._request_stop(f"callback {callback_name(callback)} returned False")

    def failed(self, message: str) -> None:
        """Tell the callbacks about a failure."""
        if self.training is not None:
            self._tell(lambda callback, training: callback.failed(training, message))

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

    def _rows(self, round_: int, totals: EpisodeTotals) -> list[Row]:
        rows: list[Row] = []
        # Rounds that were collected and not learned yet (lag 1) belong to the episodes of this row, too.
        steps = self.steps + sum(own.steps for number, own in self._totals.items() if number <= round_)
        players = [part.player for part in self.parts for _ in range(part.agents)]
        for g, group in enumerate(self.spec.groups):
            for agent in range(group.size):
                row: Row = {
                    "round": round_,
                    "episodes": self.plan.episodes_after(round_),
                    "agent_steps": steps,
                    "wall_s": self.wall_s,
                    "group": group.name,
                    "agent": len(rows),
                    "player": players[len(rows)],
                    "return": float(totals.returns[g][agent] / totals.episodes),
                }
                means = totals.metrics[g][agent] / totals.episodes
                row.update({name: float(m) for name, m in zip(group.metrics, means, strict=True)})
                rows.append(row)
        return rows

    def evaluated(self, rounds: int, acting: Update, results: Sequence[Sequence[EpisodeSummary]]) -> None:
        """Report the scores, once; keep the weights if they are the best so far."""
        if rounds <= self._evaluated:
            return
        totals = EpisodeTotals()
        for summaries in results:
            totals.add(summaries)
        rows = self._rows(rounds, totals)
        returns = [
            np.concatenate([summaries[g].returns for summaries in results])  # (episodes, agents)
            for g in range(len(self.spec.groups))
        ]
        errors = np.concatenate([standard_error(r) for r in returns])
        for row, error in zip(rows, errors, strict=True):
            row["return_se"] = float(error)
            row.setdefault(GAME_RETURN, row["return"])  # games without reward transforms pay what agents receive
        total = np.concatenate(returns, axis=1).sum(axis=1)
        self._keep_if_best(acting, float(total.mean()))  # first: weights of learners elsewhere may be lost
        self._evaluated = rounds
        self.evaluation = {
            "episodes": totals.episodes,
            "mean_return": [row["return"] for row in rows],
            "total_return": float(total.mean()),
            "total_return_se": _number(standard_error(total)),
        }
        scores = self.evaluation
        self._tell(lambda callback, training: callback.evaluated(training, *_rows_for(callback, rows, scores)))

    def _keep_if_best(self, acting: Update, score: float) -> None:
        if not np.isfinite(score) or (self.best is not None and score <= self.best):
            return
        index = {"version": acting.version, "total_return": score}
        files = {"policy": self.named(acting.rows or {})}
        self.best = score
        self._writer.submit(lambda: checkpoint.write(self.folder / "best", files, index))

    def save(self, loop: Loop) -> None:
        """Take a snapshot of the last complete round; it is written in the background, and the oldest is removed.

        Learners elsewhere write their own, and the loop waits for them: it has to place those again that are lost.
        """
        for _ in range(MAX_SAVES):
            self._writer.wait()
            with span("snapshot"):
                files, index = self._snapshot(loop)
            self._write(loop, files, index)
            if not isinstance(files["learner"], StateSlices):
                return
            with suppress(LostRounds):
                self._writer.wait()
                return
        raise LostRounds(f"learners were lost {MAX_SAVES} times while they were saved")

    def _write(self, loop: Loop, files: dict[str, checkpoint.Arrays], index: Row) -> None:
        episodes = self.plan.episodes_after(loop.rounds)

        def write() -> None:
            with span("save"):
                folder = self.folder / checkpoint.CHECKPOINTS
                path = folder / f"{episodes:09d}"
                checkpoint.write(path, files, index)
                for old in checkpoint.every(folder)[self.plan.keep_checkpoints :]:
                    checkpoint.remove(old)
                self._tell(lambda callback, training: callback.saved(training, path, episodes))

        self._writer.submit(write)

    def _newest_policies(self) -> Sequence[PolicyBinding]:
        """The herd with the weights that were learned last; before that, with those it holds."""
        if self._newest is not None:
            try:
                self.load(self._newest())
            except LostRounds as error:
                self._lost = error
                raise
        return self.bindings

    def load(self, rows: Rows) -> None:
        """Hold these weights, for the fingerprint."""
        for part, own in rows.items():
            self.bindings[part].policy.load(own, 0)

    def named(self, rows: Rows) -> checkpoint.Arrays:
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
        """Wait until everything that was saved is on disk."""
        self._writer.wait()

    def end(self, result: Row | None) -> None:
        """Tell every callback that was started that training ended."""
        started, self._started = self._started, []
        for callback in started:
            assert self.training is not None
            callback.end(self.training, result)

    def close(self) -> None:
        """End the thread, and the callbacks if they were not told yet."""
        try:
            self._writer.close()
        finally:
            self.end(None)


def _rows_for(callback: Callback, rows: Sequence[Row], row: Row) -> tuple[Sequence[Row], Row]:
    """The rows for a callback; a user's gets copies, which it may change."""
    return (rows, row) if callback.is_internal else ([own.copy() for own in rows], deepcopy(row))


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _number(value: NDArray[np.float64]) -> float | None:
    """For JSON, which has no nan."""
    return float(value) if np.isfinite(value) else None


def standard_error(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The standard error of the mean along the first axis; nan for a single value."""
    if len(values) < 2:
        return np.full(values.shape[1:], np.nan)
    error: NDArray[np.float64] = np.asarray(values.std(axis=0, ddof=1) / np.sqrt(len(values)))
    return error
