"""A run in a notebook: how it shows itself, its scores, its curve, its film, and its agents in a loop of one's own."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import MultiBinary
from matplotlib.figure import Figure

import remuda
from remuda.core.errors import ConfigError, RunError
from remuda.runs.describe import commands, last_rows

FULL = {"evaluate_every": 6, "pictures": True}


@pytest.fixture(scope="module")
def run(trained: Any) -> remuda.Run:
    made = trained(**FULL)
    assert isinstance(made, remuda.Run)
    return made


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A stand-in for IPython with a kernel; returns what is displayed."""
    shown: list[Any] = []
    ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=True)  # type: ignore[attr-defined]
    display.Image = lambda filename: ("image", filename)  # type: ignore[attr-defined]
    display.display = shown.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return shown


def test_a_run_says_what_it_is_and_what_to_type(run: remuda.Run) -> None:
    text, table = repr(run), run._repr_html_()
    for words in (
        str(run.path), "treasurehunt", "iqn (2 of 2 agents)", "vectorized", "12 of 12, finished",
        "after 12 episodes, return of each agent (95 %): ", " ± ", "metrics.csv", f"remuda evaluate {run.path}",
    ):  # fmt: skip
        assert words in text, words
        assert words in table, words
    assert "resume" not in text


def test_the_commands_a_run_shows_work(cli: Any, run: remuda.Run, copy_of: Any, train: Any) -> None:
    stopped = train("stopped", callback=lambda rows: rows[0]["round"] < 2)
    for path, words in ((copy_of(run).path, {"evaluate", "watch"}), (stopped.path, {"resume", "evaluate"})):
        lines = [shlex.split(line) for line in commands(path)]
        assert {line[1] for line in lines} == words
        for line in lines:
            assert cli(*line[1:]).code == 0, line
    assert remuda.load(stopped.path).finished


def test_a_run_under_way_says_how_far_it_is(train: Any, tmp_path: Path) -> None:
    seen: list[str] = []
    train(callback=lambda rows: seen.append(repr(remuda.load(tmp_path / "run"))))
    assert re.search(r"^episodes +3 of 12$", seen[0], re.MULTILINE)
    assert re.search(r"^episodes +9 of 12$", seen[2], re.MULTILINE)
    assert "none yet" in seen[0]
    assert "finished" not in seen[2]


def test_a_damaged_run_still_shows_itself(run: remuda.Run, copy_of: Any) -> None:
    damaged = copy_of(run)
    (damaged.path / "config.yaml").write_text("options: 3\nlearners: [1]\ngame: '<script>alert(1)</script>'\n")
    (damaged.path / "result.json").write_text("[")
    (damaged.path / "metrics.csv").write_text("round,episodes\n1,x\n")
    (damaged.path / "evaluations.csv").write_bytes(b"\xff\xff\n\x00")
    assert "<script>" in repr(damaged)
    assert "<script>" not in damaged._repr_html_()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cpu_s", "x"),
        ("cpu_s", -1),
        ("episodes", 1.5),
        ("finished", "yes"),
        ("evaluation", 3),
        ("weights_sha256", None),
    ],
)
def test_a_result_whose_numbers_are_none_is_damaged_and_names_the_field(
    run: remuda.Run, copy_of: Any, name: str, value: Any
) -> None:
    damaged = copy_of(run)
    result = json.loads((damaged.path / "result.json").read_text())
    (damaged.path / "result.json").write_text(json.dumps({**result, name: value}))
    with pytest.raises(remuda.RemudaError, match=rf"result.json is damaged \({name}\): `remuda resume "):
        _ = damaged.result
    assert not damaged.finished


def test_showing_a_run_imports_nothing_that_it_names(copy_of: Any, run: remuda.Run, tmp_path: Path) -> None:
    foreign = copy_of(run)
    config = foreign.path / "config.yaml"
    config.write_text(config.read_text().replace("game: treasurehunt", "game: this_would_run:ENTRY"))
    assert "this_would_run:ENTRY" in repr(foreign)


def test_last_rows_reads_the_end_of_a_long_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remuda.runs.describe.TAIL_BYTES", 200)
    lines = [f"{round_},{10 * round_},{agent},iqn" for round_ in range(1, 500) for agent in range(3)]
    (tmp_path / "metrics.csv").write_text("\n".join(["round,episodes,agent,player", *lines, "500,50"]))
    rows = last_rows(tmp_path / "metrics.csv")
    assert [(row["episodes"], row["agent"]) for row in rows] == [("4990", "0"), ("4990", "1"), ("4990", "2")]


def test_metrics_are_columns_that_pandas_takes(run: remuda.Run) -> None:
    """A DataFrame wants one-dimensional arrays of one length."""
    assert {column.shape for column in run.metrics.values()} == {(8,)}
    assert all(isinstance(name, str) for name in run.metrics)


def test_scores_show_themselves(run: remuda.Run) -> None:
    scores = run.evaluate(episodes=8)
    found = scores.summary()
    assert scores.returns.shape == (8, 2)
    for text in (repr(scores), scores._repr_html_()):
        assert f"total return {found['total_return']:.2f}" in text
        assert f"{found['mean_return'][1]:.2f}" in text
        assert "gems" in text
    assert len(repr(scores).splitlines()) == 4


def test_evaluate_takes_a_run_a_path_or_a_game(run: remuda.Run) -> None:
    own = run.evaluate(8).returns
    for same in (remuda.evaluate(run, 8), remuda.evaluate(run.path, 8), remuda.evaluate(str(run.path), 8)):
        assert np.array_equal(same.returns, own)
    assert not np.array_equal(run.evaluate(8, exploration=1.0).returns, own)
    assert not np.array_equal(run.evaluate(8, seed=5).returns, own)
    players = remuda.evaluate("treasurehunt", 3, learner="random", agents=4, turns=10)
    assert players.returns.shape == (3, 4)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"episodes": 0}, "episodes=0"),
        ({"exploration": 1.5}, "exploration=1.5"),
        ({"lr": 3}, "lr cannot be changed"),
        ({"game": "treasurehunt"}, "leave game= out"),
    ],
)
def test_what_cannot_be_evaluated_is_told_in_a_sentence(run: remuda.Run, change: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        remuda.evaluate(run, **change)


def test_a_path_that_is_no_run(tmp_path: Path) -> None:
    for function in (remuda.evaluate, remuda.watch, remuda.export, remuda.load):
        with pytest.raises(RunError, match="is not a run"):
            function(tmp_path)  # type: ignore[operator]
    with pytest.raises(RunError, match="give a Run, or the path"):
        remuda.watch(3)  # type: ignore[call-overload]


def test_watching_writes_a_gif(run: remuda.Run, tmp_path: Path) -> None:
    assert remuda.watch(run, tmp_path / "a.gif") == tmp_path / "a.gif"
    assert run.watch(tmp_path / "b.gif") == tmp_path / "b.gif"
    assert (tmp_path / "a.gif").read_bytes() == (tmp_path / "b.gif").read_bytes()


def test_a_notebook_shows_the_gif(run: remuda.Run, copy_of: Any, notebook: list[Any]) -> None:
    path = copy_of(run).watch()
    assert path.name == "watch.gif"
    assert notebook == [("image", str(path))]


def test_the_curve_is_a_figure_that_shows_itself(run: remuda.Run) -> None:
    figure = run.plot()
    assert isinstance(figure, Figure)
    assert len(figure.axes[0].lines) == 2 * (2 + 1) + 1, "two agents and their mean, raw and smoothed; the evaluations"
    assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]


def test_an_agent_acts_as_it_does_when_it_is_evaluated(run: remuda.Run, tmp_path: Path) -> None:
    """With the recorded observations, frames and all: to the same actions."""
    recording = remuda.record(run, tmp_path / "a.npz", episodes=3)
    group = recording.groups[0]
    for number in range(2):
        agent = run.agent(number)
        assert agent.observation_shape == group.observations.shape[3:]
        assert agent.observation_dtype == group.observations.dtype
        assert agent.actions == 4
        for episode, turns in enumerate(recording.turns):
            agent.reset()
            acted = [agent.act(obs) for obs in group.observations[episode, :turns, number]]
            assert acted == group.actions[episode, :turns, number].tolist()


def test_an_agent_plays_in_a_loop_of_ones_own(run: remuda.Run) -> None:
    env = remuda.parallel_env("treasurehunt", **run.plan.options)
    agents = {name: run.agent(number) for number, name in enumerate(env.possible_agents)}
    observations, _ = env.reset(seed=1)
    while env.agents:
        actions = {name: agents[name].act(observations[name]) for name in env.agents}
        observations, *_ = env.step(actions)


def test_agents_that_do_not_learn_act_too(trained: Any) -> None:
    mixed = trained(agents=3, learners={"1": "random", "2": f"frozen:{trained().path}/0"})
    obs = np.zeros(mixed.agent(0).observation_shape, mixed.agent(0).observation_dtype)
    assert mixed.agent(2).act(obs) == trained().agent(0).act(obs)
    random = mixed.agent(1)
    assert len({random.act(obs) for _ in range(40)}) == 4
    assert "random" in repr(random)


def test_wrong_observations_are_told_with_the_right_ones(run: remuda.Run) -> None:
    agent = run.agent(0)
    shape, dtype = agent.observation_shape, agent.observation_dtype
    wanted = rf"agent 0 of .* takes {dtype} of shape \({shape[0]},\)"
    for wrong in (np.zeros(3, dtype), np.zeros(shape, np.float64), np.zeros((1, *shape), dtype), {"obs": 1}):
        with pytest.raises(ConfigError, match=wanted):
            agent.act(wrong)
    with pytest.raises(ConfigError, match="leave state out"):
        agent.act(np.zeros(shape, dtype), state=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="leave mask out"):
        agent.act(np.zeros(shape, dtype), mask=[1, 1, 1, 1])
    with pytest.raises(RunError, match="has no agent 2: it has agents 0 to 1"):
        run.agent(2)


class Parts(gymnasium.Env[Any, Any]):
    """Shows parts, and allows only what the observation says."""

    observation_space = gymnasium.spaces.Dict(
        place=gymnasium.spaces.Box(-1, 1, (2,)), kind=gymnasium.spaces.Discrete(3), action_mask=MultiBinary(2)
    )
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        return self.seen(), 1.0, self.np_random.random() < 0.3, False, {}

    def seen(self) -> Any:
        allowed = int(self.np_random.integers(2))
        place = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return {"place": place, "kind": 1, "action_mask": np.arange(2) == allowed}


def test_an_agent_takes_what_its_environment_shows(tmp_path: Path) -> None:
    run = remuda.train(
        Parts, out=tmp_path / "run", quiet=True, learner="ppo", layers=[8], minibatches=1, worlds=2, total_episodes=2,
        evaluate_episodes=1, pictures=False,
    )  # fmt: skip
    agent, env = run.agent(0), Parts()
    obs, _ = env.reset(seed=1)
    for _ in range(20):
        assert agent.act(obs) == int(np.argmax(obs["action_mask"]))
        obs = env.seen()
    flat = np.concatenate([[0, 1, 0], obs["place"]]).astype(np.float32)  # kind, then place: the keys are sorted
    assert agent.act(flat, mask=obs["action_mask"]) == agent.act(obs)
    with pytest.raises(ConfigError, match="the observation is none of Dict"):
        agent.act({"place": obs["place"], "action_mask": obs["action_mask"]})
    files = {path.name: path for path in remuda.export(run, 0, tmp_path / "agent")}
    assert "numbers 0 to 2: ['kind'], one-hot" in files["network.py"].read_text()


def test_numbers_that_fit_are_taken_in_the_type_of_the_observation(run: remuda.Run, tmp_path: Path) -> None:
    agent = run.agent(0)
    zeros = np.zeros(agent.observation_shape, agent.observation_dtype)
    assert agent.act(zeros.tolist()) in range(4)
    with pytest.raises(ConfigError, match="takes uint8"):
        agent.act([*zeros.tolist()[1:], 300])


def test_a_refused_observation_is_not_remembered(run: remuda.Run) -> None:
    agent, other = run.agent(0), run.agent(0)
    obs = np.ones(agent.observation_shape, agent.observation_dtype)
    with pytest.raises(ConfigError):
        agent.act(obs[:-1])
    assert [agent.act(obs) for _ in range(3)] == [other.act(obs) for _ in range(3)]


def test_masks_are_kept_to_and_checked(tmp_path: Path) -> None:
    run = remuda.train(
        "remuda.testing:MASKED", out=tmp_path / "run", quiet=True, learner="ppo", layers=[8], worlds=2,
        total_episodes=2, evaluate_episodes=1, pictures=False,
    )  # fmt: skip
    agent = run.agent(0)
    obs = np.zeros(agent.observation_shape, agent.observation_dtype)
    for allowed in range(agent.actions):
        assert agent.act(obs, mask=np.arange(agent.actions) == allowed) == allowed
    for mask in (None, np.ones(agent.actions + 1, bool), np.zeros(agent.actions, bool)):
        with pytest.raises(ConfigError, match=rf"takes bool of shape \({agent.actions},\)"):
            agent.act(obs, mask=mask)


def test_a_run_that_no_signal_stopped_says_so(run: remuda.Run) -> None:
    assert run.stopped_by is None
