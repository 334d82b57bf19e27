"""Our games as PettingZoo environments: PettingZoo's own conformance tests, and the same episodes as in a rollout."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from remuda.adapters.outbound.pettingzoo import HerdEnv, parallel_env
from remuda.core import rng
from remuda.core.errors import ConfigError, OrderError, UnknownName
from remuda.core.game import GameEntry, make_game
from remuda.core.policy import PolicyBinding
from remuda.core.rng import Stream
from remuda.core.task import Task
from remuda.games.registry import find_game
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout
from remuda.runs.replay import RecordedActions
from remuda.testing import ERRANDS, GIFTS, MASKED, RESPAWN, UNEQUAL

with warnings.catch_warnings(action="ignore"):  # about PettingZoo's own games
    from pettingzoo.test import parallel_api_test, parallel_seed_test

GAMES: dict[str, tuple[str | GameEntry, dict[str, Any]]] = {
    "treasurehunt": ("treasurehunt", {"agents": 3, "turns": 25}),
    "treasurehunt alone": ("treasurehunt", {"agents": 1, "turns": 25}),
    "cage2": ("cage2", {"steps": 30}),
    "cleanup": ("cleanup", {"turns": 25, "identities": True}),
    "away after a hit": ("cleanup", {"turns": 25, "rules": "meltingpot"}),
    "harvest": ("harvest", {"turns": 25, "rules": "socialjax"}),
    "coins": ("coins", {"turns": 25, "reward": {"team": 1.0}}),
    "matrix": ("matrix", {"turns": 25}),
    "stag_hunt": ("stag_hunt", {"turns": 25}),
    "tag": ("tag", {"turns": 25}),
    "by module": ("remuda.testing:UNEQUAL", {}),
    "unequal groups": (UNEQUAL, {}),
    "masks": (MASKED, {}),
    "gifts": (GIFTS, {}),
    "away": (ERRANDS, {}),
    "dying": (RESPAWN, {}),
    "dying at the start of a turn": (RESPAWN, {"at_begin": True}),
    "dying and back at once": (RESPAWN, {"longest_rest": 0}),
}


@pytest.fixture(params=GAMES)
def env(request: pytest.FixtureRequest) -> HerdEnv:
    game, options = GAMES[request.param]
    return parallel_env(game, **options)


def pick(env: HerdEnv, observations: dict[str, Any], number: int) -> dict[str, int]:
    """An allowed action for every agent, another one each turn."""
    actions = {}
    for i, name in enumerate(env.agents):
        seen, count = observations[name], int(env.action_space(name).n)
        allowed = np.flatnonzero(seen["action_mask"]) if isinstance(seen, dict) else np.arange(count)
        actions[name] = int(allowed[(number + i * i) % len(allowed)])
    return actions


def test_pettingzoo_finds_nothing_wrong(env: HerdEnv) -> None:
    parallel_api_test(env, num_cycles=60)


@pytest.mark.parametrize("name", [name for name in GAMES if name != "masks"])  # it takes forbidden actions
def test_the_same_seed_is_the_same_episode_to_pettingzoo(name: str) -> None:
    game, options = GAMES[name]
    parallel_seed_test(lambda: parallel_env(game, **options), num_cycles=30)


def test_observations_are_in_their_spaces_to_the_end(env: HerdEnv) -> None:
    observations, _ = env.reset(seed=5)
    for turn in range(env.game.spec.turns):
        for name, seen in observations.items():
            assert env.observation_space(name).contains(seen), name
        if not env.agents:
            break
        observations, *_ = env.step(pick(env, observations, turn))
    assert env.agents == []


@pytest.mark.parametrize("name", GAMES)
def test_an_episode_is_the_same_as_in_a_rollout(name: str) -> None:
    """Rewards, ends and observations of every agent until it leaves, with the same key and the same actions.

    What reaches an agent while it is away belongs, in a rollout, to the turn in which it acted last.
    """
    game, options = GAMES[name]
    env = parallel_env(game, **options)
    spec, indices = env.game.spec, env._indices
    observations, _ = env.reset(seed=11)
    actions = [np.zeros((spec.turns, 1, group.size), np.int64) for group in spec.groups]
    seen, turn = [(observations, {}, {}, {}, {})], 0
    while env.agents:
        rows = env._action_arrays(chosen := pick(env, observations, turn))
        for g, row in enumerate(rows):
            actions[g][turn] = row
        observations, *result = env.step(chosen)
        seen.append((observations, *result))
        turn += 1
    for g in range(len(spec.groups)):
        actions[g] = actions[g][:turn]

    entry = find_game(game) if isinstance(game, str) else game
    again = make_game(entry, options, [0])
    bindings = [
        PolicyBinding(g, 0, group.size, RecordedActions(group, actions[g])) for g, group in enumerate(spec.groups)
    ]
    rollout = Rollout(again, bindings, RolloutConfig(0, 1))
    rollout.start(Task((0,)))
    again.reset(np.zeros(1, np.int64), np.array([rng.key(11, Stream.OUTSIDE, 0)]))
    fragments = rollout.play(rollout.empty_fragments(turn))
    present, acted = set(indices), dict.fromkeys(indices, 0)
    received = [np.zeros_like(fragment.rewards) for fragment in fragments]
    for t in range(turn):
        (observations, *_, infos), (_, rewards, terminated, truncated, _) = seen[t], seen[t + 1]
        assert set(rewards) == present
        for agent in sorted(present):
            g, i = indices[agent]
            fragment = fragments[g]
            away = "away" in infos.get(agent, {})
            assert fragment.alive[t, 0, i] != away
            acted[agent] = acted[agent] if away else t
            received[g][acted[agent], 0, i] += rewards[agent]
            if terminated[agent] or truncated[agent]:
                present.remove(agent)
                assert terminated[agent] == fragment.terminated[acted[agent], 0, i]
                left = away or (turn == t + 1 and fragment.away[0, i] and not terminated[agent])
                assert fragment.truncated[acted[agent], 0, i] == (truncated[agent] and not left)
            if away:
                continue
            shown = observations[agent]
            if isinstance(shown, dict):
                assert fragment.mask is not None
                assert np.array_equal(shown["action_mask"], fragment.mask[t, 0, i])
                shown = shown["observation"]
            assert np.array_equal(shown, fragment.obs[t, 0, i])
    assert present == set()
    for fragment, own in zip(fragments, received, strict=True):
        assert np.array_equal(np.where(fragment.alive, fragment.rewards, 0)[own != 0], own[own != 0])


def test_names_and_spaces() -> None:
    env = parallel_env("treasurehunt", agents=3)
    assert env.possible_agents == ["agent_0", "agent_1", "agent_2"]
    space = env.observation_space("agent_0")
    assert isinstance(space, spaces.Box)
    assert (space.dtype, space.low.min(), space.high.max()) == (np.uint8, 0, 1)
    assert space is env.observation_space("agent_0")

    env = parallel_env(UNEQUAL, agents=2)
    assert env.possible_agents == ["walkers_0", "walkers_1", "sitters_0", "sitters_1", "sitters_2"]
    assert env.observation_space("sitters_0").shape == (2, 3)
    assert env.observation_space("walkers_0").dtype == np.float32

    masked = parallel_env(MASKED).observation_space("agent_0")
    assert isinstance(masked, spaces.Dict)
    assert sorted(masked) == ["action_mask", "observation"]


def test_unbounded_integers_have_the_limits_of_their_dtype() -> None:
    from remuda.testing import BROKEN

    space = parallel_env(BROKEN["oneaction"]).observation_space("agent_0")
    limits = np.iinfo(np.int32)
    assert isinstance(space, spaces.Box)
    assert (int(space.low.min()), int(space.high.max())) == (limits.min, limits.max)


def test_dead_agents_leave_and_the_others_go_on() -> None:
    env = parallel_env(RESPAWN, agents=4, turns=30, longest_stay=8)
    observations, _ = env.reset(seed=1)
    gone: set[str] = set()
    counts = []
    while env.agents:
        before = set(env.agents)
        observations, rewards, terminated, truncated, infos = env.step(pick(env, observations, 0))
        for given in (observations, rewards, terminated, truncated, infos):
            assert set(given) == before
        left = before - set(env.agents)
        assert left == {name for name in before if terminated[name] or truncated[name]}
        assert not gone & before
        gone |= left
        counts.append(len(env.agents))
    assert gone == set(env.possible_agents)
    assert len(set(counts)) > 2, "they died at different times"


def test_time_limits_truncate_and_rules_terminate() -> None:
    for game, ends in ((GIFTS, "truncated"), (MASKED, "terminated")):
        env = parallel_env(game)
        observations, _ = env.reset(seed=0)
        while env.agents:
            observations, _, terminated, truncated, _ = env.step(pick(env, observations, 0))
        assert set(terminated.values()) == {ends == "terminated"}
        assert set(truncated.values()) == {ends == "truncated"}


def test_infos_have_the_metrics() -> None:
    env = parallel_env("treasurehunt", agents=2, spawn=0.3, turns=20)
    observations, infos = env.reset(seed=0)
    assert infos["agent_0"] == {"gems": 0, "food": 0, "bones": 0, "bumps": 0}
    while env.agents:
        observations, _, _, _, infos = env.step(pick(env, observations, len(infos)))
    assert sum(sum(info.values()) for info in infos.values()) > 0


def test_without_a_seed_the_next_episode_follows_from_the_last_seed() -> None:
    def firsts(env: HerdEnv, seeds: list[int | None]) -> list[bytes]:
        return [env.reset(seed=seed)[0]["agent_0"].tobytes() for seed in seeds]

    one, two = (parallel_env(GIFTS, agents=1) for _ in range(2))
    episodes = firsts(one, [3, None, None])
    assert len(set(episodes)) == 3
    assert firsts(two, [3, None, None, 3, None]) == [*episodes, *episodes[:2]]
    fresh = [firsts(parallel_env(GIFTS, agents=1), [None])[0] for _ in range(4)]
    assert len(set(fresh)) > 1, "without any seed two environments play different episodes"


def test_pictures() -> None:
    env = parallel_env("treasurehunt", render_mode="rgb_array", height=7, width=9)
    env.reset(seed=0)
    assert env.render().shape == (7, 9, 3)
    env = parallel_env("treasurehunt", render_mode="ansi")
    env.reset(seed=0)
    assert "@" in env.render()
    with pytest.raises(UnknownName, match="rgb_array"):
        parallel_env("treasurehunt", render_mode="rgb_aray")


def test_mistakes_are_refused() -> None:
    with pytest.raises(UnknownName, match="'treasurehunt'"):
        parallel_env("treasurehnt")
    with pytest.raises(UnknownName, match="'agents'"):
        parallel_env("treasurehunt", agent=3)
    env = parallel_env("treasurehunt", agents=2, turns=1)
    with pytest.raises(OrderError, match="reset"):
        env.step({"agent_0": 0, "agent_1": 0})
    env.reset(seed=0)
    with pytest.raises(ConfigError, match="agent_1"):
        env.step({"agent_0": 0})
    for wrong in (-1, 4, 10**9):
        with pytest.raises(ConfigError, match="0 to 3"):
            env.step({"agent_0": 0, "agent_1": wrong})
    env.step({"agent_0": 0, "agent_1": 0})
    with pytest.raises(OrderError, match="reset"):
        env.step({})
