"""Engines: rows of a table, each a placement for either side and a rule of waiting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from remuda.collect import Manner
from remuda.config import Plan
from remuda.errors import ConfigError, UnknownName
from remuda.game import GameSpec, make_game
from remuda.games import find_game
from remuda.herd import Part, make_learners, make_seat
from remuda.placement.base import Collectors, Trainers
from remuda.placement.inline import InlineCollectors, InlineTrainers
from remuda.placement.thread import ThreadTrainers
from remuda.threads import cores


@dataclass(frozen=True)
class Site:
    """What an engine is built for."""

    plan: Plan
    spec: GameSpec
    parts: list[Part]
    device: str
    stop: Callable[[], None]  # raises Stopped once somebody asked for it

    @property
    def workers(self) -> int:
        """Threads or processes to use."""
        return self.plan.n_workers or cores()


@dataclass(frozen=True)
class Engine:
    """One row of the table."""

    name: str
    collectors: str
    trainers: str
    waits_for: str
    deterministic: bool  # whether `deterministic: true` can be promised
    build: Callable[[Site], tuple[Collectors, Trainers]]


def _sequential(site: Site) -> tuple[Collectors, Trainers]:
    return _inline_collectors(site, 1, one_by_one=True), _trainers(InlineTrainers, site, 1, one_by_one=True)


def _vectorized(site: Site) -> tuple[Collectors, Trainers]:
    """With lag 1 both sides work at once and share the cores, else they take turns on all of them."""
    if site.plan.lag == 0 or site.workers == 1:
        return _inline_collectors(site, site.workers), _trainers(InlineTrainers, site, site.workers)
    learning = max(1, site.workers // 2)
    collecting = max(1, site.workers - learning)
    return _inline_collectors(site, collecting), _trainers(ThreadTrainers, site, learning)


def _inline_collectors(site: Site, threads: int, one_by_one: bool = False) -> Collectors:
    plan = site.plan
    entry = find_game(plan.game)
    return InlineCollectors(
        make_game=lambda worlds: make_game(entry, plan.options, worlds),
        seats=[make_seat(part, plan, site.spec, site.device) for part in site.parts],
        manner=Manner(plan.seed, plan.worlds, plan.parallel_actions, one_by_one),
        threads=min(threads, plan.worlds),
        stop=site.stop,
    )


def _trainers(kind: type[Trainers], site: Site, threads: int, one_by_one: bool = False) -> Trainers:
    """Learners by part: a slice of the herd per thread, or several threads for a learner where agents are few."""
    agents = sum(part.agents for part in site.parts if part.learns)
    each = max(1, threads // max(agents, 1))
    learners = {
        index: make_learners(part, site.plan, site.spec, site.device, part.agents if one_by_one else threads, each)
        for index, part in enumerate(site.parts)
        if part.learns
    }
    return kind(site.plan, learners, min(threads, max(agents, 1)))


ENGINES = {
    engine.name: engine
    for engine in (
        Engine(
            "sequential", "inline, one world, one agent at a time", "inline, one agent after another",
            "everything: the readable baseline, and the debugger", True, _sequential,
        ),
        Engine(
            "vectorized", "inline, all worlds at once, on threads",
            "inline, the herd stacked; with lag 1 in a thread beside the next round",
            "a round", True, _vectorized,
        ),
    )
}  # fmt: skip


def find_engine(name: str) -> Engine:
    """The row of this name."""
    if name not in ENGINES:
        raise UnknownName("engine", name, ENGINES)
    return ENGINES[name]


def check_engine(plan: Plan) -> None:
    """Raise where the plan asks of its engine what it cannot promise."""
    if plan.deterministic and not find_engine(plan.engine).deterministic:
        raise ConfigError(f"engine={plan.engine} cannot promise deterministic=true: choose another, or drop it")


def resolve_device(name: str) -> str:
    """`auto` is cuda where there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device=cuda: torch sees no CUDA device here; use device=cpu or auto")
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name
