"""A conformance suite for collectors: do they keep the promises that the loop rests on?

`COLLECTOR_CHECKS` are pairs of a promise and a function. The function takes a `Build` and returns what is wrong, or
None. With pytest: `@pytest.mark.parametrize(("promise", "check"), COLLECTOR_CHECKS)`.
"""

from __future__ import annotations

from collections import Counter

from remuda.core.fragment import Purpose, copy_fragment, slice_worlds
from remuda.core.task import Task
from remuda.engines.interfaces import CollectorCounters
from remuda.testing.placements import (
    EPISODES,
    WORLDS,
    Build,
    Check,
    check_close,
    first_difference,
    kept,
    make_tasks,
    play,
    raises_order_error,
    running,
    versions_of,
)


def _check_every_episode(build: Build) -> str | None:
    with running(build) as placement:
        collectors = placement.collectors
        sent: list[Task] = []
        received: list[Task] = []
        for first in range(0, EPISODES * 4, EPISODES):  # far more than can be held at once
            tasks = make_tasks(collectors, range(first, first + EPISODES))
            sent += tasks
            for delivery in play(collectors, tasks):
                received.append(delivery.task)
                delivery.release()
        if Counter(sent) != Counter(received):
            return f"sent {len(sent)} tasks, received {len(received)}, of which {len(set(received))} different ones"
    return None


def _check_order(build: Build) -> str | None:
    with running(build) as placement:
        collectors = placement.collectors
        if not raises_order_error(lambda: collectors.recv(0.1)):
            return "recv() before the first task did not raise OrderError"
        for delivery in play(collectors, make_tasks(collectors, range(2))):
            delivery.release()
        if not raises_order_error(lambda: collectors.recv(0.1)):
            return "recv() after the last task did not raise OrderError"
    return None


def _check_origin(build: Build) -> str | None:
    with running(build) as placement:
        for delivery in play(placement.collectors, make_tasks(placement.collectors, range(5, 11))):
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
    with running(build) as placement:
        collectors = placement.collectors
        together = {own.task.episodes: kept(own) for own in play(collectors, make_tasks(collectors, range(4)))}
        alone = {own.task.episodes[0]: kept(own) for own in play(collectors, [Task((e,)) for e in (3, 1, 0, 2)])}
        for episodes, whole in together.items():
            for index, episode in enumerate(episodes):
                one = [slice_worlds(fragment, slice(index, index + 1)) for fragment in whole]
                if name := first_difference(one, alone[episode]):
                    return f"episode {episode} has other {name} alone than in a task of episodes {episodes}"
    return None


def _check_publish(build: Build) -> str | None:
    with running(build) as placement:
        collectors, rows = placement.collectors, placement.trainers.rows()
        for version in (1, 2, 7):
            collectors.publish(rows, version)
            deliveries = play(collectors, make_tasks(collectors, range(6)))
            if (seen := versions_of(deliveries)) != {version}:
                return f"version {version} was published, and tasks sent later were played with {sorted(seen)}"
            for delivery in deliveries:
                delivery.release()
    return None


def _check_evaluation(build: Build) -> str | None:
    with running(build) as placement:
        collectors, rows = placement.collectors, placement.trainers.rows()
        collectors.publish(rows, 4)
        collectors.publish(rows, 4, Purpose.EVALUATE)
        tasks = [*make_tasks(collectors, range(4)), *make_tasks(collectors, range(4), Purpose.EVALUATE)]
        deliveries = play(collectors, tasks)
        if Counter(delivery.task for delivery in deliveries) != Counter(tasks):
            return "evaluation tasks beside training tasks were not all delivered"
        evaluated = [delivery for delivery in deliveries if delivery.purpose is Purpose.EVALUATE]
        if any(fragment.origin.purpose is not Purpose.EVALUATE for own in evaluated for fragment in own.fragments):
            return "the fragments of an evaluation say they are of another purpose"
        if versions_of(evaluated) != {4}:
            return f"version 4 was published for evaluation, and it was played with {sorted(versions_of(evaluated))}"
        if exploring := [own.task for own in evaluated if own.task.exploration != 0.0]:
            return f"{exploring[0]} was sent with exploration 0 and came back with {exploring[0].exploration}"
    return None


def _check_memory(build: Build) -> str | None:
    with running(build) as placement:
        collectors = placement.collectors
        held = play(collectors, make_tasks(collectors, range(2)))
        before = [[copy_fragment(fragment) for fragment in delivery.fragments] for delivery in held]
        for first in range(4, 4 + EPISODES * 2, 4):
            for delivery in play(collectors, make_tasks(collectors, range(first, first + 4))):
                delivery.release()
        for delivery, own in zip(held, before, strict=True):
            if name := first_difference(delivery.fragments, own):
                return f"{name} of {delivery.task} changed before the delivery was released"
    return None


def _check_sizes(build: Build) -> str | None:
    with running(build) as placement:
        collectors = placement.collectors
        size, capacity = collectors.task_episodes(), collectors.capacity()
        if not 1 <= size <= capacity:
            return f"task_episodes() is {size} and capacity() is {capacity}"
        tasks = [Task(tuple(range(first, first + size))) for first in range(0, capacity - size + 1, size)]
        deliveries = play(collectors, tasks)
        if Counter(delivery.task for delivery in deliveries) != Counter(tasks):
            return f"not all of the {capacity} episodes that may be out at once came back"
        if collectors.memory_bytes() < 0 or collectors.store_bytes() < 0:
            return "it needs a negative number of bytes"
    return None


def _check_failure(build: Build) -> str | None:
    with running(build, failing=True) as placement:
        collectors = placement.collectors
        tasks = make_tasks(collectors, range(4))
        deliveries = play(collectors, tasks)
        if Counter(episode for own in deliveries for episode in own.task.episodes) != Counter(range(4)):
            return "the episodes of a failed task did not all come back"
        failed = [own for own in deliveries if own.failure is not None]
        if len(failed) != 1 or failed[0].fragments:
            return f"one task fails, and {len(failed)} deliveries say so"
        if failed[0].failure is None or failed[0].failure.task != failed[0].task:
            return f"the failure of {failed[0].task} names another task"
        again = play(collectors, [Task((episode,)) for episode in failed[0].task.episodes])
        if any(own.failure is not None for own in again):
            return "a task that was sent again after a failure failed too"
    return None


def _check_collector_counters(build: Build) -> str | None:
    with running(build) as placement:
        collectors = placement.collectors
        before = CollectorCounters(wall_s=10.0, cpu_s=20.0, waited_s=30.0)
        collectors.restore_counters(before)
        if collectors.counters() != before:
            return f"restored {before}, and it counts {collectors.counters()}"
        for delivery in play(collectors, make_tasks(collectors, range(8))):
            delivery.release()
        now = collectors.counters()
        if now.wall_s <= before.wall_s or now.cpu_s < before.cpu_s or now.waited_s < before.waited_s:
            return f"{before} became {now} after eight episodes"
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
    ("close() may be called twice, at any time", check_close),
)
