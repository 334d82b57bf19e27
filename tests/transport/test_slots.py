"""Slots: fragments that are views of shared memory and never overlap, and a table in which each has one owner."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import Phase as Stage
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from stamps import named_arrays, slot_arrays

from remuda.core.errors import OrderError
from remuda.core.fragment import Purpose, copied
from remuda.core.game import GameEntry, GameSpec, Group, make_game
from remuda.core.policy import Policy, PolicyBinding, PolicyInput, PolicyOutput, RandomPolicy
from remuda.core.task import Task
from remuda.games.registry import find_game
from remuda.rollout.config import RolloutConfig
from remuda.rollout.config import empty_fragments as blank_room
from remuda.rollout.rollout import Rollout
from remuda.testing import GIFTS, MASKED, RESPAWN, UNEQUAL
from remuda.transport.slots import SlotArray, SlotLayout, SlotOwners, SlotToken

MANNER = RolloutConfig(5, worlds=4)
TASK = Task((6, 4, 9))
SMALL = {"height": 6, "width": 6, "turns": 12}
GAMES = [(find_game("treasurehunt"), SMALL), *((entry, {}) for entry in (UNEQUAL, RESPAWN, MASKED, GIFTS))]
games = pytest.mark.parametrize(("entry", "options"), GAMES, ids=[entry.name for entry, _ in GAMES])


class Noting(RandomPolicy):
    """Looks at three frames and notes two things about every action."""

    frames = 3
    extras = ("value", "chance")

    def act(self, inputs: PolicyInput, first: int, last: int) -> PolicyOutput:
        actions = super().act(inputs, first, last).actions
        return PolicyOutput(actions, {"value": actions + np.float32(0.5), "chance": actions + np.float32(0.25)})


def seated(spec: GameSpec, policy: type[Policy] = Noting) -> list[PolicyBinding]:
    return [PolicyBinding(g, 0, group.size, policy(group, group.size)) for g, group in enumerate(spec.groups)]


Make = Callable[[GameSpec, Sequence[PolicyBinding], int], SlotArray]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes rooms of three slots for a game, its seats and so many worlds; closes them in the end."""
    rooms: list[SlotArray] = []

    def slot_array(spec: GameSpec, bindings: Sequence[PolicyBinding], worlds: int) -> SlotArray:
        rooms.append(SlotArray(SlotLayout.of(spec, bindings, worlds), 3))
        return rooms[-1]

    yield slot_array
    for made in rooms:
        made.memory.close()


def spoil(slot_array: SlotArray) -> None:
    """Leave something in every byte that is a truth value too."""
    np.frombuffer(slot_array.memory.buffer, np.uint8)[:] = 1


@games
def test_a_slot_has_the_arrays_a_collector_would_make(make: Make, entry: GameEntry, options: dict[str, Any]) -> None:
    spec = make_game(entry, options, [0]).spec
    bindings = seated(spec)
    slot_array = make(spec, bindings, len(TASK.episodes))
    expected = blank_room(spec, bindings, MANNER, TASK)
    for mine, other in zip(slot_array.fragments(1, TASK, MANNER), expected, strict=True):
        assert mine.before == other.before == 2
        assert mine.turns == spec.turns
        own, blank = named_arrays(mine), named_arrays(other)
        assert {n: (a.shape, a.dtype) for n, a in own.items()} == {n: (a.shape, a.dtype) for n, a in blank.items()}
        assert (mine.mask is not None) == spec.groups[mine.origin.group].masked
        assert list(mine.extras) == ["chance", "value"]


@pytest.mark.parametrize("purpose", list(Purpose))
def test_a_fragment_says_where_it_comes_from(make: Make, purpose: Purpose) -> None:
    spec = make_game(UNEQUAL, {}, [0]).spec
    slot_array = make(spec, seated(spec), 3)
    for group, fragment in enumerate(slot_array.fragments(0, Task((6, 4, 9), purpose), MANNER)):
        assert fragment.origin.group == group
        assert fragment.origin.episodes.tolist() == [6, 4, 9]
        assert fragment.origin.worlds.tolist() == [2, 0, 1]
        assert fragment.origin.purpose is purpose


@games
def test_what_is_written_into_a_slot_is_there_for_whoever_looks_next(
    make: Make, entry: GameEntry, options: dict[str, Any]
) -> None:
    spec = make_game(entry, options, [0]).spec
    slot_array = make(spec, seated(spec), 3)
    for number, array in enumerate(slot_arrays(slot_array, 1, TASK, MANNER).values()):
        array[...] = number
    for number, (name, array) in enumerate(slot_arrays(slot_array, 1, TASK, MANNER).items()):
        assert (array == np.array(number).astype(array.dtype)).all(), name


def test_a_slot_is_cut_to_the_worlds_and_turns_of_its_task(make: Make) -> None:
    spec = make_game(MASKED, {}, [0]).spec
    slot_array = make(spec, seated(spec), 3)
    spoil(slot_array)
    whole = slot_arrays(slot_array, 1, TASK, MANNER)
    for name, array in slot_arrays(slot_array, 1, Task((7, 8)), MANNER, turns=5).items():
        assert np.shares_memory(array, whole[name]) or not array.size, name
        array[...] = 0
    (fragment,) = slot_array.fragments(1, TASK, MANNER)
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


def test_a_group_has_the_frames_and_extras_of_all_its_seats(make: Make) -> None:
    spec = make_game(UNEQUAL, {}, [0]).spec
    one, other = spec.groups
    bindings = [
        PolicyBinding(0, 0, 1, RandomPolicy(one, 1)),
        PolicyBinding(0, 1, 3, Noting(one, 2)),
        PolicyBinding(1, 0, 4, RandomPolicy(other, 4)),
    ]
    slot_array = make(spec, bindings, 3)
    first, second = slot_array.fragments(0, TASK, MANNER)
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
    own=st.lists(groups(), min_size=1, max_size=3),
    turns=st.integers(1, 9),
    worlds=st.integers(1, 5),
    policy=st.sampled_from([RandomPolicy, Noting]),
    slot=st.integers(0, 2),
)
def test_a_filled_slot_leaves_its_neighbours_and_its_arrays_each_other_alone(
    own: list[Group], turns: int, worlds: int, policy: type[Policy], slot: int
) -> None:
    spec = GameSpec("any", tuple(own), turns)
    slot_array, task = SlotArray(SlotLayout.of(spec, seated(spec, policy), worlds), 3), Task(tuple(range(worlds)))
    memory = np.frombuffer(slot_array.memory.buffer, np.uint8).reshape(3, -1)
    arrays = slot_arrays(slot_array, slot, task, MANNER)
    for array in arrays.values():
        array.view(np.uint8)[...] += 1  # twice in a byte that two arrays have
    inside = np.frombuffer(slot_array.memory.buffer, np.uint8)[slot * memory.shape[1] :][: memory.shape[1]]
    assert np.delete(memory, slot, axis=0).max() == 0
    assert inside.max() == 1
    assert inside.sum() == sum(array.nbytes for array in arrays.values())
    slot_array.memory.close()


@games
def test_what_a_slot_held_before_does_not_show_in_an_episode_played_into_it(
    make: Make, entry: GameEntry, options: dict[str, Any]
) -> None:
    game = make_game(entry, options, [episode % MANNER.worlds for episode in TASK.episodes])
    player = Rollout(game, seated(game.spec), MANNER)
    slot_array = make(game.spec, player.bindings, 4)
    spoil(slot_array)
    player.start(TASK)
    expected = [copied(fragment) for fragment in player.play(player.empty_fragments())]
    player.start(TASK)
    for mine, other in zip(player.play(slot_array.fragments(1, TASK, MANNER)), expected, strict=True):
        for (name, array), blank in zip(named_arrays(mine).items(), named_arrays(other).values(), strict=True):
            assert np.array_equal(array, blank), name
    assert (np.frombuffer(slot_array.memory.buffer, np.uint8)[: slot_array.layout.slot_bytes] == 1).all()


def test_memory_that_is_let_go_leaves_no_descriptor() -> None:
    spec = make_game(MASKED, {}, [0]).spec
    before = set(Path("/proc/self/fd").iterdir())
    slot_array = SlotArray(SlotLayout.of(spec, seated(spec), 2), 3)
    fragments = slot_array.fragments(2, Task((0, 1)), MANNER)
    slot_array.memory.close()
    slot_array.memory.close()
    fragments[0].obs[...] = 3  # the memory itself stays as long as somebody sees it
    assert (slot_array.fragments(2, Task((0, 1)), MANNER)[0].obs == 3).all()
    assert len(slot_array.memory.buffer) == 3 * slot_array.layout.slot_bytes
    del slot_array, fragments
    assert set(Path("/proc/self/fd").iterdir()) == before


def test_a_slot_goes_from_hand_to_hand() -> None:
    owners = SlotOwners(2)
    token = owners.lend("collect-0")
    owners.move(token, "collect-0", "loop")
    assert owners.holds(token, "loop")
    assert not owners.holds(token, "collect-0")
    owners.move(token, "loop", "trainers")
    owners.give_back(token, "trainers")
    assert not owners.holds(token, "trainers")
    assert (owners.free, owners.used, owners.peak) == (2, 0, 1)


def test_full_is_said_not_overrun() -> None:
    owners = SlotOwners(2)
    held = [owners.lend("collect-0"), owners.lend("collect-1")]
    with pytest.raises(OrderError, match="no slot is free"):
        owners.lend("collect-0")
    owners.give_back(held[0], "collect-0")
    assert owners.lend("collect-1").slot == held[0].slot


def test_the_token_of_a_dead_owner_is_refused_when_it_still_arrives() -> None:
    """Also if whoever replaced the dead has its name, and the slot."""
    owners = SlotOwners(1)
    old = owners.lend("collect-0")
    assert owners.reclaim("collect-0") == 1
    new = owners.lend("collect-0")
    assert new.slot == old.slot
    with pytest.raises(OrderError, match=f"serial {old.serial}"):
        owners.move(old, "collect-0", "loop")
    with pytest.raises(OrderError):
        owners.give_back(old, "collect-0")
    owners.move(new, "collect-0", "loop")


def test_a_token_in_the_wrong_hands_is_refused() -> None:
    owners = SlotOwners(2)
    token = owners.lend("collect-0")
    with pytest.raises(OrderError, match="is not collect-1's: collect-0 has it"):
        owners.move(token, "collect-1", "loop")
    with pytest.raises(OrderError, match="is not collect-1's: collect-0 has it"):
        owners.give_back(token, "collect-1")
    assert owners.holds(token, "collect-0")


NAMES = ("collect-0", "collect-1", "trainers")
names = st.sampled_from(NAMES)
numbers = st.integers(0, 1 << 16)


class Handing(RuleBasedStateMachine):
    """Everything that can happen to slots, beside a plain list of who has which."""

    def __init__(self, table: Callable[[int], SlotOwners] = SlotOwners, count: int = 3) -> None:
        super().__init__()
        self.table, self.count = table(count), count
        self.held: dict[SlotToken, str] = {}
        self.past: list[SlotToken] = []  # not good any more
        self.peak = 0

    def pick(self, tokens: Sequence[SlotToken], number: int) -> SlotToken:
        return tokens[number % len(tokens)]

    def spend(self, token: SlotToken) -> None:
        del self.held[token]
        self.past.append(token)

    @rule(owner=names)
    def lend(self, owner: str) -> None:
        if len(self.held) == self.count:
            with pytest.raises(OrderError):
                self.table.lend(owner)
            return
        token = self.table.lend(owner)
        assert token.slot not in {other.slot for other in self.held}
        assert token not in self.past
        self.held[token] = owner
        self.peak = max(self.peak, len(self.held))

    @precondition(lambda self: self.held)
    @rule(number=numbers, to=names)
    def move(self, number: int, to: str) -> None:
        token = self.pick(list(self.held), number)
        self.table.move(token, self.held[token], to)
        self.held[token] = to

    @precondition(lambda self: self.held)
    @rule(number=numbers)
    def give_back(self, number: int) -> None:
        token = self.pick(list(self.held), number)
        self.table.give_back(token, self.held[token])
        self.spend(token)

    @rule(owner=names)
    def lose_an_owner(self, owner: str) -> None:
        lost = [token for token, holder in self.held.items() if holder == owner]
        assert self.table.reclaim(owner) == len(lost)
        for token in lost:
            self.spend(token)

    @precondition(lambda self: self.past)
    @rule(number=numbers, owner=st.sampled_from((*NAMES, "nobody")), to=names)
    def use_an_old_token(self, number: int, owner: str, to: str) -> None:
        self.refuse(self.pick(self.past, number), owner, to)

    @precondition(lambda self: self.held)
    @rule(number=numbers, owner=names, to=names)
    def use_the_token_of_another(self, number: int, owner: str, to: str) -> None:
        token = self.pick(list(self.held), number)
        if self.held[token] != owner:
            self.refuse(token, owner, to)

    def refuse(self, token: SlotToken, owner: str, to: str) -> None:
        assert not self.table.holds(token, owner)
        with pytest.raises(OrderError):
            self.table.move(token, owner, to)
        with pytest.raises(OrderError):
            self.table.give_back(token, owner)

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
        """Lend all that is left, from a copy of the table."""
        table = copy.deepcopy(self.table)
        left = [table.lend("trainers").slot for _ in range(table.free)]
        assert sorted([*left, *(token.slot for token in self.held)]) == list(range(self.count))


class KeepsSerials(SlotOwners):
    """Broken: a slot that is handed out anew looks like the old one."""

    def lend(self, owner: str) -> SlotToken:
        token = super().lend(owner)
        self._serial[token.slot] = 1
        return SlotToken(token.slot, 1)


class FreesTwice(SlotOwners):
    """Broken: what comes back is free twice, once there is room for it."""

    def give_back(self, token: SlotToken, owner: str) -> None:
        super().give_back(token, owner)
        if len(self._free) < len(self._owner):
            self._free.append(token.slot)


class ForgetsOne(SlotOwners):
    """Broken: of a dead owner's slots only the first comes back."""

    def reclaim(self, owner: str) -> int:
        lost = [slot for slot, name in enumerate(self._owner) if name == owner]
        for slot in lost[:1]:
            self.give_back(SlotToken(slot, self._serial[slot]), owner)
        return len(lost)


class TrustsEverybody(SlotOwners):
    """Broken: nobody is asked who they are."""

    def holds(self, token: SlotToken, owner: str) -> bool:
        return self._serial[token.slot] == token.serial and self._owner[token.slot] is not None


CALM = settings(deadline=None, stateful_step_count=30, suppress_health_check=[HealthCheck.too_slow])


def test_whatever_happens_every_slot_has_exactly_one_owner() -> None:
    run_state_machine_as_test(Handing, settings=settings(CALM, max_examples=100))


@pytest.mark.parametrize("table", [KeepsSerials, FreesTwice, ForgetsOne, TrustsEverybody])
def test_the_same_finds_what_is_wrong_with_a_broken_table(table: type[SlotOwners]) -> None:
    search = settings(CALM, max_examples=1000, derandomize=True, database=None, phases=[Stage.generate])
    with pytest.raises((AssertionError, pytest.fail.Exception, OrderError)):
        run_state_machine_as_test(lambda: Handing(table), settings=search)
