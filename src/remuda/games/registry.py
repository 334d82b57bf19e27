"""Finds a game by its name: a shipped game, `module:name` for your own, `gymnasium:id` or `pettingzoo:id`."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from remuda.adapters.inbound.factories import LIBRARIES, entry_from_factory, entry_from_library, factory_name
from remuda.core.errors import ConfigError, RemudaError, UnknownName
from remuda.core.game import GameEntry
from remuda.games.shipped import SHIPPED

__all__ = ["SHIPPED", "factory_name", "find_game", "refuse_while_importing"]
_importing: list[str] = []


def find_game(name: str) -> GameEntry:
    """The entry of a game; `module:name` may be a GameEntry or a factory of environments."""
    library, _, attribute = name.partition(":")
    if not attribute:
        return _shipped(name)
    if library in LIBRARIES:
        return entry_from_library(library, attribute)
    try:
        found = getattr(_module(library), attribute)
    except RemudaError:
        raise
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ConfigError(f"game {name!r} cannot be imported: {error}") from error
    if isinstance(found, GameEntry):
        return found
    if callable(found):
        return entry_from_factory(name, found)
    raise ConfigError(f"game {name!r} is a {type(found).__name__}, neither a GameEntry nor a factory")


def _shipped(name: str) -> GameEntry:
    if name not in SHIPPED:
        raise UnknownName("game", name, SHIPPED)
    entry = import_module(SHIPPED[name].module).ENTRY
    assert isinstance(entry, GameEntry)
    return entry


def refuse_while_importing() -> None:
    """Raise if training was started by the import that looks for its game: that import would never end."""
    if _importing:
        raise ConfigError(
            f'importing {_importing[-1]!r} started a training: put the call under `if __name__ == "__main__":`'
        )


def _module(name: str) -> ModuleType:
    """A module of the user's. The running program is returned as it is, not imported a second time."""
    for main in (sys.modules.get("__main__"), sys.modules.get("__mp_main__")):
        if main is not None and Path(getattr(main, "__file__", None) or "").stem == name and name not in sys.modules:
            return main
    _importing.append(name)
    try:
        return import_module(name)
    finally:
        _importing.pop()
