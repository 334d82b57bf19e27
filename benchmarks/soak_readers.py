"""Readers of a run under training: what a notebook does, and what a page of the board asks for."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

import remuda
from benchmarks.soak_tally import Tally

PAUSE_S, ANSWER_S, END_S = 0.5, 30.0, 30.0


class Readers:
    """Reads a run again and again while it is being trained."""

    def __init__(self, out: Path, tally: Tally, board: str) -> None:
        self.out, self.tally, self.board = out, tally, board
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._over.wait(PAUSE_S):
            if not any((self.out / "checkpoints").glob("[0-9]*")):
                continue
            for read, what in ((self._read, "reads"), (self._ask_board, "answers of the board")):
                try:
                    self.tally.counts[what] += read()
                except Exception as error:  # every one is a finding
                    self.tally.counts[f"{what} that failed: {type(error).__name__}"] += 1
                    self.tally.problem(f"reader: {type(error).__name__} {error}")

    def _read(self) -> int:
        run = remuda.load(self.out)
        run.metrics  # noqa: B018
        run.checkpoint_arrays("policy")
        repr(run)
        return 1

    def _ask_board(self) -> int:
        runs = [run["id"] for run in self._get("api/runs")["runs"]]
        for name in runs:
            for path in ("api/run?", "api/system?", "api/curve?table=metrics.csv&metric=return&"):
                self._get(f"{path}id={quote(name, safe='')}")
        return 1 + 3 * len(runs)

    def _get(self, path: str) -> Any:
        try:
            with urlopen(self.board + path, timeout=ANSWER_S) as answer:
                return json.loads(answer.read())
        except HTTPError as error:
            raise RuntimeError(f"{path}: {error}") from None

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Read until the block ends."""
        self._thread.start()
        try:
            yield
        finally:
            self._over.set()
            self._thread.join()


@contextmanager
def board_of(folder: Path) -> Iterator[str]:
    """A board of a folder, in a process of its own; its address."""
    command = [sys.executable, "-m", "remuda", "board", str(folder), "--no-open", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as board:
        assert board.stdout is not None
        try:
            yield board.stdout.readline().split(" at ")[1].split(" ")[0]
        finally:
            board.terminate()
            try:
                board.wait(END_S)
            except subprocess.TimeoutExpired:
                board.kill()
                raise
