"""The games remuda ships, by name; `module:factory` names a game of your own."""

from __future__ import annotations

from importlib import import_module

from remuda.errors import ConfigError, UnknownName
from remuda.game import GameEntry

SHIPPED = ("treasurehunt", "cage2")


def find_game(name: str) -> GameEntry:
    """The entry of a shipped game, or of `module:attribute` on the import path."""
    if ":" in name:
        module_name, _, attribute = name.partition(":")
        try:
            entry = getattr(import_module(module_name), attribute)
        except (ImportError, AttributeError, ValueError, TypeError) as error:
            raise ConfigError(f"game {name!r} cannot be imported: {error}") from error
        if not isinstance(entry, GameEntry):
            raise ConfigError(f"game {name!r} is a {type(entry).__name__}, not a GameEntry")
        return entry
    if name not in SHIPPED:
        raise UnknownName("game", name, SHIPPED)
    entry = import_module(f"remuda.games.{name}").ENTRY
    assert isinstance(entry, GameEntry)
    return entry
