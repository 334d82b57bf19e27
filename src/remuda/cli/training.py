"""Commands that train: train and resume."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import remuda
from remuda.cli.board import board_beside
from remuda.cli.words import Json, On, Trust, Words, given, refuse_arguments, settings_from, whole_number
from remuda.core.console import QuietConsole
from remuda.core.errors import ConfigError
from remuda.games.shipped import SHIPPED
from remuda.runs.storage import shown

if TYPE_CHECKING:
    from remuda.runs.run import Run


def train(
    game: Annotated[
        str | None, typer.Argument(help="a shipped game (see `remuda games`), gymnasium:ID, or module:name")
    ] = None,
    words: Words = None,
    agents: Annotated[int | None, typer.Option(help="agents in the game")] = None,
    worlds: Annotated[int | None, typer.Option(help="copies of the game played side by side")] = None,
    epochs: Annotated[int | None, typer.Option(help="episodes per world; or give --total-episodes")] = None,
    total_episodes: Annotated[int | None, typer.Option(help="episodes over all worlds")] = None,
    seed: Annotated[int | None, typer.Option(help="decides every random number")] = None,
    seeds: Annotated[int | None, typer.Option(help="a study: seeds 0 … N-1, as many runs side by side")] = None,
    on: On = None,
    learner: Annotated[str | None, typer.Option(help="see `remuda learners`")] = None,
    engine: Annotated[str | None, typer.Option(help="see `remuda engines`")] = None,
    n_workers: Annotated[int | None, typer.Option(help="threads or processes; default: the cores")] = None,
    deterministic: Annotated[
        bool | None, typer.Option("--deterministic", help="the same weights on every engine")
    ] = None,
    timeline: Annotated[
        bool | None, typer.Option("--timeline", help="write what every process and thread did when, for Perfetto")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="the run directory; must not exist")] = None,
    board: Annotated[bool, typer.Option("--board", help="show the run in the browser while it trains")] = False,
    config: Annotated[Path | None, typer.Option(help="YAML file of settings; flags and words override it")] = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Train a herd.

    `remuda train treasurehunt --agents 4 --worlds 32 lr=0.001 spawn=0.01`

    Writes a run directory: config, metrics, checkpoints, learning curve and a GIF. Ctrl-C saves; `remuda resume`
    continues.
    """
    if game and "=" in game:  # a setting, not a game: the file or another word names that
        words, game = [game, *(words or [])], None
    flags = given(
        game=game, agents=agents, worlds=worlds, epochs=epochs, total_episodes=total_episodes, seed=seed, out=out,
        learner=learner, engine=engine, n_workers=n_workers, deterministic=deterministic, timeline=timeline,
    )  # fmt: skip
    from remuda.core.yamlfile import read_yaml

    settings = {**(read_yaml(config) if config else {}), **flags, **settings_from(words)}
    if "seeds" in settings:  # as a word or in the file: the same as the flag
        seeds = whole_number("seeds", settings.pop("seeds"))
    if seeds is not None:
        from remuda.cli.study import train_seeds

        with board_beside(_place_of(settings, "studies/x")) if board else nullcontext():
            train_seeds(settings, seeds, as_json, on)
        return
    if on is not None:
        raise ConfigError(f"--on {on} is for many runs: give --seeds N too, or --engine ray for one run on a cluster")
    settings = refuse_arguments(remuda.train, settings, "game", "out", "callbacks")
    with board_beside(_place_of(settings, "runs/x")) if board else nullcontext():
        conclude(remuda.train(trust=trust, **settings), as_json)


def resume(
    run: Annotated[Path, typer.Argument(help="a run directory")],
    checkpoint: Annotated[str | None, typer.Option(help="which one; default: the newest")] = None,
    engine: Annotated[str | None, typer.Option(help="continue with another engine")] = None,
    n_workers: Annotated[int | None, typer.Option(help="continue with more or fewer workers", min=1)] = None,
    n_learners: Annotated[str | None, typer.Option(help="continue with more or fewer learners; or auto")] = None,
    address: Annotated[str | None, typer.Option(help="continue on another Ray cluster")] = None,
    on: On = None,
    total_episodes: Annotated[int | None, typer.Option(help="train for so many episodes in all", min=1)] = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Continue a run, a study or a search as if it had never stopped; with --total-episodes also a finished run."""
    from remuda.studies.study import is_study
    from remuda.studies.sweeps.sweep import is_sweep
    from remuda.studies.workflows.state import is_search

    flags = given(
        checkpoint_name=checkpoint, engine=engine, n_workers=n_workers, address=address, total_episodes=total_episodes,
        n_learners=None if n_learners is None else settings_from([f"n_learners={n_learners}"])["n_learners"],
    )  # fmt: skip
    if is_search(run):
        from remuda.cli.studies import resume_search

        if flags:
            raise ConfigError(f"{run} is a search: resume takes no flags for it but --on, --json and --trust")
        resume_search(run, as_json, trust, on)
        return
    if is_sweep(run):
        from remuda.cli.sweep import resume_sweep

        if flags:
            raise ConfigError(f"{run} is a sweep: resume takes no flags for it but --on, --json and --trust")
        resume_sweep(run, as_json, trust, on)
        return
    if is_study(run):
        from remuda.cli.study import resume_study

        if flags:
            raise ConfigError(f"{run} is a study: resume takes no flags for it but --on, --json and --trust")
        resume_study(run, as_json, trust, on)
        return
    if on is not None:
        raise ConfigError(
            f"{run} is a run: --on is for studies, sweeps and searches; --engine and --address are for runs"
        )
    conclude(remuda.resume(run, trust=trust, **flags), as_json)


def _place_of(settings: dict[str, Any], default: str) -> Path:
    """The directory that has the one that training writes."""
    out = settings.get("out") or default
    if not isinstance(out, str | Path):
        raise ConfigError(f"out={out!r} should be the path of a directory")
    return Path(out).parent


def conclude(run: Run, as_json: bool) -> None:
    """Print the result of a run and where to look; exit with 128 + the signal's number if one stopped it."""
    from remuda.runs.directory import to_json

    with suppress(OSError):  # the terminal or the pipe may be gone: the run is saved, and its exit code still counts
        if as_json:
            print(to_json(run.result), flush=True)
        else:
            _print_result(run)
    if run.stopped_by is not None:
        raise typer.Exit(128 + run.stopped_by)


def _print_result(run: Run) -> None:
    result = run.result
    console = QuietConsole(stderr=True, highlight=False, soft_wrap=True, markup=False)
    first, last = result["first_mean_return"], result["mean_return"]
    if first is not None:
        console.print(f"total return: {sum(first):.1f} in the first tenth, {sum(last):.1f} in the last")
    console.print(f"weights {result['weights_sha256'][:16]}…, {result['agent_steps_per_s']:,.0f} agent-steps/s")
    folder = shown(run.path)
    pictures = [name for name in ("curve.png", "herd.gif") if (run.path / name).exists()]
    # Only what works for this run is named: of a foreign environment only a film shows that it can be seen.
    can_be_seen = "herd.gif" in pictures or (run.plan.game in SHIPPED and run.checkpoints())
    watch = f"`remuda watch {folder} --terminal`, or " if can_be_seen else ""
    console.print(
        f"look at {folder} ({', '.join([*pictures, 'metrics.csv'])}), or {watch}"
        f"`remuda board {folder}`, or `tensorboard --logdir {folder}`"
    )
