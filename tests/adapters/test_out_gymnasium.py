"""Our games with one agent as Gymnasium environments, one world or many."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from remuda.adapters.outbound.gymnasium import WorldEnv, WorldsEnv
from remuda.core.errors import ConfigError, OrderError, UnknownName
from remuda.core.game import GameEntry
from remuda.testing import GIFTS, MASKED, RESPAWN
from remuda_envs import ENVS

WORLDS = 7
GAMES: dict[str, tuple[str | GameEntry, dict[str, Any]]] = {
    "cage2": ("cage2", {"steps": 12, "red": "meander", "green": True}),
    "treasurehunt": ("treasurehunt", {"agents": 1, "turns": 9, "spawn": 0.2}),
    "masks, terminates": (MASKED, {"agents": 1}),
    "the agent dies before the world": (RESPAWN, {"agents": 1}),
    "dies at the start of a turn": (RESPAWN, {"agents": 1, "at_begin": True}),
    "gifts": (GIFTS, {"agents": 1}),
}


def allowed(seen: Any, count: int, number: int) -> int:
    """An allowed action; a different number gives a different one."""
    choices = np.flatnonzero(seen["action_mask"]) if isinstance(seen, dict) else np.arange(count)
    return int(choices[number % len(choices)])


def part(value: Any, world: int) -> Any:
    """A world's part of a batch."""
    return {name: own[world] for name, own in value.items()} if isinstance(value, dict) else value[world]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    return bool(np.array_equal(a, b))


@pytest.mark.parametrize("name", ENVS)
def test_gymnasium_finds_nothing_wrong(name: str) -> None:
    env = gymnasium.make(name)
    check_env(env.unwrapped)
    env.close()


@pytest.mark.parametrize("game", [name for name in GAMES if "masks" not in name])  # it takes forbidden actions
def test_gymnasium_finds_nothing_wrong_with_odd_games(game: str) -> None:
    name, options = GAMES[game]
    check_env(WorldEnv(name, **options), skip_render_check=True)


def test_remuda_envs_is_cheap_to_import() -> None:
    """In a new process: the environments are known, and remuda is not imported until one is made."""
    code = (
        "import sys, gymnasium, remuda_envs\n"
        "assert gymnasium.spec('remuda/treasurehunt-v0').kwargs['agents'] == 1\n"
        "assert 'torch' not in sys.modules and 'remuda' not in sys.modules\n"
        "env = gymnasium.make('remuda_envs:remuda/cage2-v0', red='meander')\n"
        "print(env.reset(seed=1)[0].sum(), gymnasium.make_vec('remuda/cage2-v0', num_envs=3).num_envs)\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "3"


@pytest.mark.parametrize("game", GAMES)
def test_many_worlds_play_what_single_ones_play(game: str) -> None:
    name, options = GAMES[game]
    singles = [WorldEnv(name, **options) for _ in range(WORLDS)]
    many = WorldsEnv(name, num_envs=WORLDS, **options)
    count = int(many.single_action_space.n)
    seen, infos = many.reset(seed=40)
    ended = np.zeros(WORLDS, np.bool_)
    starts = [env.reset(seed=40 + world) for world, env in enumerate(singles)]
    for world, (own, info) in enumerate(starts):
        assert same(part(seen, world), own)
        assert {key: infos[key][world] for key in info} == info
    episodes = 0
    for turn in range(50):
        actions = np.array([allowed(part(seen, world), count, turn + world) for world in range(WORLDS)])
        seen, rewards, terminated, truncated, infos = many.step(actions)
        assert rewards.dtype == np.float64
        assert many.observation_space.contains(seen)
        for world, env in enumerate(singles):
            if ended[world]:  # this step only begins the next episode
                own, info = env.reset()
                reward, end, cut = 0.0, False, False
                episodes += 1
            else:
                own, reward, end, cut, info = env.step(actions[world])
            assert same(part(seen, world), own), (turn, world)
            assert (rewards[world], terminated[world], truncated[world]) == (reward, end, cut)
            assert {key: infos[key][world] for key in info} == info
            assert all(infos[f"_{key}"][world] for key in info)
        ended = terminated | truncated
    assert episodes >= 2 * WORLDS


def test_the_module_may_be_named_in_the_id() -> None:
    code = (
        "import gymnasium\n"
        "print(gymnasium.make_vec('remuda_envs:remuda/cage2-v0', num_envs=3).reset(seed=1)[0].shape)\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "(3, 52)\n"), done.stderr


def test_gymnasiums_own_vector_environment_agrees() -> None:
    """A SyncVectorEnv of single environments, with the autoreset mode of ours, gives the same."""
    own = gymnasium.make_vec("remuda/cage2-v0", num_envs=4, steps=6)
    theirs = gymnasium.make_vec("remuda/cage2-v0", num_envs=4, vectorization_mode="sync", steps=6)
    assert isinstance(own.unwrapped, WorldsEnv)
    assert own.metadata["autoreset_mode"] == theirs.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
    assert own.single_observation_space == theirs.single_observation_space
    assert own.action_space == theirs.action_space
    for a, b in zip(own.reset(seed=3), theirs.reset(seed=3), strict=True):
        assert same(a, b)
    own.action_space.seed(1)
    for _ in range(20):
        actions = own.action_space.sample()
        for a, b in zip(own.step(actions), theirs.step(actions), strict=True):
            assert same(a, b)
    own.close()
    theirs.close()


def test_a_hundred_worlds_at_once() -> None:
    envs = gymnasium.make_vec("remuda/cage2-v0", num_envs=100)
    seen, _ = envs.reset(seed=0)
    assert seen.shape == (100, 52)
    total = np.zeros(100)
    for _ in range(100):
        _, rewards, _, truncated, _ = envs.step(np.zeros(100, np.int64))
        total += rewards
    assert truncated.all()
    assert len(set(total.tolist())) > 1


def test_seeds_of_worlds() -> None:
    envs = WorldsEnv(GIFTS, num_envs=3, agents=1)
    first, _ = envs.reset(seed=[5, 6, 7])
    assert same(envs.reset(seed=5)[0], first)
    second, _ = envs.reset()
    assert not same(second, first)
    mixed, _ = envs.reset(seed=[5, None, None])
    assert same(mixed[0], first[0])
    assert not same(mixed[1], first[1])
    with pytest.raises(ConfigError, match="3 worlds"):
        envs.reset(seed=[1, 2])
    alone = WorldEnv(GIFTS, agents=1)
    assert same(alone.reset(seed=5)[0], first[0])
    assert same(alone.reset()[0], second[0])


def test_an_option_may_differ_between_worlds() -> None:
    envs = gymnasium.make_vec("remuda/treasurehunt-v0", num_envs=4, wall=[-1.0, -2.0], spawn=0.0, height=3, width=3)
    envs.reset(seed=0)
    _, rewards, *_ = envs.step(np.zeros(4, np.int64))
    assert rewards.tolist() == [-1.0, -2.0, -1.0, -2.0]


def test_pictures() -> None:
    env = gymnasium.make("remuda/treasurehunt-v0", render_mode="ansi")
    env.reset(seed=0)
    assert "@" in str(env.render())
    envs = WorldsEnv("treasurehunt", num_envs=2, render_mode="rgb_array", agents=1, height=5, width=6)
    envs.reset(seed=0)
    assert [picture.shape for picture in envs.render() or ()] == [(5, 6, 3)] * 2


def test_mistakes_are_refused() -> None:
    with pytest.raises(ConfigError, match="parallel_env"):
        WorldEnv("treasurehunt", agents=2)
    with pytest.raises(UnknownName, match="'steps'"):
        gymnasium.make("remuda/cage2-v0", step=3)
    env, envs = WorldEnv("cage2", steps=1), WorldsEnv("cage2", num_envs=2)
    with pytest.raises(OrderError, match="reset"):
        env.step(0)
    with pytest.raises(OrderError, match="reset"):
        envs.step(np.zeros(2, np.int64))
    env.reset(seed=0)
    envs.reset(seed=0)
    for wrong in (-1, 145, 10**9):
        with pytest.raises(ConfigError, match="0 to 144"):
            env.step(wrong)
        with pytest.raises(ConfigError, match="0 to 144"):
            envs.step(np.array([0, wrong]))
    with pytest.raises(ConfigError, match="2 whole numbers"):
        envs.step(np.zeros(3, np.int64))
    with pytest.raises(ConfigError, match="whole numbers"):
        envs.step(np.zeros(2))
    env.step(0)
    with pytest.raises(OrderError, match="reset"):
        env.step(0)
