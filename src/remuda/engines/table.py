"""Engines: rows of a table, each a placement for either side and a rule of waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from remuda.core.errors import ConfigError, UnknownName
from remuda.core.game import GameSpec, Pace
from remuda.core.machine import cores
from remuda.core.plan import Plan
from remuda.core.policy import PolicyBinding
from remuda.engines.collectors.inline import InlineCollectors
from remuda.engines.collectors.lockstep import LockstepCollectors
from remuda.engines.collectors.pool import PoolCollectors, PoolConfig
from remuda.engines.collectors.ray.cluster import require_ray
from remuda.engines.collectors.ray.collectors import RayCollectors
from remuda.engines.collectors.task_size import TASKS_PER_WORKER, task_size
from remuda.engines.collectors.warm_up import warm_up_request
from remuda.engines.context import EngineContext
from remuda.engines.interfaces import Collectors, Trainers
from remuda.engines.trainers.inline import InlineTrainers
from remuda.engines.trainers.local import LocalTrainers
from remuda.engines.trainers.processes.trainers import ProcessTrainers
from remuda.engines.trainers.thread import ThreadTrainers
from remuda.games.registry import find_game
from remuda.learners.herd import Part, bind_policy, make_learners
from remuda.rollout.config import RolloutConfig
from remuda.transport.processes import processes_forbidden, processes_unavailable
from remuda.transport.worker_pool import WorkerPool

SLICES = 2
"""Slices per thread where a thread that has collected helps to learn: fewer leave it idle at the end, more are small.

Ten default IQNs in Treasurehunt on two cores, lag 1, one run each: 9,754 agent-steps/s with one, 10,587 with two,
7,844 with four.
"""


@dataclass(frozen=True)
class Engine:
    """One row of the table."""

    name: str
    collectors: str
    trainers: str
    waits_for: str
    build: Callable[[EngineContext], tuple[Collectors, Trainers]]
    free: bool = False  # nobody waits for a round, unless the plan says deterministic
    processes: bool = False  # whether it needs worker processes
    machines: bool = False  # whether it can use more than this one
    extra: str = ""  # what must be installed besides, as pip calls it: remuda[extra]
    deterministic: bool = True  # whether `deterministic: true` can be promised

    @property
    def hires(self) -> bool:
        """Whether its workers are processes of their own, of which there may be more than cores."""
        return self.processes or self.machines


def _sequential(context: EngineContext) -> tuple[Collectors, Trainers]:
    return _inline_collectors(context, 1, one_by_one=True), _trainers(InlineTrainers, context, 1, one_by_one=True)


def _vectorized(context: EngineContext) -> tuple[Collectors, Trainers]:
    """With lag 1 both sides work at once and share the cores, else they take turns on all of them."""
    if context.plan.lag == 0 or context.workers == 1:
        return _inline_collectors(context, context.workers), _trainers(InlineTrainers, context, context.workers)
    return _threads(context)


def _threads(context: EngineContext) -> tuple[Collectors, Trainers]:
    """One thread collects and learns when it has nothing to collect, the others learn."""
    return _inline_collectors(context, max(1, context.workers // 4)), _trainers(
        ThreadTrainers, context, context.workers
    )


def _sync(context: EngineContext) -> tuple[Collectors, Trainers]:
    shape = _shape(context, context.workers, central_inference=True, tasks_per_worker=1)
    pool = LockstepCollectors(*_pool(context), shape, context.worker_pool, wait_for=context.plan.wait_for)
    return pool, _trainers(InlineTrainers, context, cores())


def _executor(context: EngineContext) -> tuple[Collectors, Trainers]:
    pool = PoolCollectors(*_pool(context), _shape(context, context.workers), context.worker_pool)
    return pool, _trainers(InlineTrainers, context, cores())


def _actor_learner(context: EngineContext) -> tuple[Collectors, Trainers]:
    """Learners on the spare cores and one more, since actors wait now and then; an agent is never split.

    (Collecting is a fifth of the work of ten default IQNs in Treasurehunt, a ninth of a PPO's in CAGE 2.)
    """
    actors = context.plan.n_workers or max(1, cores() // 4)
    agents = sum(part.agents for part in context.parts if part.learns)
    learners = min(context.plan.n_learners or max(1, cores() - actors + 1), max(agents, 1))
    shape = _shape(context, actors, sync_interval=context.plan.sync_interval)
    pool = PoolCollectors(*_pool(context), shape, context.worker_pool)
    return pool, ProcessTrainers(pool.job, learners, context.worker_pool, context.folder, context.last_state)


def _ray(context: EngineContext) -> tuple[Collectors, Trainers]:
    pool = RayCollectors(
        context.plan,
        context.spec,
        context.parts,
        context.device,
        context.stop,
        lambda text: context.worker_pool.say(text),
    )
    return pool, _trainers(InlineTrainers, context, cores())


def _pool(context: EngineContext) -> tuple[Plan, GameSpec, list[Part], list[PolicyBinding], str]:
    bindings = [bind_policy(part, context.plan, context.spec, context.device) for part in context.parts]
    return context.plan, context.spec, context.parts, bindings, context.device


def _shape(context: EngineContext, workers: int, **how: Any) -> PoolConfig:
    """A worker's share of the worlds is a task, and a slot has room for it."""
    plan = context.plan
    workers = min(workers, max(plan.worlds, plan.round_episodes))
    size = task_size(plan, workers)
    per_round = -(-plan.round_episodes // size) + -(-plan.round_episodes // plan.worlds)
    slots = (2 + plan.lag) * per_round + how.get("tasks_per_worker", TASKS_PER_WORKER) * workers
    return PoolConfig(workers, size, slots, **how)


def _inline_collectors(context: EngineContext, threads: int, one_by_one: bool = False) -> Collectors:
    plan = context.plan
    return InlineCollectors(
        entry=find_game(plan.game),
        spec=context.spec,
        options=plan.options,
        bindings=[bind_policy(part, plan, context.spec, context.device) for part in context.parts],
        config=RolloutConfig.of(plan, one_by_one),
        threads=min(threads, plan.worlds),
        stop=context.stop,
    )


def _trainers(kind: type[LocalTrainers], context: EngineContext, threads: int, one_by_one: bool = False) -> Trainers:
    """Learners by part: a slice of the herd per thread, or several threads for a learner where agents are few."""
    agents = sum(part.agents for part in context.parts if part.learns)
    each = max(1, threads // max(agents, 1))
    slices = threads * SLICES if kind is ThreadTrainers else threads
    learners = {
        index: make_learners(
            part, context.plan, context.spec, context.device, part.agents if one_by_one else slices, each
        )
        for index, part in enumerate(context.parts)
        if part.learns
    }
    return kind(context.plan, learners, min(threads, max(agents, 1)))


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
    elif reason := processes_unavailable(warm_up_request(plan, spec)):
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


def engine_lines(context: EngineContext, asked: str) -> Iterator[str]:
    """Lines to say before training: which engine became of what was asked, and whether it is crowded."""
    plan, processes = context.plan, len(context.worker_pool.workers)
    threads = 1 if plan.engine == "sequential" else context.workers
    if asked:
        yield f"{asked} → engine {plan.engine} ({_hands(context.worker_pool, threads)})"
    workers = max(threads, processes)
    if (plan.n_workers or plan.n_learners) and workers > cores():
        idle = f" (this plan has work for {processes})" if 0 < processes < workers else ""
        yield (
            f"warning: {workers} workers on {cores()} cores{idle}: "
            "good for worlds that wait, slower for worlds that compute"
        )


def _hands(worker_pool: WorkerPool, threads: int) -> str:
    """Who works, e.g. 2 collecting and 1 learning processes."""
    kinds = Counter(worker.name.partition("-")[0] for worker in worker_pool.workers)
    if not kinds:
        return "1 thread" if threads == 1 else f"{threads} threads"
    who = " and ".join(f"{count} {kind}ing" for kind, count in kinds.items())
    return f"{who} {'process' if len(worker_pool.workers) == 1 else 'processes'}"


def resolve_device(name: str) -> str:
    """`auto` is cuda where there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device=cuda: torch sees no CUDA device here; use device=cpu or auto")
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name
