"""Commands that list what there is: games, engines, learners and settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from remuda.core.options import Options


def games(name: Annotated[str | None, typer.Argument(help="show this game's options")] = None) -> None:
    """List the games, or one game's options."""
    from remuda.games.registry import SHIPPED, find_game

    if name:
        entry = find_game(name)
        print(f"{entry.name}: {entry.summary}")
        _print_options(entry.options)
        return
    table = Table("game", "what it is")
    for shipped, game in SHIPPED.items():
        table.add_row(shipped, game.summary)
    Console(markup=False).print(table)


def engines() -> None:
    """List the engines: where collecting and learning happen, and what waits for what."""
    from remuda.engines.table import AUTO, AUTO_RULE, ENGINES

    table = Table("engine", "collects", "learns", "waits for", "deterministic")
    for row in ENGINES.values():
        table.add_row(row.name, row.collectors, row.trainers, row.waits_for, "yes" if row.deterministic else "no")
    Console(markup=False).print(table)
    print(f"{AUTO}: {AUTO_RULE}")


def learners(name: Annotated[str | None, typer.Argument(help="show this learner's options")] = None) -> None:
    """List the learners and players, or one learner's options."""
    from remuda.games.registry import SHIPPED, find_game
    from remuda.learners.registry import PLAYERS, find_learner, learner_names

    if name:
        _print_options(find_learner(name).options_type())
        return
    table = Table("name", "what it is")
    for key in learner_names():
        table.add_row(key, _first_line(find_learner(key)))
    for key, kind in PLAYERS.items():
        table.add_row(key, _first_line(kind))
    for game in SHIPPED:
        for key, scripted in find_game(game).players.items():
            table.add_row(key, f"{_first_line(scripted)} ({game} only)")
    table.add_row("module:Class", "A learner of your own; `remuda check module:Class` checks it.")
    table.add_row("frozen:RUN/agent", "A trained agent of another run; it does not learn.")
    Console(markup=False).print(table)


def settings() -> None:
    """List the settings of a plan, and the presets; games and learners have more."""
    from remuda.core.plan import ParallelSwitches, Plan
    from remuda.runs.settings import PRESETS
    from remuda.studies.workflows.options import SearchOptions

    _print_options(Plan)
    print("of a search (`remuda search`)")
    _print_options(SearchOptions)
    print("parallel={…}: the familiar switches, mapped onto engines")
    _print_options(ParallelSwitches)
    table = Table("preset", "what it sets")
    for name, preset in PRESETS.items():
        table.add_row(name, " ".join(f"{key}={value}" for key, value in preset.items()))
    Console(markup=False).print(table)


def _first_line(thing: object) -> str:
    return (getattr(thing, "__doc__", None) or "\n").splitlines()[0]


def _print_options(options: type[Options]) -> None:
    table = Table("option", "default", "what it does")
    for name, info in options.model_fields.items():
        default = "" if info.is_required() else str(info.get_default(call_default_factory=True))
        table.add_row(name, default, info.description or "")
    Console(markup=False).print(table)
