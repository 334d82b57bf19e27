"""Commands that make many runs: compare, search and schelling."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Column, Table

import remuda
from remuda.cli.words import Json, On, Trust, Words, given, refuse_arguments, settings_from
from remuda.core.console import QuietConsole
from remuda.core.errors import ConfigError
from remuda.core.paths import is_folder

if TYPE_CHECKING:
    from remuda.studies.trials.trial import TrialProgress
    from remuda.studies.workflows.options import WorkflowTrial
    from remuda.studies.workflows.ranking import Search
    from remuda.studies.workflows.search import SearchListener

MAX_NUMBER = 4096
SHOWN_ORDERS = 10


def compare(
    game: Annotated[str, typer.Argument(help="a shipped game or module:entry of your own")],
    words: Words = None,
    engines: Annotated[str, typer.Option(help="all, or names with commas between; ray+learners too")] = "all",
    n_workers: Annotated[str | None, typer.Option(help="numbers with commas between; default: the cores")] = None,
    seconds: Annotated[float, typer.Option(help="how long to measure each time", min=0.1)] = 20.0,
    repeats: Annotated[int, typer.Option(help="how often to measure each engine", min=1)] = 3,
    ideal: Annotated[bool, typer.Option("--ideal", help="show what a machine that never waits would do")] = False,
    on_cores: Annotated[str | None, typer.Option("--cores", help="predict machines, e.g. 8,32,128")] = None,
    html: Annotated[Path, typer.Option(help="the page to write")] = Path("compare.html"),
    json_file: Annotated[Path | None, typer.Option("--json", help="a file for all figures")] = None,
    trust: Trust = False,
) -> None:
    """Measure one plan on several engines: which is best here?

    `remuda compare cage2 --engines all --n-workers 2,10,100 --seconds 20 --json out.json`
    """
    counts = _numbers("n_workers", n_workers) if n_workers else None
    machines = _numbers("cores", on_cores) if on_cores else []
    for path in filter(None, (html, json_file)):
        if not is_folder(path.absolute().parent):
            raise ConfigError(f"{path} cannot be written: there is no directory {path.absolute().parent}")
    settings = refuse_arguments(remuda.compare, settings_from(words))
    with QuietConsole(stderr=True).status("measuring") as status:
        shown = remuda.compare(
            game, engines, counts, seconds, repeats, ideal=ideal, cores=machines,
            command=" ".join(["remuda", *sys.argv[1:]]), trust=trust,
            on_message=lambda text: status.update(f"measuring {escape(text)}"), **settings,
        )  # fmt: skip
    _print_comparison(shown)
    shown.write(html, json_file)
    print(f"look at {html}")
    if not shown.recommendations:
        raise ConfigError("no engine could run this plan; the table says why")


def _print_comparison(shown: Any) -> None:
    from remuda.studies.compare.page import mode, tables

    if shown.disturbance:
        print(f"warning: {shown.disturbance}; measure again when it is idle")
    for table in tables(shown):
        QuietConsole(markup=False).print(table)
    print(mode(shown))
    if shown.ideal is not None:
        print(f"ideal machine: {shown.ideal:,.1f} episodes/s")


def _numbers(name: str, text: str) -> list[int]:
    """2,10,100 as numbers."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 0 < int(part) <= MAX_NUMBER for part in parts):
        raise ConfigError(
            f"{name}={text} should be whole numbers from 1 to {MAX_NUMBER} with commas between, e.g. 2,10,100"
        )
    return [int(part) for part in parts]


def search(
    game: Annotated[str, typer.Argument(help="a game with workflows: cage2")],
    words: Words = None,
    method: Annotated[str | None, typer.Option(help="gp-ucb, random, halving or conditioned")] = None,
    total_episodes: Annotated[int | None, typer.Option(help="episodes of training, over all trials")] = None,
    compliance_threshold: Annotated[float | None, typer.Option(help="below it a trial reports no return")] = None,
    side_by_side: Annotated[int | None, typer.Option(help="trials at once, each in a process of its own")] = None,
    on: On = None,
    seed: Annotated[int | None, typer.Option(help="decides every random number")] = None,
    out: Annotated[Path, typer.Option(help="the directory to write; must not exist")] = Path("search"),
    as_json: Json = False,
) -> None:
    """Find the order of repair under which a trained defender does best.

    `remuda search cage2 --total-episodes 100000 --compliance-threshold 0.9 --seed 1 --out DIR`

    Writes a ranking, the trained policies, tables and a page with pictures. If it is killed, `remuda resume DIR`
    continues it. More options: `remuda settings`; any other word is a setting of the trials.
    """
    from remuda.studies.workflows.search import search as search_workflows

    flags = given(
        method=method, total_episodes=total_episodes, compliance_threshold=compliance_threshold,
        side_by_side=side_by_side, on=on, seed=seed,
    )  # fmt: skip
    with _listener() as listener:
        found = search_workflows(game, {**flags, **settings_from(words)}, out, listener)
    _print_search(found, as_json)


def resume_search(folder: Path, as_json: bool, trust: bool, on: str | None) -> None:
    """Continue a search."""
    from remuda.studies.workflows.search import resume_search

    with _listener() as listener:
        found = resume_search(folder, listener, trust, on)
    _print_search(found, as_json)


@contextmanager
def _listener() -> Iterator[SearchListener]:
    """Prints a line for each trial, and on a terminal a bar for the one under way."""
    from remuda.studies.workflows.search import SearchListener

    console = QuietConsole(stderr=True, soft_wrap=True, markup=False)
    columns = (TextColumn("{task.description}"), BarColumn(None), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        shown = bar.add_task("", total=None)

        def watch(trial: WorkflowTrial, progress: TrialProgress) -> None:
            row, text = progress.row, f"trial {trial.number}"
            if row:
                text += f": return {row['env_return']:.1f}, compliance {row['compliance']:.2f}"
            bar.update(shown, description=text, completed=progress.episodes, total=trial.episodes)

        yield SearchListener(lambda text: bar.console.print(text, markup=False, highlight=False), watch)


def _print_search(found: Search, as_json: bool) -> None:
    from remuda.runs.directory import to_json
    from remuda.runs.display import plus_minus

    if as_json:
        print(to_json(found.result()))
        return
    table = Table(Column("order", overflow="fold"), "return", "95 %", "compliance", "95 %", "fixes", "trial")
    for own in found.ranking[:SHOWN_ORDERS]:
        table.add_row(
            own.workflow, f"{own.env_return:.2f}", plus_minus(own.env_return_ci95), f"{own.compliance:.3f}",
            f"± {own.compliance_ci95:.3f}", f"{own.fixes:.1f}", str(own.trial),
        )  # fmt: skip
    if found.ranking:
        QuietConsole(markup=False).print(table)
    if found.state.finished:
        print(f"chosen: {found.chosen.workflow}" if found.chosen else "none was chosen, since none passed")
        print(f"look at {found.folder / 'search.html'}")


def schelling(
    game: Annotated[str, typer.Argument(help="a game with several agents")],
    words: Words = None,
    episodes: Annotated[int, typer.Option(help="episodes of each mix", min=2)] = 32,
    cooperator: Annotated[str, typer.Option(help="a scripted player, or frozen:RUN/agent")] = "cooperator",
    defector: Annotated[str, typer.Option(help="a scripted player, or frozen:RUN/agent")] = "defector",
    png: Annotated[Path | None, typer.Option(help="also draw the diagram into this file")] = None,
) -> None:
    """Print what a cooperator and a defector get, by how many of the others cooperate.

    `remuda schelling cleanup --episodes 32 --png cleanup.png`
    """
    settings = refuse_arguments(remuda.schelling, settings_from(words))
    diagram = remuda.schelling(game, episodes, cooperator, defector, **settings)
    print(diagram)
    if png is not None:
        diagram.draw(png)
        print(png)
