"""Sorrel environments as games: all but the models is Sorrel's own code."""

# ruff: noqa: NPY002 (Sorrel draws from the global generator)

from __future__ import annotations

import copy
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sorrel_standin as standin
import torch

import remuda
from remuda.adapters.inbound import sorrel
from remuda.adapters.inbound.worlds import SimulatorGame
from remuda.core import rng
from remuda.core.errors import ConfigError
from remuda.core.game import Game, make_game
from remuda.core.policy import PolicyBinding, RandomPolicy
from remuda.core.rng import Stream
from remuda.core.task import Task
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout
from remuda.testing.check import check

SEED = 5


def make(worlds: int = 1, **options: Any) -> Any:
    return make_game(standin.ENTRY, options, range(worlds))


def start(game: Game, seed: int = 0) -> None:
    game.reset(np.arange(game.worlds), rng.keys(rng.key(seed, Stream.CHECK), np.arange(game.worlds)))


def original(game: Game, actions: list[list[int]]) -> tuple[list[Any], list[Any]]:
    """The same episode in Sorrel's own loop: what each agent sees when it chooses, and its reward."""
    np.random.seed(0)
    random.seed(0)
    env = standin.meadow(tuple(type(agent) for agent in game._worlds[0]._env.agents))  # type: ignore[attr-defined]
    key = rng.keys(rng.key(SEED, Stream.CHECK), np.arange(1))[0]
    np.random.seed(int(key % np.uint64(2**31 - 1)))
    random.seed(int(key % np.uint64(2**31 - 1)))
    seen: list[Any] = []
    paid: list[Any] = []

    class Model(standin.BaseModel):
        def take_action(self, state: Any) -> int:
            seen.append(state.reshape(3, -1)[-1].copy())
            return next(chosen)

        def reset(self) -> None:
            pass

    for agent in env.agents:
        agent.model = Model((9,), 3, 8)
        agent.model.memory.add = lambda state, action, reward, done: paid.append(reward)
    env.reset()
    chosen = iter([action for turn in actions for action in turn])
    for _ in actions:
        env.take_turn()
    return seen, paid


def test_an_episode_is_the_one_that_sorrel_plays() -> None:
    game = make()
    start(game, SEED)
    actions = [[1, 0], [1, 1], [2, 0], [0, 0], [1, 2], [1, 1], [0, 2], [1, 0], [1, 1]]
    seen, paid = [], []
    for turn in actions:
        game.begin()
        for i, action in enumerate(turn):
            out = np.zeros((1, 1, 9), np.float32)
            game.observe(0, i, i + 1, out)
            seen.append(out.ravel().copy())
            game.act(0, i, i + 1, np.array([[action]]))
            paid.append(game.signals[0].rewards[0, i])
            game.signals[0].forget(i, i + 1)
        game.end()
    theirs = original(game, actions)
    assert np.array_equal(seen, theirs[0])
    assert np.array_equal(paid, theirs[1])
    assert max(paid) > 0
    assert game.over.all()
    assert game.signals[0].truncated.all()


def test_an_environment_is_recognised_without_importing_sorrel() -> None:
    assert sorrel.is_sorrel_env(standin.meadow())
    assert not sorrel.is_sorrel_env(object())
    assert not sorrel.is_sorrel_env(standin.ENTRY)


def test_its_shape() -> None:
    spec = make(runners=2).spec
    assert [(g.name, g.size, g.obs_shape, g.actions) for g in spec.groups] == [
        ("Walker", 2, (9,), 3), ("Runner", 2, (9,), 4),
    ]  # fmt: skip
    assert spec.in_turn
    assert spec.turns == 9
    assert make(turns=4).spec.turns == 4


def test_only_neighbours_are_grouped_so_the_order_of_acting_stays() -> None:
    kinds = (standin.Walker, standin.Runner, standin.Walker)
    game = sorrel.build("m", standin.meadow(kinds), lambda: standin.meadow(kinds), None, 1)
    assert [(group.name, group.size) for group in game.spec.groups] == [("Walker_0", 1), ("Runner", 1), ("Walker_2", 1)]


@pytest.mark.parametrize("options", [{}, {"runners": 1}, {"runners": 1, "stop": True}, {"turns": 3}])
def test_it_keeps_every_promise(options: dict[str, Any]) -> None:
    assert [f"{f.promise}: {f.problem}" for f in check(standin.ENTRY, **options) if f.problem] == []


def test_agents_observe_the_actions_before_theirs() -> None:
    """With parallel actions and without."""
    fragments = []
    for parallel in (True, False):
        game = make()
        rollout = Rollout(
            game, [PolicyBinding(0, 0, 2, RandomPolicy(game.spec.groups[0], 2))], RolloutConfig(0, 1, parallel)
        )
        rollout.start(Task((0,)))
        fragments += rollout.play(rollout.empty_fragments())
    assert np.array_equal(fragments[0].obs, fragments[1].obs)
    assert np.array_equal(fragments[0].rewards, fragments[1].rewards)
    first, second = fragments[0].obs[fragments[0].before : -1, 0, :, :7].swapaxes(0, 1)
    assert not np.array_equal(first, second)  # the first agent has moved in between


def test_global_generators_are_not_changed() -> None:
    game = make(worlds=2)
    start(game)
    np.random.seed(1)
    random.seed(1)
    torch.manual_seed(1)
    before = copy.deepcopy((np.random.get_state()[1].tolist(), random.getstate(), torch.get_rng_state().tolist()))
    start(game)
    for _ in range(9):
        game.step([np.ones((2, 2), np.int64)])
    assert (np.random.get_state()[1].tolist(), random.getstate(), torch.get_rng_state().tolist()) == before


def test_threads_do_not_change_each_others_random_numbers() -> None:
    def play(episode: int) -> Any:
        game = make()
        rollout = Rollout(game, [PolicyBinding(0, 0, 2, RandomPolicy(game.spec.groups[0], 2))], RolloutConfig(0, 6))
        rollout.start(Task((episode,)))
        return rollout.play(rollout.empty_fragments())[0].obs

    alone = [play(episode) for episode in range(6)]
    with ThreadPoolExecutor(6) as pool:
        for _ in range(5):
            assert all(map(np.array_equal, alone, pool.map(play, range(6))))


def test_a_done_world_ends_the_episode_only_where_it_should() -> None:
    for stop in (False, True):
        game = make(runners=1, stop=stop, turns=60)
        start(game)
        ended, turns = 0, 0
        while not game.over.all():
            game.step([np.zeros((1, 2), np.int64), np.zeros((1, 1), np.int64)])  # all go round to the left
            turns += 1
            ended += int(game.signals[1].terminated.any())
            last = [signals.terminated.all() for signals in game.signals]
            for signals in game.signals:
                signals.forget(0, 2)
        assert (turns < 60) == stop
        assert all(last) == stop
        assert ended > 0 if not stop else ended == 1


def test_what_sorrels_reset_does_not_reset_is_reset_too() -> None:
    game = make()
    observations = []
    for _ in range(2):
        start(game)
        out = np.zeros((1, 2, 9), np.float32)
        game.observe(0, 0, 2, out)
        observations.append(out)
        for _ in range(9):
            game.step([np.ones((1, 2), np.int64)])
    assert np.array_equal(observations[0], observations[1])
    assert isinstance(game, SimulatorGame)


@pytest.mark.parametrize("learner", ["iqn", "ppo"])
def test_engines_that_wait_agree_to_the_bit(tmp_path: Path, learner: str) -> None:
    own: dict[str, Any] = {"iqn": {"layer": 8, "frames": 2, "batch_size": 4, "replay_size": 64}, "ppo": {"layers": [8]}}
    settings: dict[str, Any] = {
        "learner": learner, "worlds": 3, "total_episodes": 9, "evaluate_episodes": 2, "device": "cpu", "quiet": True,
        "pictures": False, "deterministic": True, "runners": 1, "n_workers": 2, **own[learner],
    }  # fmt: skip
    shas = {
        remuda.train("sorrel_standin:ENTRY", out=tmp_path / engine, engine=engine, **settings).result["weights_sha256"]
        for engine in ("sequential", "vectorized", "executor", "sync")
    }
    assert len(shas) == 1


def test_unsuitable_environments_are_refused() -> None:
    def refused(env: Any) -> str:
        with pytest.raises(ConfigError) as error:
            sorrel.build("mine", env, lambda: env, None, 1)
        return str(error.value)

    assert "turns=100" in refused(standin.meadow(epochs=3))
    no_agents = standin.meadow()
    no_agents.agents = []
    assert "setup_agents" in refused(no_agents)
    says_text = standin.meadow()
    says_text.agents[1].pov = lambda world: "a meadow"
    assert "agent 1 of mine does not observe an array" in refused(says_text)
    no_actions = standin.meadow()
    del no_actions.agents[0].action_spec
    assert "agent 0 of mine has no action_spec" in refused(no_actions)
