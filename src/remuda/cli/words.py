"""Settings from the words of a command line: `key=value`, `--key=value` and `--key value`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from remuda.core.errors import ConfigError

Words = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="any other setting, also as --key value")
]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object at the end")]
Checkpoint = Annotated[str | None, typer.Option(help="which one, or `best`; default: the newest")]
On = Annotated[
    str | None,
    typer.Option(help="where runs of many are trained: processes, ray (a cluster here), ray:HOST:PORT, ray:auto"),
]
Trust = Annotated[
    bool, typer.Option("--trust", help="follow names of code (module:name) in runs that somebody else made")
]
Exploration = Annotated[float, typer.Option(help="share of random actions; 0 is greedy", min=0.0, max=1.0)]


def settings_from(words: list[str] | None) -> dict[str, Any]:
    """The words as settings."""
    from remuda.core.yamlfile import read_assignments  # with pydantic 0.2 s, which `remuda --help` does without

    return {name.replace("-", "_"): value for name, value in read_assignments(_assignments(words)).items()}


def refuse_arguments(function: Callable[..., Any], settings: dict[str, Any], *allowed: str) -> dict[str, Any]:
    """The settings, unless one has the name of an argument that `function` takes besides settings."""
    for name in settings:
        if name in inspect.signature(function).parameters and name not in allowed:
            raise ConfigError(f"{name} is not a setting; `remuda {function.__name__} --help` lists the flags")
    return settings


def _assignments(words: list[str] | None) -> list[str]:
    """All words as `key=value`."""
    assignments: list[str] = []
    rest = list(words or [])
    while rest:
        word = rest.pop(0)
        if word.startswith("--") and "=" not in word:
            if not rest or rest[0].startswith("--"):
                raise ConfigError(f"{word} needs a value: {word} VALUE")
            word = f"{word}={rest.pop(0)}"
        assignments.append(word.removeprefix("--"))
    return assignments


def whole_number(name: str, value: Any) -> int:
    """The value of a setting that is a number of things."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name}={value!r} should be a whole number of at least 1")
    return value


def given(**flags: Any) -> dict[str, Any]:
    """The flags that were given."""
    return {name: value for name, value in flags.items() if value is not None}
