"""The command that searches good values of settings."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remuda.cli.words import Json, On, Words, given, settings_from

if TYPE_CHECKING:
    from remuda.studies.sweeps.sweep import Sweep


def sweep(
    game: Annotated[str, typer.Argument(help="a shipped game or module:entry of your own")],
    words: Words = None,
    trials: Annotated[int | None, typer.Option(help="how many; or give --budget-episodes or --minutes", min=1)] = None,
    budget_episodes: Annotated[int | None, typer.Option(help="episodes of training, over all trials", min=1)] = None,
    minutes: Annotated[float | None, typer.Option(help="no trial is started later")] = None,
    total_episodes: Annotated[int | None, typer.Option(help="episodes of a trial that is not pruned", min=1)] = None,
    method: Annotated[str | None, typer.Option(help="tpe or random")] = None,
    prune: Annotated[str | None, typer.Option(help="hyperband, halving or none")] = None,
    on: On = None,
    seed: Annotated[int | None, typer.Option(help="decides every random number")] = None,
    out: Annotated[Path, typer.Option(help="the directory to write; must not exist")] = Path("sweep"),
    as_json: Json = False,
) -> None:
    """Search good values of settings with Optuna, trials side by side.

    `remuda sweep treasurehunt 'lr=log(1e-4, 1e-2)' 'layer=int(32, 256)' 'double=choice(true, false)' --trials 40`

    Other words are settings of every trial. The result depends on the seed, not on which trial ends first. If it is
    killed, `remuda resume DIR` continues it.
    """
    from remuda.studies.sweeps.sweep import sweep as search_values

    flags = given(
        trials=trials, budget_episodes=budget_episodes, minutes=minutes, total_episodes=total_episodes,
        method=method, prune=prune, on=on, seed=seed,
    )  # fmt: skip
    conclude_sweep(search_values({"game": game, **flags, **settings_from(words)}, out), as_json)


def resume_sweep(folder: Path, as_json: bool, trust: bool, on: str | None) -> None:
    """Continue a sweep."""
    from remuda.studies.sweeps.sweep import resume_sweep as continue_sweep

    conclude_sweep(continue_sweep(folder, trust=trust, on=on), as_json)


def conclude_sweep(found: Sweep, as_json: bool) -> None:
    """Print what was found, write the page, and exit with 128 + the signal's number if one stopped it."""
    from remuda.runs.directory import to_json
    from remuda.studies.sweeps.page import PAGE, write_sweep

    write_sweep(found)
    with suppress(OSError):
        print(to_json(found.result()) if as_json else f"{found}\nlook at {found.path / PAGE}", flush=True)
    if found.stopped_by is not None:
        raise typer.Exit(128 + found.stopped_by)
