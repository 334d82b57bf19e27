"""Options: a frozen set of named values, whose mistakes are errors of one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from remuda.core.errors import ConfigError, UnknownName

LARGEST = 2**63 - 1
"""Of whole numbers; there are some that Python itself refuses to print."""
MOST_SHOWN = 200
"""Characters of a wrong value in an error."""


class Options(BaseModel):
    """A frozen set of named values; unknown names and wrong types are one-sentence errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    aliases: ClassVar[Mapping[str, str]] = {}
    """Other names that options go by."""

    @classmethod
    def read(cls, values: Mapping[str, Any], owner: str) -> Self:
        """Validate `values`; `owner` says in errors whose options these are."""
        values = cls.own_names(values)
        for name, value in values.items():
            if name not in cls.model_fields:
                raise UnknownName(f"option of {owner}", name, cls.model_fields)
            if isinstance(value, int) and abs(value) > LARGEST:
                raise ConfigError(f"{name}={shown(value)} ({owner}) should be at most {LARGEST}")
        try:
            options = cls(**values)
        except ValidationError as error:
            raise ConfigError(_sentence(error, owner)) from None
        options.check()
        return options

    @classmethod
    def own_names(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """`values` with aliases replaced by the names they stand for."""
        for alias, name in cls.aliases.items():
            if alias in values and name in values:
                raise ConfigError(f"{alias} and {name} say the same thing twice: give one of them")
        return {cls.aliases.get(name, name): value for name, value in values.items()}

    def check(self) -> None:
        """Raise ConfigError where values that are fine alone contradict each other."""


def _sentence(error: ValidationError, owner: str) -> str:
    first = error.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else "?"
    message = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return f"{name}={shown(first['input'])} ({owner}) should be {message}"


def shown(value: Any) -> str:
    """A wrong value as an error shows it: not the whole of something huge."""
    try:
        text = repr(value)
    except ValueError:
        text = "a number too long to be printed"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"
