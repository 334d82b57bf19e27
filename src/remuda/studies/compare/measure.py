"""One plan on several engines and worker counts, each a process of its own, taking turns.

A trial is `remuda train` that is stopped after a while. Its rate comes from its own books, from the first round
learned to the last; what comes before the first one is the cold start. Memory and processor time are those of
the whole process tree, as the kernel has them.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from remuda.core.errors import ConfigError, UnknownName
from remuda.core.machine import cores, tree_bytes, tree_cpu_s
from remuda.core.plan import Plan
from remuda.core.yamlfile import write_yaml
from remuda.engines.table import ENGINES
from remuda.runs.callbacks.tables import Table, read_table

LOOK_S = 0.2
"""Seconds between looks at a trial's books."""
DEAR = 20
"""Memory is looked at so seldom that looking takes a twentieth of the time at most."""
PATIENCE = 6
"""A trial whose rounds are long may take so many times the seconds it was given."""
START_LIMIT_S = 900.0
"""Longest until a trial's first round is learned."""
END_LIMIT_S = 60.0
FOREVER = 2**40
"""Episodes of a trial's plan: it is stopped long before."""
WIDE = 0.4
"""A spread, as a share of the median, beyond which a figure is only a hint."""


@dataclass(frozen=True)
class EngineVariant:
    """An engine with so many workers."""

    engine: str
    workers: int

    @property
    def name(self) -> str:
        """As tables have it."""
        return self.engine if self.engine == "sequential" else f"{self.engine} {self.workers}"


@dataclass(frozen=True)
class Measurement:
    """What one run of a variant came to."""

    episodes_per_s: float
    agent_steps_per_s: float
    cold_start_s: float
    peak_bytes: int
    collect_cpu_s: float  # per episode, as the next five
    learn_cpu_s: float
    other_cpu_s: float  # moving data and keeping the books
    collect_wall_s: float
    learn_wall_s: float
    lag_mean: float
    lag_max: int
    rounds: int


@dataclass
class VariantMeasurements:
    """All trials of a variant."""

    variant: EngineVariant
    trials: list[Measurement] = field(default_factory=list)
    problem: str = ""  # why there are none

    def of(self, name: str) -> list[float]:
        """One figure, of every trial."""
        return [float(getattr(trial, name)) for trial in self.trials]

    def median(self, name: str) -> float:
        """Of one figure."""
        return statistics.median(self.of(name))

    @property
    def rate(self) -> float:
        """Episodes per second."""
        return self.median("episodes_per_s")

    @property
    def spread(self) -> tuple[float, float]:
        """The slowest and the fastest trial, in episodes per second."""
        rates = self.of("episodes_per_s")
        return min(rates), max(rates)

    @property
    def wide(self) -> bool:
        """Whether trials differ so much that the median says little."""
        low, high = self.spread
        return high - low > WIDE * self.rate

    def shares(self) -> dict[str, float]:
        """Of the time of the cores it may use: collecting, learning, moving data, waiting."""
        busy = {
            "collecting": self.median("collect_cpu_s"),
            "learning": self.median("learn_cpu_s"),
            "moving data": self.median("other_cpu_s"),
        }
        parts = {name: seconds * self.rate / cores() for name, seconds in busy.items()}
        return {**parts, "waiting": max(0.0, 1.0 - sum(parts.values()))}


def variants(engines: str, counts: Sequence[int]) -> list[EngineVariant]:
    """Every engine named with every number of workers that makes sense for it."""
    names = list(ENGINES) if engines == "all" else [name.strip() for name in engines.split(",")]
    for name in names:
        if name not in ENGINES:
            raise UnknownName("engine", name, [*ENGINES, "all"])
    if not counts or min(counts) < 1:
        raise ConfigError("n_workers should list whole numbers from 1 on, e.g. 2,10,100")
    result = []
    for name in names:
        if name == "sequential":
            result.append(EngineVariant(name, 1))
        elif ENGINES[name].has_workers:
            result += [EngineVariant(name, count) for count in sorted(set(counts))]
        else:  # threads in one process: more of them than cores help nobody
            result += [EngineVariant(name, count) for count in sorted({min(count, cores()) for count in counts})]
    return result


def measure(
    plan: Plan, wanted: Sequence[EngineVariant], seconds: float, repeats: int, tell: Callable[[str], None]
) -> list[VariantMeasurements]:
    """Try every variant `repeats` times, taking turns; one that cannot run says why and is left out."""
    figures = [VariantMeasurements(variant) for variant in wanted]
    for repeat in range(repeats):
        for own in figures:
            if own.problem:
                continue
            tell(f"{own.variant.name}, {repeat + 1} of {repeats}")
            try:
                own.trials.append(try_out(plan, own.variant, seconds))
            except ConfigError as error:
                own.problem, own.trials = str(error), []
    return figures


def trial_plan(plan: Plan, variant: EngineVariant) -> Plan:
    """The plan of a trial: the same work, without an end and without anything that is no training."""
    return plan.model_copy(
        update={
            "engine": variant.engine, "n_workers": variant.workers, "total_episodes": FOREVER, "pictures": False,
            "evaluate_every": 0, "checkpoint_every": FOREVER, "checkpoint_every_s": 1e9, "deterministic": False,
        }
    )  # fmt: skip


def try_out(plan: Plan, variant: EngineVariant, seconds: float) -> Measurement:
    """Train for `seconds` after the first round, and read the books."""
    with tempfile.TemporaryDirectory(prefix="remuda-compare-") as folder:
        config, run = Path(folder) / "plan.yaml", Path(folder) / "run"
        write_yaml(config, trial_plan(plan, variant))
        began = time.monotonic()
        with (Path(folder) / "stderr").open("w+") as err:
            process = subprocess.Popen(
                [sys.executable, "-m", "remuda", "train", "--config", str(config), "--out", str(run)],
                stdout=subprocess.DEVNULL, stderr=err, start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )  # fmt: skip
            try:
                return _watch(process, run / "system.csv", began, seconds)
            except subprocess.TimeoutExpired as error:
                raise ConfigError(f"{variant.name}: {error}") from None
            except ChildProcessError:
                err.seek(0)
                said = err.read().strip().splitlines()
                raise ConfigError(said[-1].removeprefix("error: ") if said else "it ended at once") from None
            finally:
                _end(process)


def _watch(process: subprocess.Popen[Any], books: Path, began: float, seconds: float) -> Measurement:
    """Wait for the first round, then for `seconds` and one round more; look at memory on the way."""
    deadline, first, peak, look_again = began + START_LIMIT_S, 0.0, 0, 0.0
    cpu, rows, latest = 0.0, 0, 0.0
    while True:
        time.sleep(LOOK_S)
        now = time.monotonic()
        if process.poll() is not None:
            raise ChildProcessError
        known, rows = rows, _rounds(books)
        if rows > known:
            latest = now
        if rows and not first:
            first, cpu, deadline = now, tree_cpu_s(process.pid), now + PATIENCE * seconds
        if first and now > look_again:
            peak = max(peak, tree_bytes(process.pid))
            look_again = time.monotonic() + DEAR * (time.monotonic() - now)
        if first and rows >= 2 and now - first >= seconds and latest - first >= seconds / 2:
            break
        if now > deadline:
            if not first:
                raise subprocess.TimeoutExpired("train", START_LIMIT_S)
            break
    last = time.monotonic()
    used = (tree_cpu_s(process.pid) - cpu) / (last - first)
    _end(process)
    return _read(books, first - began, peak, used)


def _rounds(books: Path) -> int:
    """Whole lines after the first."""
    try:
        return max(0, books.read_bytes().count(b"\n") - 1)
    except OSError:
        return 0


def _read(books: Path, cold_s: float, peak: int, cpu_per_s: float) -> Measurement:
    """Figures from the first round learned to the last; from the very beginning where there is only one."""
    table: Table = read_table(books)
    start = dict.fromkeys(table, 0.0)
    first = {name: float(column[0]) for name, column in table.items()} if len(table["round"]) > 1 else start
    gone = {name: float(column[-1]) - first[name] for name, column in table.items()}
    steps = read_table(books.with_name("metrics.csv"))["agent_steps"]
    agents = len(steps) // len(table["round"])
    made = float(steps[-1]) - (float(steps[agents - 1]) if first is not start else 0.0)
    episodes, wall = gone["episodes"], gone["wall_s"]
    rate = episodes / wall
    if len(table["round"]) > 2:  # rounds may come in bursts: the line through all of them
        rate = float(np.polyfit(table["wall_s"] - first["wall_s"], table["episodes"], 1)[0])
    collect, learn = gone["collect_cpu_s"] / episodes, gone["learn_cpu_s"] / episodes
    late = table["lag_mean"][1:] if len(table["round"]) > 1 else table["lag_mean"]
    return Measurement(
        episodes_per_s=rate,
        agent_steps_per_s=rate * made / episodes,
        cold_start_s=cold_s,
        peak_bytes=peak,
        collect_cpu_s=collect,
        learn_cpu_s=learn,
        other_cpu_s=max(0.0, cpu_per_s / rate - collect - learn),
        collect_wall_s=gone["collect_wall_s"] / episodes,
        learn_wall_s=gone["learn_wall_s"] / episodes,
        lag_mean=float(np.nanmean(late)) if np.isfinite(late).any() else 0.0,
        lag_max=int(table["lag_max"].max()),
        rounds=len(table["round"]),
    )


def _end(process: subprocess.Popen[Any]) -> None:
    """Ask it to stop, as a person would; a second time if it takes long over its last round."""
    for number, limit_s in ((signal.SIGTERM, END_LIMIT_S), (signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        if process.poll() is not None:
            return
        process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(limit_s)
