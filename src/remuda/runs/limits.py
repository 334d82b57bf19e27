"""What a plan needs against what this machine has, looked at before anything is started."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psutil

from remuda.core.errors import ConfigError
from remuda.core.game import GameSpec
from remuda.core.plan import Plan
from remuda.engines.context import EngineContext
from remuda.engines.interfaces import Collectors, Trainers
from remuda.engines.table import AUTO, find_engine
from remuda.learners.herd import Part
from remuda.learners.registry import find_learner, learner_options

REMEDY = "lower agents, worlds, replay_size, frames or the network's layers"
DESCRIPTORS = 64
"""Open files of a run without workers, generously."""
DESCRIPTORS_EACH = 4
"""Open files per worker in the first process: two ends of waiting for it, and some while it is replaced."""
COPIES = 4
"""Copies of the weights that a learner has at least: the weights, their gradient, two moments of the optimiser."""
SHARED = Path("/dev/shm")
GIB = 2**30


def check_sizes(plan: Plan, spec: GameSpec, parts: Sequence[Part]) -> None:
    """Refuse networks and rounds that do not fit, before they are made: a process that takes more memory is killed."""
    needed = 0
    if plan.engine != AUTO and find_engine(plan.engine).machines and plan.n_learners is not None:
        return  # learners may be on machines with more memory
    for part in parts:
        if part.learns:
            options, group = learner_options(plan, part.player), spec.groups[part.group]
            policy = find_learner(part.player).make_policy(group, 1, options, plan.precision, "cpu")
            needed += COPIES * part.agents * policy.rows.nbytes
    free = free_memory()
    if needed > free:
        raise ConfigError(
            f"this plan needs {size(needed)} of memory for networks and optimisers, {size(free)} are free: {REMEDY}"
        )
    if (needed := _round_bytes(plan, spec)) > free:
        raise ConfigError(
            f"this plan needs {size(needed)} of memory for the episodes of a round, {size(free)} are free: lower "
            "turns, worlds or episodes_per_update, or the game's number of agents"
        )


def check_limits(context: EngineContext, collectors: Collectors, trainers: Trainers) -> None:
    """Refuse a plan that this machine cannot carry, and say what would help."""
    held, moving = memory_needed(context.plan, context.spec, collectors, trainers)
    if trainers.elsewhere:
        held = 0
    needed, free = 2 * held + moving, free_memory()  # a checkpoint is written from a copy
    if needed > free:
        raise ConfigError(
            f"this plan needs {size(needed)} of memory ({size(held)} for the herd, as much again while "
            f"it is saved), {size(free)} are free: {REMEDY}"
        )
    evaluation = context.plan.evaluate_episodes * _episode_bytes(context.spec)
    if needed + evaluation > free:
        raise ConfigError(
            f"evaluate_episodes={context.plan.evaluate_episodes} needs {size(evaluation)} of memory besides "
            f"{size(needed)} for training, {size(free)} are free: lower evaluate_episodes"
        )
    _check_disk(context, held)
    _check_shared_memory(context.plan.engine, collectors.store_bytes())
    _check_descriptors(len(context.worker_pool.workers))


def size(count: int) -> str:
    """Bytes in the unit a person would use."""
    for unit, name in ((GIB, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:,.1f} {name}"
    return f"{max(count, 0)} bytes"


def memory_needed(plan: Plan, spec: GameSpec, collectors: Collectors, trainers: Trainers) -> tuple[int, int]:
    """Bytes the learners will hold, and bytes of a round of episodes on its way to them."""
    return trainers.memory_bytes(), max(_round_bytes(plan, spec), collectors.memory_bytes())


def _round_bytes(plan: Plan, spec: GameSpec) -> int:
    """Bytes of the episodes that are on their way to the learners at once."""
    return _episode_bytes(spec) * plan.round_episodes * (1 + plan.lag)


def _episode_bytes(spec: GameSpec) -> int:
    """Bytes of the longest episode, of all groups."""
    rest = 40  # bytes per agent and turn: action, age, reward, flags, what the policy adds
    each = sum((int(np.prod(g.obs_shape)) * np.dtype(g.obs_dtype).itemsize + rest) * g.size for g in spec.groups)
    return each * (spec.turns + 1)


def free_memory() -> int:
    """Bytes this process may still take, by the machine and by its control group."""
    free = int(psutil.virtual_memory().available)
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit != "max":
            statistics = dict(line.split() for line in Path("/sys/fs/cgroup/memory.stat").read_text().splitlines())
            used = int(Path("/sys/fs/cgroup/memory.current").read_text()) - int(statistics["inactive_file"])
            free = min(free, int(limit) - used)
    except (OSError, ValueError, KeyError):
        pass
    return free


def check_scores(spec: GameSpec, episodes: int) -> None:
    """Refuse an evaluation whose scores would not fit into memory, before it plays for days."""
    columns = spec.agents * (1 + len({name for group in spec.groups for name in group.metrics}))
    needed, free = 2 * 8 * columns * episodes, free_memory()  # in parts, and joined
    if needed > free:
        raise ConfigError(
            f"episodes={episodes} needs {size(needed)} of memory for the scores, {size(free)} are free: lower episodes"
        )


def _check_disk(context: EngineContext, held: int) -> None:
    """A new checkpoint is written before an old one is removed, so two must fit."""
    place = next(folder for folder in (context.folder, *context.folder.absolute().parents) if folder.exists())
    needed, free = 2 * held, shutil.disk_usage(place).free
    if needed > free:
        raise ConfigError(
            f"this plan needs {size(needed)} of disk for its checkpoints, {size(free)} are free "
            f"at {place}: use another --out, or {REMEDY}"
        )


def _check_shared_memory(engine: str, needed: int) -> None:
    """Ray's object store lies there; where it does not fit, Ray works on the disk instead, slowly."""
    if not SHARED.is_dir():  # the system keeps shared memory elsewhere, or there is none to look at
        return
    free = shutil.disk_usage(SHARED).free
    if needed > free:
        megabytes = -(-needed // 2**20)
        raise ConfigError(
            f"engine={engine} needs {megabytes:,} MiB of shared memory for this plan, "
            f"{SHARED} has {free >> 20:,} free: `mount -o remount,size={megabytes}m {SHARED}`, "
            f"for a container `--shm-size={megabytes}m`, or lower worlds or episodes_per_update"
        )


def _check_descriptors(workers: int) -> None:
    """Raise this process's own limit as far as it may; refuse if that is not enough."""
    needed = DESCRIPTORS + DESCRIPTORS_EACH * workers
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and needed > hard:
        limit = (hard - DESCRIPTORS) // DESCRIPTORS_EACH
        instead = f"use at most {limit} workers" if limit > 0 else "use an engine without processes (engine=vectorized)"
        raise ConfigError(
            f"{f'n_workers={workers}' if workers else 'training'} needs {needed} open files, this process may have "
            f"{hard}: `ulimit -Hn {needed}` (as root){f', or {instead}' if workers else ''}"
        )
    if soft != resource.RLIM_INFINITY and needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
