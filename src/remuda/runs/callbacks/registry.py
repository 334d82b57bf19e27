"""Callbacks that a plan names: loggers that are off by default (add yours to SHIPPED), and `module:Class`.

Those that are always on (tables, TensorBoard, progress, pictures) are listed in `runs/training.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from remuda.core.code_names import load_code
from remuda.core.errors import ConfigError, UnknownName
from remuda.runs.callbacks.base import Callback

SHIPPED: dict[str, str] = {
    "wandb": "remuda.runs.callbacks.wandb:WeightsAndBiases",
    "mlflow": "remuda.runs.callbacks.mlflow:MLflow",
}


def load_callbacks(names: Sequence[str]) -> list[Callback]:
    """One callback object for each name; the classes are called without arguments."""
    return [_load(name) for name in names]


def _load(name: str) -> Callback:
    path = SHIPPED.get(name, name)
    if ":" not in path:
        raise UnknownName("callback", name, [*SHIPPED, "module:Class"])
    found = load_code(path, f"callbacks: {name!r}")
    if isinstance(found, type) and not issubclass(found, Callback):
        raise ConfigError(f"callbacks: {name!r} is a class, but not a subclass of remuda.Callback")
    try:
        made = found()
    except (AttributeError, ValueError, TypeError) as error:
        raise ConfigError(f"callbacks: {name!r} cannot be made: {error}") from error
    if not isinstance(made, Callback):
        raise ConfigError(f"callbacks: {name!r} made a {type(made).__name__}, not a remuda.Callback")
    return made
