"""Which version of a user's code a process has: a worker must play what its parent has.

A worker may have imported another version: its fork server imported a module before the user edited and reloaded it, or
the file was edited after this process imported it. So the parent sends a hash of the code it has, and workers compare.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from functools import partial
from importlib import reload
from types import CodeType, FunctionType
from typing import Any

from remuda.core.code_names import is_code_name, load_code
from remuda.core.errors import ConfigError

PLAIN = (bool, int, float, complex, str, bytes, type(None))


def version_of(name: str) -> bytes | None:
    """A hash of the code that `module:name` stands for in this process; None if it stands for none."""
    module, _, attribute = name.partition(":")
    found = getattr(sys.modules.get(module), attribute, None) if is_code_name(name) else None
    return None if found is None else hash_code(found)


def require_version(name: str, expected: bytes) -> None:
    """In a worker: have the version of the code that the parent has; a module that is older is loaded again."""
    where = f"{name!r}"
    if hash_code(load_code(name, where)) == expected:
        return
    module = sys.modules.get(name.partition(":")[0])
    if module is not None:
        reload(module)
        if hash_code(load_code(name, where)) == expected:
            return
    raise ConfigError(
        f"{name} is another version in the file than in the process that trains: importlib.reload its module there, "
        "or start Python anew"
    )


def hash_code(thing: Any) -> bytes:
    """A hash of the code of an object, and of what that code uses of its own module."""
    digest = hashlib.sha256()
    for text in _texts(thing, set()):
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return digest.digest()


def _texts(thing: Any, seen: set[int]) -> Iterator[str]:
    """What the hash covers: byte code, constants and names, not line numbers or addresses."""
    thing = getattr(thing, "py_func", thing)  # of a compiled kernel
    thing = getattr(thing, "__func__", thing)  # of a method, a classmethod or a staticmethod
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, PLAIN):
        yield repr(thing)
    elif isinstance(thing, tuple | list | frozenset | set):
        own = [" ".join(_texts(item, set(seen))) for item in thing]
        yield from sorted(own) if isinstance(thing, frozenset | set) else own
    elif isinstance(thing, CodeType):
        yield from (thing.co_name, thing.co_code.hex(), repr(thing.co_names), repr(thing.co_varnames))
        yield from _texts(thing.co_consts, seen)
    elif isinstance(thing, FunctionType):
        yield from _texts_of_function(thing, seen)
    elif isinstance(thing, type):
        yield thing.__qualname__
        for value in (*(base for base in thing.__bases__ if base.__module__ == thing.__module__), *_members(thing)):
            yield from _texts(value, seen)
    elif isinstance(thing, partial):
        yield from _texts((thing.func, thing.args), seen)
    elif isinstance(thing, property):
        yield from _texts((thing.fget, thing.fset), seen)
    elif type(thing).__name__ == "GameEntry":
        yield from _texts((thing.name, thing.options, thing.make), seen)


def _texts_of_function(function: FunctionType, seen: set[int]) -> Iterator[str]:
    yield from _texts(function.__code__, seen)
    yield from _texts(function.__defaults__ or (), seen)
    for name in sorted(_names(function.__code__)):
        value = function.__globals__.get(name)
        if isinstance(value, (*PLAIN, tuple)) or getattr(value, "__module__", None) == function.__module__:
            yield name
            yield from _texts(value, seen)


def _names(code: CodeType) -> set[str]:
    """Names that code looks up, also inside of functions in it."""
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inner)


def _members(kind: type) -> list[Any]:
    """What a class body defines: functions, properties and plain values; machinery of its base classes is left out."""
    kinds = (*PLAIN, tuple, FunctionType, classmethod, staticmethod, property)
    own = {
        name: value for name, value in vars(kind).items() if name not in ("__doc__", "__module__", "__firstlineno__")
    }
    members = [(name, value) for name, value in sorted(own.items()) if isinstance(value, kinds)]
    return [part for member in members for part in member]
