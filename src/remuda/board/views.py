"""What the page shows of one run: plan, films, processes, lanes, failures; everything is read from files as data."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from remuda.board import files
from remuda.board.catalogue import holder_of, last_rows, number, read_json, read_yaml
from remuda.board.locks import lock_holders
from remuda.board.tables import ColumnCache
from remuda.core.lanes import BIN_S, LANES_FOLDER, WINDOW_S
from remuda.core.machine import process_tree
from remuda.core.scene import agent_colour
from remuda.runs.callbacks.tables import KEYS

LOG_BYTES = 1 << 18
MAX_FAILURES = 50
MAX_NOTES = 200
MAX_LANES = 64
_ROUTINE = re.compile(r"episodes \d+/\d+|checkpoint at |evaluation: |curve: |film: ")
_TROUBLE = re.compile(
    r"fail|skip|replaced|restart|given up|does not learn|died|killed|hang|raised|error|lost|could not|warning", re.I
)


@dataclass
class Views:
    """Views of the runs under one folder."""

    root: Path
    cache: ColumnCache
    _used: dict[int, tuple[float, float]] = field(default_factory=dict)  # by process: when, processor seconds then

    def run(self, name: str) -> dict[str, Any]:
        """Plan, commands, notes, tables and films of a run."""
        path = shlex.quote(str(self.root / name))
        notes, trouble = self._notes(name)
        config = read_yaml(self.root, name, "config.yaml")
        again = f"remuda train --config {path}/config.yaml engine=sequential --out NEW"
        agents = len(last_rows(self.root, name, "metrics.csv", 1 << 20)) or 1
        return {
            "id": name,
            "path": str(self.root / name),
            "config": config,
            "result": read_json(self.root, name, "result.json"),
            "commands": {
                "repeat": f"remuda train --config {path}/config.yaml --out NEW",
                "resume": f"remuda resume {path}",
                "extend": f"remuda resume {path} --total-episodes N",
                "evaluate": f"remuda evaluate {path}",
                "watch": f"remuda watch {path}",
                "again": f"remuda replay {path}" if config.get("log_schedule") is True else again,
            },
            "notes": notes,
            "trouble": trouble,
            "failures": self.failures(name),
            "metrics": self._metrics(name, "metrics.csv"),
            "evaluations": self._metrics(name, "evaluations.csv"),
            "colours": [agent_colour(agent) for agent in range(min(agents, 200))],
            "films": [int(file[:-5]) for file in files.names(self.root, f"{name}/films") if _is_film(file)],
        }

    def _metrics(self, name: str, file: str) -> list[str]:
        return [column for column in self.cache.names(name, file) if column not in KEYS and not column.endswith("_se")]

    def _notes(self, name: str) -> tuple[list[str], list[str]]:
        """What the run said besides its progress, and what of it went wrong."""
        head, tail = files.read_tail(self.root, name, "console.log", LOG_BYTES)
        said = [line for line in (head + tail).decode("utf-8", "replace").splitlines() if not _ROUTINE.match(line[20:])]
        return said[-MAX_NOTES:], [line for line in said if _TROUBLE.search(line)][-MAX_NOTES:]

    def failures(self, name: str) -> list[dict[str, Any]]:
        """The newest failures, each with the command that plays it again."""
        found = [file for file in files.names(self.root, f"{name}/failures") if re.fullmatch(r"\d+\.json", file)]
        path = shlex.quote(str(self.root / name))
        rows = []
        for file in reversed(found[-MAX_FAILURES:]):
            record = read_json(self.root, f"{name}/failures", file, 1 << 18)
            facts = {key: record.get(key) for key in ("message", "traceback", "worker", "turn", "episodes", "purpose")}
            replay = f"remuda replay {path} --failure {int(file[:-5])}"
            rows.append({"number": int(file[:-5]), "command": replay, **facts})
        return rows

    def film(self, name: str, episodes: str) -> bytes:
        """A film as it is written."""
        if not episodes.isascii() or not episodes.isdigit() or len(episodes) > 18:
            raise files.NotInside(episodes)
        with files.opened(self.root, f"{name}/films", f"{int(episodes):09d}.json") as stream:
            return stream.read(16 << 20)

    def system(self, name: str) -> dict[str, Any]:
        """How the engine is doing: the last minutes of system.csv, processes, and lanes if there is a timeline."""
        wall = self.cache.column(name, "system.csv", "wall_s")
        names = self.cache.names(name, "system.csv")
        recent = np.flatnonzero(wall >= (wall[-1] if len(wall) else 0.0) - 10 * WINDOW_S)
        chosen = recent[np.linspace(0, max(0, len(recent) - 1), min(len(recent), 240)).astype(np.int64)]
        columns = {
            column: [number(value) for value in self.cache.column(name, "system.csv", column)[chosen].tolist()]
            for column in names
            if len(self.cache.column(name, "system.csv", column)) == len(wall)
        }
        return {
            "columns": columns,
            "lanes": self.lanes(name),
            "mfu": self._mfu(name, columns),
            "processes": self.processes(name),
        }

    def _mfu(self, name: str, columns: dict[str, list[float | None]]) -> dict[str, float]:
        """Model FLOPs utilisation as the run reports it: in system.csv while it trains, at the end in result.json."""
        reported = read_json(self.root, name, "result.json").get("mfu")
        shares = reported if isinstance(reported, dict) else {}
        shares = {"now": next(iter(columns.get("mfu", [])[-1:]), None), **shares}
        return {str(key): value for key, own in shares.items() if (value := number(own)) is not None}

    def processes(self, name: str) -> list[dict[str, Any]]:
        """The processes that train this run on this machine: memory, and cores used since they were last asked."""
        holder = holder_of(self.root, name, lock_holders())
        if holder is None or holder <= 0:
            return []
        rows = []
        now = time.monotonic()
        for process in list(process_tree(holder))[:512]:
            try:
                fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
                memory = int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            except (OSError, ValueError, IndexError):
                continue
            used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            before = self._used.get(process)
            self._used[process] = (now, used)
            share = (used - before[1]) / (now - before[0]) if before and now > before[0] else None
            rows.append({"pid": process, "first": process == holder, "bytes": memory, "cpu_s": used, "cores": share})
        return rows

    def lanes(self, name: str) -> dict[str, Any]:
        """How each thread of each process spent the last minutes: per kind the share of every bin, in percent."""
        spent: dict[tuple[str, str], dict[int, dict[str, float]]] = {}
        for file in files.names(self.root, f"{name}/{LANES_FOLDER}"):
            if file.endswith(".jsonl"):
                head, tail = files.read_tail(self.root, f"{name}/{LANES_FOLDER}", file, LOG_BYTES)
                _add_bins(spent, file, head, tail)
        last = max((max(bins) for bins in spent.values()), default=0)
        numbers = range(last + 1 - round(WINDOW_S / BIN_S), last + 1)
        found = [(process, thread, bins) for (process, thread), bins in sorted(spent.items()) if max(bins) in numbers]
        lanes = [
            {"process": process, "thread": thread, "kinds": _shares(bins, numbers)}
            for process, thread, bins in found[:MAX_LANES]
        ]
        return {"bin_s": BIN_S, "lanes": lanes}


def _add_bins(spent: dict[tuple[str, str], dict[int, dict[str, float]]], file: str, head: bytes, tail: bytes) -> None:
    """Add the bins in a file of one process; lines that are something else are left out."""
    process = file.removesuffix(".jsonl")
    with suppress(ValueError, AttributeError, RecursionError):
        process = str(json.loads(head).get("process", process))
    for line in tail.decode("utf-8", "replace").splitlines():
        with suppress(ValueError, TypeError, AttributeError, RecursionError):
            thread, bin_number, seconds = json.loads(line)
            own = spent.setdefault((process, str(thread)), {}).setdefault(int(bin_number), {})
            for kind, amount in seconds.items():
                own[str(kind)] = own.get(str(kind), 0.0) + float(amount)


def _shares(bins: dict[int, dict[str, float]], numbers: range) -> dict[str, list[int]]:
    kinds = sorted({kind for number in numbers for kind in bins.get(number, ())})
    return {kind: [_percent(bins.get(number, {}).get(kind, 0.0)) for number in numbers] for kind in kinds}


def _percent(seconds: float) -> int:
    return round(100 * min(max(seconds, 0.0) / BIN_S, 1.0)) if math.isfinite(seconds) else 0


def _is_film(file: str) -> bool:
    return re.fullmatch(r"\d{9,18}\.json", file) is not None
