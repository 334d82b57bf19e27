"""Games by name: those remuda ships, `module:name` for your own, `gymnasium:id` and `pettingzoo:id` for theirs."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from remuda.adapters.inbound.factories import LIBRARIES, entry_of, name_of, registered
from remuda.core.errors import ConfigError, RemudaError, UnknownName
from remuda.core.game import GameEntry

__all__ = ["SHIPPED", "find_game", "name_of", "refuse_while_importing"]
SHIPPED = ("treasurehunt", "cage2")
_importing: list[str] = []


def find_game(name: str) -> GameEntry:
    """The entry of a shipped game, or of what `module:name` on the import path is: an entry, or a factory."""
    library, _, attribute = name.partition(":")
    if library in LIBRARIES and attribute:
        return registered(library, attribute)
    if attribute:
        try:
            entry = getattr(_module(library), attribute)
        except RemudaError:
            raise
        except (ImportError, AttributeError, ValueError, TypeError) as error:
            raise ConfigError(f"game {name!r} cannot be imported: {error}") from error
        if callable(entry) and not isinstance(entry, GameEntry):
            return entry_of(name, entry)
        if not isinstance(entry, GameEntry):
            raise ConfigError(f"game {name!r} is a {type(entry).__name__}, neither a GameEntry nor a factory")
        return entry
    if name not in SHIPPED:
        raise UnknownName("game", name, SHIPPED)
    entry = import_module(f"remuda.games.{name}").ENTRY
    assert isinstance(entry, GameEntry)
    return entry


def refuse_while_importing() -> None:
    """Raise where training was started by the very import that looks for its game."""
    if _importing:
        raise ConfigError(
            f'importing {_importing[-1]!r} started a training: put the call under `if __name__ == "__main__":`'
        )


def _module(name: str) -> ModuleType:
    """A module of the user's; the program that runs is not imported a second time."""
    for main in (sys.modules.get("__main__"), sys.modules.get("__mp_main__")):
        if main is not None and Path(getattr(main, "__file__", None) or "").stem == name and name not in sys.modules:
            return main
    _importing.append(name)
    try:
        return import_module(name)
    finally:
        _importing.pop()
