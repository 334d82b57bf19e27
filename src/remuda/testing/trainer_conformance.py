"""A conformance suite for trainers: do they keep the promises that the loop rests on?

`TRAINER_CHECKS` has the form of `COLLECTOR_CHECKS` in `collector_conformance.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from remuda.core.fragment import Fragment, copy_fragment, slice_worlds
from remuda.core.task import Task
from remuda.engines.interfaces import Delivery, RoundPiece, TrainerCounters, Update, count_lags
from remuda.testing.placements import (
    EPISODES,
    ROUND,
    Build,
    Check,
    Placement,
    check_close,
    closing,
    make_tasks,
    play,
    running,
    start,
)


def _take(placement: Placement, episodes: Iterable[int]) -> list[tuple[RoundPiece, list[Fragment]]]:
    """Have episodes played one task after the other and taken; returns the pieces, and copies of what was in them."""
    result = []
    for task in make_tasks(placement.collectors, episodes):
        (delivery,) = play(placement.collectors, [task])
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
    with running(build) as placement:
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
    with running(build) as placement:
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
    with running(build) as placement:
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
    with running(build) as placement:
        released: list[list[Task]] = []
        for task in make_tasks(placement.collectors, range(3 * ROUND)):
            (delivery,) = play(placement.collectors, [task])
            calls: list[Task] = []
            placement.trainers.take(replace(delivery, release=_counted(delivery, calls)))
            released.append(calls)
        _learn(placement, 3)
        if any(len(calls) != 1 for calls in released):
            return f"three rounds are learned, and their deliveries were released {list(map(len, released))} times"
        (delivery,) = play(placement.collectors, make_tasks(placement.collectors, [3 * ROUND]))
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
    with running(build) as placement:
        expected: Counter[int] = Counter()
        for piece, fragments in _take(placement, range(2 * ROUND)):
            expected += count_lags(fragments, placement.trainers.versions_after(piece.round - 1))
        _learn(placement, 2)
        if placement.trainers.lags != expected:
            return f"turns by policy lag are {dict(placement.trainers.lags)}, not {dict(expected)}"
    return None


def _check_versions_after(build: Build) -> str | None:
    placement = build()
    with closing(placement):
        versions = [placement.trainers.versions_after(rounds) for rounds in range(placement.plan.rounds + 1)]
        if versions[0] != 0 or any(later <= earlier for earlier, later in pairwise(versions)):
            return f"versions after 0, 1, 2 … rounds are {versions}"
    return None


def _check_steps(build: Build) -> str | None:
    with running(build) as placement:
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
    with running(build) as placement:
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
    with closing(placement):
        trainers = placement.trainers
        trainers.restore(2, kept)
        trainers.restore_counters(counters)
        if (trainers.version, trainers.taken) != (2, 2):
            return f"restored version 2, and version and rounds taken are {trainers.version} and {trainers.taken}"
        if problem := _differs(rows, trainers.rows(), "right after restore()"):
            return problem
        start(placement)
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
    with running(build) as placement:
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
    ("close() may be called twice, at any time", check_close),
)
