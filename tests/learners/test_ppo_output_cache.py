"""A PPO policy answers from its cache with the bits that its network gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from remuda.core import rng
from remuda.core.game import Group
from remuda.core.policy import PolicyInput
from remuda.core.rng import Stream
from remuda.learners.ppo import output_cache
from remuda.learners.ppo.options import PPOOptions
from remuda.learners.ppo.output_cache import OutputCache
from remuda.learners.ppo.policy import PPOPolicy

AGENTS, WORLDS, ACTIONS = 2, 30, 5


def policy(masked: bool, frames: int = 2, dtype: str = "uint8") -> PPOPolicy:
    group = Group("all", AGENTS, (3,), dtype, ACTIONS, masked=masked, high=4)
    own = PPOPolicy(group, AGENTS, PPOOptions(layers=[8, 8], frames=frames), "fp32", "cpu")
    own.load(rows(own, 0), 0)
    return own


def rows(own: PPOPolicy, seed: int) -> Any:
    return np.random.default_rng(seed).normal(size=own.rows.shape).astype(np.float32)


def inputs(own: PPOPolicy, turn: int) -> PolicyInput:
    source = np.random.default_rng(turn)
    obs = source.integers(0, 2, (own.frames, WORLDS, AGENTS, 3)).astype(own.group.obs_dtype)
    mask = source.random((WORLDS, AGENTS, ACTIONS)) < 0.7
    mask[:, :, turn % ACTIONS] = True
    keys = rng.keys(rng.keys(rng.key(turn, Stream.CHECK), np.arange(WORLDS))[:, None], np.arange(AGENTS))
    ages = source.integers(0, 3, (WORLDS, AGENTS))
    return PolicyInput(obs, ages, mask if own.group.masked else None, keys, None)


@pytest.mark.parametrize("dtype", ["uint8", "float32", "int64"])
@pytest.mark.parametrize("masked", [False, True])
def test_actions_and_log_probabilities_have_the_bits_of_the_network(masked: bool, dtype: str) -> None:
    own, plain = policy(masked, dtype=dtype), policy(masked, dtype=dtype)
    plain.uses_tables = False
    evaluated = 0
    for turn in range(12):
        if turn in (5, 6, 9):
            for each in (own, plain):
                each.load(rows(each, turn), turn)
        one, other = (each.act(inputs(each, turn % 4), 0, AGENTS) for each in (own, plain))
        assert np.array_equal(one.actions, other.actions)
        assert one.extras["log_prob"].tobytes() == other.extras["log_prob"].tobytes()
        few = inputs(own, turn % 4)
        few = replace(few, obs=few.obs[:, :, 1:], ages=few.ages[:, 1:], keys=few.keys[:, 1:].copy(),
                      mask=None if few.mask is None else few.mask[:, 1:])  # fmt: skip
        assert np.array_equal(own.act(few, 1, 2).actions, other.actions[:, 1:])
        evaluated += sum(each.evaluated for each in own.tables.values())
    assert own.tables
    assert evaluated


def test_a_cache_that_finds_little_is_not_used_for_some_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_cache, "ASKED", 10)
    own = OutputCache(1, 2)
    keys = np.arange(100, dtype=np.uint64)[:, None]
    for version in range(output_cache.PAUSE + 2):
        own.begin(version)
        if own.pays:
            assert (own.find(keys) == output_cache.ABSENT).all()
            own.add(keys, np.zeros((100, 2), np.float32))
    assert own.pays
    own.begin(0)
    assert not own.pays


def test_a_full_cache_answers_what_it_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_cache, "MAX_BYTES", 1)
    own = OutputCache(1, 1)
    keys = np.arange(200, dtype=np.uint64)[:, None]
    own.begin(0)
    for first in range(0, 200, 50):
        own.add(keys[first : first + 50], np.arange(first, first + 50, dtype=np.float32)[:, None])
    places = own.find(keys)
    assert (places[:64] == np.arange(64)).all()
    assert (places[64:] == output_cache.ABSENT).all()
    assert own.answers[places[:64], 0].tolist() == list(range(64))
    own.begin(1)
    assert np.array_equal(own.kept, keys[:64])
