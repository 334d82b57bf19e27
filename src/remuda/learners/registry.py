"""Finds a learner by its name: a shipped one, an entry point of an installed package, or `module:Class` of your own."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from remuda.core import session
from remuda.core.code_names import load_code
from remuda.core.errors import ConfigError, UnknownName
from remuda.core.learner import Learner
from remuda.core.plan import FROZEN, Plan, learner_of
from remuda.core.policy import Policy, RandomPolicy
from remuda.learners.iqn.learner import IQN
from remuda.learners.ppo.learner import PPO

SHIPPED_LEARNERS: dict[str, type[Learner]] = {"iqn": IQN, "ppo": PPO}
PLAYERS: dict[str, type[Policy]] = {"random": RandomPolicy}
ENTRY_POINTS = "remuda.learners"
"""The group of entry points by which an installed package offers learners."""


def is_learner(name: str) -> bool:
    """Whether a player of this name learns, by the form of the name: nothing is imported."""
    name = learner_of(name)
    own = ":" in name and not name.startswith(f"{FROZEN}:")
    return own or name in SHIPPED_LEARNERS or name in installed_learners()


def find_learner(name: str) -> type[Learner]:
    """The learner of this name; raises ConfigError or UnknownName if there is none."""
    name = learner_of(name)
    if name in SHIPPED_LEARNERS:
        return SHIPPED_LEARNERS[name]
    if session.is_session_name(name):
        found = session.find(name)
        if found is None:
            raise ConfigError(
                f"learner {name!r} was defined in another Python session: give it again, "
                "remuda.resume(path, learner=…) or remuda.load(path, learner=…)"
            )
    elif is_learner(name):
        found = _imported(name)
    else:
        raise UnknownName("learner", name, learner_names())
    return check_learner(found, name)


def _imported(name: str) -> Any:
    if ":" in name:
        return load_code(name, f"learner {name!r}")
    try:
        return installed_learners()[name].load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"learner {name!r} of an installed package cannot be imported: {error}") from error


def check_learner(found: Any, name: str) -> type[Learner]:
    """The class, if it is a learner that can be made; raises ConfigError with what is missing otherwise."""
    if not (isinstance(found, type) and issubclass(found, Learner)):
        kind = found.__name__ if isinstance(found, type) else f"a {type(found).__name__}"
        raise ConfigError(
            f"learner {name!r} is {kind}, not a subclass of remuda.OffPolicyLearner, remuda.OnPolicyLearner or "
            "remuda.Learner"
        )
    missing = sorted(getattr(found, "__abstractmethods__", ()))
    if missing:
        raise ConfigError(
            f"learner {name!r} has no {', '.join(missing)}: define it, or {found.__name__} cannot be made"
        )
    return found


def learner_name(learner: Any) -> Any:
    """The name by which a plan knows a learner; a class that other processes cannot import gets one of this session."""
    if not isinstance(learner, type):
        return learner
    shipped = [name for name, own in SHIPPED_LEARNERS.items() if own is learner]
    return shipped[0] if shipped else session.name_object(check_learner(learner, learner.__name__))


@cache
def installed_learners() -> dict[str, EntryPoint]:
    """Learners of installed packages, by the names of their entry points."""
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def learner_names() -> list[str]:
    """Names of the learners that need no module: shipped ones and those of installed packages."""
    return [*SHIPPED_LEARNERS, *(name for name in installed_learners() if name not in SHIPPED_LEARNERS)]


def learner_options(plan: Plan, name: str) -> Any:
    """The options that a plan gives a learner, validated; `ppo@0` has those of `ppo` where it has none of its own."""
    given = {**plan.learner_options.get(learner_of(name), {}), **plan.learner_options.get(name, {})}
    try:
        return find_learner(name).options_type().read(given, f"learner {name}")
    except ConfigError as error:
        listed = next((key for key, own in given.items() if isinstance(own, list) and f"{key}=[" in str(error)), None)
        if listed is None or not given[listed]:
            raise
        form = f"learners={{0: {{learner: {learner_of(name)}, {listed}: {given[listed][0]}}}}}"
        raise ConfigError(f"{error}; for agents that differ in it, {form}") from None
