"""result.json: the summary of a run, written whenever training ends."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from remuda.core.errors import RunError
from remuda.engines.loop import Loop
from remuda.runs.callbacks.base import Row
from remuda.runs.callbacks.tables import METRICS, read_table
from remuda.runs.directory import RESULT, to_json
from remuda.runs.failure_log import FailureLog
from remuda.runs.recorder import ProcessTotals, Recorder
from remuda.runs.storage import storage_errors
from remuda.runs.utilisation import utilisation

SHORTEST_S = 1e-9
"""Where a game has replaced the clock, no time may have passed."""


def summarise(
    loop: Loop, recorder: Recorder, failure_log: FailureLog, processes: dict[str, ProcessTotals], compile_s: float
) -> Row:
    """What was done, how long it took, and the fingerprint of the weights."""
    recorder.load(loop.trainers.rows())
    plan, state = loop.plan, recorder.state(processes)
    episodes = plan.episodes_after(loop.rounds)
    wall = max(state.wall_s - compile_s, SHORTEST_S)
    steps = loop.trainers.steps()
    updates = [steps.get(agent, 0) for agent in range(recorder.spec.agents)]
    seconds: Row = {
        "collect": {"wall": loop.collectors.spent.wall, "cpu": loop.collectors.spent.cpu},
        "learn": {"wall": recorder.learning.wall, "cpu": recorder.learning.cpu},
        "wait": {"wall": loop.trainers.waited_s, "cpu": 0.0},
    }
    return {
        "run": str(recorder.folder),
        "game": plan.game,
        "engine": plan.engine,
        "finished": loop.finished,
        "episodes": episodes,
        "agent_steps": recorder.steps,
        "updates_per_agent": updates,
        "wall_s": wall,
        "cpu_s": state.cpu_s,
        "compile_s": compile_s,
        "seconds": seconds,
        "mfu": utilisation(plan, recorder.spec, recorder.steps, updates, seconds, wall),
        "episodes_per_s": episodes / wall,
        "agent_steps_per_s": recorder.steps / wall,
        "updates_per_s": sum(updates) / wall,
        **_returns(recorder.folder, recorder.spec.agents),
        "evaluation": recorder.evaluation,
        "peak_memory_bytes": state.peak_memory_bytes,
        "lag": _lags(loop),
        "waited_s": {
            "loop": loop.trainers.waited_s,
            "collectors": loop.collectors.waited_s,
            "learners": loop.trainers.learners_waited_s,
        },
        "processes": [{"name": name, **own.model_dump()} for name, own in state.processes.items()],
        "failures": {
            "episodes_failed": failure_log.failures,
            "episodes_given_up": failure_log.given_up,
            "invalid_episodes": failure_log.invalid_episodes,
            "updates_skipped": failure_log.updates_skipped,
        },
        "weights_sha256": recorder.fingerprint(),
    }


def write_result(folder: Path, result: Row) -> None:
    """Write result.json."""
    with storage_errors(folder):
        (folder / RESULT).write_text(to_json(result, indent=1), encoding="utf-8")


def _lags(loop: Loop) -> Row:
    """Policy lag of what was learned from: turns of agents by versions, and episodes that were too late."""
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
    try:
        returns = read_table(folder / METRICS)["return"].astype(np.float64).reshape(-1, agents)
    except (RunError, KeyError, ValueError):  # somebody has removed or edited the table: training is not affected
        returns = np.zeros((0, agents))
    tenth = max(1, len(returns) // 10)
    if not len(returns):
        return {"mean_return": None, "first_mean_return": None}
    return {
        "mean_return": returns[-tenth:].mean(axis=0).tolist(),
        "first_mean_return": returns[:tenth].mean(axis=0).tolist(),
    }
