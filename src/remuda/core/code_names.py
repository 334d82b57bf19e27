"""Names of code, `module:name`: which texts are such names, and how they are followed.

Whether a name in a file may be followed at all is decided in `runs/trust.py`, before anything is imported.
"""

from __future__ import annotations

import sys
import sysconfig
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from remuda.core.errors import ConfigError, RemudaError, first_line

_importing: list[str] = []


def is_code_name(text: str) -> bool:
    """Whether it is `module:name`. Nothing else is ever imported, so that a check of names misses none."""
    module, colon, name = text.partition(":")
    return bool(colon) and name.isidentifier() and all(part.isidentifier() for part in module.split("."))


def load_code(name: str, where: str) -> Any:
    """The object that `module:name` names; errors begin with `where`."""
    module_name, _, attribute = name.partition(":")
    if module_name.endswith(".py"):
        module_name = ".".join(Path(module_name).with_suffix("").parts)
        raise ConfigError(f"{where} names a file: name it as Python would import it, {module_name}:{attribute}")
    if not is_code_name(name):
        raise ConfigError(f"{where} should be module:name, as Python would import it")
    try:
        module = _user_module(module_name)
        if not hasattr(module, attribute):
            near = get_close_matches(attribute, (own for own in vars(module) if not own.startswith("_")), cutoff=0.3)
            hint = f": did you mean {module_name}:{near[0]}?" if near else ""
            raise ConfigError(f"{where} cannot be imported: module {module_name!r} has no {attribute!r}{hint}")
        found = getattr(module, attribute)
    except (RemudaError, KeyboardInterrupt):
        raise
    except BaseException as error:  # the user's module may raise anything
        kind = "" if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: "
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        here = missing is not None and missing == module_name.partition(".")[0]
        hint = f": run this where {missing}.py is, or set PYTHONPATH to that folder" if here else ""
        raise ConfigError(f"{where} cannot be imported: {kind}{first_line(error)}{hint}") from error
    if _is_of_python(module):
        raise ConfigError(f"{where} is part of Python itself, nothing that remuda should call")
    return found


def refuse_while_importing() -> None:
    """Raise if training was started by the import that looks for its game: that import would never end."""
    if _importing:
        raise ConfigError(
            f'importing {_importing[-1]!r} started a training: put the call under `if __name__ == "__main__":`'
        )


def _user_module(name: str) -> ModuleType:
    """A module of the user's. The running program is returned as it is, not imported a second time."""
    for main in (sys.modules.get("__main__"), sys.modules.get("__mp_main__")):
        if main is not None and Path(getattr(main, "__file__", None) or "").stem == name and name not in sys.modules:
            return main
    _importing.append(name)
    try:
        return import_module(name)
    finally:
        _importing.pop()


def _is_of_python(module: ModuleType) -> bool:
    """Whether the module is of the standard library; a user's file may have the name of one that is."""
    if module.__name__.partition(".")[0] not in sys.stdlib_module_names:
        return False
    file = getattr(module, "__file__", None)
    return file is None or Path(file).is_relative_to(sysconfig.get_paths()["stdlib"])
