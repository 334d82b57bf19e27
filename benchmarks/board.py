"""The board's cost: the rate of a training with and without a page open, in turns in the same run; and 500 runs listed.

python -m benchmarks board
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

import numpy as np

from remuda.core.machine import machine
from remuda.runs.describe import last_rows

PHASE_S, PAIRS, RUNS = 20.0, 8, 500
METRICS = ("return", "gems", "food", "bones", "bumps", "loss", "grad_norm", "epsilon")


def main() -> None:
    """Measure and print."""
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        training = _start("train", "treasurehunt", "total_episodes=10000000", "--out", str(root / "run"))
        board = subprocess.Popen(
            [sys.executable, "-m", "remuda", "board", str(root), "--no-open", "--port", "0"],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert board.stdout is not None
            address = board.stdout.readline().split(" at ")[1].split(" ")[0]
            _wait_for_rows(root / "run")
            _compare(root / "run", address)
            _open_many(root, address)
        finally:
            for process in (training, board):
                process.terminate()
                process.wait()


def _start(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "remuda", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def _wait_for_rows(run: Path) -> None:
    while not last_rows(run / "metrics.csv"):
        time.sleep(0.5)
    time.sleep(PHASE_S)


def _compare(run: Path, address: str) -> None:
    """With and without the page, in turns; each pair gives a ratio of rates."""
    ratios = []
    for pair in range(PAIRS):
        rates = {}
        for is_open in (pair % 2 == 0, pair % 2 == 1):
            rates[is_open] = _rate(run, address if is_open else None)
        ratios.append(rates[True] / rates[False])
    low, high = np.percentile(ratios, [25, 75])
    print(f"rate with the page open ÷ without: median {np.median(ratios):.3f} ({low:.3f} to {high:.3f}), {PAIRS} pairs")


def _rate(run: Path, address: str | None) -> float:
    """Episodes per second over a phase, by the clock of the run."""
    done = threading.Event()
    page = threading.Thread(target=_look, args=(address, done)) if address else None
    if page:
        page.start()
    first = last_rows(run / "metrics.csv")[-1]
    time.sleep(PHASE_S)
    last = last_rows(run / "metrics.csv")[-1]
    done.set()
    if page:
        page.join()
    return (int(last["episodes"]) - int(first["episodes"])) / (float(last["wall_s"]) - float(first["wall_s"]))


def _look(address: str, done: threading.Event) -> None:
    """Ask for what a page with the curves asks for, every second."""
    while not done.wait(1.0):
        for path in ("api/runs", "api/run?id=run", "api/system?id=run", *map(_curve, METRICS)):
            urlopen(address + path).read()


def _curve(metric: str) -> str:
    return f"api/curve?id=run&table=metrics.csv&metric={quote(metric)}"


def _open_many(root: Path, address: str) -> None:
    """The first listing of many runs, and one after that."""
    for number in range(RUNS):
        copy = root / "many" / f"run-{number:03d}"
        copy.mkdir(parents=True)
        for file in ("config.yaml", "metrics.csv", "system.csv"):
            shutil.copy(root / "run" / file, copy / file)
    times = []
    for _ in range(2):
        began = time.perf_counter()
        found = json.load(urlopen(address + "api/runs"))
        times.append(time.perf_counter() - began)
    print(f"{len(found['runs'])} runs: first listing {times[0]:.2f} s, the next {times[1]:.2f} s")
