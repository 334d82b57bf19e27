"""Engines: rows of a table, each a placement for either side and a rule of waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from remuda.collect import Manner, Seat
from remuda.config import Plan
from remuda.errors import ConfigError, UnknownName
from remuda.game import GameSpec, Pace
from remuda.games import find_game
from remuda.herd import Part, make_learners, make_seat
from remuda.placement.base import Collectors, Trainers
from remuda.placement.inline import InlineCollectors, InlineTrainers
from remuda.placement.local import LocalTrainers
from remuda.placement.lockstep import LockstepCollectors
from remuda.placement.pool import AHEAD, PoolCollectors, Shape, task_size
from remuda.placement.processes import ProcessTrainers
from remuda.placement.ray import RayCollectors, require_ray
from remuda.placement.supervise import Crew, processes_forbidden, processes_unavailable
from remuda.placement.thread import ThreadTrainers
from remuda.placement.worker import script
from remuda.threads import cores

SLICES = 2
"""Slices per thread where a thread that has collected helps to learn: fewer leave it idle at the end, more are small.

Ten default IQNs in Treasurehunt on two cores, lag 1, one run each: 9,754 agent-steps/s with one, 10,587 with two,
7,844 with four.
"""


@dataclass(frozen=True)
class Site:
    """What an engine is built for."""

    plan: Plan
    spec: GameSpec
    parts: list[Part]
    device: str
    stop: Callable[[], None]  # raises Stopped once somebody asked for it
    crew: Crew
    folder: Path  # of the run

    @property
    def workers(self) -> int:
        """Threads or processes to use."""
        return self.plan.n_workers or cores()


@dataclass(frozen=True)
class Engine:
    """One row of the table."""

    name: str
    collectors: str
    trainers: str
    waits_for: str
    build: Callable[[Site], tuple[Collectors, Trainers]]
    free: bool = False  # nobody waits for a round, unless the plan says deterministic
    processes: bool = False  # whether it needs worker processes
    machines: bool = False  # whether it can use more than this one
    extra: str = ""  # what must be installed besides, as pip calls it: remuda[extra]
    deterministic: bool = True  # whether `deterministic: true` can be promised

    @property
    def hires(self) -> bool:
        """Whether its workers are processes of their own, of which there may be more than cores."""
        return self.processes or self.machines


def _sequential(site: Site) -> tuple[Collectors, Trainers]:
    return _inline_collectors(site, 1, one_by_one=True), _trainers(InlineTrainers, site, 1, one_by_one=True)


def _vectorized(site: Site) -> tuple[Collectors, Trainers]:
    """With lag 1 both sides work at once and share the cores, else they take turns on all of them."""
    if site.plan.lag == 0 or site.workers == 1:
        return _inline_collectors(site, site.workers), _trainers(InlineTrainers, site, site.workers)
    return _threads(site)


def _threads(site: Site) -> tuple[Collectors, Trainers]:
    """One thread collects and learns when it has nothing to collect, the others learn."""
    return _inline_collectors(site, max(1, site.workers // 4)), _trainers(ThreadTrainers, site, site.workers)


def _sync(site: Site) -> tuple[Collectors, Trainers]:
    shape = _shape(site, site.workers, asking=True, ahead=1)
    pool = LockstepCollectors(*_pool(site), shape, site.crew, wait_for=site.plan.wait_for)
    return pool, _trainers(InlineTrainers, site, cores())


def _executor(site: Site) -> tuple[Collectors, Trainers]:
    pool = PoolCollectors(*_pool(site), _shape(site, site.workers), site.crew)
    return pool, _trainers(InlineTrainers, site, cores())


def _actor_learner(site: Site) -> tuple[Collectors, Trainers]:
    """Learners on the spare cores and one more, since actors wait now and then; an agent is never split.

    (Collecting is a fifth of the work of ten default IQNs in Treasurehunt, a ninth of a PPO's in CAGE 2.)
    """
    actors = site.plan.n_workers or max(1, cores() // 4)
    agents = sum(part.agents for part in site.parts if part.learns)
    learners = min(site.plan.n_learners or max(1, cores() - actors + 1), max(agents, 1))
    shape = _shape(site, actors, sync_interval=site.plan.sync_interval)
    pool = PoolCollectors(*_pool(site), shape, site.crew)
    return pool, ProcessTrainers(pool.job, learners, site.crew, site.folder)


def _ray(site: Site) -> tuple[Collectors, Trainers]:
    pool = RayCollectors(site.plan, site.spec, site.parts, site.device, site.stop, lambda text: site.crew.say(text))
    return pool, _trainers(InlineTrainers, site, cores())


def _pool(site: Site) -> tuple[Plan, GameSpec, list[Part], list[Seat], str]:
    seats = [make_seat(part, site.plan, site.spec, site.device) for part in site.parts]
    return site.plan, site.spec, site.parts, seats, site.device


def _shape(site: Site, workers: int, **how: Any) -> Shape:
    """A worker's share of the worlds is a task, and a slot has room for it."""
    plan = site.plan
    workers = min(workers, max(plan.worlds, plan.round_episodes))
    size = task_size(plan, workers)
    per_round = -(-plan.round_episodes // size) + -(-plan.round_episodes // plan.worlds)
    slots = (2 + plan.lag) * per_round + how.get("ahead", AHEAD) * workers
    return Shape(workers, size, slots, **how)


def _inline_collectors(site: Site, threads: int, one_by_one: bool = False) -> Collectors:
    plan = site.plan
    return InlineCollectors(
        entry=find_game(plan.game),
        spec=site.spec,
        options=plan.options,
        seats=[make_seat(part, plan, site.spec, site.device) for part in site.parts],
        manner=Manner.of(plan, one_by_one),
        threads=min(threads, plan.worlds),
        stop=site.stop,
    )


def _trainers(kind: type[LocalTrainers], site: Site, threads: int, one_by_one: bool = False) -> Trainers:
    """Learners by part: a slice of the herd per thread, or several threads for a learner where agents are few."""
    agents = sum(part.agents for part in site.parts if part.learns)
    each = max(1, threads // max(agents, 1))
    slices = threads * SLICES if kind is ThreadTrainers else threads
    learners = {
        index: make_learners(part, site.plan, site.spec, site.device, part.agents if one_by_one else slices, each)
        for index, part in enumerate(site.parts)
        if part.learns
    }
    return kind(site.plan, learners, min(threads, max(agents, 1)))


ENGINES = {
    engine.name: engine
    for engine in (
        Engine(
            "sequential", "inline, one world, one agent at a time", "inline, one agent after another",
            "everything: the readable baseline, and the debugger", _sequential,
        ),
        Engine(
            "vectorized", "inline, all worlds at once, on threads",
            "inline, the herd stacked; with lag 1 in a thread beside the next round",
            "a round", _vectorized,
        ),
        Engine(
            "threads", "inline, all worlds at once", "in a thread, every train_interval epochs",
            "nothing while collecting", _threads, free=True,
        ),
        Engine(
            "sync", "worker processes, every turn together, one batched inference", "inline",
            "every world at every turn (wait_for below 1: the first that are ready)", _sync, processes=True,
        ),
        Engine(
            "executor", "worker processes, whole episodes as tasks", "inline",
            "the first episodes_per_update episodes, never the stragglers", _executor, free=True, processes=True,
        ),
        Engine(
            "actor-learner", "worker processes, without pause", "processes, a slice of the herd each",
            "nothing; weights are versioned, lag is bounded and reported", _actor_learner, free=True, processes=True,
            deterministic=False,
        ),
        Engine(
            "ray", "Ray actors on this machine or a cluster, whole episodes as tasks", "inline",
            "as executor", _ray, free=True, machines=True, extra="ray",
        ),
    )
}  # fmt: skip


AUTO = "auto"
AUTO_RULE = "vectorized where many worlds in one process are cheaper; else executor, or sequential without processes"


def find_engine(name: str) -> Engine:
    """The row of this name."""
    if name not in ENGINES:
        raise UnknownName("engine", name, [*ENGINES, AUTO])
    return ENGINES[name]


def choose_engine(plan: Plan, spec: GameSpec) -> tuple[Plan, str]:
    """The plan with an engine in place of `auto`, and why that one; other plans as they are."""
    if plan.engine != AUTO:
        return plan, ""
    if find_game(plan.game).pace_of(plan.options) is Pace.TOGETHER:
        engine, why = "vectorized", "the game plays many worlds at once"
    elif reason := processes_unavailable(script(plan, spec)):
        engine, why = "sequential", f"worker processes cannot be had here: {reason}"
    else:
        engine, why = "executor", "the game plays one world at a time"
    return plan.model_copy(update={"engine": engine}), f"engine: auto ({why})"


def check_engine(plan: Plan) -> None:
    """Raise where the plan asks of its engine what it cannot promise, or of this machine what it does not have."""
    engine = find_engine(plan.engine)
    if plan.deterministic and not engine.deterministic:
        raise ConfigError(
            f"engine={plan.engine} cannot promise deterministic=true: "
            "use engine=executor (in `parallel`: parallel_training: false), or drop it"
        )
    if engine.extra:
        require_ray()
    elif plan.address:
        raise ConfigError(f"address={plan.address} is for engine=ray, this is {plan.engine}: name one of them")
    if engine.processes and (reason := processes_forbidden()):
        raise cannot_run(plan, reason)


def cannot_run(plan: Plan, reason: str) -> ConfigError:
    """The error for an engine that was named and does not start."""
    return ConfigError(
        f"engine={plan.engine} cannot run here: {reason}; "
        "use fewer workers, or engine=vectorized, which needs no processes"
    )


def staffing(site: Site, asked: str) -> Iterator[str]:
    """Lines to say before training: which engine became of what was asked, and whether it is crowded."""
    plan, processes = site.plan, len(site.crew.workers)
    threads = 1 if plan.engine == "sequential" else site.workers
    if asked:
        yield f"{asked} → engine {plan.engine} ({_hands(site.crew, threads)})"
    workers = max(threads, processes)
    if (plan.n_workers or plan.n_learners) and workers > cores():
        idle = f" (this plan has work for {processes})" if 0 < processes < workers else ""
        yield (
            f"warning: {workers} workers on {cores()} cores{idle}: "
            "good for worlds that wait, slower for worlds that compute"
        )


def _hands(crew: Crew, threads: int) -> str:
    """Who works, e.g. 2 collecting and 1 learning processes."""
    kinds = Counter(worker.name.partition("-")[0] for worker in crew.workers)
    if not kinds:
        return "1 thread" if threads == 1 else f"{threads} threads"
    who = " and ".join(f"{count} {kind}ing" for kind, count in kinds.items())
    return f"{who} {'process' if len(crew.workers) == 1 else 'processes'}"


def resolve_device(name: str) -> str:
    """`auto` is cuda where there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device=cuda: torch sees no CUDA device here; use device=cpu or auto")
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name
