"""What has changed since a page was last told: a page holds one answer open, to which lines of JSON are added.

A page that asked again and again, and drew its charts anew each time, took 0.040 cores in Chromium and the server.
Told only what has changed, and drawing only that, it takes 0.014 (a run replayed at 2.5 rows a second, four charts in
sight).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from remuda.board.catalogue import WATCHED
from remuda.board.tables import ColumnCache, CurveRequest, curve

EVERY_S = 1.6
"""Between two lines while a run writes without pause: a curve follows its file within two seconds."""
LOOK_S = 0.4
"""Between two looks at the files while nothing changes."""
LOOK_SHARE = 0.005
"""The folder is searched for runs in at most this share of the time; runs on the page are looked at each time."""
ALIVE_S = 20.0
"""An empty line is sent after this time, to find out whether the page is still there."""
MAX_METRICS = 200
CURVES = ("metrics.csv", "evaluations.csv")
SENT = ("step", "from", "agent_count", "x", "mean", "agents", "error")


@dataclass
class _Sent:
    """How much of a curve the page has."""

    step: int = 0
    complete: int = 0
    rows: int = -1
    reading: int = 0  # of a file; another one when the file was written anew


@dataclass
class Wish:
    """What a page shows: these runs, and of them these metrics, while training and in evaluations."""

    ids: list[str]
    metrics: list[str]
    once: set[str]  # metrics of charts that are out of sight
    x: str
    points: int
    ranges: dict[str, tuple[float, float]]  # of metrics that are zoomed

    @classmethod
    def read(cls, text: str) -> Wish:
        """From a request; ValueError, TypeError or KeyError if it is none."""
        wish = json.loads(text)
        if not isinstance(wish, dict) or not isinstance(wish.get("ranges", {}), dict):
            raise TypeError("a wish is a mapping")
        metrics = [str(metric) for metric in wish.get("metrics", [])][:MAX_METRICS]
        ranges = {str(metric): (float(first), float(last)) for metric, (first, last) in wish.get("ranges", {}).items()}
        ids = [str(name) for name in wish.get("ids", [])][:MAX_METRICS]
        once = {str(metric) for metric in wish.get("once", [])}
        return cls(ids, metrics, once, str(wish.get("x", "episodes")), int(wish.get("points", 400)), ranges)


@dataclass
class Follower:
    """Tells one page what changed."""

    listing: Callable[[], dict[str, Any]]
    summaries: Callable[[list[str]], list[dict[str, Any]]]  # of runs that are known
    cache: ColumnCache
    wish: Wish
    _runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    _rest: dict[str, Any] = field(default_factory=dict)
    _curves: dict[tuple[str, str, str], _Sent] = field(default_factory=dict)
    _search_at: float = 0.0

    def changes(self) -> dict[str, Any]:
        """What is new; empty if nothing is."""
        before = dict(self._runs)
        changes = self._changed_runs()
        curves = [
            found
            for name in self.wish.ids
            if name in self._runs
            for table in _changed_files(before.get(name), self._runs[name])
            for metric in self.wish.metrics
            if (found := self._changed_curve(name, table, metric)) is not None
        ]
        return changes | {"curves": curves} if curves else changes

    def _changed_runs(self) -> dict[str, Any]:
        began = time.monotonic()
        if began < self._search_at:
            shown = [name for name in self.wish.ids if name in self._runs]
            return self._new_of(self.summaries(shown))
        found = self.listing()
        took = time.monotonic() - began
        self._search_at = began + took / LOOK_SHARE
        runs = found.pop("runs")
        gone = sorted(self._runs.keys() - {run["id"] for run in runs})
        for name in gone:
            del self._runs[name]
        rest = {key: value for key, value in found.items() if self._rest.get(key) != value}
        if not self._rest:
            rest["watched"] = list(WATCHED)
        self._rest |= rest
        return rest | ({"gone": gone} if gone else {}) | self._new_of(runs)

    def _new_of(self, runs: list[dict[str, Any]]) -> dict[str, Any]:
        changed = [run for run in runs if self._runs.get(run["id"]) != run]
        self._runs |= {run["id"]: run for run in changed}
        return {"runs": changed} if changed else {}

    def _changed_curve(self, name: str, table: str, metric: str) -> dict[str, Any] | None:
        key = (name, table, metric)
        sent = self._curves.setdefault(key, _Sent())
        if sent.rows >= 0 and metric in self.wish.once:
            return None
        first, last = self.wish.ranges.get(metric, (-np.inf, np.inf))
        asked = CurveRequest(name, table, metric, self.wish.x, first, last, self.wish.points)
        found = curve(self.cache, asked, sent.step, sent.complete)
        if found["reading"] != sent.reading and found["from"] > 0:  # a run that goes on writes its tables anew
            found = curve(self.cache, asked)
        if (found["inside"], found["reading"]) == (sent.rows, sent.reading):
            return None
        sent.step, sent.complete = found["step"], found["inside"] // found["step"]
        sent.rows, sent.reading = found["inside"], found["reading"]
        return {"id": name, "table": table, "metric": metric, **{part: found[part] for part in SENT}}


def _changed_files(before: dict[str, Any] | None, now: dict[str, Any]) -> list[str]:
    """Tables of a run that are other than they were; a stamp has a word for each file."""
    words = zip(WATCHED, (before["stamp"] if before else "").split("-"), now["stamp"].split("-"), strict=False)
    changed = {file for file, old, new in words if old != new} if before else set(CURVES)
    return [table for table in CURVES if table in changed]
