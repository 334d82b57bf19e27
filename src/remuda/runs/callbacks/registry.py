"""Callbacks as users give them: objects, functions, and names (those in SHIPPED, and `module:name`).

Those that are always on (tables, TensorBoard, progress, pictures) are listed in `runs/training.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from remuda.core.code_names import load_code
from remuda.core.errors import ConfigError, UnknownName
from remuda.runs.callbacks.base import Callback, FunctionCallback, Row

SHIPPED: dict[str, str] = {
    "wandb": "remuda.runs.callbacks.wandb:WeightsAndBiases",
    "mlflow": "remuda.runs.callbacks.mlflow:MLflow",
}
HOOKS = tuple(name for name, own in vars(Callback).items() if inspect.isfunction(own))
"""The methods that a run calls: start, collected, learned, and so on."""

OwnCallback = Callback | Callable[[list[Row]], bool | None]
Callbacks = Sequence[OwnCallback | str] | OwnCallback | str | None
"""Callbacks as a user gives them: none, one or several; a name may stand for each."""


def listed(callbacks: Callbacks) -> list[OwnCallback | str]:
    """The callbacks as a list, whether none, one or several were given."""
    if callbacks is None:
        return []
    if isinstance(callbacks, str | Callback) or not isinstance(callbacks, Iterable):
        return [callbacks]
    return list(callbacks)


def make_callback(own: Any) -> Callback:
    """The callback that an object, a function or a name stands for; raises ConfigError if the run could not call it."""
    if isinstance(own, str):
        return _load(own)
    if isinstance(own, Callback):
        _check_hooks(own)
        return own
    if isinstance(own, type):
        hint = f": did you forget the brackets, {own.__name__}()?" if issubclass(own, Callback) else ""
        raise ConfigError(f"callbacks: {own.__name__} is a class, not a remuda.Callback object{hint}")
    if not callable(own):
        raise ConfigError(f"callbacks: {own!r} is neither a remuda.Callback object nor a function")
    _refuse_unread(own, _name(own))
    if not _takes(own, 1):
        raise ConfigError(f"callbacks: {_name(own)} is called with the rows of each round: write {_name(own)}(rows)")
    return FunctionCallback(own)


def callback_name(callback: Callback) -> str:
    """How messages call it."""
    return _name(callback.function) if isinstance(callback, FunctionCallback) else type(callback).__name__


def _load(name: str) -> Callback:
    """The callback that a name stands for; classes, and functions that need no argument, are called without."""
    path = SHIPPED.get(name, name)
    if ":" not in path:
        raise UnknownName("callback", name, [*SHIPPED, "module:Class"])
    found = load_code(path, f"callbacks: {name!r}")
    if isinstance(found, type) and not issubclass(found, Callback):
        raise ConfigError(f"callbacks: {name!r} is a class, but not a subclass of remuda.Callback")
    if not isinstance(found, type) and (isinstance(found, Callback) or not _takes(found, 0)):
        return make_callback(found)
    try:
        made = found()
    except (AttributeError, ValueError, TypeError) as error:
        raise ConfigError(f"callbacks: {name!r} cannot be made: {error}") from error
    if not isinstance(made, Callback):
        raise ConfigError(
            f"callbacks: {name!r} made a {type(made).__name__}, not a remuda.Callback; a function that is to be called "
            f"in each round takes its rows: {name.partition(':')[2]}(rows)"
        )
    return make_callback(made)


def _check_hooks(callback: Callback) -> None:
    """Refuse methods that the run would never call, and those that it could not."""
    kind = type(callback)
    for name in dir(kind):
        if name.startswith(("on_", "_on_")) and callable(getattr(kind, name)):
            raise ConfigError(f"callbacks: {kind.__name__}.{name} would never be called: hooks are {', '.join(HOOKS)}")
    for name in HOOKS:
        _refuse_unread(getattr(callback, name), f"{kind.__name__}.{name}")
        arguments = list(inspect.signature(getattr(Callback, name)).parameters)
        if not _takes(getattr(callback, name), len(arguments) - 1):
            raise ConfigError(
                f"callbacks: {kind.__name__}.{name} is called with other arguments: "
                f"write def {name}({', '.join(arguments)})"
            )


def _refuse_unread(function: Any, name: str) -> None:
    """Raise for a function whose call only makes an object that nobody would run."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"callbacks: {name} is async, and nothing would await it: write def, without async")
    if inspect.isgeneratorfunction(function):
        raise ConfigError(f"callbacks: {name} has a yield, so calling it would run nothing: write it without")


def _takes(function: Any, arguments: int) -> bool:
    """Whether a function can be called with so many arguments; True where it does not say."""
    try:
        inspect.signature(function).bind(*[None] * arguments)
    except TypeError:
        return not callable(function)
    except ValueError:  # of a function that is not written in Python
        return True
    return True


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))
