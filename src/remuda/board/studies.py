"""What the page shows of one study: how far it is, what failed, its trials and its page; read from files as data."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import Any

from remuda.board.catalogue import read_json, read_yaml

MAX_ROWS = 500
MAX_TEXT = 200


def study_view(root: Path, name: str, kind: str) -> dict[str, Any]:
    """A study, sweep, search or tournament. Its runs are those below its folder, which the page has listed."""
    path = shlex.quote(str(root / name))
    view: dict[str, Any] = {
        "id": name, "kind": kind, "path": str(root / name), "planned": None, "metric": "return", "failed": {},
        "head": [], "rows": [], "commands": {},
    }  # fmt: skip
    if kind == "study":
        design, state = read_yaml(root, name, "study.yaml"), read_json(root, name, "study.json")
        failed = state.get("failed")
        view["planned"] = planned_runs(design)
        view["failed"] = {str(run): _text(why) for run, why in failed.items()} if isinstance(failed, dict) else {}
    elif kind == "sweep":
        design, trials = _options(read_json(root, name, "sweep.json"), "trials")
        view["planned"] = design.get("trials")
        view["head"], view["rows"] = _sweep_table(trials)
    elif kind == "search":
        design, trials = _options(read_json(root, name, "search.json"), "outcomes")
        view["head"], view["rows"] = _search_table(trials)
    else:
        design = {}
    if isinstance(design.get("metric"), str):
        view["metric"] = design["metric"]
    if kind != "tournament":
        view["commands"] = {"resume": f"remuda resume {path}"}
    return view


def planned_runs(design: dict[str, Any]) -> int | None:
    """How many runs a study has: variants × grid × seeds."""
    seeds, variants, grid = (design.get(key) for key in ("seeds", "variants", "grid"))
    count = len(seeds) if isinstance(seeds, list) else seeds if isinstance(seeds, int) else None
    lists = list(grid.values()) if isinstance(grid, dict) else []
    if count is None or not all(isinstance(values, list) for values in lists):
        return None
    return count * max(1, len(variants) if isinstance(variants, dict) else 0) * math.prod(map(len, lists))


def _options(state: dict[str, Any], key: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    options, trials = state.get("options"), state.get(key)
    rows = [own for own in trials if isinstance(own, dict)] if isinstance(trials, list) else []
    return options if isinstance(options, dict) else {}, rows[:MAX_ROWS]


def _sweep_table(trials: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Trials with their values, the newest last."""
    values = [own["values"] if isinstance(own.get("values"), dict) else {} for own in trials]
    names = list(dict.fromkeys(str(name) for own in values for name in own))
    head = ["trial", "status", "score", "episodes", *names, "why"]
    rows = [
        [_text(own.get(key)) for key in ("number", "status", "score", "episodes")]
        + [_text(mine.get(name)) for name in names]
        + [_text(own.get("why"))]
        for own, mine in zip(trials, values, strict=True)
    ]
    return head, rows


def _search_table(results: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    keys = ("episodes", "env_return", "compliance", "why")
    rows = []
    for own in results:
        trial = own["trial"] if isinstance(own.get("trial"), dict) else {}
        rows.append([_text(trial.get("number")), _text(trial.get("workflow")), *(_text(own.get(key)) for key in keys)])
    return ["trial", "order", "episodes", "return", "compliance", "why it ended"], rows


def _text(value: Any) -> str:
    """A cell: numbers with four digits, nothing longer than a line."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)[:MAX_TEXT]
