"""Lanes: how a process spent its last minutes, in bins."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from remuda.core.lanes import BIN_S, MAX_LINES, Lanes


def bins(folder: Path) -> tuple[dict[str, str], dict[tuple[str, int], dict[str, float]]]:
    (file,) = folder.glob("*.jsonl")
    head, *lines = map(json.loads, file.read_text().splitlines())
    found: dict[tuple[str, int], dict[str, float]] = {}
    for thread, number, seconds in lines:
        own: dict[str, Any] = found.setdefault((thread, number), {})
        for kind, amount in seconds.items():
            own[kind] = own.get(kind, 0.0) + amount
    return head, found


def test_a_span_is_spread_over_the_bins_it_covers(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path, "actor 0")
    lanes.add("main", "collect", 10 * BIN_S, 12.5 * BIN_S)
    lanes.add("main", "update", 12.5 * BIN_S, 13 * BIN_S)
    lanes.close()
    head, found = bins(tmp_path)
    assert head == {"process": "actor 0"}
    assert found["main", 10] == found["main", 11] == {"collect": BIN_S}
    assert found["main", 12] == pytest.approx({"collect": BIN_S / 2, "learn": BIN_S / 2})


def test_what_a_nested_span_took_is_not_counted_twice(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path, "actor 0")
    lanes.add("main", "wait", 4.2 * BIN_S, 4.9 * BIN_S)
    lanes.add("main", "collect", 4 * BIN_S, 5 * BIN_S)
    lanes.close()
    assert bins(tmp_path)[1]["main", 4] == pytest.approx({"wait": 0.7 * BIN_S, "collect": 0.3 * BIN_S}, abs=1e-4)


def test_the_file_stays_small_and_keeps_the_newest(tmp_path: Path) -> None:
    lanes = Lanes(tmp_path, "actor 0")
    (last, longest) = (3 * MAX_LINES, 0)
    for number in range(last + 1):
        lanes.add("main", "collect", number * BIN_S, (number + 0.5) * BIN_S)
        if number % 100 == 99:
            longest = max(longest, len(next(tmp_path.glob("*.jsonl")).read_text().splitlines()))
    lanes.close()
    assert longest <= MAX_LINES
    assert max(number for _, number in bins(tmp_path)[1]) == last


def test_the_first_process_removes_what_an_earlier_start_left(tmp_path: Path) -> None:
    for name in ("1.jsonl", "2.jsonl"):
        (tmp_path / name).touch()
    os.utime(tmp_path / "1.jsonl", (0, 0))
    refused = Lanes(tmp_path, "loop", first=True)
    refused.close()
    assert len(list(tmp_path.iterdir())) == 2
    for own in (Lanes(tmp_path, "actor 0"), Lanes(tmp_path, "loop", first=True)):
        assert (tmp_path / "1.jsonl").exists()
        own.add("main", "collect", 1.0, 2.0)
        own.close()
    assert not (tmp_path / "1.jsonl").exists()
    assert (tmp_path / "2.jsonl").exists()
