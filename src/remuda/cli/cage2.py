"""Commands about CAGE Challenge 2: `remuda cage2 …`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

import remuda
from remuda.cli.words import Checkpoint
from remuda.core.console import QuietConsole
from remuda.core.errors import ConfigError
from remuda.core.paths import is_folder

if TYPE_CHECKING:
    from remuda.studies.leaderboard import Leaderboard

SHOWN = 4  # defenders in the table of a terminal; the page has all

app = typer.Typer(no_args_is_help=True, help="CAGE Challenge 2: the leaderboard.")


@app.callback()
def about() -> None:
    """CAGE Challenge 2: the leaderboard."""


@app.command()
def leaderboard(
    targets: Annotated[
        list[str], typer.Argument(help="run directories, zoo:…, or scripted defenders (`remuda learners`)")
    ],
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

    Several runs are taken as seeds of one recipe: `remuda cage2 leaderboard studies/cage2_record/runs/*/seed-*`
    """
    from remuda.runs.display import plus_minus
    from remuda.studies.leaderboard import over_runs, write_page

    if page is not None and not is_folder(page.absolute().parent):
        raise ConfigError(f"{page} cannot be written: there is no directory {page.absolute().parent}")
    boards = [
        remuda.cage2_leaderboard(target, rules, episodes, original=original, checkpoint=checkpoint, seed=seed)
        for target in targets
    ]
    if page is not None:
        write_page(boards, page)
    if as_json:
        from remuda.runs.directory import to_json

        print(to_json(boards[0].summary() if len(boards) == 1 else over_runs(boards)))
        return
    for board in boards:
        _print_board(board)
    if len(boards) > 1:
        found = over_runs(boards)
        mean = f"{found['total']:.2f} {plus_minus(found['total_ci95'])}"
        print(f"{len(boards)} runs: total {mean}, best {found['best']:.2f}")


def _print_board(board: Leaderboard) -> None:
    names, *rows = zip(*board.rows()[: 1 + SHOWN], strict=True)  # a line for each cell: nine columns are too wide
    table = Table("cell", *names[1:])
    for row in rows:
        table.add_row(*row)
    QuietConsole(markup=False).print(table)
    print(board.remark())
