"""Games and network bodies given from Python: a class of a notebook cell, a lambda, an entry."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv
from torch import nn

import remuda
from remuda.core import session
from remuda.core.errors import ConfigError
from remuda.core.yamlfile import read_yaml
from remuda.engines.table import ENGINES
from remuda.games.registry import find_game, game_name
from remuda.games.treasurehunt import ENTRY, Treasurehunt
from remuda.testing import GIFTS

PLAN: dict[str, Any] = {
    "worlds": 3, "total_episodes": 6, "n_workers": 2, "seed": 3, "turns": 9, "learner": "ppo", "layers": [8],
    "frames": 2, "evaluate_episodes": 2, "pictures": False, "quiet": True,
}  # fmt: skip


def cart(limit: int = 5) -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TimeLimit(CartPoleEnv(), limit)


def sha(run: remuda.Run) -> str:
    result: str = run.result["weights_sha256"]
    return result


def test_importable_things_keep_their_name() -> None:
    assert game_name("anything") == "anything"
    assert game_name(ENTRY) == "treasurehunt"
    assert game_name(GIFTS) == "remuda.testing.odd_games:GIFTS"
    assert game_name(CartPoleEnv) == "gymnasium.envs.classic_control.cartpole:CartPoleEnv"
    assert game_name(cart) == f"{__name__}:cart"
    for name in (GIFTS, CartPoleEnv, cart):
        assert not session.is_session_name(game_name(name))


def test_other_things_get_a_name_in_this_session() -> None:
    class Inner(CartPoleEnv):
        """Defined in a function."""

    factory: Callable[[], Any]
    for factory, label in ((lambda: cart(), "lambda"), (Inner, "Inner"), (partial(cart, 7), "partial")):
        name = game_name(factory)
        assert session.is_session_name(name)
        assert name.startswith(f"session:{label}-")
        assert game_name(factory) == name, "the same object has the same name"
        assert find_game(name).name == name
    other = replace(ENTRY, summary="another")
    assert game_name(other).startswith("session:treasurehunt-")
    assert find_game(game_name(other)) is other
    assert not session.is_session_name("session:make_env"), "that is a file session.py"


@pytest.mark.parametrize(
    ("game", "match"),
    [
        (Treasurehunt, "is a Game: give its entry, remuda.games.treasurehunt:ENTRY"),
        (3, "game=3 should be a name, a GameEntry, or a class or function"),
        (np.zeros(2), "should be a name"),
        (gymnasium.make("CartPole-v1"), "is an environment already: every world makes its own"),
    ],
)
def test_what_is_no_game_is_told_in_a_sentence(game: Any, match: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=match):
        remuda.train(game, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "sequential"])
def test_every_engine_trains_a_lambda(engine: str, tmp_path: Path) -> None:
    """To the weights that the importable function gives."""
    deterministic = ENGINES[engine].deterministic
    limit = 4  # a closure: what it refers to travels with it
    run = remuda.train(lambda: cart(limit), out=tmp_path / "a", engine=engine, deterministic=deterministic, **PLAN)
    assert run.result["finished"]
    assert read_yaml(run.path / "config.yaml")["game"].startswith("session:lambda-")
    assert remuda.evaluate(run, 3).returns.shape == (3, 1)
    if deterministic:
        named = remuda.train(cart, out=tmp_path / "b", limit=4, engine="sequential", **PLAN)
        assert sha(run) == sha(named)


def test_check_and_evaluate_take_them_too() -> None:
    assert [finding.problem for finding in remuda.check(lambda: cart(3)) if not finding.good] == []
    assert remuda.evaluate(lambda: cart(3), 4, learner="random").returns.shape == (4, 1)


def test_what_cannot_be_pickled_is_told_before_anything_is_written(tmp_path: Path) -> None:
    lock = threading.Lock()

    def guarded() -> Any:
        with lock:
            return cart()

    assert remuda.train(guarded, out=tmp_path / "here", engine="vectorized", **PLAN).result["finished"]
    with pytest.raises(ConfigError, match=r"session:guarded-\S+ cannot be sent to worker processes \(.*lock.*\)"):
        remuda.train(guarded, out=tmp_path / "there", engine="executor", **PLAN)
    assert not (tmp_path / "there").exists()


def test_a_function_among_the_options_is_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"limit=<function .* cannot be written into the run's config"):
        remuda.train(cart, out=tmp_path / "run", limit=lambda: 3, **PLAN)


def test_compare_says_that_its_trials_do_not_find_it() -> None:
    with pytest.raises(ConfigError, match="was defined in this session, where no trial finds it"):
        remuda.compare(lambda: cart(), "sequential", learner="ppo")


CELLS = """
import sys
import gymnasium, numpy as np, torch, remuda
from remuda import Game, GameEntry, GameSpec, Group, Options, kernel, rng

class Corridor(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length=4):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return self.look(), {}

    def look(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def step(self, action):
        self.at += 1
        return self.look(), float(action), self.at >= self.length, False, {}

@kernel
def pay(keys, actions, rewards):
    for w in range(len(keys)):
        rewards[w, 0] += actions[w, 0] * rng.uniform(keys[w], 0)

class CoinOptions(Options):
    turns: int = 4

class Coins(Game):
    def __init__(self, options, worlds):
        super().__init__(GameSpec("coins", (Group("one", 1, (1,), np.uint8, 2),), options.turns), len(worlds))
        self.keys = np.zeros(len(worlds), np.uint64)
        self.turn = np.zeros(len(worlds), np.int64)
    def reset(self, worlds, keys):
        self.signals[0].clear(worlds)
        self.keys[worlds], self.turn[worlds], self.over[worlds] = keys, 0, False
    def begin(self): pass
    def observe(self, group, first, last, out): out[:] = 1
    def act(self, group, first, last, actions):
        pay(self.keys, actions, self.signals[0].rewards)
    def end(self):
        self.turn += 1
        done = ~self.over & (self.turn == self.spec.turns)
        self.signals[0].truncated[done] = True
        self.over |= done

class Body(torch.nn.Module):
    def __init__(self, obs_shape, frames, width):
        super().__init__()
        self.layer = torch.nn.Linear(frames * obs_shape[0], width)

    def forward(self, x):
        return self.layer(x.flatten(1))

ENTRY = GameEntry("coins", "coins in a cell", CoinOptions, Coins)
SMALL = dict(worlds=2, total_episodes=4, n_workers=2, layer=8, batch_size=4, frames=1, evaluate_episodes=2,
             pictures=False, quiet=True, deterministic=True)
"""


def cells(folder: Path, code: str) -> str:
    """Run code as a notebook does: its `__main__` has no file that another process could import."""
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-"], input=CELLS + code, cwd=folder, capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_is_typed_into_a_session_trains_in_worker_processes(tmp_path: Path) -> None:
    """A Gymnasium class, a game with kernels of its own, and a network body: the same weights as in one process."""
    out = cells(
        tmp_path,
        "for game, more in ((Corridor, {}), (lambda: Corridor(3), {}), (ENTRY, {'body': Body})):\n"
        "    runs = [remuda.train(game, engine=engine, **SMALL, **more) for engine in ('sequential', 'executor')]\n"
        "    print(len({run.result['weights_sha256'] for run in runs}), runs[0].plan.game.partition('-')[0])\n"
        "    print(runs[0].plan.learner_options['iqn']['body'])\n",
    )
    lines = out.splitlines()
    assert lines[::2] == ["1 session:Corridor", "1 session:lambda", "1 session:coins"]
    assert lines[1] == lines[3] == "None"
    assert lines[5].startswith("session:Body-")


def test_another_session_asks_for_the_game_and_goes_on(tmp_path: Path) -> None:
    cells(
        tmp_path,
        "remuda.train(Corridor, out='whole', engine='executor', **SMALL)\n"
        "remuda.train(Corridor, out='half', callbacks=[lambda rows: False], engine='executor', **SMALL)\n",
    )
    for function in (remuda.resume, remuda.evaluate):
        with pytest.raises(ConfigError, match=r"was defined in another Python session.*remuda.resume\(path, game=…\)"):
            function(tmp_path / "half")  # type: ignore[operator]
    shown = repr(remuda.load(tmp_path / "half"))
    assert f"remuda.resume('{tmp_path / 'half'}', game=…)" in shown
    out = cells(
        tmp_path,
        "run = remuda.resume('half', game=Corridor, quiet=True)\n"
        "whole = remuda.load('whole', game=Corridor)\n"
        "print(run.result['weights_sha256'] == whole.result['weights_sha256'])\n"
        "print(len(whole.evaluate(3).returns), len(remuda.evaluate('whole', 3, game=Corridor).returns))\n",
    )
    assert out.splitlines() == ["True", "3 3"]


def test_a_game_is_given_again_only_where_it_is_missing(trained: Any) -> None:
    with pytest.raises(ConfigError, match=r"the game of .* is 'treasurehunt', which is found by that name"):
        remuda.load(trained().path, game=ENTRY)


class Body(nn.Module):
    """At the top level of a module: importable."""

    def __init__(self, obs_shape: tuple[int, ...], frames: int, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(frames * obs_shape[0], width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x.flatten(1))
        return result


@pytest.mark.parametrize("engine", ["vectorized", "executor", "actor-learner"])
def test_a_body_may_be_a_class(train: Any, engine: str) -> None:
    class Inner(Body):
        """Not importable."""

    named = train("named", engine=engine, body=f"{__name__}:Body", deterministic=engine != "actor-learner")
    given = train("given", engine=engine, body=Body, deterministic=engine != "actor-learner")
    inner = train("inner", engine=engine, **{"iqn.body": Inner}, deterministic=engine != "actor-learner")
    assert given.plan.learner_options["iqn"]["body"] == f"{__name__}:Body"
    assert inner.plan.learner_options["iqn"]["body"].startswith("session:Inner-")
    if engine != "actor-learner":
        assert sha(given) == sha(inner) == sha(named)


def test_a_body_of_another_session_is_told_in_a_sentence(train: Any) -> None:
    with pytest.raises(ConfigError, match="was defined in another Python session: put it into a file, module:Class"):
        train(body="session:Body-123-1")
