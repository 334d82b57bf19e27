"""Progress of a run: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from remuda.core.console import QuietConsole
from remuda.runs.callbacks.base import Callback, Row, Training
from remuda.runs.display import INTERVAL

LINE_EVERY_S = 5.0
MAX_AGENTS = 12
"""Agents the panel lists one by one; the rest are summed up."""


class Progress(Callback):
    """Shows a run on the console, and writes what it shows to console.log."""

    is_internal = True

    def __init__(self, total_episodes: int, done: int = 0, log: Path | None = None, quiet: bool = False) -> None:
        self.console = QuietConsole(stderr=True, quiet=quiet, soft_wrap=True, markup=False)
        self.total = total_episodes
        self._log = log.open("a", encoding="utf-8", errors="backslashreplace") if log else None
        self._bar = Bar(
            TextColumn("episodes"), BarColumn(None), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
            console=self.console,
        )  # fmt: skip
        self._task = self._bar.add_task("episodes", total=total_episodes, completed=done)
        self._live: Live | None = None
        self._began = self._last_line = time.perf_counter()
        self._learn_s = 0.0
        self._learn_before: float | None = None
        self._first_steps: int | None = None
        self._steps = 0
        self._rows: Sequence[Mapping[str, Any]] = ()
        self._evaluation = ""

    def __enter__(self) -> Self:
        if self.console.is_terminal and not self.console.quiet:
            self._live = Live(self._panel(), console=self.console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            with suppress(OSError):
                self._live.stop()
        if self._log is not None:
            with suppress(OSError):
                self._log.close()

    def say(self, text: str) -> None:
        """Show a line and write it to the log."""
        self._print(text)
        self._note(text)

    def _print(self, text: str) -> None:
        encoding = self.console.encoding  # the stream may be of few characters, and strict
        with suppress(OSError, ValueError):  # the terminal may be gone, or the stream closed
            shown = text.encode(encoding, "backslashreplace").decode(encoding)
            self.console.print(shown, markup=False, highlight=False)

    def shout(self, text: str) -> None:
        """Show a line from a signal handler: written directly, since the handler may have interrupted the console."""
        line = f"{text}\n".encode()
        with suppress(OSError):
            if self._log is not None:
                os.write(self._log.fileno(), line)
            if not self.console.quiet:
                os.write(2, b"\n" + line)

    def _note(self, text: str) -> None:
        if self._log is not None:
            with suppress(OSError):  # a full disk must not end a run over its log
                self._log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
                self._log.flush()

    def collected(self, training: Training, episodes: int, agent_steps: int) -> None:
        """Move the bar."""
        if self._first_steps is None:
            self._first_steps = agent_steps
            self._began = time.perf_counter()
        self._steps = agent_steps
        self._bar.update(self._task, completed=episodes)
        self._refresh()

    def learned(self, training: Training, rows: Sequence[Row], system: Row) -> None:
        """Show the round: in the panel, or now and then as a line."""
        self._rows = rows
        if self._learn_before is None:
            self._learn_before = system["learn_wall_s"]
        self._learn_s = system["learn_wall_s"] - self._learn_before
        line = self._line()
        self._note(line)
        if self._live is None and time.perf_counter() - self._last_line > LINE_EVERY_S:
            self._last_line = time.perf_counter()
            self._print(line)
        self._refresh()

    def evaluated(self, training: Training, rows: Sequence[Row], scores: Row) -> None:
        """Show the scores."""
        error = scores["total_return_se"]
        spread = "" if error is None else f" ± {INTERVAL * error:.1f} (95 %)"
        self._evaluation = f"evaluation: total return of the herd {scores['total_return']:.1f}{spread}"
        self.say(f"{self._evaluation}, {training.config.evaluate_mode}, {scores['episodes']} episodes")

    def saved(self, training: Training, checkpoint: Path, episodes: int) -> None:
        """Only for the log."""
        self._note(f"checkpoint at {episodes} episodes")

    def _rate(self) -> float:
        elapsed = max(time.perf_counter() - self._began, 1e-9)
        return (self._steps - (self._first_steps or 0)) / elapsed

    def _share(self) -> float:
        return min(1.0, self._learn_s / max(time.perf_counter() - self._began, 1e-9))

    def _line(self) -> str:
        done = int(self._bar.tasks[0].completed)
        total = sum(row["return"] for row in self._rows)
        losses = [row["loss"] for row in self._rows if row.get("loss", float("nan")) == row.get("loss")]
        loss = f"{sum(losses) / len(losses):.3f}" if losses else "-"
        return (
            f"episodes {done}/{self.total}  {self._rate():,.0f} agent-steps/s  "
            f"total return of the herd {total:.1f}  loss {loss}  "
            f"{1 - self._share():.0%} collecting, {self._share():.0%} learning"
        )

    def _panel(self) -> Group:
        table = Table(box=None, pad_edge=False)
        names = [name for name in ("return", "loss", "epsilon") if any(name in row for row in self._rows)]
        for name in ("agent", *names):
            table.add_column(name, justify="right")
        for row in self._rows[:MAX_AGENTS]:
            table.add_row(str(row["agent"]), *(f"{row.get(name, float('nan')):.3f}" for name in names))
        hidden = len(self._rows) - MAX_AGENTS
        notes = [self._line(), *([f"… and {hidden} more agents"] if hidden > 0 else []), self._evaluation]
        return Group(self._bar, table, *(note for note in notes if note))

    def _refresh(self) -> None:
        if self._live is not None:
            with suppress(OSError):
                self._live.update(self._panel())
