"""Predicts the rate of engines on other machines: simulates each engine's schedule with the times measured here.

The sleep of a turn is drawn from the sleeps that were measured. So if turns are uneven, an engine that waits for the
slowest world also waits here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import cycle

import numpy as np

from remuda.core import rng
from remuda.core.game import GameSpec
from remuda.core.machine import cores as cores_here
from remuda.core.plan import Plan
from remuda.core.ranges import split_evenly
from remuda.core.rng import Stream
from remuda.engines.collectors.ray.cluster import learner_share
from remuda.engines.collectors.task_size import TASKS_PER_WORKER, task_size
from remuda.engines.loop import MAX_ROUNDS_AHEAD
from remuda.learners.herd import assign
from remuda.learners.ppo.stacked import microbatch_count
from remuda.learners.registry import learner_options
from remuda.studies.compare.measure import VariantMeasurements
from remuda.studies.compare.simulated_machine import SimulatedMachine, SimulatedProcess, Sleep, Work
from remuda.studies.compare.turn_times import TurnTimes

ROUNDS = 12
"""Rounds that a simulation learns; the first quarter of them is not counted."""
EPISODES_PER_WORKER = 8
"""At least so many episodes are simulated per worker: with even turns all workers finish at the same time, in waves."""
DRAWS = 10_007
"""How many sleeps are drawn; then they repeat."""


class SimulatedEngine:
    """One engine on a simulated machine, collecting and learning with the measured times.

    There is a method for each engine; it adds the engine's processes to the machine.
    """

    def __init__(
        self, plan: Plan, spec: GameSpec, turns: TurnTimes, measured: VariantMeasurements, workers: int, cores: int
    ) -> None:
        self.plan, self.turns, self.workers, self.cores = plan, turns, workers, cores
        self.machine = SimulatedMachine(cores)
        self.collect_s, self.learn_s = measured.median("collect_cpu_s"), measured.median("learn_cpu_s")
        self.other_s = measured.median("other_cpu_s")
        self.round = plan.round_episodes
        self.learned: list[float] = []  # the time at which each round was learned
        learning = [part for part in assign(plan, spec) if part.learns]
        self.agents = max(1, sum(part.agents for part in learning))
        self.microbatch_count = 1  # how many threads can share one agent's learning
        if all(part.player == "ppo" for part in learning):
            rows = self.round * spec.turns
            steps = learner_options(plan, "ppo").steps_per_pass(rows)
            self.microbatch_count = microbatch_count(rows // steps)
        self.threads_here = min(cores_here(), measured.variant.workers)
        self._used_threads = measured.median("collect_cpu_s") / max(measured.median("collect_wall_s"), 1e-9)
        together = min(self.threads_here, self.agents * self.microbatch_count)
        used = measured.median("learn_cpu_s") / max(measured.median("learn_wall_s"), 1e-9)
        # Only an engine that learns while nothing else runs shows how well its learning threads are used.
        learns_alone = plan.engine == "sync" or (plan.engine == "vectorized" and plan.lag == 0)
        self._threads_busy = min(1.0, used / together) if learns_alone and together > 1 else 1.0  # the share of time
        drawn = rng.uniforms(rng.keys(rng.key(0, Stream.CHECK), np.arange(1)), DRAWS)[0]
        self._sleeps: Iterator[float] = cycle(turns.asleep_s[(drawn * len(turns.asleep_s)).astype(np.int64)].tolist())
        self._tasks: deque[int] = deque()  # episodes of each task that no worker has taken
        self._collected = 0  # episodes that are not learned yet
        self._in_progress = 0  # episodes of tasks that are not finished

    def rate(self) -> float:
        """Episodes per second, without the beginning of the simulation."""
        getattr(self, f"_{self.plan.engine.replace('-', '_')}")()
        rounds = ROUNDS + EPISODES_PER_WORKER * self.workers // self.round
        self.machine.run(lambda: len(self.learned) >= rounds)
        when = np.array(self.learned)
        first = when[len(when) // 4]
        later = when[when > first * (1 + 1e-9)]  # rounds learned at the same moment as `first` belong to the beginning
        return len(later) * self.round / float(later[-1] - first)

    def _draw_sleep(self) -> float:
        """The sleep of one turn, in seconds."""
        return next(self._sleeps)

    def _play(self, episodes: int) -> SimulatedProcess:
        """Play episodes in one process or thread; their worlds sleep one after another."""
        if not self.turns.any_sleep:
            yield Work(episodes * self.collect_s)
            return
        turns = round(self.turns.per_episode)
        for _ in range(turns):
            yield Work(episodes * self.collect_s / turns)
            yield Sleep(sum(self._draw_sleep() for _ in range(episodes)))

    def _run_together(self, jobs: Sequence[SimulatedProcess]) -> SimulatedProcess:
        """Run jobs at the same time, and wait for all of them."""
        left = [len(jobs)]

        def tracked(job: SimulatedProcess) -> SimulatedProcess:
            yield from job
            left[0] -= 1

        for job in jobs:
            self.machine.add(tracked(job))
        yield lambda: left[0] == 0

    def _collect(self, threads: int) -> SimulatedProcess:
        """Collect a round on a number of threads."""
        yield from self._run_together([self._play(last - first) for first, last in split_evenly(self.round, threads)])

    def _learn(self, threads: int) -> SimulatedProcess:
        """Learn a round on a number of threads."""
        threads = max(1, min(threads, self.agents * self.microbatch_count))
        seconds = self.round * self.learn_s / threads

        def part() -> SimulatedProcess:
            yield Work(seconds)
            if threads > 1:  # threads wait for each other, and for the interpreter
                yield Sleep(seconds * (1 / self._threads_busy - 1))

        yield from self._run_together([part() for _ in range(threads)])

    def _finish_round(self) -> SimulatedProcess:
        """Do the other work of a round: moving data and recording."""
        yield Work(self.round * self.other_s)
        self.learned.append(self.machine.now)

    def _other_work_in_background(self) -> SimulatedProcess:
        """Do the other work of every round in a process for which the engine does not wait."""
        done = 0
        while True:
            yield lambda: len(self.learned) > done  # noqa: B023
            done += 1
            yield Work(self.round * self.other_s)

    def _collect_threads(self) -> int:
        """How many threads collecting uses: all if turns sleep, else the share of them that was busy when measured."""
        limit = min(self.workers, self.plan.worlds)
        if self.turns.any_sleep:
            return limit
        if self._used_threads < 1.2 or self.threads_here < 2:
            return 1
        return max(1, min(limit, round(self._used_threads / self.threads_here * limit)))

    def _sequential(self) -> None:
        def loop() -> SimulatedProcess:
            while True:
                yield from self._play(self.round)
                yield from self._learn(1)
                yield from self._finish_round()

        self.machine.add(loop())

    def _by_round(self, threads: int) -> SimulatedProcess:
        """Collect on threads, then learn on threads, and so on."""
        while True:
            yield from self._collect(self._collect_threads())
            yield from self._learn(threads)
            yield from self._finish_round()

    def _vectorized(self) -> None:
        if self.plan.lag == 0 or self.workers == 1:
            self.machine.add(self._by_round(self.workers))
        else:
            self._threads()

    def _threads(self) -> None:
        """One thread collects rounds ahead, the others learn them."""
        ahead = self.plan.lag if self.plan.engine == "vectorized" else MAX_ROUNDS_AHEAD

        def collect() -> SimulatedProcess:
            while True:
                yield lambda: self._collected < (ahead + 1) * self.round
                yield from self._collect(max(1, min(self.workers // 4, self._collect_threads())))
                self._collected += self.round

        def learn() -> SimulatedProcess:
            while True:
                yield lambda: self._collected >= self.round
                yield from self._learn(self.workers)
                self._collected -= self.round
                yield from self._finish_round()

        self.machine.add(collect())
        self.machine.add(learn())

    def _sync(self) -> None:
        """Every turn all workers step, then one process computes all actions; `other_s` is mostly that."""
        workers = min(self.workers, max(self.plan.worlds, self.round))
        turns = max(1, round(self.turns.per_episode))
        waves = -(-self.round // self.plan.worlds)
        each = -(-min(self.round, self.plan.worlds) // workers)

        def step(episodes: int) -> SimulatedProcess:
            yield Work(episodes * self.collect_s / turns)
            if self.turns.any_sleep:
                yield Sleep(sum(self._draw_sleep() for _ in range(episodes)))

        def loop() -> SimulatedProcess:
            while True:
                busy = -(-min(self.round, self.plan.worlds) // each)
                for _ in range(waves * turns):
                    yield from self._run_together([step(each) for _ in range(busy)])
                    yield Work(self.round * self.other_s / (waves * turns))
                yield from self._learn(self.cores)
                self.learned.append(self.machine.now)

        self.machine.add(loop())

    def _start_workers(self, workers: int) -> int:
        """Start workers that take tasks; returns how many episodes may be in progress."""
        workers = min(workers, max(self.plan.worlds, self.round))
        size = task_size(self.plan, workers)

        def worker() -> SimulatedProcess:
            while True:
                yield lambda: bool(self._tasks)
                episodes = self._tasks.popleft()
                yield from self._play(episodes)
                self._collected += episodes
                self._in_progress -= episodes

        for _ in range(workers):
            self.machine.add(worker())
        self._task_size = size
        return size * workers * TASKS_PER_WORKER

    def _send_tasks(self, capacity: int) -> None:
        size, limit = self._task_size, capacity + MAX_ROUNDS_AHEAD * self.round
        while self._in_progress + size <= capacity and self._in_progress + self._collected + size <= limit:
            self._tasks.append(size)
            self._in_progress += size

    def _executor(self) -> None:
        """Workers play; one process sends tasks and learns, and sends none while it learns."""
        capacity = self._start_workers(self.workers)

        def loop() -> SimulatedProcess:
            while True:
                self._send_tasks(capacity)
                yield lambda: self._collected >= self.round or self._in_progress + self._task_size <= capacity
                if self._collected >= self.round:
                    yield from self._learn(self.cores)
                    self._collected -= self.round
                    if self.plan.engine == "ray":
                        self.learned.append(self.machine.now)
                    else:
                        yield from self._finish_round()

        self.machine.add(loop())

    def _ray(self) -> None:
        """As executor, or as actor-learner where learners are actors too.

        Ray's own processes do most of what is neither collecting nor learning.
        """
        if self.plan.n_learners is not None:
            self._actor_learner()
            return
        self._executor()
        self.machine.add(self._other_work_in_background())

    def _actor_learner(self) -> None:
        """Workers play; learner processes learn, each a slice of the herd."""
        capacity = self._start_workers(self.workers)
        asked = self.plan.n_learners
        spare = int(learner_share(self.cores)) if self.plan.engine == "ray" else self.cores - self.workers + 1
        learners = min(asked if isinstance(asked, int) else max(1, spare), self.agents)

        def send() -> SimulatedProcess:
            while True:
                self._send_tasks(capacity)
                yield (
                    lambda: (
                        self._in_progress + self._task_size <= capacity
                        and self._collected <= MAX_ROUNDS_AHEAD * self.round
                    )
                )

        def learn() -> SimulatedProcess:
            while True:
                yield lambda: self._collected >= self.round
                self._collected -= self.round

                def part() -> SimulatedProcess:
                    yield Work(self.round * self.learn_s / learners)

                yield from self._run_together([part() for _ in range(learners)])
                self.learned.append(self.machine.now)

        self.machine.add(send())
        self.machine.add(learn())
        self.machine.add(self._other_work_in_background())


def predict(
    plan: Plan, spec: GameSpec, turns: TurnTimes, measured: VariantMeasurements, workers: int, cores: int
) -> float:
    """Episodes per second of the measured engine with another number of workers and of cores."""
    return SimulatedEngine(measured.variant.plan(plan), spec, turns, measured, workers, cores).rate()


def ideal_rate(plan: Plan, turns: TurnTimes, measurements: Sequence[VariantMeasurements], cores: int) -> float:
    """Episodes per second if no process ever waited and no data had to be moved.

    All cores do the cheapest collecting and learning that was measured, and no world is faster than its sleeps allow.
    """
    measured = [one for one in measurements if one.trials]
    collect_s, learn_s = (min(one.median(name) for one in measured) for name in ("collect_cpu_s", "learn_cpu_s"))
    work = collect_s + learn_s
    by_cores = cores / work
    asleep = turns.per_episode * float(turns.asleep_s.mean())
    return min(by_cores, plan.worlds / asleep) if asleep else by_cores
