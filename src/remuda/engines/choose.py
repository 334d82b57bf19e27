"""Which engine runs a plan: resolving `auto`, refusing what an engine or this machine cannot do, and saying it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import torch

from remuda.core.errors import ConfigError
from remuda.core.game import GameSpec, StepCost
from remuda.core.machine import cores
from remuda.core.plan import Plan
from remuda.engines.collectors.ray.cluster import require_ray
from remuda.engines.collectors.warm_up import warm_up_request
from remuda.engines.context import EngineContext
from remuda.engines.table import AUTO, find_engine
from remuda.engines.turn_cost import measure_turn
from remuda.games.registry import find_game
from remuda.transport.processes import processes_forbidden, processes_unavailable
from remuda.transport.worker_pool import WorkerPool

PROCESSES_PAY_S = 10.0
"""Below so many seconds of playing in the whole run, starting worker processes would take longer than they save."""
MAX_WAITING_WORKERS = 64


def choose_engine(plan: Plan, spec: GameSpec) -> tuple[Plan, str]:
    """The plan with an engine in place of `auto`, and why that one; other plans as they are.

    The choice is among engines that wait by round, so that the weights do not depend on it.
    """
    if plan.engine != AUTO:
        return plan, ""
    engine, workers, why = _best_engine(plan, spec)
    changes = {"engine": engine, "n_workers": plan.n_workers or workers, "deterministic": True}
    return plan.model_copy(update=changes), f"engine: auto ({why})"


def _best_engine(plan: Plan, spec: GameSpec) -> tuple[str, int | None, str]:
    """An engine, a number of workers (None: its default), and the reason."""
    entry = find_game(plan.game)
    if entry.step_cost_of(plan.options) is StepCost.BATCHED:
        return "vectorized", None, "the game plays many worlds at once"
    cost = measure_turn(entry, plan.options)
    if cost and cost.wall_s * spec.turns * plan.total_episodes < PROCESSES_PAY_S:
        seconds = cost.wall_s * spec.turns * plan.total_episodes
        return "vectorized", None, f"playing takes about {seconds:.1g} s in all, less than starting processes"
    if reason := processes_unavailable(warm_up_request(plan, spec)):
        return "sequential", None, f"worker processes cannot be started here: {reason}"
    if cost and cost.waits:
        share = max(cost.cpu_s / cost.wall_s, 1 / MAX_WAITING_WORKERS)
        workers = min(plan.worlds, max(cores(), math.ceil(cores() / share)), MAX_WAITING_WORKERS)
        return "executor", workers, f"a turn takes {_duration(cost.wall_s)} and mostly waits"
    measured = f", {_duration(cost.wall_s)} a turn" if cost else ""
    return "executor", None, f"the game plays one world at a time{measured}"


def _duration(seconds: float) -> str:
    return f"{1000 * seconds:.2g} ms" if seconds < 0.0995 else f"{seconds:.2g} s"


def check_engine(plan: Plan) -> None:
    """Raise ConfigError if the engine cannot do what the plan asks, or cannot run on this machine."""
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
    """The error for an engine that cannot run on this machine."""
    return ConfigError(
        f"engine={plan.engine} cannot run here: {reason}; "
        "use fewer workers, or engine=vectorized, which needs no processes"
    )


def engine_lines(context: EngineContext, asked: str) -> Iterator[str]:
    """Lines to show before training: the engine that was chosen, and a warning if there are more workers than cores."""
    plan, processes = context.plan, len(context.worker_pool.workers)
    threads = 1 if plan.engine == "sequential" else context.workers
    if asked:
        yield f"{asked} → engine {plan.engine} ({_workers_in_words(context.worker_pool, threads)})"
    workers = max(threads, processes)
    if (plan.n_workers or plan.n_learners) and workers > cores():
        idle = f" (this plan has work for {processes})" if 0 < processes < workers else ""
        yield (
            f"warning: {workers} workers on {cores()} cores{idle}: "
            "good for worlds that wait, slower for worlds that compute"
        )


def _workers_in_words(worker_pool: WorkerPool, threads: int) -> str:
    """The workers in words, e.g. 2 collecting and 1 learning processes."""
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
