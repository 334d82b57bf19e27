"""Commands that list what there is: games, engines, learners and settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

import remuda
from remuda.cli.words import Words, settings_from
from remuda.core.console import QuietConsole
from remuda.core.errors import ConfigError

if TYPE_CHECKING:
    from remuda.core.game import GameEntry
    from remuda.core.options import Options
    from remuda.runs.listing import Setting


def games(
    name: Annotated[str | None, typer.Argument(help="show this game's options")] = None, words: Words = None
) -> None:
    """List the games, or show what agents of one see and do, and its options.

    `remuda games treasurehunt radius=3`: what agents see with this option
    """
    if name:
        from remuda.games.registry import find_game

        entry = find_game(name)
        print(f"{entry.name}: {entry.summary}")
        _print_groups(entry, settings_from(words))
        _print_options(entry.options)
        return
    _print_names("game", remuda.list_games())


def _print_groups(entry: GameEntry, options: dict[str, Any]) -> None:
    """What agents see and do with these options, a line per group."""
    import numpy as np

    from remuda.core.game import make_game

    try:
        groups = make_game(entry, entry.options.resolve_aliases(options), [0]).spec.groups
    except ConfigError as error:
        if options:
            raise
        # It has options without a default.
        print(f"what agents see depends on options: {error}")
        return
    for group in groups:
        seen = f"{np.dtype(group.obs_dtype)} of shape {group.obs_shape}"
        default = "" if options else " by default"
        print(f"{group.name}, {group.size} agent(s){default}: {seen} in, {group.gymnasium_actions} out")


def engines() -> None:
    """List the engines: where collecting and learning happen, and what waits for what."""
    from remuda.engines.table import AUTO, AUTO_RULE, ENGINES

    table = Table("engine", "collects", "learns", "waits for", "deterministic")
    for row in ENGINES.values():
        table.add_row(row.name, row.collectors, row.trainers, row.waits_for, "yes" if row.deterministic else "no")
    QuietConsole(markup=False).print(table)
    print(f"{AUTO}: {AUTO_RULE}")


def learners(name: Annotated[str | None, typer.Argument(help="show this learner's options")] = None) -> None:
    """List the learners and players, or one learner's options."""
    if name:
        from remuda.learners.registry import find_learner

        _print_options(find_learner(name).options_type())
        return
    _print_names("name", remuda.list_learners())


def settings(
    name: Annotated[str | None, typer.Argument(help="only those of this game or learner, or of `reward`")] = None,
) -> None:
    """List the settings of a plan, the transforms of rewards and the presets; games and learners have more."""
    from remuda.core.plan import ParallelSwitches
    from remuda.runs.listing import describe_options
    from remuda.runs.settings import PRESETS
    from remuda.studies.workflows.options import SearchOptions

    _print_settings(remuda.list_settings(name))
    if name:
        return
    print("reward.NAME: what reaches the agents of any game, made from what it pays (docs/games/social.md)")
    _print_settings(remuda.list_settings("reward"))
    print("of a search (`remuda search`)")
    _print_settings(describe_options(SearchOptions))
    print("parallel={…}: the familiar switches, mapped onto engines")
    _print_settings(describe_options(ParallelSwitches))
    table = Table("preset", "what it sets")
    for preset_name, preset in PRESETS.items():
        table.add_row(preset_name, " ".join(f"{key}={value}" for key, value in preset.items()))
    QuietConsole(markup=False).print(table)


def _print_names(heading: str, names: Mapping[str, str]) -> None:
    table = Table(heading, "what it is")
    for name, summary in names.items():
        table.add_row(name, summary)
    QuietConsole(markup=False).print(table)


def _print_options(options: type[Options]) -> None:
    from remuda.runs.listing import describe_options

    _print_settings(describe_options(options))


def _print_settings(settings: Mapping[str, Setting]) -> None:
    table = Table("option", "default", "what it does")
    for name, own in settings.items():
        table.add_row(name, "" if own.required else str(own.default), own.description)
    QuietConsole(markup=False).print(table)
