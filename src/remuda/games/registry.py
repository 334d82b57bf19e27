"""Finds a game by its name: a shipped game, `module:name` for your own, `gymnasium:id` or `pettingzoo:id`."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from remuda.adapters.inbound.factories import (
    LIBRARIES,
    WANTED,
    entry_from_factory,
    entry_from_library,
    is_environment,
)
from remuda.core import session
from remuda.core.code_names import load_code
from remuda.core.errors import ConfigError, UnknownName
from remuda.core.game import Game, GameEntry
from remuda.core.paths import is_file
from remuda.games.shipped import SHIPPED, installed_games

__all__ = ["SHIPPED", "AnyGame", "find_game", "find_verifier", "game_name", "installed_games", "verify"]
AnyGame = str | GameEntry | Callable[..., Any]
"""A game as a user gives it: a name, an entry, or a class or function that makes an environment."""
MAX_FILES = 100
"""Files of the working directory that are read for an error message."""


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
    kind = found if isinstance(found, type) else type(found)
    if issubclass(kind, Game):
        raise ConfigError(f"game {name!r} is a Game: {_entry_hint(kind)}")
    if is_environment(found):
        raise ConfigError(f"game {name!r} is a {kind.__name__}, neither a GameEntry nor a factory: {_class_hint(kind)}")
    if callable(found):
        return entry_from_factory(name, found)
    raise ConfigError(f"game {name!r} is a {type(found).__name__}, neither a GameEntry nor a factory: {WANTED}")


def _class_hint(kind: type) -> str:
    """What to give in place of an environment: its class, if that has a name in its module."""
    named = getattr(sys.modules.get(kind.__module__), kind.__name__, None) is kind
    own = f"give the class, {kind.__module__}:{kind.__name__}" if named else "give its class"
    return f"{own}, or a function that makes it"


def _entry_hint(game: type[Game]) -> str:
    """Which entry to give in place of a class of games: the one beside it that makes it, or one to be written."""
    beside = vars(sys.modules[game.__module__])
    for name, entry in beside.items():
        if isinstance(entry, GameEntry) and entry.make is game:
            return f"give its entry, {game.__module__}:{name}"
    return f"give its entry, GameEntry({game.__name__.lower()!r}, 'what it is', its Options, {game.__name__})"


def _named(name: str) -> GameEntry:
    if name in SHIPPED:
        entry = import_module(SHIPPED[name].module).ENTRY
        assert isinstance(entry, GameEntry)
        return entry
    if name not in installed_games():
        _hint_at_settings(name)
        _hint_at_entry(name)
        _hint_at_file(name)
        _hint_at_library(name)
        raise UnknownName("game", name, [*SHIPPED, *installed_games()])
    try:
        return _as_entry(name, installed_games()[name].load())
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"game {name!r} of an installed package cannot be imported: {error}") from error


def find_verifier(name: str) -> Callable[[Path], Any]:
    """The function that compares recorded games of the original with ours; returns a report with `good` and a text."""
    known = {game: shipped.verifier for game, shipped in SHIPPED.items() if shipped.verifier}
    if name not in known:
        raise UnknownName("game with recordings of its original", name, known)
    module, _, function = known[name].partition(":")
    verifier: Callable[[Path], Any] = getattr(import_module(module), function)
    return verifier


def verify(game: str, folder: Path | str) -> Any:
    """Replay recorded games of the original, the .npz files below a folder, through the rules of our game.

    Returns a report: `good` says whether everything was equal, and `str(report)` what differs.
    """
    return find_verifier(game)(Path(folder))


def _hint_at_settings(name: str) -> None:
    """Raise if `name` is that of a YAML file."""
    if name.endswith((".yaml", ".yml")):
        raise ConfigError(f"{name!r} is no game but a file of settings: give it as --config {name}")


def _hint_at_entry(name: str) -> None:
    """Raise if `name` is a Python file or module without the entry in it."""
    path = Path(name)
    if path.suffix == ".py" or is_file(Path(f"{name.replace('.', '/')}.py")):
        module = ".".join(path.with_suffix("").parts) if path.suffix == ".py" else name
        found = _games_in(Path(f"{module.replace('.', '/')}.py"))
        hint = (
            f"{module}:{found[0]}" if found else f"{module}:NAME, where NAME is its GameEntry, environment or factory"
        )
        raise ConfigError(f"game {name!r} is a module: name the game in it too, {hint}")


def _hint_at_file(name: str) -> None:
    """Raise if a file in the working directory has a game of this name."""
    if name.isidentifier():
        for path in sorted(Path().glob("*.py"))[:MAX_FILES]:
            if name in _games_in(path):
                raise ConfigError(f"unknown game {name!r}: name its module too, {path.stem}:{name}")


def _games_in(path: Path) -> list[str]:
    """What looks like a game in a file, entries first. The file is read, not run: this is for an error only."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []
    entries, environments = [], []
    for node in body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if ast.unparse(node.value.func).endswith("GameEntry"):
                entries += [target.id for target in targets if isinstance(target, ast.Name)]
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base).endswith("Env") for base in node.bases):
            environments.append(node.name)
    return entries + environments


def _hint_at_library(name: str) -> None:
    """Raise if `name` is the id of an environment, without its library."""
    if "gymnasium" in sys.modules or re.fullmatch(r"[\w/]+-v\d+", name):
        import gymnasium

        if name in gymnasium.registry:
            raise ConfigError(f"unknown game {name!r}: an environment of Gymnasium is called 'gymnasium:{name}' here")
    if re.fullmatch(r"(\w+\.)*\w+_v\d+", name):
        module = name if "." in name else f"mpe2.{name}"
        raise ConfigError(
            f"unknown game {name!r}: an environment of PettingZoo is called by its factory here, e.g. "
            f"'{module}:parallel_env'"
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
        raise ConfigError(f"{game.__name__} is a Game: {_entry_hint(game)}")
    if is_environment(game):
        raise ConfigError(
            f"game={type(game).__name__} object is an environment already: every world makes its own, so give its "
            "class or a function that makes it, e.g. `lambda: make(…)`"
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
