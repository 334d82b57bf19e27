"""Finds a game by its name: a shipped game, `module:name` for your own, `gymnasium:id` or `pettingzoo:id`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from remuda.adapters.inbound.factories import LIBRARIES, entry_from_factory, entry_from_library
from remuda.core import session
from remuda.core.code_names import load_code
from remuda.core.errors import ConfigError, UnknownName
from remuda.core.game import Game, GameEntry
from remuda.games.shipped import SHIPPED

__all__ = ["SHIPPED", "AnyGame", "find_game", "find_verifier", "game_name", "installed_games"]
AnyGame = str | GameEntry | Callable[..., Any]
"""A game as a user gives it: a name, an entry, or a class or function that makes an environment."""
ENTRY_POINTS = "remuda.games"
"""The group of entry points by which an installed package offers games."""


def find_game(name: str) -> GameEntry:
    """The entry of a game; `module:name` may be a GameEntry or a factory of environments."""
    if session.is_session_name(name):
        return _of_session(name)
    library, _, attribute = name.partition(":")
    if not attribute:
        return _named(name)
    if library in LIBRARIES:
        return entry_from_library(library, attribute)
    return _as_entry(name, load_code(name, f"game {name!r}"))


def _as_entry(name: str, found: Any) -> GameEntry:
    if isinstance(found, GameEntry):
        return found
    if callable(found):
        return entry_from_factory(name, found)
    raise ConfigError(f"game {name!r} is a {type(found).__name__}, neither a GameEntry nor a factory")


def _named(name: str) -> GameEntry:
    if name in SHIPPED:
        entry = import_module(SHIPPED[name].module).ENTRY
        assert isinstance(entry, GameEntry)
        return entry
    if name not in installed_games():
        _hint_at_entry(name)
        raise UnknownName("game", name, [*SHIPPED, *installed_games()])
    try:
        return _as_entry(name, installed_games()[name].load())
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"game {name!r} of an installed package cannot be imported: {error}") from error


@cache
def installed_games() -> dict[str, EntryPoint]:
    """Games of installed packages, by the names of their entry points."""
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def find_verifier(name: str) -> Callable[[Path], Any]:
    """The function that compares recorded games of the original with ours; returns a report with `good` and a text."""
    known = {game: shipped.verifier for game, shipped in SHIPPED.items() if shipped.verifier}
    if name not in known:
        raise UnknownName("game with recordings of its original", name, known)
    module, _, function = known[name].partition(":")
    verifier: Callable[[Path], Any] = getattr(import_module(module), function)
    return verifier


def _hint_at_entry(name: str) -> None:
    """Raise if `name` is a Python file or module without the entry in it."""
    path = Path(name)
    try:
        is_module = path.suffix == ".py" or Path(f"{name.replace('.', '/')}.py").is_file()
    except (OSError, ValueError):  # no file can have this name
        return
    if is_module:
        module = ".".join(path.with_suffix("").parts) if path.suffix == ".py" else name
        raise ConfigError(
            f"game {name!r} is a module: name the game in it too, {module}:NAME, where NAME is its GameEntry, "
            "environment class or factory"
        )


def game_name(game: AnyGame) -> str:
    """The name by which a plan knows a game; what other processes cannot import gets a name in this session."""
    if isinstance(game, str):
        return game
    if isinstance(game, GameEntry):
        if game.name in SHIPPED and find_game(game.name) is game:
            return game.name
        modules = (getattr(thing, "__module__", None) for thing in (game.options, game.make))
        found = [session.attribute_name(game, module) for module in modules]
        return next(filter(None, found), None) or session.keep(game, game.name)
    if isinstance(game, type) and issubclass(game, Game):
        raise ConfigError(
            f"{game.__name__} is a Game: give its entry, GameEntry({game.__name__.lower()!r}, 'what it is', "
            f"its Options, {game.__name__})"
        )
    if not callable(game):
        raise ConfigError(
            f"game={game!r} should be a name, a GameEntry, or a class or function that makes an environment"
        )
    return session.name_object(game)


def _of_session(name: str) -> GameEntry:
    game = session.find(name)
    if game is None:
        raise ConfigError(
            f"game {name!r} was defined in another Python session: give it again, "
            "remuda.resume(path, game=…) or remuda.load(path, game=…)"
        )
    return game if isinstance(game, GameEntry) else entry_from_factory(name, game)
