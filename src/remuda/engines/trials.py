"""Short trials of a plan on several engines, for `engine=auto`: each trains for a moment, and its rate is measured.

A trial is the real loop with the real collectors and trainers, of the plan's own networks, and nothing is written. Its
first rounds are not counted: they compile, fill replay buffers and find out how many threads are useful. Trials of all
candidates take turns, so that a machine that is busy for a moment slows all of them.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from remuda.core.errors import RemudaError, Stopped
from remuda.core.failures import SkippedUpdates, TaskFailure
from remuda.core.game import GameSpec
from remuda.core.plan import Plan
from remuda.core.task import InvalidSample
from remuda.core.threads import one_thread_each
from remuda.engines.collectors.warm_up import warm_up_request
from remuda.engines.context import EngineContext
from remuda.engines.interfaces import Update
from remuda.engines.loop import Loop
from remuda.engines.summary import EpisodeSummary
from remuda.engines.table import find_engine
from remuda.learners.herd import Part
from remuda.transport.heartbeat import Limits
from remuda.transport.worker_pool import WorkerPool

WARM_ROUNDS = 2
"""Rounds before the one that starts the clock: threads share worlds from the third on (`collectors/inline.py`)."""
MEASURED_ROUNDS = 2
MEASURED_S = 0.4
"""A trial measures until it has so many rounds and so many seconds."""
LONGEST_S = 4.0
"""A trial that is not done after so many seconds counts with the rounds it has: it is far from the fastest."""
GIVE_UP_S = 120.0
"""A trial without two rounds by then is given up: a game may hang. A learner's first round may compile for a while."""
ROUND_S = 0.7
"""Long episodes are cut so that a round takes about as long as this.

With 0.3, PPO in Harvest seemed to learn as fast on one thread as on two: minibatches were too small to be shared.
"""
FEWEST_TURNS = 10
"""The shortest episodes of a trial."""
PASSES = 2
STILL_CLOSE = 0.75
"""After the first pass, candidates below this share of the best rate are not measured again."""
UNLIMITED = 2**40


@dataclass(frozen=True, order=True)
class Candidate:
    """An engine with a number of workers: threads, or processes."""

    engine: str
    workers: int

    def __str__(self) -> str:
        return self.engine if self.engine == "sequential" else f"{self.engine} {self.workers}"


@dataclass(frozen=True)
class Subject:
    """What is measured: a plan whose engine is open, the shape of its game, and its herd."""

    plan: Plan
    spec: GameSpec
    parts: list[Part]
    device: str

    def with_turns(self, turns: int) -> Subject:
        """The same work per turn in episodes of at most so many turns."""
        if turns == self.spec.turns:
            return self
        share = turns / self.spec.turns
        rates = self.plan.updates_per_episode
        scaled = [rate * share for rate in rates] if isinstance(rates, list) else rates * share
        plan = self.plan.model_copy(update={"updates_per_episode": scaled})
        return replace(self, plan=plan, spec=replace(self.spec, turns=turns))

    def on(self, placement: Candidate) -> Plan:
        """The plan of a trial: it has no end, and neither evaluates nor saves."""
        options = {
            learner: {name: value for name, value in own.items() if name != "learning_starts"}
            for learner, own in self.plan.learner_options.items()
        }  # learning is to be measured, so it starts at once
        changes = {
            "engine": placement.engine, "n_workers": placement.workers, "deterministic": True,
            "learner_options": options, "total_episodes": UNLIMITED, "evaluate_every": 0,
            "checkpoint_every": UNLIMITED, "checkpoint_every_s": 1e9, "timeline": False, "max_failures": 0.0,
        }  # fmt: skip
        return self.plan.model_copy(update=changes)


def measure_placements(subject: Subject, candidates: Sequence[Candidate]) -> dict[Candidate, float]:
    """Episodes per second of each candidate, the median over its trials; those that cannot run are left out.

    Where episodes had to be cut, the rates are those of the cut episodes: only their ratios mean something.
    """
    rates: dict[Candidate, list[float]] = {}
    for number in range(PASSES):
        order = candidates if number % 2 == 0 else candidates[::-1]
        for placement in _close(order, rates) if number else order:
            rate = measure_once(subject, placement)
            if rate is not None:
                rates.setdefault(placement, []).append(rate)
            elif number:
                rates.pop(placement)
    return {placement: statistics.median(own) for placement, own in rates.items()}


def _close(order: Sequence[Candidate], rates: Mapping[Candidate, Sequence[float]]) -> list[Candidate]:
    """The candidates that may still turn out to be the fastest; none where there is no choice left."""
    medians = {placement: statistics.median(own) for placement, own in rates.items()}
    best = max(medians.values(), default=0.0)
    close = [placement for placement in order if medians.get(placement, 0.0) >= STILL_CLOSE * best]
    return close if len(close) > 1 else []


def short_enough(subject: Subject, placement: Candidate) -> tuple[Subject, float] | None:
    """The subject with episodes of which a round takes about ROUND_S, and seconds that a whole round takes; or None.

    None: no trial is possible, because the game raises or does not answer. Two probes tell what each turn costs from
    what each round costs.
    """
    turns, size = subject.spec.turns, subject.plan.round_episodes
    few = min(turns, FEWEST_TURNS)
    rate = measure_once(subject.with_turns(few), placement, rounds=1, seconds=0.0)
    if rate is None:
        return None
    few_s = size / rate
    more = min(turns, int(few * ROUND_S / few_s))
    if more <= few:
        return subject.with_turns(few), few_s * turns / few
    rate = measure_once(subject.with_turns(more), placement, rounds=1, seconds=0.0)
    if rate is None:
        return None
    turn_s = max(size / rate - few_s, 1e-9) / (more - few)
    fitting = few + int(max(0.0, ROUND_S - few_s) / turn_s)
    return subject.with_turns(min(turns, max(more, fitting))), few_s + turn_s * (turns - few)


def measure_once(
    subject: Subject, placement: Candidate, rounds: int = MEASURED_ROUNDS, seconds: float = MEASURED_S
) -> float | None:
    """Episodes per second in one trial; None if it failed.

    What runs in this process alone runs in a thread, which can be left behind if the game hangs. Processes are started
    by the caller's thread, since a fork server ends with the thread that started it.
    """
    clock = _Clock(subject.plan.round_episodes, rounds, seconds)
    if find_engine(placement.engine).processes:
        _run(subject, placement, clock)
        return clock.rate
    thread = threading.Thread(target=_run, args=(subject, placement, clock), daemon=True, name="trial")
    thread.start()
    try:
        thread.join(GIVE_UP_S + LONGEST_S)
    finally:
        clock.stopped = True  # also after Ctrl-C: the thread must not go on
    return None if thread.is_alive() else clock.rate


def _run(subject: Subject, placement: Candidate, clock: _Clock) -> None:
    """Train until the clock has measured enough. Whatever goes wrong will go wrong in training, which reports it."""
    plan = subject.on(placement)
    pool = WorkerPool(clock.check, limits=Limits.of(plan), warm_up_request=warm_up_request(subject.plan, subject.spec))
    context = EngineContext(plan, subject.spec, subject.parts, subject.device, clock.check, pool, Path())
    try:
        with one_thread_each():
            collectors, trainers = find_engine(placement.engine).build(context)
            first = Update(0, trainers.rows())
            Loop(plan, collectors, trainers, clock, _NoFailures(), clock.check, first).run()
    except Stopped:
        return
    except Exception:  # the game and the learner are the user's code
        clock.times.clear()
        clock.idle.clear()
    finally:
        pool.close()


@dataclass
class _Clock:
    """Listens to the loop of a trial: notes when each round was learned, and stops it when that is enough."""

    round_episodes: int
    rounds: int
    seconds: float
    times: list[float] = field(default_factory=list)  # when rounds were learned, from the first gradient step on
    idle: list[float] = field(default_factory=list)  # before it, while replay buffers are filled
    began: float = field(default_factory=time.perf_counter)
    stopped: bool = False

    @property
    def rate(self) -> float | None:
        """Episodes per second after the first rounds; None if there are too few."""
        times = self.times if len(self.times) > 1 else self.idle
        counted = times[min(WARM_ROUNDS, len(times) - 2) :] if len(times) > 1 else []
        return self.round_episodes * (len(counted) - 1) / (counted[-1] - counted[0]) if counted else None

    def check(self) -> None:
        """Raise Stopped once enough is measured, or too much time has passed."""
        if self.stopped or self._enough() or self._late():
            raise Stopped("measured")

    def _enough(self) -> bool:
        counted = self.times[WARM_ROUNDS:]
        return len(counted) > self.rounds and counted[-1] - counted[0] >= self.seconds

    def _late(self) -> bool:
        now, first = time.perf_counter(), (self.idle + self.times)[:1]
        two = len(self.times) > 1 or len(self.idle) > 1
        return now - self.began > GIVE_UP_S or (two and now - first[0] > LONGEST_S)

    def learned(self, loop: Loop, update: Update) -> None:
        """Note the time."""
        steps = loop.trainers.steps().values()
        (self.times if any(steps) or not steps else self.idle).append(time.perf_counter())

    def collected(self, round_: int, summaries: Sequence[EpisodeSummary]) -> None:
        """Nothing."""

    def rewound(self, round_: int) -> None:
        """Nothing."""

    def evaluated(self, rounds: int, acting: Update, results: Sequence[Sequence[EpisodeSummary]]) -> None:
        """Nothing."""

    def save(self, loop: Loop) -> None:
        """Nothing."""


class _NoFailures:
    """Ends a trial at its first failure."""

    def count(self, episodes: int, invalid_samples: Iterable[InvalidSample]) -> None:
        """Nothing."""

    def record(self, failure: TaskFailure) -> list[int]:
        """End it."""
        raise RemudaError(failure.message)

    def note_skipped_updates(self, skipped_updates: Sequence[SkippedUpdates]) -> None:
        """Nothing."""
