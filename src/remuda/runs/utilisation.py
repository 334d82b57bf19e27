"""Model FLOPs utilisation (MFU): operations that the networks need over those that the processor could have made.

The operations are those of plain dense products, as the learners count them (`Learner.dense_flops`). A run that needs
fewer, because equal observations are computed once and zeros are left out, can be above 1.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path

from remuda.core.cached_files import write_cached
from remuda.core.game import GameSpec
from remuda.core.kernels import cache_base
from remuda.core.learner import DenseFlops
from remuda.core.machine import cores, machine
from remuda.core.plan import Plan
from remuda.engines.choose import resolve_device
from remuda.learners.herd import assign
from remuda.learners.registry import find_learner, learner_options
from remuda.runs.callbacks.base import Row

PEAK_FILE = "peak_flops.json"
SIZE, REPEATS = 512, 8
"""Rows and columns of the product that is timed, and how often."""


def peak_flops() -> float:
    """Floating-point operations per second of one core in a product of torch; measured once per machine."""
    folder, name = cache_base(), machine()
    path = None if folder is None else folder / PEAK_FILE
    known = {} if path is None else _read_peaks(path)
    if name not in known:
        known[name] = _measure_peak()
        if path is not None:
            write_cached(path, json.dumps(known))
    return known[name]


def _read_peaks(path: Path) -> dict[str, float]:
    """What was measured before, by machine; whatever else stands in the file is left out."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    items = found.items() if isinstance(found, dict) else ()
    return {name: own for name, own in items if isinstance(own, float) and 0 < own < math.inf}


def _measure_peak() -> float:
    import torch

    x, threads = torch.ones(SIZE, SIZE), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seconds = []
        for _ in range(REPEATS + 1):  # the first one is not counted
            began = time.thread_time()
            torch.mm(x, x)
            seconds.append(time.thread_time() - began)
    finally:
        torch.set_num_threads(threads)
    return float(2 * SIZE**3 / min(seconds[1:]))


def herd_flops(plan: Plan, spec: GameSpec) -> list[DenseFlops | None]:
    """What the networks of each agent need; None for those that do not learn, or whose learner does not say."""
    found: list[DenseFlops | None] = []
    for part in assign(plan, spec):
        for number in range(part.herd_first, part.herd_first + part.agents):
            if not part.learns:
                found.append(DenseFlops(0.0, 0.0, 0.0))
                continue
            options, group = learner_options(plan, part.player), spec.groups[part.group]
            found.append(find_learner(part.player).dense_flops(group, options, number))
    return found


def utilisation(plan: Plan, spec: GameSpec, agent_steps: int, updates: Sequence[int], seconds: Row, wall: float) -> Row:
    """MFU of learning, of collecting and of the whole run; None where a learner does not count, or on a GPU.

    Agents are taken to have acted equally often. Learning and collecting are set against their own processor time,
    the run against the time of all cores.
    """
    flops = [] if resolve_device(plan.device) != "cpu" else herd_flops(plan, spec)
    known = [own for own in flops if own is not None]
    if not flops or len(known) < len(flops):
        return {"learn": None, "collect": None, "run": None}
    each, peak = agent_steps / len(known), peak_flops()
    act = sum(own.act * each for own in known)
    learn = sum(own.learn_step * each + own.learn_update * count for own, count in zip(known, updates, strict=True))
    spent = {"learn": seconds["learn"]["cpu"], "collect": seconds["collect"]["cpu"], "run": wall * cores()}
    made = {"learn": learn, "collect": act, "run": learn + act}
    return {name: made[name] / (spent[name] * peak) if spent[name] > 0 else None for name in made}
