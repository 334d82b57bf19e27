"""Games made by a user's factory: chooses the adapter, and derives the game's options.

The options are the factory's own arguments, `turns` (the most turns of an episode) and, for Gymnasium environments,
`agents`. If the factory takes only **kwargs, the arguments of the module's `raw_env` are used instead, as PettingZoo's
modules have it. Any other argument is given as a mapping: arguments={…}.

Nothing heavy is imported here before a game is made, so that the command line can list games quickly.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from types import BuiltinFunctionType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
from pydantic import AfterValidator, Field, TypeAdapter, ValidationError, create_model

from remuda.adapters.inbound.global_random_state import GlobalRandomState
from remuda.core.errors import ConfigError, first_line
from remuda.core.game import Game, GameEntry, StepCost
from remuda.core.options import Options

LIBRARIES = ("gymnasium", "pettingzoo")
"""Libraries whose environments are found by their ids."""
ENV_CLASSES = (("pettingzoo", "ParallelEnv"), ("pettingzoo", "AECEnv"), ("gymnasium", "Env"))
MAX_SAID_CHARS = 300
WANTED = "make a PettingZoo environment (parallel or AEC), a Gymnasium one, or one of Sorrel's; or give a GameEntry"


class FactoryOptions(Options):
    """The options of every game that a factory makes."""

    turns: int | None = Field(
        None, ge=1, description="most turns of an episode; default: what the environment says, or 1000"
    )
    agents: int = Field(1, ge=1, description="of a Gymnasium environment: how many agents, each with its own copy")
    arguments: dict[str, Any] = Field(default_factory=dict, description="other arguments for the factory")


@cache
def entry_from_factory(name: str, factory: Callable[..., Any]) -> GameEntry:
    """The entry of a game that `factory` makes."""
    _check_factory(name, factory)
    # Its own docstring: an inherited one is that of Gymnasium's base class.
    summary = ((factory.__doc__ if isinstance(factory, type) else inspect.getdoc(factory)) or f"made by {name}").strip()
    raw_env = getattr(sys.modules.get(name.partition(":")[0]), "raw_env", None)
    return GameEntry(
        name,
        summary.splitlines()[0],
        _options(name, factory, raw_env),
        partial(_make, name, factory),
        step_cost=StepCost.FAST,
    )


@cache
def entry_from_library(library: str, env_id: str) -> GameEntry:
    """The entry of an environment that a library has registered, e.g. `gymnasium:CartPole-v1`."""
    name = f"{library}:{env_id}"
    try:
        module = import_module(library)
    except ImportError as error:
        raise ConfigError(f"game {name!r} needs {library}: pip install 'remuda-rl[envs]'") from error
    try:
        env_class, factory = (_from_gymnasium if library == "gymnasium" else _from_pettingzoo)(module, env_id)
    except Exception as error:  # each library raises its own exceptions for unknown ids
        said = first_line(error)
        if len(said) > MAX_SAID_CHARS:  # PettingZoo lists all its environments
            said = f"{said[:MAX_SAID_CHARS]}…"
        raise ConfigError(f"game {name!r} is not known to {library}: {said}") from error
    options = _options(name, factory, env_class)
    return GameEntry(name, f"{env_id} of {library}", options, partial(_make, name, factory), step_cost=StepCost.FAST)


def options_with_pictures(entry: GameEntry, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with render_mode=rgb_array, if this is a foreign environment that may take it and has none yet."""
    wanted = dict(options)
    if issubclass(entry.options, FactoryOptions):
        if "render_mode" in entry.options.model_fields:
            wanted["render_mode"] = wanted.get("render_mode") or "rgb_array"
        elif entry.name.startswith(tuple(f"{library}:" for library in LIBRARIES)):
            wanted["arguments"] = {"render_mode": "rgb_array", **wanted.get("arguments", {})}
    return wanted


def _from_gymnasium(gymnasium: Any, env_id: str) -> tuple[Any, Callable[..., Any]]:
    """The class of an environment, and the factory that makes it."""
    env_class = gymnasium.spec(env_id).entry_point
    if isinstance(env_class, str):
        module, _, attribute = env_class.partition(":")
        env_class = getattr(import_module(module), attribute)

    def make(**arguments: Any) -> Any:
        return gymnasium.make(env_id, disable_env_checker=True, **arguments)

    return env_class, make


def _from_pettingzoo(pettingzoo: Any, env_id: str) -> tuple[Any, Callable[..., Any]]:
    """The class of an environment, and the factory that makes it: parallel if the environment can be, else AEC."""
    if not hasattr(pettingzoo, "make"):
        raise ConfigError("this version has no registry; name the factory instead, module:parallel_env")
    kind = "parallel" if env_id in pettingzoo.parallel_registry else "aec"
    env_class = pettingzoo.spec(kind, env_id).entry_point
    if isinstance(env_class, str):
        env_class = getattr(import_module(env_class.partition(":")[0]), "raw_env", None)

    def make(**arguments: Any) -> Any:
        return pettingzoo.make(kind, env_id, **arguments)

    return env_class, make


def _options(name: str, factory: Callable[..., Any], env_class: Any) -> type[Options]:
    """The factory's arguments as options, with their defaults."""
    fields: dict[str, Any] = {}
    hints = _hints(env_class if isinstance(env_class, type) and _takes_anything(factory) else factory)
    for parameter in _parameters(factory, env_class):
        if parameter.name in FactoryOptions.model_fields:
            raise ConfigError(
                f"game {name!r}: its factory has an argument {parameter.name!r}, which is an option of remuda's: "
                "rename it"
            )
        plain = parameter.default is parameter.empty or _is_plain(parameter.default)
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY) and plain:
            default = ... if parameter.default is parameter.empty else parameter.default
            kind = _checked_type(hints.get(parameter.name), parameter.default)
            fields[parameter.name] = (kind, Field(default, description="an argument of the factory"))
    return create_model("FactoryArguments", __base__=FactoryOptions, **fields)


def _parameters(factory: Callable[..., Any], env_class: Any) -> list[inspect.Parameter]:
    """The factory's parameters, or those of the environment's class where the factory takes only **kwargs."""
    try:
        described = env_class if env_class is not None and _takes_anything(factory) else factory
        return list(inspect.signature(described).parameters.values())
    except (TypeError, ValueError):
        return []


def _takes_anything(factory: Callable[..., Any]) -> bool:
    """Whether the factory takes only **kwargs, which say nothing about its arguments."""
    try:
        return [own.kind for own in inspect.signature(factory).parameters.values()] == [inspect.Parameter.VAR_KEYWORD]
    except (TypeError, ValueError):
        return False


def _checked_type(hint: Any, default: Any) -> Any:
    """A type that refuses values which the factory cannot mean, and passes on all others as they are.

    A value is held against the annotation where that names plain types. Without one only a text in place of a number
    is refused: an environment may take a fraction where its default is whole.
    """
    if not _is_plain_hint(hint) or not _fits(hint, default):
        hint = bool | int | float | None if isinstance(default, int | float) else None
    if hint is None:
        return Any
    wanted = "a number" if hint == bool | int | float | None else _in_words(hint)

    def check(value: Any) -> Any:
        if not _fits(hint, value):
            raise ValueError(wanted)
        return value

    return Annotated[Any, AfterValidator(check)]


def _is_plain_hint(hint: Any) -> bool:
    """Whether the annotation consists of types that a word of the command line can have."""
    if get_origin(hint) in (Union, UnionType):
        return all(map(_is_plain_hint, get_args(hint)))
    return get_origin(hint) is Literal or hint in (bool, int, float, str, NoneType)


def _fits(hint: Any, value: Any) -> bool:
    """Whether a value is of the annotated type; a whole number is a float, too."""
    if value is inspect.Parameter.empty:
        return True
    try:
        TypeAdapter(hint).validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


def _in_words(hint: Any) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", NoneType: "null"}
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    return " or ".join(map(_in_words, get_args(hint))) if get_args(hint) else names[hint]


def _hints(factory: Any) -> dict[str, Any]:
    """The annotations of a factory's arguments, as far as they can be read."""
    try:
        return get_type_hints(factory.__init__ if isinstance(factory, type) else factory)  # type: ignore[misc]
    except Exception:  # annotations may name anything, also what is imported for type checkers only
        return {}


def _is_plain(value: Any) -> bool:
    """Whether a config file can hold this value."""
    if isinstance(value, (list, tuple)):
        return all(_is_plain(part) for part in value)
    return value is None or isinstance(value, (bool, int, float, str))


def _make(name: str, factory: Callable[..., Any], options: Any, worlds: Sequence[int]) -> Game:
    """The game's worlds, by the adapter for the environments that the factory makes."""
    from remuda.core import rng

    arguments: Mapping[str, Any] = options.model_dump(exclude=set(FactoryOptions.model_fields))

    def make() -> Any:
        # An environment that draws while it is created must not change the random numbers of other code.
        with GlobalRandomState().installed(), rng.torch_seeded(np.uint64(0)):
            return factory(**arguments, **options.arguments)

    env = make()
    library = _library_of(env)
    if library is None:
        raise ConfigError(f"game {name!r} made a {type(env).__name__}: {WANTED}")
    if library == "gymnasium":
        from remuda.adapters.inbound import gymnasium

        return gymnasium.build(name, env, make, options.turns, len(worlds), options.agents)
    if options.agents != 1:
        raise ConfigError(
            f"agents={options.agents} is for Gymnasium environments; {name} decides itself how many agents play"
        )
    adapter = import_module(f"remuda.adapters.inbound.{library}")
    game: Game = adapter.build(name, env, make, options.turns, len(worlds))
    return game


def _check_factory(name: str, factory: Callable[..., Any]) -> None:
    """Refuse what cannot make an environment, before it is called with options."""
    if isinstance(factory, type) and not _is_env_class(factory):
        raise ConfigError(f"game {name!r} is a class, but not an environment: {WANTED}")
    made = _return_type(factory)
    says_otherwise = isinstance(made, type) and made is not object and made.__module__ == "builtins"
    if says_otherwise or isinstance(factory, BuiltinFunctionType):
        raise ConfigError(f"game {name!r} does not make an environment: {WANTED}")


def _return_type(function: Callable[..., Any]) -> Any:
    """What a function says that it returns, if it says so."""
    return None if isinstance(function, type) else _hints(function).get("return")


def _is_env_class(kind: type) -> bool:
    bases = [getattr(sys.modules[library], base) for library, base in ENV_CLASSES if library in sys.modules]
    from remuda.adapters.inbound.sorrel import is_sorrel_class

    return issubclass(kind, tuple(bases)) or is_sorrel_class(kind)


def is_environment(thing: Any) -> bool:
    """Whether this is an environment of a library that we know, not a class of them."""
    return not isinstance(thing, type) and _library_of(thing) is not None


def _library_of(env: Any) -> str | None:
    """The library whose environment this is, and so the name of its adapter; libraries not loaded are not imported."""
    for library, base in ENV_CLASSES:
        if library in sys.modules and isinstance(env, getattr(sys.modules[library], base)):
            return library
    from remuda.adapters.inbound.sorrel import is_sorrel_env

    return "sorrel" if is_sorrel_env(env) else None
