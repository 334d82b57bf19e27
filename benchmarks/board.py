"""The board's cost: the rate of a training with and without a page open, in turns in the same run; and large folders.

python -m benchmarks board
python -m benchmarks.board 1        # fewer turns: does it work?

The page is opened in Chromium on the same machine (`make browser`), with curves in sight or with a film that plays,
before and now side by side. A phase with each of them comes in turns with two without: their ratio says how much of a
difference is chance. The training has no evaluations and checkpoints, which take seconds and would fall into one phase
and not into the other. Meanwhile a row of another run is written and looked for in its curve. Then a folder of 500 runs
is opened, and a run of a million rows.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import psutil
from numpy.typing import NDArray

from remuda.core.machine import CpuClock, machine, tree_cpu_s
from remuda.runs.describe import last_rows

PHASE_S, TURNS, RUNS, ROWS, WRITES = 6.0, 18, 500, 250_000, 12
OPENING_S, CLOSING_S = 3.5, 1.5
"""Left out at the beginning of a phase: what is asked for is the cost of a page that is open."""
QUIET = ("total_episodes=10000000", "evaluate_every=0", "checkpoint_every=10000000", "checkpoint_every_s=1000000")


PAGES = {"an open page": "curves", "a page on which a film plays": "herd"}


def main(turns: int = TURNS) -> None:
    """Measure and print."""
    from playwright.sync_api import sync_playwright

    print(machine())
    began = CpuClock.now()
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        root = Path(name)
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        training = _start("train", "treasurehunt", *QUIET, "--out", str(root / "run"))
        board = subprocess.Popen(
            [sys.executable, "-m", "remuda", "board", str(root), "--no-open", "--port", "0"],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert board.stdout is not None
            address = board.stdout.readline().split(" at ")[1].split(" ")[0]
            _wait_for_rows(root / "run")
            pages = {what: f"{address}#run=run&tab={tab}" for what, tab in PAGES.items()}
            for what, page in pages.items():
                _count_cores(board.pid, browser, page, what)
            _compare(root / "run", browser, pages, turns)
            _follow(root, address, browser)
            training.terminate()
            training.wait()
            _open_many(root, address, browser)
            _open_long(root, address, browser)
        finally:
            for process in (training, board):
                process.terminate()
                process.wait()
            browser.close()
    print(CpuClock.now().disturbance_since(began) or "nothing else ran meanwhile")


def _start(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "remuda", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def _count_cores(board: int, browser: Any, address: str, what: str) -> None:
    """Processor time of an open page, which other programs disturb less than they disturb a rate."""
    with _opened(browser, address):
        time.sleep(OPENING_S)
        before, began = _processor_seconds(board), time.perf_counter()
        time.sleep(3 * PHASE_S)
        used = _processor_seconds(board) - before
        cores = used / (time.perf_counter() - began)
    total = os.cpu_count() or 1
    print(
        f"{what} takes {cores[0]:.3f} cores in Chromium and {cores[1]:.3f} in the server, "
        f"{cores.sum() / total:.1%} of {total} cores"
    )


def _processor_seconds(board: int) -> NDArray[np.float64]:
    """Of Chromium, and of the board's server."""
    chromium = [own for own in psutil.Process().children(recursive=True) if own.name().startswith("chrom")]
    return np.array([sum(tree_cpu_s(own.pid) for own in chromium if own.parent() not in chromium), tree_cpu_s(board)])


def _wait_for_rows(run: Path) -> None:
    while not (run / "metrics.csv").exists() or not last_rows(run / "metrics.csv"):
        time.sleep(0.5)
    time.sleep(2 * PHASE_S)


def _compare(run: Path, browser: Any, pages: dict[str, str], turns: int) -> None:
    """A phase with each page and two without any, in every order in turn."""
    addresses = [*pages.values(), None, None]
    rates = np.zeros((turns, len(addresses)))
    for turn in range(turns):
        for phase in np.roll(range(len(addresses)), turn):
            rates[turn, phase] = _rate(run, browser, addresses[phase])
    without = rates[:, len(pages) :]
    for number, what in enumerate(pages):
        _print_ratio(f"beside {what} ÷ without", rates[:, number] / without.mean(axis=1))
    _print_ratio("without ÷ without, which is chance", without[:, 0] / without[:, 1])


def _print_ratio(what: str, ratios: NDArray[np.float64]) -> None:
    low, high = np.percentile(ratios, [25, 75])
    error = np.std(ratios, ddof=1) / len(ratios) ** 0.5 if len(ratios) > 1 else np.nan
    print(
        f"rate {what}: mean {np.mean(ratios):.3f} ± {error:.3f} (standard error), "
        f"median {np.median(ratios):.3f} ({low:.3f} to {high:.3f}, its middle half), {len(ratios)} turns"
    )


def _rate(run: Path, browser: Any, address: str | None) -> float:
    """Episodes per second over a phase, by the clock of the run."""
    with _opened(browser, address) if address else nullcontext():
        time.sleep(OPENING_S if address else CLOSING_S)
        first = last_rows(run / "metrics.csv")[-1]
        time.sleep(PHASE_S)
        last = last_rows(run / "metrics.csv")[-1]
    return (int(last["episodes"]) - int(first["episodes"])) / (float(last["wall_s"]) - float(first["wall_s"]))


@contextmanager
def _opened(browser: Any, address: str) -> Iterator[None]:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(address)
    page.wait_for_selector(".chart path, .scores li", state="attached")
    yield
    page.close()


def _follow(root: Path, address: str, browser: Any) -> None:
    """From the moment a row is in the file to its place in the drawn curve."""
    run = root / "followed"
    run.mkdir()
    shutil.copy(root / "run" / "config.yaml", run / "config.yaml")
    table = run / "metrics.csv"
    table.write_text("round,episodes,agent_steps,wall_s,group,agent,player,return\n1,1,1,1,all,0,iqn,0\n")
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"{address}#run=followed&tab=curves")
    # The newest points of a long line are a path of their own.
    drawn = """() => [...document.querySelectorAll("[data-series='mean of the herd'], [data-tail='mean of the herd']")]
        .map(line => line.getAttribute("d")).join()"""
    page.wait_for_selector("[data-series='mean of the herd']", state="attached")
    times = []
    for row in range(2, WRITES + 2):
        time.sleep(0.37 * (row % 5))  # at any moment between two requests of the page
        before = page.evaluate(drawn)
        with table.open("a") as file:
            file.write(f"{row},{row},{row},{row},all,0,iqn,{row}\n")
        began = time.perf_counter()
        while page.evaluate(drawn) == before:
            time.sleep(0.02)
        times.append(time.perf_counter() - began)
    page.close()
    middle, longest = np.median(times), max(times)
    print(f"beside a training a row is drawn {middle:.2f} s after it is written (longest of {WRITES}: {longest:.2f} s)")


def _open_many(root: Path, address: str, browser: Any) -> None:
    """A folder of many runs, from the address to the list on the screen."""
    for number in range(RUNS):
        copy = root / "many" / f"run-{number:03d}"
        copy.mkdir(parents=True)
        for file in ("config.yaml", "metrics.csv", "system.csv"):
            shutil.copy(root / "run" / file, copy / file)
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    times = []
    for _ in range(3):
        began = time.perf_counter()
        page.goto(address)
        page.wait_for_selector(f".run >> nth={RUNS}", state="attached")
        times.append(time.perf_counter() - began)
        page.goto("about:blank")
    page.close()
    print(f"{RUNS + 1} runs listed in Chromium: {times[0]:.2f} s at first, then {times[1]:.2f} s and {times[2]:.2f} s")


def _open_long(root: Path, address: str, browser: Any) -> None:
    """A run of a million rows: bytes of a curve, and how long the browser needs from one zoom to the next picture."""
    long = root / "long"
    long.mkdir()
    shutil.copy(root / "run" / "config.yaml", long / "config.yaml")
    values = np.random.default_rng(0).normal(np.linspace(0, 10, ROWS), 1)
    lines = [f"{r},{r},{r},{r}.5,all,{a},iqn,{value:.6g}" for r, value in enumerate(values) for a in range(4)]
    head = "round,episodes,agent_steps,wall_s,group,agent,player,return\n"
    (long / "metrics.csv").write_text(head + "\n".join(lines) + "\n")
    began = time.perf_counter()
    sent = len(urlopen(f"{address}api/curve?id=long&table=metrics.csv&metric=return&points=1200").read())
    first = time.perf_counter() - began
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"{address}#run=long&tab=curves")
    page.wait_for_selector(".chart path")
    page.locator(".chart svg").first.focus()
    zooms = []
    for _ in range(8):
        began = time.perf_counter()
        with page.expect_response(lambda answer: "first=" in answer.url):
            page.keyboard.press("+")
        page.evaluate("new Promise(requestAnimationFrame)")
        zooms.append(time.perf_counter() - began)
    page.close()
    rows = json.load(urlopen(f"{address}api/curve?id=long&table=metrics.csv&metric=return"))["rows"]
    print(
        f"{4 * rows:,} rows: read at first in {first:.2f} s; a curve is {sent / 1e3:.0f} kB; "
        f"a zoom is drawn in {np.median(zooms):.2f} s (longest {max(zooms):.2f} s)"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
