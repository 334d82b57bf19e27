"""What the page shows of one run: plan, films, processes, lanes, failures; everything is read from files as data."""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from remuda.board import files
from remuda.board.catalogue import holder_of, last_rows, number, read_json
from remuda.board.locks import lock_holders
from remuda.board.tables import ColumnCache
from remuda.core.machine import process_tree
from remuda.core.scene import agent_colour
from remuda.runs.callbacks.tables import KEYS

LOG_BYTES = 1 << 18
MAX_FAILURES = 50
MAX_NOTES = 200
MAX_SPANS = 4000
WINDOW_S = 120.0
KINDS = {
    "collect": "collect", "take": "learn", "update": "learn", "wait": "wait",
    "publish": "move", "snapshot": "move", "save": "move", "film": "film",
}  # fmt: skip
"""Spans of a timeline that are drawn, and the kind of each."""
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
        agents = len(last_rows(self.root, name, "metrics.csv", 1 << 20)) or 1
        return {
            "id": name,
            "path": str(self.root / name),
            "config": self._config(name),
            "result": read_json(self.root, name, "result.json"),
            "commands": {
                "repeat": f"remuda train --config {path}/config.yaml --out NEW",
                "resume": f"remuda resume {path}",
                "extend": f"remuda resume {path} --total-episodes N",
                "evaluate": f"remuda evaluate {path}",
                "watch": f"remuda watch {path}",
            },
            "notes": notes,
            "trouble": trouble,
            "failures": self.failures(name),
            "metrics": self._metrics(name, "metrics.csv"),
            "evaluations": self._metrics(name, "evaluations.csv"),
            "colours": [agent_colour(agent) for agent in range(min(agents, 200))],
            "films": [int(file[:-5]) for file in files.names(self.root, f"{name}/films") if _is_film(file)],
            "timeline": bool(files.names(self.root, f"{name}/timeline"))
            or bool(files.read(self.root, name, "timeline.json", 1)),
        }

    def _metrics(self, name: str, file: str) -> list[str]:
        return [column for column in self.cache.names(name, file) if column not in KEYS and not column.endswith("_se")]

    def _config(self, name: str) -> dict[str, Any]:
        """The plan; plain YAML, and nothing if it is not."""
        text = files.read(self.root, name, "config.yaml", 1 << 20)
        if b"&" in text or b"*" in text:  # remuda writes no aliases, and a few of them can fill the memory
            return {"config.yaml": text.decode("utf-8", "replace")[:20_000]}
        try:
            content = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text).get_single_data()
            json.dumps(content)
        except Exception:  # the reader raises many types on hostile input
            return {"config.yaml": text.decode("utf-8", "replace")[:20_000]}
        return content if isinstance(content, dict) else {}

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
        return {"columns": columns, "lanes": self.lanes(name), "processes": self.processes(name)}

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

    def lanes(self, name: str) -> list[dict[str, Any]]:
        """Spans of every process and thread in the last minutes, from a timeline that is being written or is done."""
        parts = [file for file in files.names(self.root, f"{name}/timeline") if file.endswith(".jsonl")]
        texts = [files.read_tail(self.root, f"{name}/timeline", file, 1 << 20) for file in parts[:64]]
        if not texts:
            texts = [files.read_tail(self.root, name, "timeline.json", 8 << 20)]
        return lanes_of(event for head, tail in texts for event in _events(head + tail))


def _is_film(file: str) -> bool:
    return re.fullmatch(r"\d{9,18}\.json", file) is not None


def _events(text: bytes) -> list[dict[str, Any]]:
    events = []
    for line in text.decode("utf-8", "replace").splitlines():
        try:
            event = json.loads(line.rstrip(","))
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            events.append(event)
    return events


def lanes_of(events: Any) -> list[dict[str, Any]]:
    """Events of a trace as lanes: per thread the spans of the last minutes, short ones of a kind joined."""
    spans: dict[tuple[Any, Any], list[tuple[float, float, str]]] = {}
    names: dict[Any, str] = {}
    threads: dict[tuple[Any, Any], str] = {}
    for event in events:
        kind, begin, length = KINDS.get(str(event.get("name"))), number(event.get("ts")), number(event.get("dur"))
        if event.get("ph") == "M" and event.get("name") == "process_name" and isinstance(event.get("args"), dict):
            names[event.get("pid")] = str(event["args"].get("name"))
        elif event.get("ph") == "M" and event.get("name") == "thread_name" and isinstance(event.get("args"), dict):
            threads[event.get("pid"), event.get("tid")] = str(event["args"].get("name"))
        elif kind is not None and begin is not None and length is not None:
            key = (event.get("pid"), event.get("tid"))
            spans.setdefault(key, []).append((begin / 1e6, (begin + length) / 1e6, kind))
    end = max((last for own in spans.values() for _, last, _ in own), default=0.0)
    lanes = []
    for (pid, thread), own in sorted(spans.items(), key=lambda item: str(item[0])):
        joined = _joined([span for span in own if span[1] > end - WINDOW_S], WINDOW_S / MAX_SPANS)
        if joined:
            lane = [[round(a - end, 4), round(b - end, 4), kind] for a, b, kind in joined[-MAX_SPANS:]]
            lanes.append({"process": names.get(pid, str(pid)), "thread": threads.get((pid, thread), ""), "spans": lane})
    return lanes


def _joined(spans: list[tuple[float, float, str]], gap: float) -> list[tuple[float, float, str]]:
    """Spans in order; neighbours of one kind with hardly a gap between become one."""
    result: list[tuple[float, float, str]] = []
    for begin, end, kind in sorted(spans):
        if result and result[-1][2] == kind and begin - result[-1][1] < gap:
            result[-1] = (result[-1][0], max(end, result[-1][1]), kind)
        else:
            result.append((begin, end, kind))
    return result
