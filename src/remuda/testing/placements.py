"""What the conformance suites of collectors and trainers share: a placement under test, and how it plays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np

from remuda.core.errors import OrderError
from remuda.core.fragment import Fragment, Purpose, copy_fragment, slice_worlds
from remuda.core.plan import Plan
from remuda.core.task import Task
from remuda.engines.interfaces import Collectors, Delivery, Trainers

RECV_S = 120.0
WORLDS, ROUND, EPISODES = 4, 3, 12


@dataclass(frozen=True)
class Placement:
    """Both sides of an engine, not started, and the plan they were built for."""

    plan: Plan
    collectors: Collectors
    trainers: Trainers


class Build(Protocol):
    """Makes a new placement for a plan of `WORLDS` worlds, rounds of `ROUND` episodes and `EPISODES` in all.

    An episode lasts several turns, and two agents or more learn. With `failing`, exactly one task fails, once.
    """

    def __call__(self, *, failing: bool = False) -> Placement:
        """Build both sides; the caller closes them."""


Check = Callable[[Build], str | None]


@contextmanager
def running(build: Build, failing: bool = False) -> Iterator[Placement]:
    """A placement that has started, in the order of the loop."""
    placement = build(failing=failing)
    with closing(placement):
        start(placement)
        yield placement


@contextmanager
def closing(placement: Placement) -> Iterator[None]:
    """Close both sides at the end, in the order of the loop."""
    try:
        yield
    finally:
        placement.trainers.close()
        placement.collectors.close()


def start(placement: Placement) -> None:
    """Start both sides as the loop does: the first weights are published before any task is sent."""
    collectors, trainers = placement.collectors, placement.trainers
    collectors.start()
    collectors.publish(trainers.rows(), trainers.versions_after(trainers.version))
    trainers.start()


def make_tasks(collectors: Collectors, episodes: Iterable[int], purpose: Purpose = Purpose.TRAIN) -> list[Task]:
    """Tasks of neighbouring worlds, as large as the collectors take them."""
    tasks: list[list[int]] = []
    for episode in episodes:
        if not tasks or len(tasks[-1]) == collectors.task_episodes() or episode % WORLDS == 0:
            tasks.append([])
        tasks[-1].append(episode)
    exploration = None if purpose is Purpose.TRAIN else 0.0
    return [Task(tuple(own), purpose, exploration) for own in tasks]


def play(collectors: Collectors, tasks: Sequence[Task]) -> list[Delivery]:
    """The deliveries of tasks, in the order in which they arrive."""
    for task in tasks:
        collectors.send(task)
    return [collectors.recv(RECV_S) for _ in tasks]


def kept(delivery: Delivery) -> list[Fragment]:
    """What is in a delivery, in memory of its own; the delivery is released."""
    fragments = [copy_fragment(fragment) for fragment in delivery.fragments]
    delivery.release()
    return fragments


def first_difference(a: Sequence[Fragment], b: Sequence[Fragment]) -> str | None:
    """The first array that differs; a turn after the end of a world means nothing."""
    for one, other in zip(a, b, strict=True):
        turns = min(one.turns, other.turns)
        one, other = slice_worlds(one, slice(None), turns), slice_worlds(other, slice(None), turns)
        for name in (own.name for own in fields(Fragment)):
            x, y = getattr(one, name), getattr(other, name)
            if isinstance(x, np.ndarray) and not np.array_equal(x, y, equal_nan=x.dtype.kind == "f"):
                return name
    return None


def versions_of(deliveries: Iterable[Delivery]) -> set[int]:
    """The versions that acted in deliveries."""
    return {int(version) for own in deliveries for fragment in own.fragments for version in fragment.versions.flat}


def raises_order_error(call: Callable[[], object]) -> bool:
    """Whether a call is refused as out of order."""
    try:
        call()
    except OrderError:
        return True
    return False


def check_close(build: Build) -> str | None:
    """Raises if a second close does; the loop closes both sides also where they could not start."""
    never_started = build()
    for _ in range(2):
        never_started.trainers.close()
        never_started.collectors.close()
    with running(build) as placement:
        for task in make_tasks(placement.collectors, range(4)):
            placement.collectors.send(task)  # closed while tasks are out
        placement.trainers.close()
        placement.collectors.close()
    return None
