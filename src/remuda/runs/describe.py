"""A run in a few lines, read from its files alone: nothing that they name is imported."""

from __future__ import annotations

import csv
import json
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

from remuda.core.errors import RemudaError
from remuda.core.session import is_session_name
from remuda.core.yamlfile import read_yaml
from remuda.runs import checkpoint
from remuda.runs.display import INTERVAL

TAIL_BYTES = 1 << 20
"""Bytes at the end of a table that are read for its last round."""
MAX_SHOWN = 6
"""Agents whose evaluation is shown one by one."""

Facts = list[tuple[str, str]]


def describe(folder: Path) -> Facts:
    """What a run is, how far it is, and what to type next."""
    config = _config(folder)
    metrics, evaluation = last_rows(folder / "metrics.csv"), last_rows(folder / "evaluations.csv")
    planned, done = config.get("total_episodes"), int(metrics[-1]["episodes"]) if metrics else 0
    facts = [
        ("run", str(folder)),
        ("game", str(config.get("game", "?"))),
        ("agents", str(len(metrics) or _agents(config))),
        ("learners", _learners(config, metrics)),
        ("engine", str(config.get("engine", "?"))),
        ("episodes", f"{done} of {planned}{', finished' if _finished(folder) else ''}"),
        ("evaluation", _evaluation(evaluation)),
        ("files", ", ".join(sorted(path.name for path in folder.glob("[!.]*")))),
    ]
    return facts + [("command", command) for command in commands(folder, config)]


def commands(folder: Path, config: dict[str, Any] | None = None) -> list[str]:
    """Command lines that work for this run as it is."""
    config = _config(folder) if config is None else config
    path = shlex.quote(str(folder))
    if not checkpoint.every(folder / checkpoint.CHECKPOINTS):
        return []
    finished = _finished(folder)
    if is_session_name(config.get("game")):  # a command line has no way to give such a game again
        return [f"remuda.{'load' if finished else 'resume'}({str(folder)!r}, game=…)"]
    words = [*([] if finished else ["resume"]), "evaluate", *(["watch"] if (folder / "herd.gif").exists() else [])]
    return [f"remuda {word} {path}" for word in words]


def last_rows(table: Path) -> list[dict[str, str]]:
    """The rows of the last round in a table, without reading the whole of it."""
    try:
        with table.open("rb") as file:
            header = file.readline()
            file.seek(max(len(header), table.stat().st_size - TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
        rows = list(csv.DictReader([header.decode("utf-8").strip(), *lines]))
        whole = [row for row in rows if None not in row and None not in row.values() and row["episodes"].isdigit()]
    except (OSError, ValueError, KeyError, csv.Error):
        return []
    return [row for row in whole if row["episodes"] == whole[-1]["episodes"]]


def _config(folder: Path) -> dict[str, Any]:
    try:
        return read_yaml(folder / "config.yaml")
    except RemudaError:
        return {}


def _finished(folder: Path) -> bool:
    try:
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(result, dict) and result.get("finished") is True


def _agents(config: dict[str, Any]) -> Any:
    """What the game's options say, before the first round."""
    options = config.get("options")
    return options.get("agents", "?") if isinstance(options, dict) else "?"


def _learners(config: dict[str, Any], metrics: list[dict[str, str]]) -> str:
    """Each kind of player with its agents; before the first round what the plan says."""
    players = [row.get("player", "?") for row in metrics]
    if not players:
        return ", ".join(map(str, filter(None, (config.get("learner"), config.get("learners")))))
    return ", ".join(f"{kind} ({count} of {len(players)} agents)" for kind, count in Counter(players).items())


def _evaluation(rows: list[dict[str, str]]) -> str:
    if not rows:
        return "none yet"
    try:
        scores = [(float(row["return"]), INTERVAL * float(row["return_se"] or "nan")) for row in rows]
    except (KeyError, ValueError):
        return "cannot be read"
    shown = [f"{mean:.2f}" if width != width else f"{mean:.2f} ± {width:.2f}" for mean, width in scores[:MAX_SHOWN]]
    more = f" and {len(scores) - MAX_SHOWN} more" if len(scores) > MAX_SHOWN else ""
    return f"after {rows[0]['episodes']} episodes, return of each agent (95 %): {', '.join(shown)}{more}"
