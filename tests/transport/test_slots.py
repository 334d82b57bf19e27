"""Slots: fragments that are views of shared memory and never overlap, and a table in which each slot has one owner."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import Phase as SearchPhase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from stamps import named_arrays, slot_arrays

from remuda.core.errors import OrderError
from remuda.core.fragment import Fragment, Purpose, copy_fragment
from remuda.core.game import GameEntry, GameSpec, Group, make_game
from remuda.core.policy import Policy, PolicyBinding, PolicyInput, PolicyOutput, RandomPolicy
from remuda.core.task import Task
from remuda.games.registry import find_game
from remuda.rollout.config import RolloutConfig, empty_fragments
from remuda.rollout.rollout import Rollout
from remuda.testing import GIFTS, MASKED, RESPAWN, UNEQUAL
from remuda.transport.slots import SlotArray, SlotLayout, SlotOwners, SlotToken

CONFIG = RolloutConfig(5, worlds=4)
TASK = Task((6, 4, 9))
SMALL = {"height": 6, "width": 6, "turns": 12}
GAMES = [(find_game("treasurehunt"), SMALL), *((entry, {}) for entry in (UNEQUAL, RESPAWN, MASKED, GIFTS))]
games = pytest.mark.parametrize(("entry", "options"), GAMES, ids=[entry.name for entry, _ in GAMES])


class ExtrasPolicy(RandomPolicy):
    """Looks at three frames and adds two extras to every action."""

    frames = 3
    extras = ("value", "chance")

    def act(self, inputs: PolicyInput, first: int, last: int) -> PolicyOutput:
        actions = super().act(inputs, first, last).actions
        return PolicyOutput(actions, {"value": actions + np.float32(0.5), "chance": actions + np.float32(0.25)})


def bindings_for(spec: GameSpec, policy: type[Policy] = ExtrasPolicy) -> list[PolicyBinding]:
    return [PolicyBinding(g, 0, group.size, policy(group, group.size)) for g, group in enumerate(spec.groups)]


Make = Callable[[GameSpec, Sequence[PolicyBinding], int], SlotArray]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes arrays of three slots for a game, its policies and so many worlds; closes them after the test."""
    made: list[SlotArray] = []

    def slot_array(spec: GameSpec, bindings: Sequence[PolicyBinding], worlds: int) -> SlotArray:
        made.append(SlotArray(SlotLayout.of(spec, bindings, worlds), 3))
        return made[-1]

    yield slot_array
    for one in made:
        one.memory.close()


def fill_with_ones(slot_array: SlotArray) -> None:
    """Write 1 into every byte: leftovers that are valid also as truth values."""
    np.frombuffer(slot_array.memory.buffer, np.uint8)[:] = 1


@games
def test_a_slot_has_the_arrays_a_collector_would_make(make: Make, entry: GameEntry, options: dict[str, Any]) -> None:
    spec = make_game(entry, options, [0]).spec
    bindings = bindings_for(spec)
    slot_array = make(spec, bindings, len(TASK.episodes))
    expected = empty_fragments(spec, bindings, CONFIG, TASK)
    for in_slot, empty_fragment in zip(slot_array.fragments(1, TASK, CONFIG), expected, strict=True):
        assert in_slot.before == empty_fragment.before == 2
        assert in_slot.turns == spec.turns
        assert kinds(in_slot) == kinds(empty_fragment)
        assert (in_slot.mask is not None) == spec.groups[in_slot.origin.group].masked
        assert list(in_slot.extras) == ["chance", "value"]


def kinds(fragment: Fragment) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shape and type of every array of a fragment, by name."""
    return {name: (array.shape, array.dtype) for name, array in named_arrays(fragment).items()}


@pytest.mark.parametrize("purpose", list(Purpose))
def test_a_fragment_says_where_it_comes_from(make: Make, purpose: Purpose) -> None:
    spec = make_game(UNEQUAL, {}, [0]).spec
    slot_array = make(spec, bindings_for(spec), 3)
    for group, fragment in enumerate(slot_array.fragments(0, Task((6, 4, 9), purpose), CONFIG)):
        assert fragment.origin.group == group
        assert fragment.origin.episodes.tolist() == [6, 4, 9]
        assert fragment.origin.worlds.tolist() == [2, 0, 1]
        assert fragment.origin.purpose is purpose


@games
def test_what_is_written_into_a_slot_is_in_the_next_views_of_it(
    make: Make, entry: GameEntry, options: dict[str, Any]
) -> None:
    spec = make_game(entry, options, [0]).spec
    slot_array = make(spec, bindings_for(spec), 3)
    for number, array in enumerate(slot_arrays(slot_array, 1, TASK, CONFIG).values()):
        array[...] = number
    for number, (name, array) in enumerate(slot_arrays(slot_array, 1, TASK, CONFIG).items()):
        assert (array == np.array(number).astype(array.dtype)).all(), name


def test_a_slot_is_cut_to_the_worlds_and_turns_of_its_task(make: Make) -> None:
    spec = make_game(MASKED, {}, [0]).spec
    slot_array = make(spec, bindings_for(spec), 3)
    fill_with_ones(slot_array)
    whole = slot_arrays(slot_array, 1, TASK, CONFIG)
    for name, array in slot_arrays(slot_array, 1, Task((7, 8)), CONFIG, turns=5).items():
        assert np.shares_memory(array, whole[name]) or not array.size, name
        array[...] = 0
    (fragment,) = slot_array.fragments(1, TASK, CONFIG)
    assert not fragment.obs[: 2 + 5 + 1, :2].any()
    assert fragment.obs[2 + 5 + 1 :].all()
    assert fragment.obs[:, 2].all()
    assert fragment.mask is not None
    assert not fragment.mask[: 5 + 1, :2].any()
    assert fragment.mask[5 + 1 :].all()
    assert not fragment.actions[:5, :2].any()
    assert fragment.actions[5:].all()
    assert fragment.actions[:, 2].all()
    assert not fragment.extras["value"][:5, :2].any()
    assert fragment.extras["value"][5:].all()


def test_a_group_has_the_frames_and_extras_of_all_its_policies(make: Make) -> None:
    spec = make_game(UNEQUAL, {}, [0]).spec
    one, other = spec.groups
    bindings = [
        PolicyBinding(0, 0, 1, RandomPolicy(one, 1)),
        PolicyBinding(0, 1, 3, ExtrasPolicy(one, 2)),
        PolicyBinding(1, 0, 4, RandomPolicy(other, 4)),
    ]
    slot_array = make(spec, bindings, 3)
    first, second = slot_array.fragments(0, TASK, CONFIG)
    assert (first.before, set(first.extras)) == (2, {"chance", "value"})
    assert (second.before, set(second.extras)) == (0, set())


def groups() -> st.SearchStrategy[Group]:
    """Groups of all kinds."""
    return st.builds(
        Group,
        name=st.just("any"),
        size=st.integers(1, 4),
        obs_shape=st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple),
        obs_dtype=st.sampled_from([np.uint8, np.int32, np.float32, np.float64]),
        actions=st.integers(1, 5),
        metrics=st.sampled_from([(), ("one",), ("one", "two", "three")]),
        masked=st.booleans(),
    )


@settings(max_examples=60, deadline=None)
@given(
    some_groups=st.lists(groups(), min_size=1, max_size=3),
    turns=st.integers(1, 9),
    worlds=st.integers(1, 5),
    policy=st.sampled_from([RandomPolicy, ExtrasPolicy]),
    slot=st.integers(0, 2),
)
def test_arrays_overlap_neither_each_other_nor_another_slot(
    some_groups: list[Group], turns: int, worlds: int, policy: type[Policy], slot: int
) -> None:
    spec = GameSpec("any", tuple(some_groups), turns)
    slot_array, task = SlotArray(SlotLayout.of(spec, bindings_for(spec, policy), worlds), 3), Task(tuple(range(worlds)))
    memory = np.frombuffer(slot_array.memory.buffer, np.uint8).reshape(3, -1)
    arrays = slot_arrays(slot_array, slot, task, CONFIG)
    for array in arrays.values():
        array.view(np.uint8)[...] += 1  # a byte that two arrays share becomes 2
    inside = np.frombuffer(slot_array.memory.buffer, np.uint8)[slot * memory.shape[1] :][: memory.shape[1]]
    assert np.delete(memory, slot, axis=0).max() == 0
    assert inside.max() == 1
    assert inside.sum() == sum(array.nbytes for array in arrays.values())
    slot_array.memory.close()


@games
def test_what_a_slot_held_before_does_not_affect_an_episode_played_into_it(
    make: Make, entry: GameEntry, options: dict[str, Any]
) -> None:
    game = make_game(entry, options, [episode % CONFIG.worlds for episode in TASK.episodes])
    rollout = Rollout(game, bindings_for(game.spec), CONFIG)
    slot_array = make(game.spec, rollout.bindings, 4)
    fill_with_ones(slot_array)
    rollout.start(TASK)
    expected = [copy_fragment(fragment) for fragment in rollout.play(rollout.empty_fragments())]
    rollout.start(TASK)
    for in_slot, in_blank in zip(rollout.play(slot_array.fragments(1, TASK, CONFIG)), expected, strict=True):
        for (name, array), same in zip(named_arrays(in_slot).items(), named_arrays(in_blank).values(), strict=True):
            assert np.array_equal(array, same), name
    assert (np.frombuffer(slot_array.memory.buffer, np.uint8)[: slot_array.layout.slot_bytes] == 1).all()


def test_closed_memory_leaves_no_descriptor() -> None:
    spec = make_game(MASKED, {}, [0]).spec
    before = set(Path("/proc/self/fd").iterdir())
    slot_array = SlotArray(SlotLayout.of(spec, bindings_for(spec), 2), 3)
    fragments = slot_array.fragments(2, Task((0, 1)), CONFIG)
    slot_array.memory.close()
    slot_array.memory.close()
    fragments[0].obs[...] = 3  # the memory itself stays as long as there is a view of it
    assert (slot_array.fragments(2, Task((0, 1)), CONFIG)[0].obs == 3).all()
    assert len(slot_array.memory.buffer) == 3 * slot_array.layout.slot_bytes
    del slot_array, fragments
    assert set(Path("/proc/self/fd").iterdir()) == before


def test_a_slot_passes_from_owner_to_owner() -> None:
    owners = SlotOwners(2)
    token = owners.acquire("collect-0")
    owners.transfer(token, "collect-0", "loop")
    assert owners.holds(token, "loop")
    assert not owners.holds(token, "collect-0")
    owners.transfer(token, "loop", "trainers")
    owners.release(token, "trainers")
    assert not owners.holds(token, "trainers")
    assert (owners.free, owners.used, owners.peak) == (2, 0, 1)


def test_acquiring_from_a_full_table_raises() -> None:
    owners = SlotOwners(2)
    held = [owners.acquire("collect-0"), owners.acquire("collect-1")]
    with pytest.raises(OrderError, match="no slot is free"):
        owners.acquire("collect-0")
    owners.release(held[0], "collect-0")
    assert owners.acquire("collect-1").slot == held[0].slot


def test_the_token_of_a_dead_owner_is_refused_when_it_still_arrives() -> None:
    """Also if its replacement has the same name and the same slot."""
    owners = SlotOwners(1)
    old = owners.acquire("collect-0")
    assert owners.reclaim("collect-0") == 1
    new = owners.acquire("collect-0")
    assert new.slot == old.slot
    with pytest.raises(OrderError, match=f"serial {old.serial}"):
        owners.transfer(old, "collect-0", "loop")
    with pytest.raises(OrderError):
        owners.release(old, "collect-0")
    owners.transfer(new, "collect-0", "loop")


def test_a_token_is_refused_from_anybody_but_the_owner() -> None:
    owners = SlotOwners(2)
    token = owners.acquire("collect-0")
    with pytest.raises(OrderError, match="is not collect-1's: collect-0 has it"):
        owners.transfer(token, "collect-1", "loop")
    with pytest.raises(OrderError, match="is not collect-1's: collect-0 has it"):
        owners.release(token, "collect-1")
    assert owners.holds(token, "collect-0")


NAMES = ("collect-0", "collect-1", "trainers")
names = st.sampled_from(NAMES)
numbers = st.integers(0, 1 << 16)


class OwnershipMachine(RuleBasedStateMachine):
    """Everything that can happen to slots, compared with a plain dictionary of who has which."""

    def __init__(self, table: Callable[[int], SlotOwners] = SlotOwners, count: int = 3) -> None:
        super().__init__()
        self.table, self.count = table(count), count
        self.held: dict[SlotToken, str] = {}
        self.expired: list[SlotToken] = []
        self.peak = 0

    def pick(self, tokens: Sequence[SlotToken], number: int) -> SlotToken:
        return tokens[number % len(tokens)]

    def expire(self, token: SlotToken) -> None:
        del self.held[token]
        self.expired.append(token)

    @rule(owner=names)
    def acquire(self, owner: str) -> None:
        if len(self.held) == self.count:
            with pytest.raises(OrderError):
                self.table.acquire(owner)
            return
        token = self.table.acquire(owner)
        assert token.slot not in {other.slot for other in self.held}
        assert token not in self.expired
        self.held[token] = owner
        self.peak = max(self.peak, len(self.held))

    @precondition(lambda self: self.held)
    @rule(number=numbers, to=names)
    def transfer(self, number: int, to: str) -> None:
        token = self.pick(list(self.held), number)
        self.table.transfer(token, self.held[token], to)
        self.held[token] = to

    @precondition(lambda self: self.held)
    @rule(number=numbers)
    def release(self, number: int) -> None:
        token = self.pick(list(self.held), number)
        self.table.release(token, self.held[token])
        self.expire(token)

    @rule(owner=names)
    def lose_an_owner(self, owner: str) -> None:
        lost = [token for token, holder in self.held.items() if holder == owner]
        assert self.table.reclaim(owner) == len(lost)
        for token in lost:
            self.expire(token)

    @precondition(lambda self: self.expired)
    @rule(number=numbers, owner=st.sampled_from((*NAMES, "nobody")), to=names)
    def use_an_expired_token(self, number: int, owner: str, to: str) -> None:
        self.assert_refused(self.pick(self.expired, number), owner, to)

    @precondition(lambda self: self.held)
    @rule(number=numbers, owner=names, to=names)
    def use_a_token_of_another_owner(self, number: int, owner: str, to: str) -> None:
        token = self.pick(list(self.held), number)
        if self.held[token] != owner:
            self.assert_refused(token, owner, to)

    def assert_refused(self, token: SlotToken, owner: str, to: str) -> None:
        assert not self.table.holds(token, owner)
        with pytest.raises(OrderError):
            self.table.transfer(token, owner, to)
        with pytest.raises(OrderError):
            self.table.release(token, owner)

    @invariant()
    def counts_agree(self) -> None:
        assert self.table.used == len(self.held)
        assert self.table.free == self.count - len(self.held)
        assert self.table.peak == self.peak

    @invariant()
    def every_slot_has_exactly_one_owner(self) -> None:
        for token, owner in self.held.items():
            assert [name for name in (*NAMES, "nobody") if self.table.holds(token, name)] == [owner]

    @invariant()
    def nothing_is_lost_and_nothing_is_there_twice(self) -> None:
        """Acquire all free slots of a copy of the table."""
        table = copy.deepcopy(self.table)
        left = [table.acquire("trainers").slot for _ in range(table.free)]
        assert sorted([*left, *(token.slot for token in self.held)]) == list(range(self.count))


class KeepsSerial(SlotOwners):
    """Broken: a slot that is acquired again has its old serial number."""

    def acquire(self, owner: str) -> SlotToken:
        token = super().acquire(owner)
        self._serial[token.slot] = 1
        return SlotToken(token.slot, 1)


class FreesTwice(SlotOwners):
    """Broken: a released slot is in the list of free slots twice."""

    def release(self, token: SlotToken, owner: str) -> None:
        super().release(token, owner)
        if len(self._free) < len(self._owner):
            self._free.append(token.slot)


class ForgetsOne(SlotOwners):
    """Broken: only the first slot of a dead owner is reclaimed."""

    def reclaim(self, owner: str) -> int:
        lost = [slot for slot, name in enumerate(self._owner) if name == owner]
        for slot in lost[:1]:
            self.release(SlotToken(slot, self._serial[slot]), owner)
        return len(lost)


class TrustsEverybody(SlotOwners):
    """Broken: the owner is not checked."""

    def holds(self, token: SlotToken, owner: str) -> bool:
        return self._serial[token.slot] == token.serial and self._owner[token.slot] is not None


UNTIMED = settings(deadline=None, stateful_step_count=30, suppress_health_check=[HealthCheck.too_slow])


def test_every_slot_has_exactly_one_owner_whatever_happens() -> None:
    run_state_machine_as_test(OwnershipMachine, settings=settings(UNTIMED, max_examples=100))


@pytest.mark.parametrize("table", [KeepsSerial, FreesTwice, ForgetsOne, TrustsEverybody])
def test_the_state_machine_finds_a_broken_table(table: type[SlotOwners]) -> None:
    search = settings(UNTIMED, max_examples=1000, derandomize=True, database=None, phases=[SearchPhase.generate])
    with pytest.raises((AssertionError, pytest.fail.Exception, OrderError)):
        run_state_machine_as_test(lambda: OwnershipMachine(table), settings=search)
