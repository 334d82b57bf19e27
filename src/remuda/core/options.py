"""Options: a frozen set of named values; a wrong one raises an error of one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from remuda.core.errors import ConfigError, UnknownName

MAX_INT = 2**63 - 1
"""The largest integer an option may have. Python refuses to print integers of more than 4300 digits."""
MAX_SHOWN_CHARS = 200
"""Length at which an error message cuts off a wrong value."""


PLAIN_WORDS = {
    "bool_parsing": "true or false", "bool_type": "true or false", "float_parsing": "a number",
    "float_type": "a number", "int_from_float": "a whole number", "int_parsing": "a whole number",
    "int_parsing_size": f"a whole number up to {MAX_INT}", "int_type": "a whole number",
}  # fmt: skip
"""What pydantic's most frequent errors mean, for people."""


class Options(BaseModel):
    """A frozen set of named values; `read` turns unknown names and wrong values into errors of one sentence."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    aliases: ClassVar[Mapping[str, str]] = {}
    """Other names of options: alias → name."""

    @classmethod
    def read(cls, values: Mapping[str, Any], owner: str) -> Self:
        """Validate `values`. Error messages name `owner`, e.g. "game treasurehunt"."""
        values = cls.resolve_aliases(values)
        for name, value in values.items():
            if name not in cls.model_fields:
                raise UnknownName(f"option of {owner}", name, cls.model_fields)
            if isinstance(value, int) and abs(value) > MAX_INT:
                raise ConfigError(f"{name}={short_repr(value)} ({owner}) should be at most {MAX_INT}")
        try:
            options = cls(**values)
        except ValidationError as error:
            raise ConfigError(_sentence(error, owner)) from None
        options.check()
        return options

    @classmethod
    def resolve_aliases(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """`values` with each alias replaced by the name it stands for."""
        for alias, name in cls.aliases.items():
            if alias in values and name in values:
                raise ConfigError(f"{alias} and {name} say the same thing twice: give one of them")
        return {cls.aliases.get(name, name): value for name, value in values.items()}

    def check(self) -> None:
        """Raise ConfigError if values that are valid alone contradict each other."""


def _sentence(error: ValidationError, owner: str) -> str:
    first = error.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else "?"
    if first["type"] == "missing":
        return f"{name} ({owner}) has no default: give it, {name}=VALUE"
    wanted = [_wanted(first, name)]
    words = (own for own in error.errors()[1:] if own["loc"][:1] == first["loc"][:1] and own["type"] == "literal_error")
    wanted += [own["ctx"]["expected"] for own in words]
    return f"{name}={short_repr(first['input'])} ({owner}) should be {' or '.join(wanted)}"


def _wanted(error: Any, name: str) -> str:
    """What one of pydantic's errors wants, in plain words."""
    if error["type"] == "list_type":
        given = error["input"]
        return f"a list, e.g. {name}=[{given if isinstance(given, str) else short_repr(given)}]"
    message = str(error["msg"]).removeprefix("Input should be ").removeprefix("Value error, ")
    return PLAIN_WORDS.get(error["type"], message)


def short_repr(value: Any) -> str:
    """`repr(value)` for an error message, cut off if it is long."""
    try:
        text = repr(value)
    except ValueError:
        text = "a number too long to be printed"
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}…"
