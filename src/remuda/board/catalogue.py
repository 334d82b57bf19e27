"""Which runs and studies there are under a folder, and a line about each, read from their files alone."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from socket import gethostname
from typing import Any

import yaml

from remuda.board import files
from remuda.board.locks import lock_holders
from remuda.core.json_text import is_shallow

MAX_DEPTH = 6
MAX_RUNS = 5000
TAIL_BYTES = 1 << 15
FRESH_S = 600.0
"""A run of another machine, whose lock this one does not see, is under way if its files changed in this time."""
WATCHED = ("config.yaml", "metrics.csv", "evaluations.csv", "system.csv", "result.json", "films", "failures",
           "console.log", "lanes")  # fmt: skip
"""Files and folders of a run whose change makes a page load anew what it shows of them."""
SKIPPED = {"checkpoints", "best", "films", "failures", "tensorboard", "timeline", "lanes", "__pycache__"}
STUDIES = {
    "study.yaml": "study", "study.json": "study", "sweep.json": "sweep", "search.json": "search",
    "tournament.json": "tournament",
}  # fmt: skip
MAX_LEVELS = 50
"""Deepest nesting of what is read from YAML and JSON."""
_YAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SCALAR = re.compile(r"^([a-z_]+): *(.*)$")


@dataclass
class Catalogue:
    """The runs under one folder. Thread-safe; a run is looked at again only when its files changed."""

    root: Path
    _known: dict[str, tuple[Any, dict[str, Any]]] = field(default_factory=dict)  # by id: stamp and summary
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def listing(self) -> dict[str, Any]:
        """Every run with a summary, every study and page."""
        with self._lock:
            runs, studies, pages = _find(self.root)
            holders = lock_holders()
            now = time.time()
            summaries = [self._summary(name, holders, now) for name in runs]
            self._known = {name: self._known[name] for name in runs}
        return {"runs": summaries, "studies": studies, "pages": pages}

    def summaries(self, names: list[str]) -> list[dict[str, Any]]:
        """Of runs that were listed before: without a search of the folder."""
        with self._lock:
            holders = lock_holders()
            now = time.time()
            return [self._summary(name, holders, now) for name in names]

    def _summary(self, name: str, holders: dict[int, int], now: float) -> dict[str, Any]:
        stamp = files.stamp(self.root, name, (*WATCHED, ".lock"))
        known = self._known.get(name)
        if known is None or known[0] != stamp:
            known = stamp, summarise(self.root, name)
            self._known[name] = known
        changed = max(when for _, when in stamp) / 1e9
        summary = dict(known[1])
        summary["changed"] = round(changed, 3)
        summary["stamp"] = _short(stamp)
        summary["status"] = self._status(name, summary, holders, now - changed)
        return summary

    def _status(self, name: str, summary: dict[str, Any], holders: dict[int, int], age_s: float) -> str:
        """running, finished, stopped (it can go on), or interrupted (it ended without a word)."""
        if holder_of(self.root, name, holders) is not None:
            return "running"
        if summary["host"]:  # whoever trains a run writes this, and removes it at the end
            return "running" if summary["host"] != gethostname() and age_s < FRESH_S else "interrupted"
        if summary["finished"]:
            return "finished"
        return "stopped" if summary["ended"] else "interrupted"


def holder_of(root: Path, name: str, holders: dict[int, int]) -> int | None:
    """The process that trains a run on this machine."""
    try:
        with files.directory(root, name) as descriptor:
            return holders.get(os.stat(".lock", dir_fd=descriptor, follow_symlinks=False).st_ino)
    except OSError:
        return None


def _find(root: Path) -> tuple[list[str], list[dict[str, str]], list[dict[str, str]]]:
    """Ids of runs, studies and pages; links are not followed, and runs have no runs inside."""
    runs: list[str] = []
    studies: list[dict[str, str]] = []
    pages: list[dict[str, str]] = []
    pending = [(root, ".", 0)]
    while pending and len(runs) < MAX_RUNS:
        path, name, depth = pending.pop()
        try:
            entries = sorted(os.scandir(path), key=lambda entry: entry.name)
        except OSError:
            continue
        plain = {entry.name for entry in entries if entry.is_file(follow_symlinks=False)}
        for file, kind in STUDIES.items():
            if file in plain and not any(study["id"] == name for study in studies):
                studies.append({"id": name, "kind": kind})
        if "config.yaml" in plain and not plain & set(STUDIES):
            runs.append(name)
            continue
        pages += [
            {"id": name, "file": file} for file in sorted(plain) if file.endswith(".html") and not file.startswith(".")
        ]
        if depth < MAX_DEPTH:
            pending += [
                (path / entry.name, entry.name if name == "." else f"{name}/{entry.name}", depth + 1)
                for entry in reversed(entries)
                if entry.is_dir(follow_symlinks=False) and entry.name not in SKIPPED and not entry.name.startswith(".")
            ]
    return runs, studies, pages


def summarise(root: Path, name: str) -> dict[str, Any]:
    """A run in a line."""
    config = scalars(files.read(root, name, "config.yaml", 1 << 16).decode("utf-8", "replace"))
    rows = last_rows(root, name, "metrics.csv")
    result = read_json(root, name, "result.json")
    returns = [value for row in rows if (value := number(row.get("return"))) is not None]
    steps, wall = (number(rows[-1].get(key)) if rows else None for key in ("agent_steps", "wall_s"))
    return {
        "id": name,
        "name": root.resolve().name if name == "." else name,
        "game": config.get("game", "?"),
        "engine": config.get("engine", "?"),
        "learner": config.get("learner", "?"),
        "seed": config.get("seed", "?"),
        "total": number(config.get("total_episodes")),
        "episodes": number(rows[-1].get("episodes")) if rows else 0,
        "agents": len(rows) or None,
        "return": sum(returns) / len(returns) if returns else None,
        "wall_s": wall,
        "steps_per_s": steps / wall if steps and wall else None,
        "finished": result.get("finished") is True,
        "ended": bool(result),
        "host": files.read(root, name, ".lock", 256).decode("utf-8", "replace"),
        "failures": sum(file.endswith(".json") for file in files.names(root, f"{name}/failures")),
    }


def scalars(text: str) -> dict[str, str]:
    """Top-level scalars of a config that remuda wrote; 500 configs are read so in the time of five by YAML."""
    found = {}
    for line in text.splitlines():
        match = _SCALAR.match(line)
        if match and match[2]:
            found[match[1]] = match[2].strip("'\"")
    return found


def last_rows(root: Path, name: str, file: str, max_bytes: int = TAIL_BYTES) -> list[dict[str, str]]:
    """Rows of the last round in a table, as far as they stand in its tail."""
    head, tail = files.read_tail(root, name, file, max_bytes)
    columns = head.decode("utf-8", "replace").strip().split(",")
    rows: list[dict[str, str]] = []
    for line in reversed(tail.decode("utf-8", "replace").splitlines()):
        if len(cells := line.split(",")) != len(columns):
            continue
        row = dict(zip(columns, cells, strict=True))
        if rows and row.get("round") != rows[0].get("round"):
            break
        rows.append(row)
    return rows[::-1]


def read_json(root: Path, name: str, file: str, max_bytes: int = 1 << 22) -> dict[str, Any]:
    """The mapping in a JSON file; empty where there is none, or where it is nested so deep that it cannot be sent."""
    try:
        content = json.loads(files.read(root, name, file, max_bytes) or b"{}")
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) and is_shallow(content, MAX_LEVELS) else {}


def read_yaml(root: Path, name: str, file: str) -> dict[str, Any]:
    """The mapping in a YAML file that remuda wrote; the text under the file's name if it is something else."""
    text = files.read(root, name, file, 1 << 20)
    as_text = {file: text.decode("utf-8", "replace")[:20_000]}
    try:
        if not _is_plain(text):
            return as_text
        content = _YAML(text).get_single_data()
        json.dumps(content)
    except Exception:  # the reader raises many types on hostile input
        return as_text
    return content if isinstance(content, dict) else {}


def _is_plain(text: bytes) -> bool:
    """Whether there are no aliases, of which a few can fill the memory, and no deep nesting.

    libyaml's composer overflows the stack where lists are nested some ten thousand times, which ends the process. Its
    parser, used here, does not call itself.
    """
    depth = 0
    for event in yaml.parse(text, _YAML):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_LEVELS or isinstance(event, yaml.AliasEvent):
            return False
    return True


def number(value: Any) -> float | None:
    """A finite number, or None."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if abs(found) < float("inf") else None


def _short(stamp: list[tuple[int, int]]) -> str:
    """A stamp as a short text, with a word for each of WATCHED that changes when it does."""
    return "-".join(f"{size:x}.{when // 1_000_000:x}" for size, when in stamp)
