"""Building engines: one function per row of the table in `engines/table.py`, named after it."""

from __future__ import annotations

from typing import Any

from remuda.core.game import GameSpec
from remuda.core.machine import cores
from remuda.core.plan import Plan
from remuda.core.policy import PolicyBinding
from remuda.engines.collectors.inline import InlineCollectors
from remuda.engines.collectors.lockstep import LockstepCollectors
from remuda.engines.collectors.pool import PoolCollectors, PoolConfig
from remuda.engines.collectors.ray.collectors import RayCollectors
from remuda.engines.collectors.task_size import TASKS_PER_WORKER, task_size
from remuda.engines.context import EngineContext
from remuda.engines.interfaces import Collectors, Trainers
from remuda.engines.trainers.inline import InlineTrainers
from remuda.engines.trainers.local import LocalTrainers
from remuda.engines.trainers.processes.trainers import ProcessTrainers
from remuda.engines.trainers.ray.trainers import RayTrainers
from remuda.engines.trainers.thread import ThreadTrainers
from remuda.games.registry import find_game
from remuda.learners.devices import acting_device
from remuda.learners.herd import Part, bind_policy, make_learners
from remuda.rollout.config import RolloutConfig

SLICES_PER_THREAD = 2
"""Slices per thread where a thread that has collected helps to learn: fewer leave it idle at the end, more are small.

Ten default IQNs in Treasurehunt on two cores, lag 1, one run each: 9,754 agent-steps/s with one, 10,587 with two,
7,844 with four.
"""


def sequential(context: EngineContext) -> tuple[Collectors, Trainers]:
    """One world, one agent, one forward pass at a time."""
    return _inline_collectors(context, 1, one_by_one=True), _trainers(InlineTrainers, context, 1, one_by_one=True)


def vectorized(context: EngineContext) -> tuple[Collectors, Trainers]:
    """With lag 1 both sides work at once and share the cores, else they take turns on all of them."""
    if context.plan.lag == 0 or context.workers == 1:
        return _inline_collectors(context, context.workers), _trainers(InlineTrainers, context, context.workers)
    return threads(context)


def threads(context: EngineContext) -> tuple[Collectors, Trainers]:
    """One thread collects and learns when it has nothing to collect, the others learn."""
    return _inline_collectors(context, max(1, context.workers // 4)), _trainers(
        ThreadTrainers, context, context.workers
    )


def sync(context: EngineContext) -> tuple[Collectors, Trainers]:
    """Workers step worlds; this process chooses the actions of all worlds at once."""
    shape = _shape(context, context.workers, central_inference=True, tasks_per_worker=1)
    pool = LockstepCollectors(*_pool(context), shape, context.worker_pool, wait_for=context.plan.wait_for)
    return pool, _trainers(InlineTrainers, context, cores())


def executor(context: EngineContext) -> tuple[Collectors, Trainers]:
    """Workers play whole episodes; this process learns."""
    pool = PoolCollectors(*_pool(context), _shape(context, context.workers), context.worker_pool)
    return pool, _trainers(InlineTrainers, context, cores())


def actor_learner(context: EngineContext) -> tuple[Collectors, Trainers]:
    """Learners on the spare cores and one more, since actors wait now and then; an agent is never split.

    (Collecting is a fifth of the work of ten default IQNs in Treasurehunt, a ninth of a PPO's in CAGE 2.)
    """
    actors = context.plan.n_workers or max(1, cores() // 4)
    agents = sum(part.agents for part in context.parts if part.learns)
    asked = context.plan.n_learners
    learners = min(asked if isinstance(asked, int) else max(1, cores() - actors + 1), max(agents, 1))
    shape = _shape(context, actors, sync_interval=context.plan.sync_interval)
    pool = PoolCollectors(*_pool(context), shape, context.worker_pool)
    if not agents:
        return pool, _trainers(InlineTrainers, context, 1)
    return pool, ProcessTrainers(pool.job, learners, context.worker_pool, context.folder, context.last_state)


def ray(context: EngineContext) -> tuple[Collectors, Trainers]:
    """Ray actors play whole episodes; this process learns, or with `n_learners` Ray actors do."""
    pool = RayCollectors(
        context.plan,
        context.spec,
        context.parts,
        context.device,
        context.stop,
        lambda text: context.worker_pool.say(text),
    )
    agents = sum(part.agents for part in context.parts if part.learns)
    if context.plan.n_learners is None or not agents:
        return pool, _trainers(InlineTrainers, context, cores())
    return pool, RayTrainers(context, pool)


def _pool(context: EngineContext) -> tuple[Plan, GameSpec, list[Part], list[PolicyBinding], str]:
    bindings = [bind_policy(part, context.plan, context.spec, context.device) for part in context.parts]
    return context.plan, context.spec, context.parts, bindings, context.device


def _shape(context: EngineContext, workers: int, **how: Any) -> PoolConfig:
    """A worker's share of the worlds is a task, and a slot can hold it."""
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
        device=acting_device(context.device),
    )


def _trainers(kind: type[LocalTrainers], context: EngineContext, threads: int, one_by_one: bool = False) -> Trainers:
    """Learners by part: a slice of the herd per thread, or several threads for a learner where agents are few.

    Where nobody learns (all agents are scripted or frozen) the rounds are only counted, and no thread waits for them.
    """
    agents = sum(part.agents for part in context.parts if part.learns)
    if not agents:
        return InlineTrainers(context.plan, {})
    each = max(1, threads // max(agents, 1))
    slices = threads * SLICES_PER_THREAD if kind is ThreadTrainers else threads
    learners = {
        index: make_learners(
            part, context.plan, context.spec, context.device, part.agents if one_by_one else slices, each
        )
        for index, part in enumerate(context.parts)
        if part.learns
    }
    return kind(context.plan, learners, min(threads, max(agents, 1)))
