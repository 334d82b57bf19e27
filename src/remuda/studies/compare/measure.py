"""Measures one plan on several engines and numbers of workers, each in its own process, in turn.

A trial is a `remuda train` that is stopped after a while. Its rate is computed from the run's own `system.csv`, from
the first learned round to the last; the time before the first is the cold start. Memory and processor time are those of
the whole process tree, as the kernel reports them.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
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
from remuda.transport.temporary import TemporaryFolder

POLL_S = 0.2
"""Seconds between two reads of a trial's system.csv."""
MEMORY_CHECK_SHARE = 20
"""Reading the memory of all processes is slow: it takes at most one part in this many of the time."""
MAX_LENGTH_FACTOR = 6
"""A trial with long rounds may take this many times the seconds it was given."""
START_LIMIT_S = 900.0
"""The longest that a trial may take until its first round is learned."""
END_LIMIT_S = 60.0
UNLIMITED = 2**40
"""Episodes of a trial's plan; the trial is stopped long before."""
RAY_LEARNERS = "ray+learners"
"""The name of engine `ray` where learners are actors, too: `n_learners`, or `auto`."""
WIDE_SPREAD = 0.4
"""If the spread of the repeats is a larger share of the median, the median says little."""


@dataclass(frozen=True)
class EngineVariant:
    """An engine with a number of workers; `ray` also with learners that are actors."""

    engine: str
    workers: int
    learner_actors: bool = False

    @property
    def kind(self) -> str:
        """What `--engines` calls it."""
        return RAY_LEARNERS if self.learner_actors else self.engine

    @property
    def name(self) -> str:
        """Its name in tables."""
        return self.kind if self.engine == "sequential" else f"{self.kind} {self.workers}"

    def plan(self, plan: Plan) -> Plan:
        """The plan on this engine."""
        changes: dict[str, Any] = {"engine": self.engine, "n_workers": self.workers}
        if self.learner_actors:
            changes["n_learners"] = plan.n_learners or "auto"
        return plan.model_copy(update=changes)


@dataclass(frozen=True)
class Measurement:
    """The result of one trial of a variant."""

    episodes_per_s: float
    agent_steps_per_s: float
    cold_start_s: float
    peak_bytes: int
    collect_cpu_s: float  # per episode, as are the next four
    learn_cpu_s: float
    other_cpu_s: float  # moving data, recording, everything else
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
    problem: str = ""  # why there are no trials

    def of(self, name: str) -> list[float]:
        """One field of every trial."""
        return [float(getattr(trial, name)) for trial in self.trials]

    def median(self, name: str) -> float:
        """The median of one field over all trials."""
        return statistics.median(self.of(name))

    @property
    def rate(self) -> float:
        """Episodes per second, the median over all trials."""
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
        return high - low > WIDE_SPREAD * self.rate

    def shares(self) -> dict[str, float]:
        """How the time of all cores is divided: collecting, learning, moving data, waiting."""
        busy = {
            "collecting": self.median("collect_cpu_s"),
            "learning": self.median("learn_cpu_s"),
            "moving data": self.median("other_cpu_s"),
        }
        parts = {name: seconds * self.rate / cores() for name, seconds in busy.items()}
        return {**parts, "waiting": max(0.0, 1.0 - sum(parts.values()))}


def variants(engines: str, counts: Sequence[int]) -> list[EngineVariant]:
    """Every named engine with every number of workers that makes sense for it."""
    known = [*ENGINES, RAY_LEARNERS]
    names = known if engines == "all" else [name.strip() for name in engines.split(",")]
    for name in names:
        if name not in known:
            raise UnknownName("engine", name, [*known, "all"])
    if not counts or min(counts) < 1:
        raise ConfigError("n_workers should list whole numbers from 1 on, e.g. 2,10,100")
    result = []
    for name in names:
        if name == "sequential":
            result.append(EngineVariant(name, 1))
        elif name == RAY_LEARNERS:
            result += [EngineVariant("ray", count, learner_actors=True) for count in sorted(set(counts))]
        elif ENGINES[name].has_workers:
            result += [EngineVariant(name, count) for count in sorted(set(counts))]
        else:  # threads in one process: more of them than cores are useless
            result += [EngineVariant(name, count) for count in sorted({min(count, cores()) for count in counts})]
    return result


def measure(
    plan: Plan,
    wanted: Sequence[EngineVariant],
    seconds: float,
    repeats: int,
    on_message: Callable[[str], None],
    trust: bool = False,
) -> list[VariantMeasurements]:
    """Measure every variant `repeats` times, in turn; one that cannot run gets a `problem` and no trials."""
    measurements = [VariantMeasurements(variant) for variant in wanted]
    for repeat in range(repeats):
        for one in measurements:
            if one.problem:
                continue
            on_message(f"{one.variant.name}, {repeat + 1} of {repeats}")
            try:
                one.trials.append(measure_once(plan, one.variant, seconds, trust))
            except ConfigError as error:
                one.problem, one.trials = str(error), []
    return measurements


TRAIN_WITH_PARENT = """
from remuda.transport.processes import die_with_parent
die_with_parent()
from remuda.cli.main import main
main()
"""
"""The command line, in a process that ends with the one that started it, though that be killed."""


def trial_plan(plan: Plan, variant: EngineVariant) -> Plan:
    """The plan of a trial: the same work, without an end and without anything that is not training."""
    return variant.plan(plan).model_copy(
        update={
            "total_episodes": UNLIMITED, "pictures": False,
            "evaluate_every": 0, "checkpoint_every": UNLIMITED, "checkpoint_every_s": 1e9,
            "deterministic": plan.deterministic and ENGINES[variant.engine].deterministic,
        }
    )  # fmt: skip


def measure_once(plan: Plan, variant: EngineVariant, seconds: float, trust: bool = False) -> Measurement:
    """Run one trial: train for `seconds` after the first round, and read its system.csv."""
    with TemporaryFolder("remuda-compare-") as temporary:
        folder = temporary.path
        config, run = folder / "plan.yaml", folder / "run"
        write_yaml(config, trial_plan(plan, variant))
        began = time.monotonic()
        with (folder / "stderr").open("w+") as err:
            process = subprocess.Popen(
                [
                    sys.executable, "-c", TRAIN_WITH_PARENT, "train", "--config", str(config), "--out", str(run),
                    *(["--trust"] if trust else []),
                ],
                stdout=subprocess.DEVNULL, stderr=err, start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )  # fmt: skip
            try:
                return _measure_process(process, run / "system.csv", began, seconds)
            except subprocess.TimeoutExpired as error:
                raise ConfigError(f"{variant.name}: {error}") from None
            except ChildProcessError:
                err.seek(0)
                lines = err.read().strip().splitlines()
                raise ConfigError(lines[-1].removeprefix("error: ") if lines else "it ended at once") from None
            finally:
                _end(process)


def _measure_process(process: subprocess.Popen[Any], system_csv: Path, began: float, seconds: float) -> Measurement:
    """Wait for the first round, then for `seconds` and one more round; read the memory meanwhile."""
    deadline, first, peak, next_memory_check = began + START_LIMIT_S, 0.0, 0, 0.0
    cpu, rows, latest = 0.0, 0, 0.0
    while True:
        time.sleep(POLL_S)
        now = time.monotonic()
        if process.poll() is not None:
            raise ChildProcessError
        known, rows = rows, _rounds(system_csv)
        if rows > known:
            latest = now
        if rows and not first:
            first, cpu, deadline = now, tree_cpu_s(process.pid), now + MAX_LENGTH_FACTOR * seconds
        if first and now > next_memory_check:
            peak = max(peak, tree_bytes(process.pid))
            next_memory_check = time.monotonic() + MEMORY_CHECK_SHARE * (time.monotonic() - now)
        if first and rows >= 2 and now - first >= seconds and latest - first >= seconds / 2:
            break
        if now > deadline:
            if not first:
                raise subprocess.TimeoutExpired("train", START_LIMIT_S)
            break
    last = time.monotonic()
    used = (tree_cpu_s(process.pid) - cpu) / (last - first)
    _end(process)
    return _read_measurement(system_csv, first - began, peak, used)


def _rounds(system_csv: Path) -> int:
    """How many rounds the file has: complete lines after the header."""
    try:
        return max(0, system_csv.read_bytes().count(b"\n") - 1)
    except OSError:
        return 0


def _read_measurement(system_csv: Path, cold_s: float, peak: int, cpu_per_s: float) -> Measurement:
    """The measurement from the first learned round to the last; from the start of the run if there is only one."""
    table: Table = read_table(system_csv)
    start = dict.fromkeys(table, 0.0)
    first = {name: float(column[0]) for name, column in table.items()} if len(table["round"]) > 1 else start
    total = {name: float(column[-1]) - first[name] for name, column in table.items()}
    steps = read_table(system_csv.with_name("metrics.csv"))["agent_steps"]
    agents = len(steps) // len(table["round"])
    agent_steps = float(steps[-1]) - (float(steps[agents - 1]) if first is not start else 0.0)
    episodes, wall = total["episodes"], total["wall_s"]
    rate = episodes / wall
    if len(table["round"]) > 2:  # rounds may come in bursts, so fit a line through all of them
        rate = float(np.polyfit(table["wall_s"] - first["wall_s"], table["episodes"], 1)[0])
    collect, learn = total["collect_cpu_s"] / episodes, total["learn_cpu_s"] / episodes
    late = table["lag_mean"][1:] if len(table["round"]) > 1 else table["lag_mean"]
    return Measurement(
        episodes_per_s=rate,
        agent_steps_per_s=rate * agent_steps / episodes,
        cold_start_s=cold_s,
        peak_bytes=peak,
        collect_cpu_s=collect,
        learn_cpu_s=learn,
        other_cpu_s=max(0.0, cpu_per_s / rate - collect - learn),
        collect_wall_s=total["collect_wall_s"] / episodes,
        learn_wall_s=total["learn_wall_s"] / episodes,
        lag_mean=float(np.nanmean(late)) if np.isfinite(late).any() else 0.0,
        lag_max=int(table["lag_max"].max()),
        rounds=len(table["round"]),
    )


def _end(process: subprocess.Popen[Any]) -> None:
    """Ask the trial to stop; a second time if its last round takes long; then kill it."""
    for number, limit_s in ((signal.SIGTERM, END_LIMIT_S), (signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        if process.poll() is not None:
            return
        process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(limit_s)
