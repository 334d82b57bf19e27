"""Whatever a user's factory makes, as a game: which adapter fits, and which options it has.

The options of such a game are the factory's own arguments, `turns`, and where it makes Gymnasium environments
`agents`. A factory that only says **kwargs is asked through the `raw_env` beside it, as PettingZoo's modules have it;
whatever else it takes is given as a mapping: arguments={…}.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from typing import Any

import numpy as np
from pydantic import Field, create_model

from remuda.adapters.inbound import sorrel
from remuda.adapters.inbound.global_generators import GlobalGenerators
from remuda.core import rng
from remuda.core.errors import ConfigError, first_line
from remuda.core.game import Game, GameEntry, Pace
from remuda.core.options import Options

OWN = ("turns", "agents", "arguments")
LIBRARIES = ("gymnasium", "pettingzoo")


class ForeignOptions(Options):
    """What every game has that is made by a factory."""

    turns: int | None = Field(None, ge=1, description="most turns of an episode; default: what the environment says")
    agents: int = Field(1, ge=1, description="of a Gymnasium environment: how many play, each in a copy of its own")
    arguments: dict[str, Any] = Field(default_factory=dict, description="other arguments for the factory")


@cache
def entry_of(name: str, factory: Callable[..., Any]) -> GameEntry:
    """A factory of environments as a game."""
    summary = (inspect.getdoc(factory) or f"made by {name}").splitlines()[0]
    beside = getattr(sys.modules.get(name.partition(":")[0]), "raw_env", None)
    return GameEntry(name, summary, _options(name, factory, beside), partial(_make, name, factory), pace=Pace.QUICK)


@cache
def registered(library: str, known: str) -> GameEntry:
    """An environment that a library knows by its id: `gymnasium:CartPole-v1`, `pettingzoo:classic/tictactoe-v3`."""
    name = f"{library}:{known}"
    try:
        theirs = import_module(library)
    except ImportError as error:
        raise ConfigError(f"game {name!r} needs {library}: pip install 'remuda[envs]'") from error
    try:
        point, make = (_in_gymnasium if library == "gymnasium" else _in_pettingzoo)(theirs, known)
    except Exception as error:  # each library has exceptions of its own for names that it does not know
        raise ConfigError(f"game {name!r} is not known to {library}: {first_line(error)}") from error
    options = _options(name, make, point)
    return GameEntry(name, f"{known} of {library}", options, partial(_make, name, make), pace=Pace.QUICK)


def _in_gymnasium(gymnasium: Any, known: str) -> tuple[Any, Callable[..., Any]]:
    """What an id stands for, and how it is made."""
    point = gymnasium.spec(known).entry_point
    module, _, attribute = point.partition(":") if isinstance(point, str) else ("", "", "")

    def make(**arguments: Any) -> Any:
        return gymnasium.make(known, disable_env_checker=True, **arguments)

    return getattr(import_module(module), attribute) if module else point, make


def _in_pettingzoo(pettingzoo: Any, known: str) -> tuple[Any, Callable[..., Any]]:
    """The same; all at once where the environment can, else one agent after another."""
    if not hasattr(pettingzoo, "make"):
        raise ConfigError("this version has no register; name the factory instead, module:parallel_env")
    kind = "parallel" if known in pettingzoo.parallel_registry else "aec"
    point = pettingzoo.spec(kind, known).entry_point
    if isinstance(point, str):
        point = getattr(import_module(point.partition(":")[0]), "raw_env", None)

    def make(**arguments: Any) -> Any:
        return pettingzoo.make(kind, known, **arguments)

    return point, make


def _options(name: str, factory: Callable[..., Any], beside: Any) -> type[Options]:
    """Its arguments as options, with their defaults."""
    fields: dict[str, Any] = {}
    for parameter in _parameters(factory, beside):
        if parameter.name in OWN:
            raise ConfigError(
                f"game {name!r}: its factory's argument {parameter.name!r} is a word of remuda's; rename it"
            )
        plain = parameter.default is parameter.empty or _is_plain(parameter.default)
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY) and plain:
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[parameter.name] = (Any, Field(default, description="an argument of the factory"))
    return create_model("FactoryOptions", __base__=ForeignOptions, **fields)


def _parameters(factory: Callable[..., Any], beside: Any) -> list[inspect.Parameter]:
    """Of the factory, or of the environment beside it where the factory takes anything."""
    try:
        parameters = list(inspect.signature(factory).parameters.values())
        if [p.kind for p in parameters] == [inspect.Parameter.VAR_KEYWORD] and beside is not None:
            parameters = list(inspect.signature(beside).parameters.values())
    except (TypeError, ValueError):
        return []
    return parameters


def _is_plain(value: Any) -> bool:
    """Whether it can stand in a file of settings."""
    if isinstance(value, (list, tuple)):
        return all(_is_plain(part) for part in value)
    return value is None or isinstance(value, (bool, int, float, str))


def _make(name: str, factory: Callable[..., Any], options: Any, worlds: Sequence[int]) -> Game:
    """As many worlds as are wanted, by the adapter that fits what the factory makes."""
    given: Mapping[str, Any] = options.model_dump(exclude=set(OWN))

    def make() -> Any:
        with (
            GlobalGenerators().lent(),
            rng.torch_seeded(np.uint64(0)),
        ):  # what draws here must not draw from others' streams
            return factory(**given, **options.arguments)

    made = make()
    kind = _kind(made)
    if kind is None:
        raise ConfigError(
            f"game {name!r} made a {type(made).__name__}: make a PettingZoo environment (parallel or AEC), "
            "a Gymnasium one, or one of Sorrel's; or give a GameEntry"
        )
    if kind == "gymnasium":
        from remuda.adapters.inbound import gymnasium

        return gymnasium.build(name, made, make, options.turns, len(worlds), options.agents)
    if options.agents != 1:
        raise ConfigError(f"agents={options.agents} is for Gymnasium environments; {name} says itself who plays")
    adapter = import_module(f"remuda.adapters.inbound.{kind}")
    game: Game = adapter.build(name, made, make, options.turns, len(worlds))
    return game


def _kind(made: Any) -> str | None:
    """The adapter for it, by what the libraries that are loaded call it."""
    for module, kinds in (("pettingzoo", ("ParallelEnv", "AECEnv")), ("gymnasium", ("Env",))):
        loaded = sys.modules.get(module)
        if loaded is not None and any(isinstance(made, getattr(loaded, kind)) for kind in kinds):
            return module
    return "sorrel" if sorrel.recognise(made) else None
