"""What there is to choose from: games, engines, learners and settings, by name.

Nothing is imported before it is needed: `remuda games` and `remuda engines` load neither torch nor numba.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from remuda.core.errors import ConfigError, UnknownName

if TYPE_CHECKING:
    from remuda.core.options import Options


@dataclass(frozen=True)
class Setting:
    """A setting: its default, what it does, and whether it must be given since it has no default."""

    default: Any
    description: str
    required: bool = False


def list_games() -> dict[str, str]:
    """The games that come with remuda and with installed packages, and what each is."""
    from remuda.games.shipped import SHIPPED, installed_games

    found = {name: f"of an installed package, {point.value}" for name, point in installed_games().items()}
    return found | {name: shipped.summary for name, shipped in SHIPPED.items()}


def list_engines() -> dict[str, str]:
    """The engines: where each collects and learns, and what waits for what."""
    from remuda.engines.table import AUTO, AUTO_RULE, ENGINES

    rows = {
        name: f"collects {row.collectors}, learns {row.trainers}, waits for {row.waits_for}"
        for name, row in ENGINES.items()
    }
    return {AUTO: AUTO_RULE, **rows}


def list_learners() -> dict[str, str]:
    """The learners and scripted players, and what each is."""
    from remuda.games.registry import find_game
    from remuda.games.shipped import SHIPPED
    from remuda.learners.registry import PLAYERS, learner_names

    found = {name: _learner_summary(name) for name in learner_names()}
    found |= {name: _first_line(kind) for name, kind in PLAYERS.items()}
    by_game = {game: find_game(game).players for game in SHIPPED}
    for player in dict.fromkeys(name for players in by_game.values() for name in players):
        scripts = {game: _first_line(players[player]) for game, players in by_game.items() if player in players}
        said = dict.fromkeys(scripts.values())  # games may share a script, or have one each of the same name
        found[player] = " ".join(f"{text} ({', '.join(g for g in scripts if scripts[g] == text)})" for text in said)
    return {
        **found,
        "module:Class": "A learner of your own; `remuda check module:Class` checks it.",
        "frozen:RUN/agent": "A trained agent of another run; it does not learn.",
    }


def _learner_summary(name: str) -> str:
    """What a learner is, or why it cannot be used: one broken package must not keep the others from being listed."""
    from remuda.learners.registry import find_learner

    try:
        return _first_line(find_learner(name))
    except ConfigError as error:
        return str(error)


def list_settings(name: str | None = None) -> dict[str, Setting]:
    """The settings of a plan, or with a name the options of that game or learner, or those of `reward`."""
    from remuda.core.plan import Plan
    from remuda.core.rewards import REWARD, RewardOptions
    from remuda.games.registry import find_game, installed_games
    from remuda.games.shipped import SHIPPED
    from remuda.learners.registry import find_learner, learner_names

    if name is None:
        return describe_options(Plan)
    if name == REWARD:
        return {f"{REWARD}.{own}": setting for own, setting in describe_options(RewardOptions).items()}
    if name in learner_names():
        return describe_options(find_learner(name).options_type())
    if ":" not in name and name not in SHIPPED and name not in installed_games():
        raise UnknownName("game or learner", name, [*SHIPPED, *installed_games(), *learner_names(), REWARD])
    return describe_options(find_game(name).options)


def describe_options(options: type[Options]) -> dict[str, Setting]:
    """Every option of a class."""
    found = {}
    for name, info in options.model_fields.items():
        default = None if info.is_required() else info.get_default(call_default_factory=True)
        found[name] = Setting(default, info.description or "", info.is_required())
    return found


def _first_line(thing: object) -> str:
    return (getattr(thing, "__doc__", None) or "\n").splitlines()[0]
