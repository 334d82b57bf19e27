"""Commands about CAGE Challenge 2: `remuda cage2 …`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import remuda
from remuda.cli.words import Checkpoint
from remuda.core.errors import ConfigError

SHOWN = 4  # defenders in the table of a terminal; the page has all

app = typer.Typer(no_args_is_help=True, help="CAGE Challenge 2: the leaderboard.")


@app.callback()
def about() -> None:
    """CAGE Challenge 2: the leaderboard."""


@app.command()
def leaderboard(
    target: Annotated[str, typer.Argument(help="a run directory, zoo:…, or a scripted defender (`remuda learners`)")],
    rules: Annotated[str, typer.Option(help="leaderboard, or head: the last version")] = "leaderboard",
    episodes: Annotated[int, typer.Option(help="for each red agent", min=1)] = 1000,
    seed: Annotated[int | None, typer.Option(help="decides the test episodes", min=0)] = None,
    original: Annotated[bool, typer.Option("--original", help="play in CybORG, where it is installed")] = False,
    checkpoint: Checkpoint = None,
    page: Annotated[Path | None, typer.Option(help="also write the table as a web page")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object instead of the table")] = False,
) -> None:
    """Score a defender in the nine cells of the published leaderboard.

    `remuda cage2 leaderboard RUN`
    """
    if page is not None and not page.absolute().parent.is_dir():
        raise ConfigError(f"{page} cannot be written: there is no directory {page.absolute().parent}")
    shown = remuda.cage2_leaderboard(target, rules, episodes, original=original, checkpoint=checkpoint, seed=seed)
    if page is not None:
        shown.write(page)
    if as_json:
        from remuda.runs.directory import to_json

        print(to_json(shown.summary()))
        return
    names, *rows = zip(*shown.rows()[: 1 + SHOWN], strict=True)  # a line for each cell: nine columns are too wide
    table = Table("cell", *names[1:])
    for row in rows:
        table.add_row(*row)
    Console(markup=False).print(table)
    print(shown.remark())
