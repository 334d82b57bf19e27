"""Ranges of settings: log(low, high), uniform(low, high), int(low, high), logint(low, high), choice(a, b, …)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from remuda.core.errors import ConfigError
from remuda.core.yamlfile import read_assignments

KINDS = ("log", "uniform", "int", "logint", "choice")
_RANGE = re.compile(rf"({'|'.join(KINDS)})\((.*)\)", re.DOTALL)


def is_range(value: Any) -> bool:
    """Whether a setting is a range to search."""
    return isinstance(value, str) and _RANGE.fullmatch(value.strip()) is not None


def distributions(ranges: Mapping[str, str]) -> dict[str, Any]:
    """The ranges as Optuna knows them."""
    return {name: _distribution(name, text) for name, text in ranges.items()}


def _distribution(name: str, text: str) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    match = _RANGE.fullmatch(text.strip())
    assert match is not None, "is_range() first"
    kind = match[1]
    values = read_assignments([f"x=[{match[2]}]"])["x"]
    if kind == "choice":
        values = [_number(value) for value in values]
        plain = all(isinstance(value, str | int) or (isinstance(value, float) and value == value) for value in values)
        if len(values) < 2 or not plain:
            raise ConfigError(f"{name}={text} should name two or more plain values: choice(a, b)")
        return CategoricalDistribution(values)
    whole = kind in ("int", "logint")
    bounds = [_number(value) for value in values]
    right = all(isinstance(bound, int if whole else int | float) and not isinstance(bound, bool) for bound in bounds)
    ordered = len(bounds) == 2 and right and bounds[0] < bounds[1] and math.isfinite(bounds[1] - bounds[0])
    if not ordered or ("log" in kind and bounds[0] <= 0):
        above = " above 0" if "log" in kind else ""
        raise ConfigError(
            f"{name}={text} should have two {'whole ' if whole else ''}numbers{above}, the lower one first"
        )
    if whole:
        return IntDistribution(bounds[0], bounds[1], log=kind == "logint")
    return FloatDistribution(float(bounds[0]), float(bounds[1]), log=kind == "log")


def _number(value: Any) -> Any:
    """YAML reads 1e-4 as a text."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value
