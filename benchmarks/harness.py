"""Measures variants in turn; prints medians, spreads and the claimed ratios."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from remuda.core.machine import machine

__all__ = ["Claim", "compare", "machine", "rate", "remuda"]


@dataclass(frozen=True)
class Claim:
    """A ratio that a benchmark promises."""

    text: str
    over: str
    under: str
    wanted: float | None = None


def rate(work: Callable[[], int], seconds: float, clock: Callable[[], float] = time.process_time) -> float:
    """Units of work per second of `clock`; by default seconds of processor time."""
    began, done = clock(), 0
    while clock() - began < seconds:
        done += work()
    return done / (clock() - began)


def compare(
    title: str, variants: Mapping[str, Callable[[], float]], claims: list[Claim], unit: str, repeats: int = 7
) -> dict[str, float]:
    """Measure every variant `repeats` times, in turn; print medians, spreads and the claimed ratios."""
    rates: dict[str, list[float]] = {name: [] for name in variants}
    for measure in variants.values():
        measure()  # warm up: compile, fill caches, allocate
    for _ in range(repeats):
        for name, measure in variants.items():
            rates[name].append(measure())
    print(f"\n{title}\n  {machine()}")
    for name, values in rates.items():
        print(f"  {name:42s} {statistics.median(values):14,.1f} {unit}  ({min(values):,.1f} to {max(values):,.1f})")
    ratios = {}
    for claim in claims:
        each = [a / b for a, b in zip(rates[claim.over], rates[claim.under], strict=True)]
        ratios[claim.text] = statistics.median(each)
        wanted = "" if claim.wanted is None else f", wanted at least {claim.wanted}"
        print(f"  {claim.text}: {statistics.median(each):.2f}  ({min(each):.2f} to {max(each):.2f}{wanted})")
    return ratios


def remuda(*words: str) -> dict[str, Any]:
    """Run a `remuda` command and return its JSON object."""
    command = [sys.executable, "-m", "remuda", *words, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result
