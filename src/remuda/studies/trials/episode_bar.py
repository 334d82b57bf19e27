"""A bar over the episodes of many trials on a terminal, and lines elsewhere."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from remuda.core.console import QuietConsole


class EpisodeBar:
    """Shows how many episodes are trained; a terminal that is gone changes nothing."""

    def __init__(self, quiet: bool, total: int | None, completed: int, *more: ProgressColumn) -> None:
        self.console = QuietConsole(stderr=True, quiet=quiet, soft_wrap=True, markup=False)
        self._bar = Bar(
            TextColumn("{task.description}"), BarColumn(None), TextColumn("episodes"), MofNCompleteColumn(),
            TimeElapsedColumn(), *more, console=self.console, transient=True,
            disable=quiet or not self.console.is_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task("", total=total, completed=completed)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._bar.stop()

    def say(self, text: str) -> None:
        """Show a line."""
        with suppress(OSError):  # the terminal may be gone
            self.console.print(text, markup=False, highlight=False)

    def move(self, description: str, completed: int) -> None:
        """Show how far it is."""
        self._bar.update(self._task, description=description, completed=completed)
