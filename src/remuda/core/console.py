"""The console on which everything is shown."""

from __future__ import annotations

from rich.console import Console


class QuietConsole(Console):
    """A console that goes quiet when nobody reads it any more; rich's own would end the process with exit code 1."""

    def on_broken_pipe(self) -> None:
        """Show nothing from now on."""
        self.quiet = True
