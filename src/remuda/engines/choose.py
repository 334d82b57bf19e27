"""Which engine runs a plan: resolving `auto`, refusing what an engine or this machine cannot do, and saying it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from remuda.core.errors import ConfigError
from remuda.core.game import GameSpec, StepCost
from remuda.core.machine import CpuClock, cores
from remuda.core.plan import Plan
from remuda.engines.collectors.ray.cluster import require_ray
from remuda.engines.collectors.warm_up import warm_up_request
from remuda.engines.context import EngineContext
from remuda.engines.rates import Rates, read_rates, write_rates
from remuda.engines.table import AUTO, ENGINES, find_engine
from remuda.engines.trials import FEWEST_TURNS, Candidate, Subject, measure_placements, short_enough
from remuda.engines.turn_cost import measure_turn
from remuda.games.registry import find_game
from remuda.learners.herd import Part, assign
from remuda.transport.processes import processes_forbidden, processes_unavailable
from remuda.transport.worker_pool import WorkerPool

PROCESSES_PAY_S = 10.0
"""Below so many seconds of playing in the whole run, starting worker processes would take longer than they save."""
SLOW_TURN_S = 0.001
"""Turns of one world in Python that take longer are for worker processes, also where a run is too short for trials."""
MEASURING_PAYS_S = 120.0
"""Shorter runs are not measured first: trials take ten to twenty seconds."""
FEW_ROUNDS = 16
"""Runs of fewer rounds of a compiled game are not even estimated."""
COSTLY_S = 2.0
"""Where making all worlds, or the shortest round of a trial, takes longer here, there are no trials: turns that cost so
much are for worker processes."""
WORTH_PROCESSES = 1.05
"""Worker processes take memory and time to start: they have to be faster than threads by this factor."""
MAX_WAITING_WORKERS = 64
TOLD = 3
"""Candidates whose rates are shown."""

Hook = Callable[[str], None]


def choose_engine(
    plan: Plan, spec: GameSpec, parts: list[Part] | None = None, on_trials: Hook = lambda text: None
) -> tuple[Plan, str]:
    """The plan with an engine in place of `auto`, and why that one; other plans as they are.

    The choice is among engines that wait by round, so that the weights do not depend on it. `parts` are those of the
    herd, if they are known already. `on_trials` is called before trials, with a line to show or an empty one.
    """
    if plan.engine != AUTO:
        return plan, ""
    subject = Subject(plan, spec, assign(plan, spec) if parts is None else parts, resolve_device(plan.device))
    placement, why = _best_placement(subject, on_trials)
    workers = plan.n_workers if placement.workers is None else placement.workers
    changes = {"engine": placement.engine, "n_workers": workers, "deterministic": True}
    return plan.model_copy(update=changes), f"engine: auto ({why})"


class Choice(NamedTuple):
    """An engine and a number of workers; None: as the plan says, or the engine's default."""

    engine: str
    workers: int | None = None


def _best_placement(subject: Subject, on_trials: Hook) -> tuple[Choice, str]:
    """The choice, and the reason: what is known without trials first, since they take seconds."""
    plan, spec = subject.plan, subject.spec
    entry = find_game(plan.game)
    if entry.step_cost_of(plan.options) is StepCost.BATCHED:
        tried = _by_trials(subject, on_trials) if plan.rounds >= FEW_ROUNDS else None
        return tried or (Choice("vectorized"), "the game plays many worlds at once")
    cost = measure_turn(entry, plan.options)
    seconds = cost.wall_s * spec.turns * plan.total_episodes if cost else 0.0
    if cost and seconds < PROCESSES_PAY_S:
        return Choice("vectorized"), f"playing takes at most {seconds:.1g} s in all, less than starting processes"
    if cost and seconds < MEASURING_PAYS_S and not cost.waits and cost.wall_s < SLOW_TURN_S:
        return Choice("vectorized"), f"playing takes at most {seconds:.0f} s in all: too short to measure more"
    cheap = cost and not cost.waits and plan.worlds * max(cost.make_s, cost.wall_s * FEWEST_TURNS) < COSTLY_S
    if cheap and seconds >= MEASURING_PAYS_S and (tried := _by_trials(subject, on_trials)):
        return tried
    if reason := _missing_processes(subject):
        return Choice("sequential"), f"worker processes cannot be started here: {reason}"
    if cost and cost.waits:
        share = max(cost.cpu_s / cost.wall_s, 1 / MAX_WAITING_WORKERS)
        workers = min(plan.worlds, max(cores(), math.ceil(cores() / share)), MAX_WAITING_WORKERS)
        return Choice("executor", plan.n_workers or workers), f"a turn takes {_duration(cost.wall_s)} and mostly waits"
    measured = f", {_duration(cost.wall_s)} a turn" if cost else ""
    return Choice("executor"), f"the game plays one world at a time{measured}"


def _by_trials(subject: Subject, on_trials: Hook) -> tuple[Choice, str] | None:
    """The fastest placement by short trials, or by those of an earlier run of the same shape; None if all fail."""
    plan, note = subject.plan, ""
    if plan.n_workers == 1:  # as in a study that runs side by side with others: trials would disturb them
        return Choice("vectorized"), "there is one worker"
    rates = kept = read_rates(subject)
    if rates is None:
        on_trials("")
        probed = short_enough(subject, _inline(plan)[-1])
        if probed is None:
            return None
        short, round_s = probed
        if (seconds := round_s * plan.rounds) < MEASURING_PAYS_S:
            return Choice("vectorized"), f"the run takes about {seconds:.0f} s: too short to measure more"
        on_trials("measuring which engine is the fastest for this plan (some seconds; the result is kept) …")
        measured, note = _measure(short)
        if not measured:
            return None
        rates = Rates.of(round_s, measured)
        if not note and _inline(plan)[0] in measured:  # later runs may be too short for processes
            write_rates(subject, rates)
    best = _worthwhile(rates)
    if kept and find_engine(best.engine).processes and (_is_short(kept, plan) or _missing_processes(subject)):
        rates = kept.without_processes()
        best = _worthwhile(rates)
    ranked = rates.ranked()
    told = ", ".join(f"{placement} {rate / ranked[0][1]:.2f}" for placement, rate in ranked[:TOLD])
    return Choice(best.engine, best.workers), f"in short trials, as shares of the fastest: {told}{note}"


def _measure(subject: Subject) -> tuple[dict[Candidate, float], str]:
    """The rates of all candidates, and a note if they should not be kept."""
    before, missing = CpuClock.now(), _missing_processes(subject)
    candidates = _inline(subject.plan) if missing else [*_inline(subject.plan), *_processes(subject.plan)]
    rates = measure_placements(subject, candidates)
    busy = CpuClock.now().disturbance_since(before)
    if missing:
        return rates, f"; worker processes cannot be started here: {missing}"
    return rates, f"; {busy}, so the next run measures again" if busy else ""


def _worthwhile(rates: Rates) -> Candidate:
    """The fastest placement, unless it has worker processes and threads are about as fast."""
    inline = max((rate for placement, rate in rates.ranked() if not find_engine(placement.engine).processes), default=0)
    for placement, rate in rates.ranked():
        if rate > WORTH_PROCESSES * inline or not find_engine(placement.engine).processes:
            return placement
    raise AssertionError("rates are of one placement or more")


def _is_short(rates: Rates, plan: Plan) -> bool:
    return rates.round_s * plan.rounds < MEASURING_PAYS_S


def _missing_processes(subject: Subject) -> str | None:
    """Why worker processes cannot be started here; None if they can."""
    return processes_unavailable(warm_up_request(subject.plan, subject.spec))


def _inline(plan: Plan) -> list[Candidate]:
    """Candidates in this process: one thread, and all cores."""
    return [Candidate("vectorized", count) for count in _counts(plan, cores())]


def _processes(plan: Plan) -> list[Candidate]:
    """Candidates with worker processes: for a game that plays many worlds at once only what has been the best now and
    then, since trials take time.
    """
    counts = _counts(plan, min(cores(), plan.worlds))
    executors = [Candidate("executor", count) for count in counts]
    batched = find_game(plan.game).step_cost_of(plan.options) is StepCost.BATCHED
    return executors[-1:] if batched else [*executors, Candidate("sync", counts[-1])]


def _counts(plan: Plan, useful: int) -> list[int]:
    """Numbers of workers to try: the plan's own, or one and as many as are useful."""
    return [plan.n_workers] if plan.n_workers else sorted({1, useful})


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
    """Lines to show before training: the engine that was chosen, and warnings.

    `n_learners` for an engine without learners of its own is no error: such an engine may continue a run that had them.
    """
    plan, processes = context.plan, len(context.worker_pool.workers)
    threads = 1 if plan.engine == "sequential" else context.workers
    if asked:
        yield f"{asked} → engine {plan.engine} ({_workers_in_words(context.worker_pool, threads)})"
    if plan.n_learners is not None and not find_engine(plan.engine).learners:
        users = " and ".join(engine.name for engine in ENGINES.values() if engine.learners)
        yield f"warning: engine={plan.engine} has no use for n_learners: only {users} have learners of their own"
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
    """`auto` is cuda where there is one; a device or a list of devices stays as it is."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return "cuda" if count else "cpu"
    for one in name.split(","):
        if one.startswith("cuda") and int(one.partition(":")[2] or 0) >= count:
            sees = f"only {count} CUDA devices" if count else "no CUDA device"
            raise ConfigError(f"device={name}: torch sees {sees} here; use device=cpu or auto")
    return name
