"""Observations of every space become arrays as documented."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from remuda.adapters.inbound.spaces import ActionSpace, FlatSpace, mask_of
from remuda.core.errors import ConfigError, GameError

SPACES: dict[str, tuple[Any, tuple[int, ...], type]] = {
    "floats": (spaces.Box(-1, 1, (2, 3), np.float32), (2, 3), np.float32),
    "doubles": (spaces.Box(-1, 1, (4,), np.float64), (4,), np.float32),
    "halves": (spaces.Box(-1, 1, (4,), np.float16), (4,), np.float32),
    "bytes": (spaces.Box(0, 255, (4, 4, 3), np.uint8), (4, 4, 3), np.uint8),
    "a choice": (spaces.Discrete(5, start=3), (5,), np.float32),
    "choices": (spaces.MultiDiscrete([2, 3]), (5,), np.float32),
    "switches": (spaces.MultiBinary(6), (6,), np.float32),
    "a tuple": (spaces.Tuple((spaces.Discrete(3), spaces.Box(0, 1, (2, 2)))), (7,), np.float32),
    "a dict": (spaces.Dict({"b": spaces.Discrete(2), "a": spaces.MultiBinary(3)}), (5,), np.float32),
    "nested": (spaces.Dict({"in": spaces.Tuple((spaces.Dict({"x": spaces.Discrete(2)}),))}), (2,), np.float32),
}
MASK = spaces.MultiBinary(4)


@pytest.mark.parametrize("name", SPACES)
def test_observations_have_the_shape_of_their_space(name: str) -> None:
    space, shape, dtype = SPACES[name]
    inputs = FlatSpace(space, "agent")
    assert (inputs.shape, inputs.dtype, inputs.masked) == (shape, np.dtype(dtype), False)
    space.seed(1)
    for _ in range(20):
        array = inputs.as_array(space.sample())
        assert array.shape == shape
        assert array.dtype == dtype


@given(st.integers(0, 4), st.lists(st.integers(0, 1), min_size=3, max_size=3))
def test_parts_are_concatenated_by_key(choice: int, switches: list[int]) -> None:
    space = spaces.Dict({"z": spaces.Discrete(5), "a": spaces.MultiBinary(3)})
    array = FlatSpace(space, "agent").as_array({"z": choice, "a": np.array(switches, np.int8)})
    assert array.tolist() == [*switches, *np.eye(5)[choice].tolist()]


@pytest.mark.parametrize(
    ("space", "lines"),
    [
        (
            spaces.Dict(z=spaces.Discrete(2), a=spaces.Tuple((spaces.Box(0, 1, (1,)), spaces.MultiBinary(2)))),
            ["numbers 0 to 1: ['z'], one-hot", "number 2: ['a'][0], Box", "numbers 3 to 4: ['a'][1], MultiBinary"],
        ),
        (
            spaces.Dict({"y": spaces.Box(0, 1, (2,)), "action_mask": MASK, "b": spaces.Discrete(2)}),
            ["numbers 0 to 1: ['b'], one-hot", "numbers 2 to 3: ['y'], Box"],
        ),
        (spaces.Discrete(3), ["numbers 0 to 2: one-hot, Discrete(3)"]),
    ],
)
def test_the_layout_says_which_number_is_which_part(space: Any, lines: list[str]) -> None:
    found = FlatSpace(space, "agent").layout()
    assert [own[: len(line)] for own, line in zip(found, lines, strict=True)] == lines


def test_the_layout_is_that_of_the_array() -> None:
    space = spaces.Dict(z=spaces.Discrete(2), a=spaces.Box(0, 9, (3,)))
    inputs = FlatSpace(space, "agent")
    array = inputs.as_array({"z": 1, "a": np.array([5, 6, 7], np.float32)})
    assert inputs.layout()[1].startswith("numbers 2 to 4: ['a']")
    assert array.tolist() == [0, 1, 5, 6, 7]


def test_a_mask_is_not_part_of_the_observation() -> None:
    alone = FlatSpace(spaces.Dict({"observation": spaces.Box(0, 9, (2, 2), np.int8), "action_mask": MASK}), "agent")
    assert alone.masked
    assert (alone.shape, alone.dtype) == ((2, 2), np.int8)
    obs = {"observation": np.ones((2, 2), np.int8), "action_mask": np.array([1, 0, 1, 1], np.int8)}
    assert alone.as_array(obs).tolist() == [[1, 1], [1, 1]]
    assert mask_of(obs, {}).tolist() == [1, 0, 1, 1]
    more = FlatSpace(spaces.Dict({"x": spaces.Discrete(2), "y": spaces.Discrete(3), "action_mask": MASK}), "agent")
    assert more.shape == (5,)
    assert more.as_array({"x": 1, "y": 0, "action_mask": MASK.sample()}).tolist() == [0, 1, 1, 0, 0]
    assert mask_of(7, {"action_mask": [True]}) == [True]
    assert mask_of(7, {}) is None


@pytest.mark.parametrize(
    "space",
    [spaces.Text(3), spaces.Sequence(spaces.Discrete(2)), spaces.Dict({"a": spaces.Text(3)}), spaces.Box(0, 1, (0,))],
)
def test_spaces_without_a_fixed_size_are_refused(space: Any) -> None:
    with pytest.raises(ConfigError, match=r"agent 'bob' of zoo observes"):
        FlatSpace(space, "agent 'bob' of zoo")


def test_actions_are_declared_from_zero_and_given_as_the_environment_wants_them() -> None:
    plain = ActionSpace(spaces.Discrete(4, start=-1), "bob")
    assert (plain.declared, plain.for_env(0), plain.for_env(3)) == (spaces.Discrete(4), -1, 2)
    levers = ActionSpace(spaces.MultiDiscrete(np.array([[2], [3]]), start=np.array([[5], [0]])), "bob")
    assert levers.declared == spaces.MultiDiscrete([2, 3])
    assert levers.for_env(np.array([1, 2])).tolist() == [[6], [2]]
    box = ActionSpace(spaces.Box(-0.1, 0.1, (2,), np.float64), "bob")
    given = box.for_env(np.array([0.1, -0.1], np.float32))  # float32(0.1) is a little more than 0.1
    assert box.space.contains(given)
    with pytest.raises(ConfigError, match=r"bob has actions Text.*convert them in the environment"):
        ActionSpace(spaces.Text(3), "bob")


@pytest.mark.parametrize(
    ("space", "obs", "said"),
    [
        (spaces.Box(-1, 1, (4,)), np.zeros(1), r"has shape \(1,\), but its space has \(4,\)"),
        (
            spaces.Box(0, 255, (2,), np.uint8),
            np.array([300, 0]),
            r"the value 300, which is none of its space \(uint8\)",
        ),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([0.0, np.nan]), r"the value nan"),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([0.0, 0.5]), r"the value 0.5"),
        (spaces.Dict({"a": spaces.Box(0, 1, (2,))}), {"a": np.zeros(3)}, "has shape"),
        (spaces.Box(-1, 1, (2,)), np.zeros(2, np.complex64), "the type complex64"),
        (spaces.Box(-1, 1, (2,)), np.array(["0", "1"]), "the type <U1"),
    ],
)
def test_observations_that_do_not_fit_their_space_are_errors(space: Any, obs: Any, said: str) -> None:
    with pytest.raises(GameError, match=said):
        FlatSpace(space, "agent").as_array(obs)


def test_bounds_of_single_entries_are_looked_at() -> None:
    inputs = FlatSpace(spaces.Box(np.array([0.0, -9.0]), np.array([1.0, 9.0]), dtype=np.float64), "agent")
    assert (inputs.low, inputs.high) == (-9, 9)
    assert np.array_equal(inputs.as_array(np.array([0.5, 5.0])), np.array([0.5, 5.0], np.float32))
    assert np.isnan(inputs.as_array(np.array([5.0, 5.0]))).all()
