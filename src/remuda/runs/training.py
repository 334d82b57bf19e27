"""Training: from settings to a finished run, or on from a checkpoint."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from remuda.core import timeline
from remuda.core.code_names import refuse_while_importing
from remuda.core.console import QuietConsole
from remuda.core.errors import ConfigError, RunError, Stopped
from remuda.core.kernels import is_cached, source_file
from remuda.core.plan import Plan, learner_of
from remuda.core.threads import keep_freed_memory, one_thread_each
from remuda.core.yamlfile import read_yaml
from remuda.engines.choose import cannot_run, check_engine, choose_engine, engine_lines, resolve_device
from remuda.engines.collectors.warm_up import warm_up_request
from remuda.engines.context import EngineContext
from remuda.engines.interfaces import Collectors, Trainers, Update
from remuda.engines.loop import Loop
from remuda.engines.table import ENGINES, find_engine
from remuda.games.registry import AnyGame, find_game
from remuda.learners.herd import Part, assign, count_parameters, make_learner, stacking_lines, tolerated_lag
from remuda.learners.registry import find_learner
from remuda.rollout.warm_up import warm_up
from remuda.runs import checkpoint
from remuda.runs.callbacks.base import Callback, Row
from remuda.runs.callbacks.given import remember_given
from remuda.runs.callbacks.pictures import Pictures
from remuda.runs.callbacks.progress import Progress
from remuda.runs.callbacks.registry import Callbacks, listed, make_callback
from remuda.runs.callbacks.tables import Tables
from remuda.runs.callbacks.tensorboard import TensorBoard
from remuda.runs.directory import CONFIG, CONSOLE_LOG
from remuda.runs.display import counted
from remuda.runs.failure_log import FailureLog
from remuda.runs.folder import (
    check_writable,
    emptied_if_refused,
    locked,
    new_folder,
    prepare,
    refuse_if_locked,
    remove_later_checkpoints,
    removed_if_refused,
    write_config,
)
from remuda.runs.frozen import load_frozen
from remuda.runs.interrupts import StopRequest, stop_on_signals
from remuda.runs.limits import REMEDY, check_limits, check_sizes, memory_needed
from remuda.runs.recorder import ProcessTotals, Recorder
from remuda.runs.result import summarise, write_result
from remuda.runs.run import Run
from remuda.runs.settings import make_plan, spec_of
from remuda.runs.state import TrainState, newest_learners, warm_start
from remuda.runs.storage import absolute, shown, storage_errors
from remuda.runs.trust import why_unsigned
from remuda.transport.heartbeat import Limits
from remuda.transport.processes import refuse_inside_workers, start_failure
from remuda.transport.worker_pool import WorkerPool


def train(
    game: AnyGame | None = None,
    *,
    out: Path | str | None = None,
    callbacks: Callbacks = (),
    quiet: bool = False,
    trust: bool = False,
    **settings: Any,
) -> Run:
    """Train a herd and return its run.

    `game` is a name, a GameEntry, or a class or function that makes an environment. Settings are those of the plan,
    the game and the learners in one flat set. `callbacks` are `Callback` objects, functions that get the
    rows of each round, one per agent, and end the run by returning False, or names (`wandb`, `mlflow`, `module:Class`).
    `trust` follows names of code in runs of frozen players that somebody else made.
    """
    given = listed(callbacks)
    settings["callbacks"] = [own for own in given if isinstance(own, str)]
    if game is not None:
        settings["game"] = game
    return start(settings, out, [make_callback(own) for own in given if not isinstance(own, str)], quiet, trust)


def start(
    settings: Mapping[str, Any],
    out: Path | str | None = None,
    callbacks: Sequence[Callback] = (),
    quiet: bool = False,
    trust: bool = False,
) -> Run:
    """`train`, with the settings as a mapping."""
    refuse_while_importing()
    refuse_inside_workers()
    here = absolute(".")  # a game may change the working directory as soon as it is made
    plan = make_plan(settings)
    folder = new_folder(here, out, plan)
    is_made_here = out is None or not folder.exists()
    with removed_if_refused(folder) if is_made_here else nullcontext():
        asked = _switches(settings.get("parallel"))
        return _train(TrainingJob(folder, plan, callbacks, quiet, asked=asked, trust=trust, here=here))


def resume(
    path: Path | str,
    *,
    total_episodes: int | None = None,
    checkpoint_name: str | None = None,
    engine: str | None = None,
    n_workers: int | None = None,
    n_learners: int | Literal["auto"] | None = None,
    address: str | None = None,
    callbacks: Callbacks = (),
    quiet: bool = False,
    game: AnyGame | None = None,
    learner: Any = None,
    trust: bool = False,
) -> Run:
    """Continue a run as if it had never stopped, or extend it to `total_episodes`.

    `engine`, `n_workers`, `n_learners` and the `address` of a Ray cluster may change on the way. Give `game`, and the
    class of a `learner`, again if it was defined in another Python session. Give objects and functions among the
    `callbacks` again, too. `trust` follows names of code in a run that somebody else made.
    """
    refuse_while_importing()
    refuse_inside_workers()
    own_callbacks = [make_callback(own) for own in listed(callbacks)]
    run = Run(path, game, trust, learner)
    refuse_if_locked(run.path)
    changes: dict[str, Any] = {
        "engine": engine, "n_workers": n_workers, "n_learners": n_learners, "address": address,
        "total_episodes": total_episodes,
    }  # fmt: skip
    given = {name: value for name, value in changes.items() if value is not None}
    if engine is not None and not getattr(ENGINES.get(engine), "machines", False):
        given.setdefault("address", None)  # of the cluster that the run leaves
    plan = run.changed(given)
    if total_episodes is not None and total_episodes != run.plan.total_episodes:
        return _extend(run, plan, checkpoint_name, own_callbacks, quiet)
    if not run.checkpoints() and checkpoint_name is None:
        notes = [f"{run.path} has no checkpoint yet: training starts from the beginning"]
        return _train(TrainingJob(run.path, plan, own_callbacks, quiet, notes=notes, is_new=False, trust=trust))
    start_from = run.checkpoint(checkpoint_name)
    state = TrainState.read(start_from, plan)
    if state.loop.settled == plan.rounds and run.finished:
        raise RunError(
            f"{run.path} is finished: all {plan.total_episodes} episodes are trained; `--total-episodes N` extends it"
        )
    return _train(TrainingJob(run.path, plan, own_callbacks, quiet, start_from, trust=trust))


def _extend(run: Run, plan: Plan, name: str | None, callbacks: Sequence[Callback], quiet: bool) -> Run:
    """Continue with a longer plan, or a shorter one, from the newest checkpoint that lies on a round of it."""
    path = run.checkpoint(name)
    done = int(path.name)
    if plan.total_episodes <= done:
        raise ConfigError(
            f"total_episodes={plan.total_episodes}: {run.path} has trained {done} episodes already; give more than that"
        )
    candidates = [path] if name else run.checkpoints()
    fitting = [own for own in candidates if checkpoint.intact(own) and _lies_on_a_round(own, plan)]
    if not fitting:
        raise RunError(
            f"{run.path} cannot be extended: its last round had fewer than {plan.round_episodes} episodes, "
            "and no checkpoint before it is left; train a new run"
        )
    start_from = fitting[0]
    TrainState.read(start_from, plan)
    before, after = run.plan.total_episodes, plan.total_episodes
    what = "extended" if after > before else "shortened"
    notes = [f"{what} from {before:,} to {after:,} episodes; {_schedules(plan)}"]
    if start_from != path:
        notes.append(f"the last round was short, so training continues from episode {int(start_from.name)}")
    with storage_errors(run.path):
        write_config(run.path, run.changed({"total_episodes": plan.total_episodes}))
    return _train(TrainingJob(run.path, plan, callbacks, quiet, start_from, notes=notes, trust=run.trust))


def _lies_on_a_round(path: Path, plan: Plan) -> bool:
    """Whether a run of this plan could have written the checkpoint: after whole rounds of it."""
    return plan.episodes_after(TrainState.of(path).loop.rounds) == int(path.name)


def _schedules(plan: Plan) -> str:
    """What a longer plan means for values that change over the run."""
    scheduled = sorted(
        {
            name
            for options in plan.learner_options.values()
            for name, value in options.items()
            for one in (value if isinstance(value, list) else [value])
            if isinstance(one, str) and re.fullmatch(r"[^:]+:[^:]+(:[^:]+)?", one)
        }
    )
    if not scheduled:
        return f"nothing is scheduled, so the result equals that of a run planned for {plan.total_episodes:,}"
    follow = "follows its schedule" if len(scheduled) == 1 else "follow their schedules"
    return f"from here on {', '.join(scheduled)} {follow} for {plan.total_episodes:,} episodes"


def _switches(parallel: Mapping[str, Any] | None) -> str:
    """`parallel` as it was given, in one line; make_plan has validated it."""
    if parallel is None:
        return ""
    words = {name: "null" if value is None else str(value).lower() for name, value in parallel.items()}
    return f"parallel: {{{', '.join(f'{name}: {word}' for name, word in words.items())}}}"


@dataclass(frozen=True)
class TrainingJob:
    """What to train, and from where."""

    folder: Path
    plan: Plan
    callbacks: Sequence[Callback]
    quiet: bool
    start_from: Path | None = None  # a checkpoint
    asked: str = ""  # how the engine was asked for, where it was not by name
    notes: Sequence[str] = ()  # lines to show before training
    is_new: bool = True  # the folder is to be a new run
    trust: bool = False  # whether names of code in the runs of frozen players are followed
    here: Path = field(default_factory=lambda: absolute("."))  # messages show paths from here


def _train(job: TrainingJob) -> Run:
    """Build everything (a bad plan fails before anything is written), train, and write the result."""
    request, folder, fresh = StopRequest(), job.folder, job.start_from is None
    spec = spec_of(job.plan)
    parts = load_frozen(assign(job.plan, spec), spec, job.trust)
    uncompiled = _uncompiled(job.plan, parts)
    console = QuietConsole(stderr=True, quiet=job.quiet, soft_wrap=True, markup=False, highlight=False)

    def before_trials(text: str) -> None:
        nonlocal uncompiled
        check_writable(folder)
        with suppress(MemoryError, RuntimeError, ValueError):  # then no trial works, and `_build` says what is wrong
            check_sizes(job.plan, spec, parts)
            for part in parts:
                if part.learns:
                    make_learner(part, job.plan, spec, "cpu", (0, 1))
        _compile(console.print, job.plan, uncompiled)
        uncompiled = []
        if text:
            console.print(text)

    plan, choice = choose_engine(job.plan, spec, parts, before_trials)
    check_engine(plan)
    own_callbacks = [*map(make_callback, plan.callbacks), *job.callbacks]
    worker_pool = WorkerPool(request.check, limits=Limits.of(plan), warm_up_request=warm_up_request(plan, spec))
    context = EngineContext(
        plan=plan,
        spec=spec,
        parts=parts,
        device=resolve_device(plan.device),
        stop=request.check,
        worker_pool=worker_pool,
        folder=folder,
        last_state=lambda: newest_learners(folder / checkpoint.CHECKPOINTS),
    )
    with ExitStack() as stack:
        keep_freed_memory()
        stack.enter_context(one_thread_each())
        collectors, trainers = _build(context)
        stacking = list(stacking_lines(plan, spec, context.parts))  # refuses learners, so before anything is written
        state = None if job.start_from is None else TrainState.read(job.start_from, plan)
        learned_before = Run(plan.warm_start).warm_start_state() if plan.warm_start is not None and fresh else None
        stack.enter_context(locked(folder))
        if fresh and job.is_new:
            stack.enter_context(emptied_if_refused(folder))
        prepare(folder, plan, fresh and job.is_new)
        with storage_errors(folder):
            lost = remember_given(folder, job.callbacks)
        worker_pool.timeline = stack.enter_context(timeline.recording(folder, plan.timeline))
        done = 0 if state is None else state.episodes
        with storage_errors(folder):
            progress = Progress(plan.total_episodes, done, folder / CONSOLE_LOG, job.quiet)
        stack.enter_context(progress)
        failure_log = FailureLog(plan, folder, lambda text: report(text))

        def snapshot(loop: Loop) -> tuple[dict[str, checkpoint.Arrays], Row]:
            state, arrays = TrainState.capture(loop, failure_log, recorder, _processes(context, loop))
            return arrays, state.model_dump(mode="json")

        def report(text: str) -> None:
            progress.say(text)
            recorder.failed(text)

        pictures = [Pictures(progress.say)] if plan.pictures else []
        callbacks = [Tables(progress.say), TensorBoard(), progress, *own_callbacks, *pictures]
        recorder = Recorder(context, Run(folder, trust=True), callbacks, request, snapshot)
        worker_pool.say = progress.say
        loop = Loop(
            plan, collectors, trainers, recorder, failure_log, request.check, Update(0, trainers.rows()),
            free=find_engine(plan.engine).free and not plan.deterministic, max_lag=tolerated_lag(plan, context.parts),
        )  # fmt: skip
        if state is not None and job.start_from is not None:
            state.restore(job.start_from, loop, failure_log, recorder)
            remove_later_checkpoints(job.start_from)
        elif learned_before is not None:
            warm_start(loop, learned_before)
        stack.callback(recorder.close)
        stack.enter_context(stop_on_signals(request, progress.shout))
        recorder.start(loop.rounds, loop.settled)
        _introduce(progress, loop, recorder, shown(folder, job.here), stacking)
        notes = (*job.notes, *lost, *_unsigned(folder), *_unrepeatable(plan))
        for line in (*notes, *engine_lines(context, job.asked or choice)):
            progress.say(line)
        compile_s = _compile(progress.say, plan, uncompiled)
        try:
            loop.run()
        except Stopped as stopped:
            episodes = plan.episodes_after(loop.rounds)
            again = f"remuda resume {shown(folder, job.here)}"
            progress.say(f"stopped at {episodes} episodes ({stopped}); continue with: {again}")
        except (OSError, EOFError) as error:
            if all(worker.ready for worker in worker_pool.workers):
                raise
            raise cannot_run(plan, start_failure(error)) from error
        recorder.wait()
        result = summarise(loop, recorder, failure_log, _processes(context, loop), compile_s)
        write_result(folder, result)
        recorder.end(result)
        steps = trainers.steps()
    with suppress(OSError):
        os.chdir(job.here)  # a game may have left it
    run = Run(folder, trust=True)  # this process wrote it
    run.stopped_by = None if loop.finished else request.signal
    if loop.finished:
        failure_log.check_learned(steps)
    return run


def _unsigned(folder: Path) -> list[str]:
    """A line where the run names code and could not be signed."""
    why = why_unsigned(folder, read_yaml(folder / CONFIG))
    return [] if why is None else [f"this run names code of yours, and {why}; evaluate and resume will need --trust"]


def _unrepeatable(plan: Plan) -> list[str]:
    """A line where the same plan would give other weights another time."""
    engine = find_engine(plan.engine)
    if not engine.free or plan.deterministic:
        return []
    how = "add --deterministic" if engine.deterministic else "other engines repeat them, with --deterministic"
    return [f"weights are not repeatable on this engine: {how}"]


def _processes(context: EngineContext, loop: Loop) -> dict[str, ProcessTotals]:
    """What the workers used since this process started training."""
    return {
        worker.name: ProcessTotals(peak_memory_bytes=worker.peak_bytes, restarts=worker.restarts)
        for worker in (
            *context.worker_pool.workers,
            *loop.collectors.remote_workers,
            *loop.trainers.remote_workers,
        )
    }


def _build(context: EngineContext) -> tuple[Collectors, Trainers]:
    """The engine, unless it needs more memory than there is."""
    try:
        check_sizes(context.plan, context.spec, context.parts)
        collectors, trainers = find_engine(context.plan.engine).build(context)
    except (MemoryError, RuntimeError, ValueError, OSError) as error:
        if not isinstance(error, MemoryError) and not re.search("memory|too big|too large", str(error)):
            if isinstance(error, OSError) and find_engine(context.plan.engine).processes:
                raise cannot_run(context.plan, start_failure(error)) from error
            raise
        raise ConfigError(f"this plan needs more memory than there is ({error}): {REMEDY}") from None
    check_limits(context, collectors, trainers)
    return collectors, trainers


def _introduce(progress: Progress, loop: Loop, recorder: Recorder, folder: str, stacking: Sequence[str]) -> None:
    """Say who trains and how much memory it takes, before it is taken."""
    plan, spec = loop.plan, recorder.spec
    recorder.load(loop.published.rows or {})
    learning = sum(part.agents for part in recorder.parts if part.learns)
    numbers = count_parameters([binding.policy for binding in recorder.bindings])
    held, moving = memory_needed(plan, spec, loop.collectors, loop.trainers)
    each = " each" if learning > 1 else ""
    progress.say(
        f"{plan.game}: {counted(spec.agents, 'agent')}, {counted(learning, 'learner')} with a network{each} "
        f"({numbers:,} parameters in all), {counted(plan.worlds, 'world')}, engine {plan.engine}"
    )
    progress.say(
        f"memory: {held / 2**20:,.0f} MiB for replay buffers, weights and optimisers, "
        f"{moving / 2**20:,.0f} MiB for a round of episodes; run directory {folder}"
    )
    if spec.turns_assumed:
        progress.say(
            f"an episode that does not end by itself is cut after {spec.turns:,} turns: turns=N sets the limit"
        )
    for line in stacking:
        progress.say(line)
    if plan.precision == "bf16" and not _has_bf16():
        progress.say("warning: this processor has no bf16 instructions; fp32 will be much faster here")


def _has_bf16() -> bool:
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported())
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def _uncompiled(plan: Plan, parts: Sequence[Part]) -> list[str]:
    """Names of the game and the learners whose kernels are not in the cache.

    Asked first, since building an engine compiles some. A file `kernels.py` beside a learner stands for all it needs.
    """
    sources = {plan.game: source_file(find_game(plan.game).options)}
    for name in dict.fromkeys(learner_of(part.player) for part in parts if part.learns):
        found = source_file(find_learner(name))
        kernels = found.with_name("kernels.py") if found is not None else None
        sources[name] = kernels if kernels is not None and kernels.is_file() else None
    return [name for name, source in sources.items() if not is_cached(source)]


def _compile(say: Callable[[str], Any], plan: Plan, uncompiled: Sequence[str]) -> float:
    """Compile the game in this process, before threads or workers need it; later starts load it from a cache."""
    began = time.perf_counter()
    if uncompiled:
        say(f"compiling {' and '.join(uncompiled)} (only the first time) …")
    warm_up(find_game(plan.game), plan.options)
    return time.perf_counter() - began
