"""Engines on machines we do not have: each engine's schedule, played out on simulated cores with measured times.

Whoever computes shares the cores equally; whoever sleeps takes none. How long turns sleep is drawn from those
that were seen, so that uneven turns make whoever waits for the slowest wait here, too.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core import rng
from remuda.core.game import GameSpec, make_game
from remuda.core.machine import cores as cores_here
from remuda.core.plan import Plan
from remuda.core.ranges import split_evenly
from remuda.core.rng import Stream
from remuda.core.task import Task
from remuda.core.threads import one_thread_each
from remuda.engines.collectors.task_size import TASKS_PER_WORKER, task_size
from remuda.engines.loop import MAX_ROUNDS_AHEAD
from remuda.games.registry import find_game
from remuda.learners.herd import assign
from remuda.learners.ppo.learner import microbatch_count
from remuda.learners.registry import learner_options
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout
from remuda.rollout.warm_up import random_bindings
from remuda.studies.compare.measure import VariantMeasurements

PROBE_S = 3.0
"""Seconds in which turns are watched."""
AWAKE_S = 0.0005
"""A turn that sleeps less does not: clocks and interruptions."""
ROUNDS = 12
"""Learned in a simulation; the first quarter of them is left out."""
WAVES = 8
"""Episodes of every worker in a simulation, at least: where turns are even they come in waves."""
MOST_EVENTS = 400_000
DRAWS = 10_007
"""Sleeps drawn; then they are the same again."""


@dataclass(frozen=True)
class TurnTimes:
    """How a world of a game spends its time."""

    per_episode: float
    asleep_s: NDArray[np.float64]  # of turns that were watched

    @property
    def sleepy(self) -> bool:
        """Whether worlds sleep at all."""
        return bool(self.asleep_s.any())


def probe(plan: Plan) -> TurnTimes:
    """Watch one world for a while, played by random hands: what it sleeps is its own business."""
    game = make_game(find_game(plan.game), plan.options, [0])
    rollout = Rollout(game, random_bindings(game), RolloutConfig.of(plan))
    asleep: list[float] = []
    turns: list[int] = []
    last = [0.0, 0.0]

    def before_turn() -> None:
        wall, cpu = time.perf_counter(), time.thread_time()
        if last[0]:
            asleep.append(max(0.0, (wall - last[0]) - (cpu - last[1])))
        last[:] = [wall, cpu]

    began, episode = time.monotonic(), 0
    with one_thread_each():
        while episode < 2 or time.monotonic() - began < PROBE_S:
            last[0] = 0.0
            rollout.start(Task((episode * plan.worlds,)))
            turns.append(rollout.play(rollout.empty_fragments(), before_turn)[0].turns)
            episode += 1
    seen = np.array(asleep or [0.0])
    seen[seen < AWAKE_S] = 0.0
    if np.count_nonzero(seen) < len(seen) / 20:  # somebody else was on the machine
        seen[:] = 0.0
    return TurnTimes(float(np.mean(turns)), seen)


@dataclass(frozen=True)
class Work:
    """Seconds of processor time."""

    seconds: float


@dataclass(frozen=True)
class Sleep:
    """Seconds without a processor."""

    seconds: float


Step = Work | Sleep | Callable[[], bool]
"""What somebody does next; a function: wait until it says yes."""
SimulatedProcess = Generator[Step, None, None]


class Machine:
    """Cores that whoever computes shares equally."""

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self.now = 0.0
        self._working: dict[SimulatedProcess, float] = {}
        self._sleeping: dict[SimulatedProcess, float] = {}
        self._waiting: dict[SimulatedProcess, Callable[[], bool]] = {}

    def add(self, actor: SimulatedProcess) -> None:
        """Have somebody begin."""
        self._go_on(actor)

    def _go_on(self, actor: SimulatedProcess) -> None:
        step = next(actor, None)
        if isinstance(step, Work):
            self._working[actor] = max(step.seconds, 1e-9)
        elif isinstance(step, Sleep):
            self._sleeping[actor] = max(step.seconds, 1e-9)
        elif step is not None:
            self._waiting[actor] = step

    def run(self, done: Callable[[], bool]) -> None:
        """Until it is done, or nobody can go on."""
        for _ in range(MOST_EVENTS):
            while ready := [actor for actor, test in self._waiting.items() if test()]:
                for actor in ready:
                    if self._waiting[actor]():  # still, after the others
                        del self._waiting[actor]
                        self._go_on(actor)
            if done() or not (self._working or self._sleeping):
                return
            self._pass_time()

    def _pass_time(self) -> None:
        speed = min(1.0, self.cores / max(len(self._working), 1))
        ends = [left / speed for left in self._working.values()] + list(self._sleeping.values())
        gone = min(ends)
        self.now += gone
        over = []
        for group, pace in ((self._working, speed), (self._sleeping, 1.0)):
            for actor in group:
                group[actor] -= gone * pace
                if group[actor] <= 1e-12:
                    over.append((group, actor))
        for group, actor in over:
            del group[actor]
            self._go_on(actor)


class SimulatedEngine:
    """One engine on one machine, playing and learning with the times that were measured."""

    def __init__(
        self, plan: Plan, spec: GameSpec, turns: TurnTimes, own: VariantMeasurements, workers: int, cores: int
    ) -> None:
        self.plan, self.turns, self.workers, self.cores = plan, turns, workers, cores
        self.machine = Machine(cores)
        self.collect_s, self.learn_s = own.median("collect_cpu_s"), own.median("learn_cpu_s")
        self.books_s = own.median("other_cpu_s")
        self.round = plan.round_episodes
        self.learned: list[float] = []  # when each round was
        learning = [part for part in assign(plan, spec) if part.learns]
        self.agents = max(1, sum(part.agents for part in learning))
        self.pieces = 1  # of one agent's learning that threads can share
        if all(part.player == "ppo" for part in learning):
            self.pieces = microbatch_count(self.round * spec.turns // learner_options(plan, "ppo").minibatches)
        self.threads_here = min(cores_here(), own.variant.workers)
        self._used_threads = own.median("collect_cpu_s") / max(own.median("collect_wall_s"), 1e-9)
        together = min(self.threads_here, self.agents * self.pieces)
        used = own.median("learn_cpu_s") / max(own.median("learn_wall_s"), 1e-9)
        alone = plan.engine == "sync" or (plan.engine == "vectorized" and plan.lag == 0)  # when it learns
        self._learning_together = min(1.0, used / together) if alone and together > 1 else 1.0  # threads that work
        drawn = rng.uniforms(rng.keys(rng.key(0, Stream.CHECK), np.arange(1)), DRAWS)[0]
        self._sleeps: Iterator[float] = cycle(turns.asleep_s[(drawn * len(turns.asleep_s)).astype(np.int64)].tolist())
        self._tasks: deque[int] = deque()  # episodes each
        self._played = 0  # episodes nobody has learned from
        self._out = 0  # episodes

    def rate(self) -> float:
        """Episodes per second once things have settled."""
        getattr(self, f"_{self.plan.engine.replace('-', '_')}")()
        rounds = ROUNDS + WAVES * self.workers // self.round
        self.machine.run(lambda: len(self.learned) >= rounds)
        when = np.array(self.learned)
        first = when[len(when) // 4]
        later = when[when > first * (1 + 1e-9)]  # others of that moment belong to what was before
        return len(later) * self.round / float(later[-1] - first)

    def _asleep(self) -> float:
        """A turn's sleep."""
        return next(self._sleeps)

    def _play(self, episodes: int) -> SimulatedProcess:
        """Episodes in one process or thread; worlds that sleep do so one after another."""
        if not self.turns.sleepy:
            yield Work(episodes * self.collect_s)
            return
        turns = round(self.turns.per_episode)
        for _ in range(turns):
            yield Work(episodes * self.collect_s / turns)
            yield Sleep(sum(self._asleep() for _ in range(episodes)))

    def _fork(self, jobs: Sequence[SimulatedProcess]) -> SimulatedProcess:
        """Have others do something, and wait for all of them."""
        left = [len(jobs)]

        def tracked(job: SimulatedProcess) -> SimulatedProcess:
            yield from job
            left[0] -= 1

        for job in jobs:
            self.machine.add(tracked(job))
        yield lambda: left[0] == 0

    def _collect(self, threads: int) -> SimulatedProcess:
        """A round, on so many threads."""
        yield from self._fork([self._play(last - first) for first, last in split_evenly(self.round, threads)])

    def _learn(self, threads: int) -> SimulatedProcess:
        """A round, on so many threads."""
        threads = max(1, min(threads, self.agents * self.pieces))
        seconds = self.round * self.learn_s / threads

        def part() -> SimulatedProcess:
            yield Work(seconds)
            if threads > 1:  # threads wait for each other, and for the interpreter
                yield Sleep(seconds * (1 / self._learning_together - 1))

        yield from self._fork([part() for _ in range(threads)])

    def _books(self) -> SimulatedProcess:
        yield Work(self.round * self.books_s)
        self.learned.append(self.machine.now)

    def _books_beside(self) -> SimulatedProcess:
        """In processes that nobody waits for."""
        kept = 0
        while True:
            yield lambda: len(self.learned) > kept  # noqa: B023
            kept += 1
            yield Work(self.round * self.books_s)

    def _collect_threads(self) -> int:
        """Threads that collecting makes use of: one where turns are short, more where it was seen to be so here."""
        most = min(self.workers, self.plan.worlds)
        if self.turns.sleepy:
            return most
        if self._used_threads < 1.2 or self.threads_here < 2:
            return 1
        return max(1, min(most, round(self._used_threads / self.threads_here * most)))

    def _sequential(self) -> None:
        def everything() -> SimulatedProcess:
            while True:
                yield from self._play(self.round)
                yield from self._learn(1)
                yield from self._books()

        self.machine.add(everything())

    def _by_round(self, threads: int) -> SimulatedProcess:
        """Collect on threads, learn on threads, by turns."""
        while True:
            yield from self._collect(self._collect_threads())
            yield from self._learn(threads)
            yield from self._books()

    def _vectorized(self) -> None:
        if self.plan.lag == 0 or self.workers == 1:
            self.machine.add(self._by_round(self.workers))
        else:
            self._threads()

    def _threads(self) -> None:
        """One side plays rounds ahead, the other learns them."""
        ahead = self.plan.lag if self.plan.engine == "vectorized" else MAX_ROUNDS_AHEAD

        def collect() -> SimulatedProcess:
            while True:
                yield lambda: self._played < (ahead + 1) * self.round
                yield from self._collect(max(1, min(self.workers // 4, self._collect_threads())))
                self._played += self.round

        def learn() -> SimulatedProcess:
            while True:
                yield lambda: self._played >= self.round
                yield from self._learn(self.workers)
                self._played -= self.round
                yield from self._books()

        self.machine.add(collect())
        self.machine.add(learn())

    def _sync(self) -> None:
        """Every turn all workers step, then one process thinks for all of them; its books are mostly that."""
        workers = min(self.workers, max(self.plan.worlds, self.round))
        turns = max(1, round(self.turns.per_episode))
        waves = -(-self.round // self.plan.worlds)
        each = -(-min(self.round, self.plan.worlds) // workers)

        def step(episodes: int) -> SimulatedProcess:
            yield Work(episodes * self.collect_s / turns)
            if self.turns.sleepy:
                yield Sleep(sum(self._asleep() for _ in range(episodes)))

        def everything() -> SimulatedProcess:
            while True:
                busy = -(-min(self.round, self.plan.worlds) // each)
                for _ in range(waves * turns):
                    yield from self._fork([step(each) for _ in range(busy)])
                    yield Work(self.round * self.books_s / (waves * turns))
                yield from self._learn(self.cores)
                self.learned.append(self.machine.now)

        self.machine.add(everything())

    def _hands(self, workers: int) -> int:
        """Have workers take tasks; returns how many episodes may be out."""
        workers = min(workers, max(self.plan.worlds, self.round))
        size = task_size(self.plan, workers)

        def hand() -> SimulatedProcess:
            while True:
                yield lambda: bool(self._tasks)
                episodes = self._tasks.popleft()
                yield from self._play(episodes)
                self._played += episodes
                self._out -= episodes

        for _ in range(workers):
            self.machine.add(hand())
        self._size = size
        return size * workers * TASKS_PER_WORKER

    def _deal(self, capacity: int) -> None:
        most = capacity + MAX_ROUNDS_AHEAD * self.round
        while self._out + self._size <= capacity and self._out + self._played + self._size <= most:
            self._tasks.append(self._size)
            self._out += self._size

    def _executor(self) -> None:
        """Workers play, one process deals and learns; while it learns nobody deals."""
        capacity = self._hands(self.workers)

        def loop() -> SimulatedProcess:
            while True:
                self._deal(capacity)
                yield lambda: self._played >= self.round or self._out + self._size <= capacity
                if self._played >= self.round:
                    yield from self._learn(self.cores)
                    self._played -= self.round
                    if self.plan.engine == "ray":
                        self.learned.append(self.machine.now)
                    else:
                        yield from self._books()

        self.machine.add(loop())

    def _ray(self) -> None:
        """The same; but most of what is neither collecting nor learning is done by Ray's own processes."""
        self._executor()
        self.machine.add(self._books_beside())

    def _actor_learner(self) -> None:
        """Workers play, others learn, each a part of the herd."""
        capacity = self._hands(self.workers)
        learners = min(max(1, self.cores - self.workers + 1), self.agents)

        def deal() -> SimulatedProcess:
            while True:
                self._deal(capacity)
                yield lambda: self._out + self._size <= capacity and self._played <= MAX_ROUNDS_AHEAD * self.round

        def learn() -> SimulatedProcess:
            while True:
                yield lambda: self._played >= self.round
                self._played -= self.round

                def part() -> SimulatedProcess:
                    yield Work(self.round * self.learn_s / learners)

                yield from self._fork([part() for _ in range(learners)])
                self.learned.append(self.machine.now)

        self.machine.add(deal())
        self.machine.add(learn())
        self.machine.add(self._books_beside())


def predict(plan: Plan, spec: GameSpec, turns: TurnTimes, own: VariantMeasurements, workers: int, cores: int) -> float:
    """Episodes per second of an engine with so many workers on so many cores like ours."""
    wanted: dict[str, Any] = {"engine": own.variant.engine}
    return SimulatedEngine(plan.model_copy(update=wanted), spec, turns, own, workers, cores).rate()


def ideal(plan: Plan, turns: TurnTimes, figures: Sequence[VariantMeasurements], cores: int) -> float:
    """Episodes per second if nobody ever waited and nothing were ever moved.

    Cores full of the cheapest collecting and learning that were seen; and no world plays faster than it sleeps.
    """
    measured = [own for own in figures if own.trials]
    work = min(own.median("collect_cpu_s") for own in measured) + min(own.median("learn_cpu_s") for own in measured)
    by_cores = cores / work
    asleep = turns.per_episode * float(turns.asleep_s.mean())
    return min(by_cores, plan.worlds / asleep) if asleep else by_cores
