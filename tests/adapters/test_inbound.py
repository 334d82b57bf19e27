"""Environments of other libraries train on every engine, with the same result."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foreign_games import GAMES, random_walk

import remuda
from remuda.adapters.outbound.pettingzoo import parallel_env
from remuda.core.errors import ConfigError
from remuda.core.fragment import Fragment
from remuda.core.game import Game, make_game
from remuda.core.task import Task
from remuda.engines.collectors.task_size import task_size
from remuda.engines.table import ENGINES
from remuda.games.registry import find_game
from remuda.learners.transitions import find_transitions
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout
from remuda.rollout.warm_up import random_bindings
from remuda.runs.settings import make_plan
from remuda.testing.check import check

HERE, GYMNASIUM = "foreign_games", "gymnasium_games"
SMALL: dict[str, dict[str, Any]] = {
    "iqn": {"layer": 16, "quantiles": 4, "acting_quantiles": 4, "frames": 2, "batch_size": 8, "replay_size": 200},
    "ppo": {"layers": [16, 8], "frames": 2, "passes": 2, "minibatches": 2},
}
QUICK = ("vectorized", "executor")


def train(out: Path, name: str, learner: str, engine: str, **settings: Any) -> remuda.Run:
    return remuda.train(
        name, out=out, quiet=True, learner=learner, engine=engine, n_workers=2, worlds=3, total_episodes=6,
        episodes_per_update=3, evaluate_episodes=2, pictures=False, seed=3,
        deterministic=ENGINES[engine].deterministic, **GAMES.get(name, {}), **SMALL[learner], **settings,
    )  # fmt: skip


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The result of the sequential engine, trained once."""
    results: dict[tuple[str, str], dict[str, Any]] = {}

    def result(name: str, learner: str) -> dict[str, Any]:
        if (name, learner) not in results:
            out = tmp_path_factory.mktemp("alone") / "run"
            results[name, learner] = train(out, name, learner, "sequential").result
        return results[name, learner]

    return result


def combinations() -> list[Any]:
    """All combinations run in the slow set; in the quick one, two engines run each game with one learner."""
    engines = [engine for engine in ENGINES if engine != "sequential"]
    return [
        pytest.param(
            name,
            learner,
            engine,
            marks=[] if engine == QUICK[(g + k) % 2] and (g + k) % 4 < 2 else [pytest.mark.slow],
            id=f"{name}-{learner}-{engine}",
        )
        for (g, name), (k, learner), engine in product(enumerate(GAMES), enumerate(SMALL), engines)
    ]


@pytest.mark.parametrize(("name", "learner", "engine"), combinations())
def test_every_engine_trains_it_to_the_same_weights(
    tmp_path: Path, alone: Any, name: str, learner: str, engine: str
) -> None:
    result, one = train(tmp_path / "run", name, learner, engine).result, alone(name, learner)
    assert result["finished"]
    assert result["episodes"] == one["episodes"]
    if ENGINES[engine].deterministic:
        assert result["weights_sha256"] == one["weights_sha256"]
        assert result["agent_steps"] == one["agent_steps"]


@pytest.mark.parametrize("name", GAMES)
def test_every_promise_is_kept(name: str) -> None:
    problems = {finding.promise: finding.problem for finding in check(name, **GAMES[name]) if not finding.good}
    assert problems == {}


def played(name: str, worlds: int = 2, **options: Any) -> tuple[Game, list[Fragment]]:
    game = make_game(find_game(name), {**GAMES.get(name, {}), **options}, range(worlds))
    rollout = Rollout(game, random_bindings(game), RolloutConfig(0, worlds))
    rollout.start(Task(tuple(range(worlds))))
    return game, rollout.play(rollout.empty_fragments())


def test_a_group_of_agents_with_different_names_is_not_called_by_one_of_them() -> None:
    game = make_game(find_game("hostile_games:Two"), {}, [0])
    assert [(group.name, group.size) for group in game.spec.groups] == [("agent", 2)]


def test_agents_of_unequal_shape_are_in_different_groups() -> None:
    game, fragments = played("mpe2.simple_tag_v3:parallel_env")
    assert [(group.name, group.size) for group in game.spec.groups] == [("adversary", 3), ("agent", 1)]
    assert game.spec.groups[0].obs_shape != game.spec.groups[1].obs_shape
    assert game.spec.turns == 8
    assert fragments[0].truncated[-1].all()
    assert not fragments[0].terminated.any()


def test_the_state_of_an_environment_is_for_critics(tmp_path: Path) -> None:
    name = "mpe2.simple_tag_v3:parallel_env"
    game = make_game(find_game(name), {}, [0])
    env = game._worlds[0].env  # type: ignore[attr-defined]
    game.reset(np.arange(1), np.array([7], np.uint64))
    out = np.zeros((1, *env.state().shape), np.float32)
    game.observe_state(0, out)
    assert np.array_equal(out[0], env.state().astype(np.float32))
    assert train(tmp_path / "run", name, "ppo", "executor", critic="state").result["finished"]


def test_dead_agents_enter_no_batch() -> None:
    _, (fragment,) = played("pettingzoo:butterfly/knights_archers_zombies-v11", worlds=4, max_cycles=300)
    lengths = fragment.alive.sum(axis=0)
    assert lengths.min() < lengths.max() <= fragment.turns, "no agent died"
    for world, agent in np.argwhere(lengths < lengths.max(axis=1, keepdims=True)).tolist():
        last = lengths[world, agent] - 1
        assert fragment.alive[: last + 1, world, agent].all()
        assert fragment.terminated[last, world, agent]


def test_a_game_in_turn_is_played_in_turn() -> None:
    """In tictactoe a move of the second agent is only legal if it has seen the first one's."""
    game, (fragment,) = played("pettingzoo:classic/tictactoe-v3", worlds=8)
    assert game.spec.in_turn
    assert game.spec.groups[0].masked
    for world in range(8):
        moves = [
            int(fragment.actions[turn, world, agent])
            for turn in range(fragment.turns)
            for agent in range(2)
            if fragment.alive[turn, world, agent]
        ]
        assert len(moves) == len(set(moves)) >= 5
        returns = fragment.returns[world]
        assert returns.sum() == 0
        assert set(returns.tolist()) <= {-1.0, 0.0, 1.0}
        ends = fragment.terminated[:, world] & fragment.alive[:, world]
        assert ends.sum(axis=0).tolist() == [1, 1]


def test_a_waiting_agent_is_paid_for_its_last_move() -> None:
    """Moves a b, -b, a -, a -, ab, ab: a waits in the second turn, b in the third and the fourth."""
    game, (fragment,) = played(f"{HERE}:out_of_turn", worlds=1)
    assert game.spec.in_turn
    assert fragment.alive[:, 0].tolist() == [
        [True, True], [False, True], [True, False], [True, False], [True, True], [True, True],
    ]  # fmt: skip
    paid = {
        0: [2 + 4 + 8, 0, 16, 32, 64 + 128, 256 + 512],  # what a receives from each of its moves to its next
        1: [-4, -(8 + 16 + 32 + 64), 0, 0, -(128 + 256), -512],
    }
    for agent, rewards in paid.items():
        alive = fragment.alive[:, 0, agent]
        assert fragment.rewards[alive, 0, agent].tolist() == [r for r in rewards if r]
        assert fragment.terminated[:, 0, agent].tolist() == [False] * 5 + [True]
        assert fragment.ages[alive, 0, agent].tolist() == list(range(alive.sum()))  # one life: memory and frames go on
        found = find_transitions(fragment, in_turn=True)
        assert found.after[alive, 0, agent].tolist() == [*np.flatnonzero(alive)[1:].tolist(), 6]
        assert (found.elapsed == 1).all()  # no time passes while an agent waits
    assert [finding.problem for finding in check(f"{HERE}:out_of_turn") if not finding.good] == []
    with pytest.raises(ConfigError, match="agents act one after another"):
        parallel_env(f"{HERE}:out_of_turn")


def test_observations_are_flattened_as_documented() -> None:
    _, (lake,) = played("gymnasium:FrozenLake-v1")
    assert lake.obs.shape[3:] == (16,)
    assert (lake.obs.sum(axis=3) == 1).all()
    _, (cards,) = played("gymnasium:Blackjack-v1")
    assert cards.obs.shape[3:] == (32 + 11 + 2,)
    _, (cart,) = played("gymnasium:CartPole-v1")
    assert cart.obs.dtype == np.float32


def test_copies_end_independently_and_the_world_waits_for_all() -> None:
    game, (lake,) = played("gymnasium:FrozenLake-v1", agents=3, worlds=5)
    assert game.spec.agents == 3
    lengths = lake.alive.sum(axis=0)
    assert (lengths.max(axis=1) > lengths.min(axis=1)).any()


def test_a_factory_is_a_game_and_its_arguments_are_options(tmp_path: Path) -> None:
    run = train(tmp_path / "run", random_walk, "ppo", "executor", size=5)  # type: ignore[arg-type]
    assert run.plan.game == f"{HERE}:random_walk"
    assert run.plan.options["size"] == 5
    assert run.result["finished"]
    with pytest.raises(remuda.RemudaError, match="unknown setting 'sise': did you mean 'size'"):
        train(tmp_path / "other", random_walk, "ppo", "executor", sise=5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "match"),
    [
        (f"{HERE}:text_observations", "observes Text.*can be flattened; wrap the environment"),
        (f"{HERE}:continuous_actions", "learner iqn chooses one of some actions, and group 'all' has Box.*ppo"),
        (f"{HERE}:no_environment", "does not make an environment: make a PettingZoo environment"),
        (f"{HERE}:GAMES", "neither a GameEntry nor a factory"),
        ("gymnasium:CartPole-v99", "CartPole-v99"),
        ("mpe2.simple_tag_v3:parallel_env", "agents=2 is for Gymnasium environments"),
    ],
)
def test_unsuitable_environments_are_refused(tmp_path: Path, name: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        remuda.train(name, out=tmp_path / "run", quiet=True, agents=2 if "mpe2" in name else 1)


SCRIPT = """
import gymnasium, remuda

print("the script runs")

def game():
    return gymnasium.make("CartPole-v1")

{guard}remuda.train(game, out="run", engine="{engine}", n_workers={workers}, worlds=8, total_episodes=8, turns=9,
{guard}             learner="ppo", layers=[8], pictures=False, quiet=True)
"""


@pytest.mark.parametrize(
    ("options", "said"),
    [({"push": "strong"}, "push='strong' .* should be a number"), ({"tries": "few"}, "tries='few' .* a number"),
     ({"mode": 3}, "mode=3 .* should be a text or null")],
)  # fmt: skip
def test_arguments_that_a_factory_cannot_mean_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_plan({"game": f"{GYMNASIUM}:Endless", **options})


def test_other_arguments_are_passed_on_as_they_are() -> None:
    given = {"push": 1, "tries": 0.5, "mode": "fast", "sizes": [3]}
    game: Any = make_game(find_game(f"{GYMNASIUM}:Endless"), given, [0])
    assert game._worlds[0].envs[0].given == (1, 0.5, "fast", [3])
    assert type(make_plan({"game": f"{GYMNASIUM}:Endless", **given}).options["push"]) is int


def test_an_episode_without_a_limit_is_cut_and_that_is_said(tmp_path: Path) -> None:
    notes = [finding.note for finding in check(f"{GYMNASIUM}:Endless") if finding.note]
    assert notes == ["the episode did not end by itself and was cut after 1,000 turns: turns=N sets the limit"]
    assert not any(finding.note for finding in check(f"{GYMNASIUM}:Endless", turns=30))
    train(tmp_path / "a", f"{GYMNASIUM}:Endless", "ppo", "vectorized")
    train(tmp_path / "b", f"{GYMNASIUM}:Endless", "ppo", "vectorized", turns=9)
    said = "an episode that does not end by itself is cut after 1,000 turns: turns=N sets the limit"
    assert said in (tmp_path / "a" / "console.log").read_text()
    assert "cut after" not in (tmp_path / "b" / "console.log").read_text()


@pytest.mark.parametrize(
    ("name", "said"),
    [("ResetsToObservation", "reset returned one value of type int: it should return two values"),
     ("StepsToFour", "step returned 4 values: it should return five values"),
     ("Unseeded", r"super().reset(seed=seed), then self.np_random")],
)  # fmt: skip
def test_check_says_what_an_environment_of_gymnasium_should_do(name: str, said: str) -> None:
    problems = [finding.problem or "" for finding in check(f"{GYMNASIUM}:{name}", turns=20)]
    assert any(said in problem for problem in problems), problems


def test_workers_play_their_share_of_the_worlds_at_once() -> None:
    plan = make_plan({"game": "gymnasium:CartPole-v1", "learner": "ppo", "engine": "executor", "worlds": 16})
    assert [task_size(plan, workers) for workers in (1, 2, 3, 16, 40)] == [16, 8, 6, 1, 1]


def run_script(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(text)
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "script.py"]
    return subprocess.run(command, cwd=folder, env=buffered, capture_output=True, text=True, check=False, timeout=300)


def test_a_script_trains_its_own_game(tmp_path: Path) -> None:
    lines = SCRIPT.format(guard="    ", engine="executor", workers=1)
    done = run_script(tmp_path, lines.replace("    remuda.train", 'if __name__ == "__main__":\n    remuda.train'))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "result.json").exists()


@pytest.mark.parametrize("engine", ["executor", "auto"])
def test_a_script_without_its_main_guard_gets_one_sentence_at_the_end(tmp_path: Path, engine: str) -> None:
    """One traceback, that of the script itself, however many workers found out."""
    script = SCRIPT.format(guard="", engine=engine, workers=8)
    long = script.replace("total_episodes=8", "total_episodes=10**6")  # `auto` starts no processes for a short run
    done = run_script(tmp_path, long)
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1].endswith('put the call under `if __name__ == "__main__":`')
    assert done.stderr.count("Traceback") == 1
    assert "forkserver.py" not in done.stderr
    assert done.stdout.splitlines() == ["the script runs"]
    assert not (tmp_path / "run").exists()


def test_what_an_environment_hands_out_is_never_written(tmp_path: Path) -> None:
    scores = remuda.evaluate(f"{HERE}:keeps_its_dict", 2, learner="random")
    assert scores.returns.tolist() == [[5.0], [5.0]]


@pytest.mark.parametrize(("value", "good"), [(0.7, True), (3.0, False), (float("nan"), False)])
def test_check_reports_observations_outside_their_box(value: float, good: bool) -> None:
    findings = {finding.promise: finding for finding in remuda.check(f"{HERE}:outside", value=value)}
    finding = findings["observations stay in their space"]
    assert finding.good == good
    assert good or "an observation outside -1 to 1" in str(finding.problem)
