"""Training: from settings to a finished run, or on from a checkpoint."""

from __future__ import annotations

import fcntl
import os
import re
import resource
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from pydantic import ConfigDict, Field, ValidationError

from remuda.core import timeline
from remuda.core.errors import CheckpointError, ConfigError, RunError, Stopped, first_line
from remuda.core.kernels import is_cached, source_file
from remuda.core.options import Options
from remuda.core.plan import Plan
from remuda.core.threads import keep_freed_memory, one_thread_each
from remuda.core.yamlfile import write_yaml
from remuda.engines.collectors.warm_up import warm_up_request
from remuda.engines.context import EngineContext
from remuda.engines.interfaces import Collectors, Trainers, Update
from remuda.engines.loop import Loop
from remuda.engines.table import cannot_run, check_engine, choose_engine, engine_lines, find_engine, resolve_device
from remuda.games.registry import AnyGame, find_game, refuse_while_importing
from remuda.learners.herd import assign, parameters, tolerated_lag
from remuda.rollout.warm_up import warm_up
from remuda.runs import checkpoint
from remuda.runs.callbacks.progress import Progress
from remuda.runs.callbacks.tables import read_table
from remuda.runs.failure_log import FailureLog
from remuda.runs.film import draw
from remuda.runs.frozen import load_frozen
from remuda.runs.limits import REMEDY, check_limits, memory_needed
from remuda.runs.recorder import Recorder, Row, remove, storage
from remuda.runs.run import CONFIG, RESULT, Run, to_json
from remuda.runs.settings import make_plan, spec_of
from remuda.transport.heartbeat import Limits
from remuda.transport.processes import refuse_inside_workers, start_failure
from remuda.transport.worker_pool import WorkerPool

Callback = Callable[[list[Row]], bool | None]
LOCK = ".lock"


def train(
    game: AnyGame | None = None,
    *,
    out: Path | str | None = None,
    callback: Callback | None = None,
    quiet: bool = False,
    **settings: Any,
) -> Run:
    """Train a herd and return its run.

    `game` is a name, a GameEntry, or a class or function that makes an environment. Settings are those of the plan,
    the game and the learners in one flat set. `callback` gets the rows of each round, one per agent, and
    ends the run by returning False.
    """
    if game is not None:
        settings["game"] = game
    return start(settings, out, callback, quiet)


def start(
    settings: Mapping[str, Any], out: Path | str | None = None, callback: Callback | None = None, quiet: bool = False
) -> Run:
    """`train`, with the settings as a mapping."""
    refuse_while_importing()
    refuse_inside_workers()
    plan = make_plan(settings)
    return _go(_new_folder(out, plan), plan, None, callback, quiet, _switches(settings.get("parallel")))


def resume(
    path: Path | str,
    *,
    checkpoint_name: str | None = None,
    engine: str | None = None,
    n_workers: int | None = None,
    callback: Callback | None = None,
    quiet: bool = False,
    game: AnyGame | None = None,
) -> Run:
    """Go on with a run as if it had never stopped; `engine` and `n_workers` may change on the way.

    `game` gives a game again that was defined in another Python session.
    """
    refuse_while_importing()
    refuse_inside_workers()
    run = Run(path, game)
    changes = {"engine": engine, "n_workers": n_workers}
    plan = run.changed({name: value for name, value in changes.items() if value is not None})
    start_from = run.checkpoint(checkpoint_name)
    facts = _facts(start_from, plan)
    if facts.settled == plan.rounds and run.finished:
        raise RunError(f"{run.path} is finished: all {plan.total_episodes} episodes are trained")
    return _go(run.path, plan, start_from, callback, quiet)


def _new_folder(out: Path | str | None, plan: Plan) -> Path:
    """The directory asked for if it is free, or the next number under runs/, made at once so that it is ours."""
    if out is not None:
        return free_folder(Path(out))
    name = re.sub(r"[^\w-]", "-", plan.game)
    taken = [int(path.name[-3:]) for path in Path("runs").glob(f"{name}-[0-9][0-9][0-9]")]
    return Path("runs") / f"{name}-{max(taken, default=0) + 1:03d}"


def free_folder(folder: Path) -> Path:
    """The directory, if there is nothing in it yet."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"{folder} exists already: choose another --out, or `remuda resume {folder}`")
    return folder


def _switches(parallel: Mapping[str, Any] | None) -> str:
    """`parallel` as it was given, in one line; make_plan has read it already."""
    if parallel is None:
        return ""
    words = {name: "null" if value is None else str(value).lower() for name, value in parallel.items()}
    return f"parallel: {{{', '.join(f'{name}: {word}' for name, word in words.items())}}}"


def _go(
    folder: Path, plan: Plan, start_from: Path | None, callback: Callback | None, quiet: bool, switches: str = ""
) -> Run:
    """Build everything (a bad plan fails before anything is written), train, and sum up."""
    asked = threading.Event()

    def stop() -> None:
        if asked.is_set():
            raise Stopped("stopped")

    compiled = _is_compiled(plan)
    spec = spec_of(plan)
    plan, choice = choose_engine(plan, spec)
    check_engine(plan)
    parts = load_frozen(assign(plan, spec), spec)
    worker_pool = WorkerPool(stop, limits=Limits.of(plan), rehearsal=warm_up_request(plan, spec))
    context = EngineContext(
        plan,
        spec,
        parts,
        resolve_device(plan.device),
        stop,
        worker_pool,
        folder,
        lambda: checkpoint.newest_learner_state(folder / checkpoint.CHECKPOINTS),
    )
    with ExitStack() as stack:
        keep_freed_memory()
        stack.enter_context(one_thread_each())
        collectors, trainers = _build(context)
        facts = _facts(start_from, plan) if start_from else Facts.of_the_start()
        warm_start_state = (
            Run(plan.warm_start).warm_start_state() if plan.warm_start is not None and start_from is None else None
        )
        stack.enter_context(locked(folder))
        _make(folder, plan, fresh=start_from is None)
        if start_from is None:
            stack.enter_context(_withdrawn_if_refused(folder))
        worker_pool.timeline = stack.enter_context(timeline.recording(folder, plan.timeline))
        progress = Progress(plan.total_episodes, facts.episodes, folder / "console.log", quiet)
        stack.enter_context(progress)
        recorder = Recorder(folder, context, progress, callback, asked.set)
        worker_pool.say = progress.say
        loop = Loop(
            plan, collectors, trainers, recorder, FailureLog(plan, folder, progress.say), stop, Update(0, trainers.rows()),
            free=find_engine(plan.engine).free and not plan.deterministic, max_lag=tolerated_lag(plan, parts),
        )  # fmt: skip
        if start_from:
            _restore(loop, recorder, start_from, facts)
            _forget_later(start_from)
        elif warm_start_state is not None:
            _inherit(loop, warm_start_state)
        recorder.open(facts.rounds, facts.settled)
        stack.callback(recorder.close)
        stack.enter_context(_interruptible(asked, progress))
        _introduce(progress, loop, recorder)
        for line in engine_lines(context, switches or choice):
            progress.say(line)
        compile_s = _compile(progress, plan, compiled)
        try:
            loop.run()
        except Stopped:
            episodes = plan.episodes_after(loop.rounds)
            progress.say(f"stopped at {episodes} episodes; go on with: remuda resume {folder}")
        except (OSError, EOFError) as error:
            if all(worker.ready for worker in worker_pool.workers):
                raise
            raise cannot_run(plan, start_failure(error)) from error
        recorder.wait()
        _sum_up(loop, recorder, worker_pool, compile_s)
        if plan.pictures and loop.finished:
            draw(Run(folder), progress)
    return Run(folder)


def _build(context: EngineContext) -> tuple[Collectors, Trainers]:
    """The engine, unless it needs more memory than there is."""
    try:
        collectors, trainers = find_engine(context.plan.engine).build(context)
    except (MemoryError, RuntimeError, ValueError, OSError) as error:
        if not isinstance(error, MemoryError) and not re.search("memory|too big|too large", str(error)):
            if isinstance(error, OSError) and find_engine(context.plan.engine).processes:
                raise cannot_run(context.plan, start_failure(error)) from error
            raise
        raise ConfigError(f"this plan needs more memory than there is ({error}): {REMEDY}") from None
    check_limits(context, collectors, trainers)
    return collectors, trainers


class Facts(Options):
    """What a checkpoint says about itself besides its arrays."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    game: str
    players: list[str]
    agents: int
    rounds: int = Field(ge=0)
    settled: int = Field(ge=0)
    episodes: int = Field(ge=0)
    version: int = Field(ge=0)
    published: int = Field(ge=0)
    agent_steps: int = Field(ge=0)
    wall_s: float = Field(ge=0)
    collect: list[float] = Field(min_length=2, max_length=2)
    learn: list[float] = Field(min_length=2, max_length=2)
    waited_s: float = Field(ge=0)
    unfinished: list[int] = Field(default_factory=list)
    set_aside: list[int] = Field(default_factory=list)
    best: float | None
    evaluation: dict[str, Any] | None

    @classmethod
    def of_the_start(cls) -> Facts:
        """Before anything happened."""
        return cls(
            game="", players=[], agents=0, rounds=0, settled=0, episodes=0, version=0, published=0, agent_steps=0,
            wall_s=0.0, collect=[0.0, 0.0], learn=[0.0, 0.0], waited_s=0.0, best=None, evaluation=None,
        )  # fmt: skip


def _facts(start_from: Path, plan: Plan) -> Facts:
    """The facts of a checkpoint, if they are possible in this plan."""
    try:
        facts = Facts(**checkpoint.read_index(start_from))
    except ValidationError as error:
        field = error.errors()[0]["loc"]
        raise CheckpointError(
            f"checkpoint {start_from} cannot be resumed: its {field[0]} is missing or wrong"
        ) from None
    counts = (facts.settled <= facts.rounds <= plan.rounds, facts.published <= facts.version == facts.rounds)
    if not all(counts) or facts.episodes != plan.episodes_after(facts.rounds):
        raise CheckpointError(f"checkpoint {start_from} belongs to another plan: its counters do not fit")
    return facts


def _make(folder: Path, plan: Plan, fresh: bool) -> None:
    """Write the plan into a directory that is ours; put back what a run that died was replacing."""
    with storage(folder):
        if not fresh:
            checkpoint.recover(folder)
            checkpoint.recover(folder / checkpoint.CHECKPOINTS)
        elif {path.name for path in folder.iterdir()} - {LOCK}:
            raise RunError(f"{folder} exists already: choose another --out, or `remuda resume {folder}`")
        else:
            write_yaml(folder / CONFIG, plan)


@contextmanager
def _withdrawn_if_refused(folder: Path) -> Iterator[None]:
    """Leave no directory behind of a run that could not be begun."""
    try:
        yield
    except ConfigError:
        if not any((folder / checkpoint.CHECKPOINTS).glob("*")):
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _forget_later(start_from: Path) -> None:
    """Remove checkpoints newer than the one we go on from: their future will be another one."""
    for path in start_from.parent.glob("[0-9]*"):
        if path.name > start_from.name:
            remove(path)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the run directory: two processes must not train one run."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("w")
    except OSError as error:
        raise RunError(f"{folder} cannot be written: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(f"{folder} is being trained by another process") from None
        yield


@contextmanager
def _interruptible(asked: threading.Event, progress: Progress) -> Iterator[None]:
    """First Ctrl-C, SIGTERM or closed terminal: stop and save. Second: leave at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            os._exit(128 + number)
        asked.set()
        progress.shout("stopping: saving the last whole round (again to leave at once, without saving)")

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _restore(loop: Loop, recorder: Recorder, start_from: Path, facts: Facts) -> None:
    """Put everybody where the checkpoint says they were."""
    if recorder.identity() != {"game": facts.game, "players": facts.players, "agents": facts.agents}:
        raise CheckpointError(f"checkpoint {start_from} belongs to another herd: {facts.players} in {facts.game!r}")
    try:
        loop.trainers.restore(facts.version, checkpoint.read(start_from, "learner"))
        rows = loop.trainers.rows()
        if facts.published != facts.version:
            acting = {int(part): array for part, array in checkpoint.read(start_from, "acting").items()}
            if {part: a.shape for part, a in acting.items()} != {part: a.shape for part, a in rows.items()}:
                raise CheckpointError("its acting weights have another shape")
            rows = acting
    except CheckpointError as error:
        raise CheckpointError(f"checkpoint {start_from} does not fit: {error}") from None
    except (KeyError, ValueError, TypeError, IndexError, RuntimeError) as error:
        raise CheckpointError(f"checkpoint {start_from} does not fit this plan: {error}") from None
    loop.resume(facts.rounds, facts.settled, Update(facts.published, rows), facts.unfinished)
    recorder.steps, recorder.best, recorder.evaluation = facts.agent_steps, facts.best, facts.evaluation
    recorder.wall_before = facts.wall_s
    loop.collectors.spent.wall, loop.collectors.spent.cpu = facts.collect
    recorder.learning.wall, recorder.learning.cpu = facts.learn
    loop.trainers.waited_s = facts.waited_s
    loop.failure_log.set_aside = list(facts.set_aside)


def _inherit(loop: Loop, warm_start_state: Mapping[str, Any]) -> None:
    """Begin as the learners of another run ended."""
    try:
        loop.trainers.restore(0, warm_start_state)
    except (CheckpointError, KeyError, ValueError, TypeError, IndexError, RuntimeError) as error:
        raise ConfigError(f"warm_start={loop.plan.warm_start} does not fit this herd: {first_line(error)}") from None
    loop.resume(0, 0, Update(0, loop.trainers.rows()))


def _introduce(progress: Progress, loop: Loop, recorder: Recorder) -> None:
    """Say who trains, and what it will take, before it is taken."""
    plan, spec = loop.plan, recorder.spec
    recorder.load(loop.published.rows or {})
    learning = sum(part.agents for part in recorder.parts if part.learns)
    numbers = parameters([binding.policy for binding in recorder.bindings])
    held, moving = memory_needed(plan, spec, loop.collectors, loop.trainers)
    progress.say(
        f"{plan.game}: {spec.agents} agents, {learning} learners with a network each "
        f"({numbers:,} parameters in all), {plan.worlds} worlds, engine {plan.engine}"
    )
    progress.say(
        f"memory: {held / 2**20:,.0f} MiB for replay, weights and optimisers, "
        f"{moving / 2**20:,.0f} MiB for a round of episodes; run directory {recorder.folder}"
    )
    if plan.precision == "bf16" and not _has_bf16():
        progress.say("warning: this processor has no bf16 instructions; fp32 will be much faster here")


def _has_bf16() -> bool:
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported())
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def _is_compiled(plan: Plan) -> bool:
    """Whether the game's kernels are in the cache; asked first, since building an engine compiles others."""
    return is_cached(source_file(find_game(plan.game).options))


def _compile(progress: Progress, plan: Plan, compiled: bool) -> float:
    """Compile the game here, before threads or workers need it; later starts load it from a cache."""
    began = time.perf_counter()
    if not compiled:
        progress.say(f"compiling {plan.game} (only the first time) …")
    warm_up(find_game(plan.game), plan.options)
    return time.perf_counter() - began


def _sum_up(loop: Loop, recorder: Recorder, worker_pool: WorkerPool, compile_s: float) -> None:
    """Write the result: what was done, how long it took, and the fingerprint of the weights."""
    recorder.load(loop.trainers.rows())
    plan, folder = loop.plan, recorder.folder
    collect, learn = loop.collectors.spent, recorder.learning
    episodes = plan.episodes_after(loop.rounds)
    wall = recorder.wall_s - compile_s
    usage = resource.getrusage(resource.RUSAGE_SELF)
    steps = loop.trainers.steps()
    updates = [steps.get(agent, 0) for agent in range(recorder.spec.agents)]
    result = {
        "run": str(folder),
        "game": plan.game,
        "engine": plan.engine,
        "finished": loop.finished,
        "episodes": episodes,
        "agent_steps": recorder.steps,
        "updates_per_agent": updates,
        "wall_s": wall,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "compile_s": compile_s,
        "seconds": {
            "collect": {"wall": collect.wall, "cpu": collect.cpu},
            "learn": {"wall": learn.wall, "cpu": learn.cpu},
            "wait": {"wall": loop.trainers.waited_s, "cpu": 0.0},
        },
        "episodes_per_s": episodes / wall,
        "agent_steps_per_s": recorder.steps / wall,
        "updates_per_s": sum(updates) / wall,
        **_returns(folder, recorder.spec.agents),
        "evaluation": recorder.evaluation,
        "peak_memory_bytes": usage.ru_maxrss * 1024,
        "lag": _lags(loop),
        "waited_s": {
            "loop": loop.trainers.waited_s,
            "collectors": loop.collectors.waited_s,
            "learners": loop.trainers.learners_waited_s,
        },
        "processes": [
            {"name": worker.name, "peak_memory_bytes": worker.peak_bytes, "restarts": worker.restarts}
            for worker in (*worker_pool.workers, *loop.collectors.helpers)
        ],
        "failures": {
            "episodes_failed": loop.failure_log.failures,
            "set_aside": loop.failure_log.set_aside,
            "spoilt": loop.failure_log.invalid_samples,
            "updates_left_out": loop.failure_log.skipped_updates,
        },
        "weights_sha256": recorder.fingerprint(),
    }
    with storage(folder):
        (folder / RESULT).write_text(to_json(result, indent=1), encoding="utf-8")


def _lags(loop: Loop) -> Row:
    """How late what was learned from had been played: turns of agents by versions, and what was too late."""
    lags = loop.trainers.lags
    total = sum(lags.values())
    return {
        "turns_by_versions": {str(lag): lags[lag] for lag in sorted(lags)},
        "mean": sum(lag * count for lag, count in lags.items()) / total if total else None,
        "max": max(lags, default=None),
        "episodes_dropped": loop.dropped,
        "versions_published": loop.trainers.versions_after(loop.trainers.version),
    }


def _returns(folder: Path, agents: int) -> Row:
    """Mean return per agent over the first and the last tenth of the rounds."""
    returns = read_table(folder / "metrics.csv")["return"].reshape(-1, agents)
    tenth = max(1, len(returns) // 10)
    if not len(returns):
        return {"mean_return": None, "first_mean_return": None}
    return {
        "mean_return": returns[-tenth:].mean(axis=0).tolist(),
        "first_mean_return": returns[:tenth].mean(axis=0).tolist(),
    }
