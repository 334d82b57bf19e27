"""Objects that were given from Python and that no import finds: a class of a notebook cell, a lambda.

Each gets a name, `session:NAME-SESSION-NUMBER`, so that a plan stays plain data. The object stays in a table of this
process. Worker processes receive it pickled through their pipe, and only from the process that started them. It is
never written to a file and never read from one.
"""

from __future__ import annotations

import pickle
import re
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from remuda.core.code_versions import require_version, version_of
from remuda.core.errors import ConfigError, first_line

PREFIX = "session:"
_NAME = re.compile(rf"{PREFIX}\w+-[0-9a-f]+-\d+")
# The time is part of each name: a restarted notebook must not take another object for the one that a run was made with.
_SESSION = f"{time.time_ns() // 1_000_000:x}"
_objects: dict[str, Any] = {}


def is_session_name(name: Any) -> bool:
    """Whether `name` stands for an object of a session; `session:make` of a file session.py does not."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def name_object(thing: Any, label: str = "") -> str:
    """A name for `thing`: `module:name` if other processes can import it, else a name in this session."""
    return import_name(thing) or keep(thing, label)


def keep(thing: Any, label: str = "") -> str:
    """Put an object into the table; the same object keeps its name."""
    for name, known in _objects.items():
        if known is thing:
            return name
    label = re.sub(r"\W", "", label or getattr(thing, "__qualname__", type(thing).__name__).rpartition(".")[2])
    name = f"{PREFIX}{label or 'object'}-{_SESSION}-{len(_objects) + 1}"
    _objects[name] = thing
    return name


def bind(name: str, thing: Any) -> None:
    """Put an object into the table under a name that it had in another process."""
    _objects[name] = thing


def find(name: str) -> Any | None:
    """The object of this name, if this process has it."""
    return _objects.get(name)


def pack(names: Iterable[str]) -> dict[str, bytes]:
    """For a worker process: objects of this session pickled, and of code that it imports itself the version.

    Other names are left out.
    """
    packed: dict[str, bytes] = {}
    for name in names:
        if not is_session_name(name):
            version = version_of(name)
            packed |= {} if version is None else {name: version}
            continue
        import cloudpickle  # 40 ms, and only these need it

        try:
            packed[name] = cloudpickle.dumps(_objects[name])
        except Exception as error:  # a user's object: pickling it may raise anything
            raise ConfigError(
                f"{name} cannot be sent to worker processes ({first_line(error)}): "
                "create what it holds inside of it, or use engine=vectorized"
            ) from error
    return packed


def unpack(packed: Mapping[str, bytes]) -> None:
    """In a worker: take the objects over that the parent process packed, and have the same versions of other code."""
    for name, data in packed.items():
        if is_session_name(name):
            _objects[name] = pickle.loads(data)
        else:
            require_version(name, data)


def to_bytes(message: Any) -> bytes:
    """A message for a process that this one started, or that started it."""
    return pickle.dumps(message)


def from_bytes(message: bytes) -> Any:
    """A message of `to_bytes`, from the pipe or the actor of such a process and from nowhere else."""
    return pickle.loads(message)


def import_name(thing: Any) -> str | None:
    """`module:name` under which other processes import this very object; None if they cannot."""
    name = getattr(thing, "__qualname__", "")
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    if module is None or not name.isidentifier() or getattr(module, name, None) is not thing:
        return None
    return _joined(module, name)


def attribute_name(thing: Any, module_name: str | None) -> str | None:
    """`module:name` of an object that does not know its own name, if this module has it at its top level."""
    module = sys.modules.get(module_name or "")
    names = [] if module is None else [name for name, value in vars(module).items() if value is thing]
    return _joined(module, names[0]) if module is not None and names else None


def _joined(module: ModuleType, name: str) -> str | None:
    """The program that runs is known by the name of its file; a notebook or `python -c` has none."""
    if module.__name__ != "__main__":
        return f"{module.__name__}:{name}"
    file = Path(getattr(module, "__file__", None) or "")
    return f"{file.stem}:{name}" if file.suffix == ".py" and file.is_file() else None
