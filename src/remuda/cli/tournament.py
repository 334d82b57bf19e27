"""The command that lets agents of different runs meet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import remuda
from remuda.cli.words import Json, refuse_arguments, settings_from
from remuda.core.console import QuietConsole
from remuda.core.errors import ConfigError
from remuda.core.paths import exists, is_folder


def tournament(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|PLAYER|KEY=VALUE...", help="runs, RUN/2, RUN@best, scripted players; and options of the game"
        ),
    ],
    episodes: Annotated[int, typer.Option(help="per pair, over all places", min=1)] = 100,
    focal: Annotated[int | None, typer.Option(help="places of the focal entrant; default: half", min=1)] = None,
    matches: Annotated[int | None, typer.Option(help="at most so many pairs, drawn at random", min=1)] = None,
    seed: Annotated[int, typer.Option(help="of the test episodes", min=0)] = 0,
    out: Annotated[Path, typer.Option(help="the directory for tables, pictures and page")] = Path("tournament"),
    as_json: Json = False,
) -> None:
    """Let agents of runs, checkpoints and scripted players meet, every one with every other.

    `remuda tournament runs/a runs/b runs/a/0@best random --episodes 200`

    Prints Elo ratings with intervals; writes the matrix of returns, tables, pictures and a page.
    """
    from remuda.runs.directory import to_json
    from remuda.studies.tournament.entrants import names_run
    from remuda.studies.tournament.page import PAGE, write_tournament

    entrants = [word for word in words if "=" not in word or names_run(word)]
    settings = refuse_arguments(remuda.tournament, settings_from([word for word in words if word not in entrants]))
    if exists(out) and not is_folder(out):
        raise ConfigError(f"{out} exists and is no directory: choose another --out")
    with QuietConsole(stderr=True).status("playing") as status:
        found = remuda.tournament(
            *entrants, episodes=episodes, focal=focal, matches=matches, seed=seed,
            on_match=lambda done, all_: status.update(f"played {done} of {all_} pairs"), **settings,
        )  # fmt: skip
        write_tournament(found, out)
    print(to_json(found.result()) if as_json else f"{found}\nlook at {out / PAGE}")
