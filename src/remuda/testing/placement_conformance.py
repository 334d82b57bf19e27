"""A conformance suite for placements: do collectors and trainers keep the promises that the loop rests on?

`COLLECTOR_CHECKS` and `TRAINER_CHECKS` are pairs of a promise and a function. The function takes a `Build` and returns
what is wrong, or None. With pytest: `@pytest.mark.parametrize(("promise", "check"), COLLECTOR_CHECKS)`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from remuda.core.errors import OrderError
from remuda.core.fragment import Fragment, Purpose, copy_fragment, slice_worlds
from remuda.core.plan import Plan
from remuda.core.task import Task
from remuda.engines.interfaces import (
    CollectorCounters,
    Collectors,
    Delivery,
    RoundPiece,
    TrainerCounters,
    Trainers,
    Update,
    count_lags,
)

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
def _running(build: Build, failing: bool = False) -> Iterator[Placement]:
    """A placement that has started, in the order of the loop."""
    placement = build(failing=failing)
    with _closing(placement):
        _start(placement)
        yield placement


@contextmanager
def _closing(placement: Placement) -> Iterator[None]:
    try:
        yield
    finally:
        placement.trainers.close()
        placement.collectors.close()


def _start(placement: Placement) -> None:
    collectors, trainers = placement.collectors, placement.trainers
    collectors.start()
    collectors.publish(trainers.rows(), trainers.versions_after(trainers.version))
    trainers.start()


def _tasks(collectors: Collectors, episodes: Iterable[int], purpose: Purpose = Purpose.TRAIN) -> list[Task]:
    """Tasks of neighbouring worlds, as large as the collectors take them."""
    tasks: list[list[int]] = []
    for episode in episodes:
        if not tasks or len(tasks[-1]) == collectors.task_episodes() or episode % WORLDS == 0:
            tasks.append([])
        tasks[-1].append(episode)
    exploration = None if purpose is Purpose.TRAIN else 0.0
    return [Task(tuple(own), purpose, exploration) for own in tasks]


def _play(collectors: Collectors, tasks: Sequence[Task]) -> list[Delivery]:
    """The deliveries of tasks, in the order in which they arrive."""
    for task in tasks:
        collectors.send(task)
    return [collectors.recv(RECV_S) for _ in tasks]


def _kept(delivery: Delivery) -> list[Fragment]:
    """What is in a delivery, in memory of its own; the delivery is released."""
    fragments = [copy_fragment(fragment) for fragment in delivery.fragments]
    delivery.release()
    return fragments


def _first_difference(a: Sequence[Fragment], b: Sequence[Fragment]) -> str | None:
    """The first array that differs; a turn after the end of a world means nothing."""
    for one, other in zip(a, b, strict=True):
        turns = min(one.turns, other.turns)
        one, other = slice_worlds(one, slice(None), turns), slice_worlds(other, slice(None), turns)
        for name in (own.name for own in fields(Fragment)):
            x, y = getattr(one, name), getattr(other, name)
            if isinstance(x, np.ndarray) and not np.array_equal(x, y, equal_nan=x.dtype.kind == "f"):
                return name
    return None


def _versions(deliveries: Iterable[Delivery]) -> set[int]:
    return {int(version) for own in deliveries for fragment in own.fragments for version in fragment.versions.flat}


def _raises_order_error(call: Callable[[], object]) -> bool:
    try:
        call()
    except OrderError:
        return True
    return False


def _check_every_episode(build: Build) -> str | None:
    with _running(build) as placement:
        collectors = placement.collectors
        sent: list[Task] = []
        received: list[Task] = []
        for first in range(0, EPISODES * 4, EPISODES):  # far more than can be held at once
            tasks = _tasks(collectors, range(first, first + EPISODES))
            sent += tasks
            for delivery in _play(collectors, tasks):
                received.append(delivery.task)
                delivery.release()
        if Counter(sent) != Counter(received):
            return f"sent {len(sent)} tasks, received {len(received)}, of which {len(set(received))} different ones"
    return None


def _check_order(build: Build) -> str | None:
    with _running(build) as placement:
        collectors = placement.collectors
        if not _raises_order_error(lambda: collectors.recv(0.1)):
            return "recv() before the first task did not raise OrderError"
        for delivery in _play(collectors, _tasks(collectors, range(2))):
            delivery.release()
        if not _raises_order_error(lambda: collectors.recv(0.1)):
            return "recv() after the last task did not raise OrderError"
    return None


def _check_origin(build: Build) -> str | None:
    with _running(build) as placement:
        for delivery in _play(placement.collectors, _tasks(placement.collectors, range(5, 11))):
            for group, fragment in enumerate(delivery.fragments):
                origin, episodes = fragment.origin, delivery.task.episodes
                if (origin.group, tuple(origin.episodes), origin.purpose) != (group, episodes, delivery.task.purpose):
                    return f"the fragment of {delivery.task} says it is {origin}"
                if tuple(origin.worlds) != tuple(episode % WORLDS for episode in episodes):
                    return f"{delivery.task} was played in worlds {origin.worlds}"
                if fragment.actions.shape[1] != len(episodes) or not fragment.alive[0].all():
                    return f"the fragment of {delivery.task} has other worlds, or agents that never acted"
            delivery.release()
    return None


def _check_same_episode(build: Build) -> str | None:
    with _running(build) as placement:
        collectors = placement.collectors
        together = {own.task.episodes: _kept(own) for own in _play(collectors, _tasks(collectors, range(4)))}
        alone = {own.task.episodes[0]: _kept(own) for own in _play(collectors, [Task((e,)) for e in (3, 1, 0, 2)])}
        for episodes, whole in together.items():
            for index, episode in enumerate(episodes):
                one = [slice_worlds(fragment, slice(index, index + 1)) for fragment in whole]
                if name := _first_difference(one, alone[episode]):
                    return f"episode {episode} has other {name} alone than in a task of episodes {episodes}"
    return None


def _check_publish(build: Build) -> str | None:
    with _running(build) as placement:
        collectors, rows = placement.collectors, placement.trainers.rows()
        for version in (1, 2, 7):
            collectors.publish(rows, version)
            deliveries = _play(collectors, _tasks(collectors, range(6)))
            if (seen := _versions(deliveries)) != {version}:
                return f"version {version} was published, and tasks sent later were played with {sorted(seen)}"
            for delivery in deliveries:
                delivery.release()
    return None


def _check_evaluation(build: Build) -> str | None:
    with _running(build) as placement:
        collectors, rows = placement.collectors, placement.trainers.rows()
        collectors.publish(rows, 4)
        collectors.publish(rows, 4, Purpose.EVALUATE)
        tasks = [*_tasks(collectors, range(4)), *_tasks(collectors, range(4), Purpose.EVALUATE)]
        deliveries = _play(collectors, tasks)
        if Counter(delivery.task for delivery in deliveries) != Counter(tasks):
            return "evaluation tasks beside training tasks were not all delivered"
        evaluated = [delivery for delivery in deliveries if delivery.purpose is Purpose.EVALUATE]
        if any(fragment.origin.purpose is not Purpose.EVALUATE for own in evaluated for fragment in own.fragments):
            return "the fragments of an evaluation say they are of another purpose"
        if _versions(evaluated) != {4}:
            return f"version 4 was published for evaluation, and it was played with {sorted(_versions(evaluated))}"
        if exploring := [own.task for own in evaluated if own.task.exploration != 0.0]:
            return f"{exploring[0]} was sent with exploration 0 and came back with {exploring[0].exploration}"
    return None


def _check_memory(build: Build) -> str | None:
    with _running(build) as placement:
        collectors = placement.collectors
        held = _play(collectors, _tasks(collectors, range(2)))
        before = [[copy_fragment(fragment) for fragment in delivery.fragments] for delivery in held]
        for first in range(4, 4 + EPISODES * 2, 4):
            for delivery in _play(collectors, _tasks(collectors, range(first, first + 4))):
                delivery.release()
        for delivery, own in zip(held, before, strict=True):
            if name := _first_difference(delivery.fragments, own):
                return f"{name} of {delivery.task} changed before the delivery was released"
    return None


def _check_sizes(build: Build) -> str | None:
    with _running(build) as placement:
        collectors = placement.collectors
        size, capacity = collectors.task_episodes(), collectors.capacity()
        if not 1 <= size <= capacity:
            return f"task_episodes() is {size} and capacity() is {capacity}"
        tasks = [Task(tuple(range(first, first + size))) for first in range(0, capacity - size + 1, size)]
        deliveries = _play(collectors, tasks)
        if Counter(delivery.task for delivery in deliveries) != Counter(tasks):
            return f"not all of the {capacity} episodes that may be out at once came back"
        if collectors.memory_bytes() < 0 or collectors.store_bytes() < 0:
            return "it needs a negative number of bytes"
    return None


def _check_failure(build: Build) -> str | None:
    with _running(build, failing=True) as placement:
        collectors = placement.collectors
        tasks = _tasks(collectors, range(4))
        deliveries = _play(collectors, tasks)
        if Counter(episode for own in deliveries for episode in own.task.episodes) != Counter(range(4)):
            return "the episodes of a failed task did not all come back"
        failed = [own for own in deliveries if own.failure is not None]
        if len(failed) != 1 or failed[0].fragments:
            return f"one task fails, and {len(failed)} deliveries say so"
        if failed[0].failure is None or failed[0].failure.task != failed[0].task:
            return f"the failure of {failed[0].task} names another task"
        again = _play(collectors, [Task((episode,)) for episode in failed[0].task.episodes])
        if any(own.failure is not None for own in again):
            return "a task that was sent again after a failure failed too"
    return None


def _check_collector_counters(build: Build) -> str | None:
    with _running(build) as placement:
        collectors = placement.collectors
        before = CollectorCounters(wall_s=10.0, cpu_s=20.0, waited_s=30.0)
        collectors.restore_counters(before)
        if collectors.counters() != before:
            return f"restored {before}, and it counts {collectors.counters()}"
        for delivery in _play(collectors, _tasks(collectors, range(8))):
            delivery.release()
        now = collectors.counters()
        if now.wall_s <= before.wall_s or now.cpu_s < before.cpu_s or now.waited_s < before.waited_s:
            return f"{before} became {now} after eight episodes"
    return None


def _check_close(build: Build) -> str | None:
    """Raises if a second close does; the loop closes both sides also where they could not start."""
    never_started = build()
    for _ in range(2):
        never_started.trainers.close()
        never_started.collectors.close()
    with _running(build) as placement:
        for task in _tasks(placement.collectors, range(4)):
            placement.collectors.send(task)  # closed while tasks are out
        placement.trainers.close()
        placement.collectors.close()
    return None


def _take(placement: Placement, episodes: Iterable[int]) -> list[tuple[RoundPiece, list[Fragment]]]:
    """Have episodes played one task after the other and taken; returns the pieces, and copies of what was in them."""
    result = []
    for task in _tasks(placement.collectors, episodes):
        (delivery,) = _play(placement.collectors, [task])
        copies = [copy_fragment(fragment) for fragment in delivery.fragments]
        for piece in placement.trainers.take(delivery):
            result.append((piece, [slice_worlds(fragment, piece.worlds) for fragment in copies]))
    return result


def _learn(placement: Placement, version: int) -> list[Update]:
    """Wait for a version and publish it as the loop does."""
    placement.trainers.work()
    updates = placement.trainers.poll(version)
    for update in updates:
        if update.rows is not None:
            placement.collectors.publish(update.rows, placement.trainers.versions_after(update.version))
    return updates


def _check_rounds(build: Build) -> str | None:
    with _running(build) as placement:
        pieces = [piece for piece, _ in _take(placement, range(EPISODES - 2))]
        sizes: Counter[int] = Counter()
        for piece in pieces:
            sizes[piece.round] += piece.worlds.stop - piece.worlds.start
        if sizes != {1: ROUND, 2: ROUND, 3: ROUND, 4: EPISODES - 2 - 3 * ROUND}:
            return f"ten episodes became rounds of {dict(sizes)} episodes"
        if [piece.round for piece in pieces] != sorted(piece.round for piece in pieces):
            return "pieces are not in the order of rounds"
        if placement.trainers.taken != 3:
            return f"three rounds are complete, and `taken` is {placement.trainers.taken}"
    return None


def _check_poll(build: Build) -> str | None:
    with _running(build) as placement:
        trainers = placement.trainers
        if trainers.version != 0 or trainers.poll(1):
            return "a version is learned before anything was taken"
        _take(placement, range(2 * ROUND))
        versions = [update.version for update in _learn(placement, 1)]
        if 1 not in versions:
            return f"poll(1) returned versions {versions}"
        versions += [update.version for update in trainers.poll(2)]
        if versions != [1, 2]:
            return f"two rounds were learned, and poll() returned versions {versions}"
        if trainers.version != 2:
            return f"two rounds were learned, and `version` is {trainers.version}"
        if trainers.poll(2) or trainers.poll(9):
            return "poll() returned an update twice, or one of a round that was not taken"
    return None


def _check_rows(build: Build) -> str | None:
    with _running(build) as placement:
        trainers = placement.trainers
        before = {part: rows.copy() for part, rows in trainers.rows().items()}
        _take(placement, range(2 * ROUND))
        updates = _learn(placement, 2)
        after = trainers.rows()
        if {part: rows.shape for part, rows in before.items()} != {part: rows.shape for part, rows in after.items()}:
            return "the rows have another shape after learning"
        if any(np.array_equal(before[part], after[part]) for part in before):
            return "the rows of a part are the same after learning"
        newest = updates[-1].rows
        if newest is not None and any(not np.array_equal(newest[part], after[part]) for part in after):
            return "the newest update has other rows than rows()"
    return None


def _check_release(build: Build) -> str | None:
    with _running(build) as placement:
        released: list[list[Task]] = []
        for task in _tasks(placement.collectors, range(3 * ROUND)):
            (delivery,) = _play(placement.collectors, [task])
            calls: list[Task] = []
            placement.trainers.take(replace(delivery, release=_counted(delivery, calls)))
            released.append(calls)
        _learn(placement, 3)
        if any(len(calls) != 1 for calls in released):
            return f"three rounds are learned, and their deliveries were released {list(map(len, released))} times"
        (delivery,) = _play(placement.collectors, _tasks(placement.collectors, [3 * ROUND]))
        last: list[Task] = []
        placement.trainers.take(replace(delivery, release=_counted(delivery, last)))
        if last:
            return "a delivery was released before its round was complete"
    return None


def _counted(delivery: Delivery, calls: list[Task]) -> Callable[[], None]:
    def release() -> None:
        calls.append(delivery.task)
        if len(calls) == 1:
            delivery.release()

    return release


def _check_lags(build: Build) -> str | None:
    with _running(build) as placement:
        expected: Counter[int] = Counter()
        for piece, fragments in _take(placement, range(2 * ROUND)):
            expected += count_lags(fragments, placement.trainers.versions_after(piece.round - 1))
        _learn(placement, 2)
        if placement.trainers.lags != expected:
            return f"turns by policy lag are {dict(placement.trainers.lags)}, not {dict(expected)}"
    return None


def _check_versions_after(build: Build) -> str | None:
    placement = build()
    with _closing(placement):
        versions = [placement.trainers.versions_after(rounds) for rounds in range(placement.plan.rounds + 1)]
        if versions[0] != 0 or any(later <= earlier for earlier, later in pairwise(versions)):
            return f"versions after 0, 1, 2 … rounds are {versions}"
    return None


def _check_steps(build: Build) -> str | None:
    with _running(build) as placement:
        plan, trainers = placement.plan, placement.trainers
        if set(trainers.steps().values()) != {0}:
            return f"gradient steps before learning are {trainers.steps()}"
        _take(placement, range(2 * ROUND))
        _learn(placement, 2)
        due = plan.updates_due(2 * ROUND)
        if any(not 0 < steps <= due for steps in trainers.steps().values()):
            return f"{due} updates were due, and gradient steps are {trainers.steps()}"
        if trainers.memory_bytes() <= 0:
            return "the learners hold no memory"
    return None


def _check_state(build: Build) -> str | None:
    """Round 3 after a restore is that of never having stopped."""
    with _running(build) as placement:
        _take(placement, range(2 * ROUND))
        _learn(placement, 2)
        # Copies: rows may be references to what ends with its trainers.
        rows = dict(placement.trainers.rows().items())
        state, counters = placement.trainers.state(), placement.trainers.counters()
        kept = {name: array.copy() for name, array in state.items()}
        _take(placement, range(2 * ROUND, 3 * ROUND))
        _learn(placement, 3)
        whole, steps = dict(placement.trainers.rows().items()), placement.trainers.steps()
        if any(not np.array_equal(state[name], kept[name]) for name in kept):
            return "what state() returned changed with the next round"
    placement = build()
    with _closing(placement):
        trainers = placement.trainers
        trainers.restore(2, kept)
        trainers.restore_counters(counters)
        if (trainers.version, trainers.taken) != (2, 2):
            return f"restored version 2, and version and rounds taken are {trainers.version} and {trainers.taken}"
        if problem := _differs(rows, trainers.rows(), "right after restore()"):
            return problem
        _start(placement)
        if problem := _differs(kept, trainers.state(), "after restore() and start()"):
            return problem
        _take(placement, range(2 * ROUND, 3 * ROUND))
        if [update.version for update in _learn(placement, 3)] != [3]:
            return "the round after a restore was not learned as round 3"
        if trainers.steps() != steps:
            return f"gradient steps after a restore are {trainers.steps()}, not {steps}"
        return _differs(whole, trainers.rows(), "one round after a restore")


def _differs(expected: Mapping[Any, Any], found: Mapping[Any, Any], when: str) -> str | None:
    if expected.keys() != found.keys():
        return f"{when}: the arrays are {list(found)}, not {list(expected)}"
    different = [name for name, array in expected.items() if not np.array_equal(array, found[name])]
    return f"{when}: {different[0]} is not what it was" if different else None


def _check_trainer_counters(build: Build) -> str | None:
    with _running(build) as placement:
        trainers = placement.trainers
        before = TrainerCounters(lags=[(0, 5), (2, 1)], waited_s=1.5, learners_waited_s=2.5)
        trainers.restore_counters(before)
        if trainers.counters() != before:
            return f"restored {before}, and it counts {trainers.counters()}"
        _take(placement, range(ROUND))
        _learn(placement, 1)
        now = trainers.counters()
        if dict(now.lags)[0] <= 5 or dict(now.lags)[2] != 1 or now.waited_s < 1.5 or now.learners_waited_s < 2.5:
            return f"{before} became {now} after a round"
    return None


COLLECTOR_CHECKS: tuple[tuple[str, Check], ...] = (
    ("every episode sent is delivered exactly once", _check_every_episode),
    ("recv() without a task is an OrderError", _check_order),
    ("a delivery says where it comes from", _check_origin),
    ("an episode is the same in any task", _check_same_episode),
    ("published weights act in tasks sent later", _check_publish),
    ("evaluation tasks are played beside training tasks", _check_evaluation),
    ("a delivery keeps its numbers until it is released", _check_memory),
    ("as many episodes as fit can be out at once", _check_sizes),
    ("a failed task is delivered as a failure, and the others go on", _check_failure),
    ("counters of collectors go on from restored ones", _check_collector_counters),
    ("close() may be called twice, at any time", _check_close),
)
TRAINER_CHECKS: tuple[tuple[str, Check], ...] = (
    ("deliveries are split into rounds", _check_rounds),
    ("poll() waits for a version and returns each update once, in order", _check_poll),
    ("rows are those of the newest update", _check_rows),
    ("a delivery is released once, after its rounds were complete", _check_release),
    ("turns are counted by policy lag", _check_lags),
    ("versions rise with rounds", _check_versions_after),
    ("gradient steps are counted", _check_steps),
    ("restore() continues from what state() returned", _check_state),
    ("counters of trainers go on from restored ones", _check_trainer_counters),
    ("close() may be called twice, at any time", _check_close),
)
