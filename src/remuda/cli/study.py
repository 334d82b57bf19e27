"""The command that runs a study: seeds times variants."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import remuda
from remuda.cli.words import Json, On, Words, refuse_arguments, settings_from
from remuda.core.errors import ConfigError

if TYPE_CHECKING:
    from remuda.studies.study import Study


def study(
    file: Annotated[Path, typer.Argument(help="a study file (YAML), see docs/studies.md")],
    words: Words = None,
    seeds: Annotated[int | None, typer.Option(help="so many seeds, instead of those of the file", min=1)] = None,
    side_by_side: Annotated[int | None, typer.Option(help="runs at once; default: the cores", min=1)] = None,
    on: On = None,
    out: Annotated[Path | None, typer.Option(help="the directory; default: studies/NAME")] = None,
    as_json: Json = False,
) -> None:
    """Run seeds × variants side by side, with statistics at the end.

    `remuda examples team_reward`, then `remuda study team_reward.yaml`

    Killed or stopped, the same command goes on; runs that are there are not run again when the study grows. Words are
    settings of every run, or the file's `metric`, `baseline` and `margin`.
    """
    settings = refuse_arguments(remuda.study, settings_from(words), "game", "metric", "baseline", "margin")
    conclude(remuda.study(file, seeds=seeds, side_by_side=side_by_side, on=on, out=out, **settings), as_json)


def train_seeds(settings: dict[str, Any], seeds: int, as_json: bool, on: str | None = None) -> None:
    """`remuda train … --seeds N`: a study of one variant."""
    if "seed" in settings:
        raise ConfigError(f"--seed {settings['seed']} and --seeds {seeds} contradict each other: give one of them")
    settings = refuse_arguments(remuda.study, settings, "game", "out")
    conclude(remuda.study(seeds=seeds, on=on, **settings), as_json)


def resume_study(folder: Path, as_json: bool, trust: bool, on: str | None) -> None:
    """Continue a study."""
    from remuda.studies.study import resume_study

    conclude(resume_study(folder, trust=trust, on=on), as_json)


def conclude(done: Study, as_json: bool) -> None:
    """Print what came out; exit with 128 + the signal's number if one stopped it, with 1 if runs failed."""
    from remuda.runs.directory import to_json

    with suppress(OSError):  # the terminal or the pipe may be gone: the study is saved, and its exit code still counts
        print(to_json(done.result()) if as_json else done, flush=True)
    if done.stopped_by is not None:
        raise typer.Exit(128 + done.stopped_by)
    if done.failures:
        raise typer.Exit(1)
