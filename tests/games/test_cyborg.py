"""CAGE 2 in the original simulator: observations, actions, rewards and metrics are those of ours."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import cyborg_standin as original
import numpy as np
import pytest

import remuda
from remuda.adapters.inbound.worlds import SimulatorGame
from remuda.core import rng
from remuda.core.errors import ConfigError
from remuda.core.game import StepCost, make_game
from remuda.core.rng import Stream
from remuda.engines.collectors.task_size import task_size
from remuda.games.cage2.belief import (
    ALL_HYPOTHESES,
    HYPOTHESES_BYTES,
    HYPOTHESIS,
    Belief,
    conclude,
    suppose,
    write_belief,
)
from remuda.games.cage2.compact import N_COMPACT
from remuda.games.cage2.game import METRICS
from remuda.games.cage2.memory import FEATURES, MEMORY, forget, full_action, remember, write_features, write_mask
from remuda.games.cage2.network import ANALYSE, NAMES, RESTORE, VERBS, action_name, action_of
from remuda.games.cage2.truth import TRUTH_FEATURES
from remuda.games.registry import find_game
from remuda.learners.herd import assign, bind_policy
from remuda.runs.evaluation import evaluate_policies
from remuda.runs.settings import make_plan, spec_of
from remuda.testing.check import check

MISSING = "cage-challenge-2"
APACHE, SMSS = VERBS.index("DecoyApache"), VERBS.index("DecoySmss")


@pytest.fixture
def cyborg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[original.CybORG]:
    original.install(tmp_path / "CybORG", monkeypatch)
    return original.CybORG


@pytest.fixture
def cyborg_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The stand-in as files, so that worker processes can import it too."""
    original.write(tmp_path / "installed" / "CybORG")
    monkeypatch.syspath_prepend(tmp_path / "installed")
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "CybORG"]:
        del sys.modules[name]


def make(worlds: int = 1, **options: Any) -> SimulatorGame:
    game = make_game(find_game("cage2"), {"simulator": "cyborg", "steps": 20, **options}, range(worlds))
    assert isinstance(game, SimulatorGame)
    return game


def start(game: SimulatorGame, seed: int = 0) -> None:
    game.reset(np.arange(game.worlds), rng.keys(rng.key(seed, Stream.CHECK), np.arange(game.worlds)))


def play(game: SimulatorGame, actions: list[int]) -> tuple[list[Any], list[float]]:
    """The observations and rewards of each world after every action."""
    seen, paid = [], []
    for action in actions:
        game.step([np.full((game.worlds, 1), action)])
        out = np.zeros((game.worlds, 1, 52), np.uint8)
        game.observe(0, 0, 1, out)
        seen.append(out[:, 0].copy())
        paid.append(game.signals[0].rewards[:, 0].copy())
        game.signals[0].forget(0, 1)
    return seen, paid


def metrics(game: SimulatorGame, world: int = 0) -> dict[str, float]:
    names = game.spec.groups[0].metrics
    return dict(zip(names, game.signals[0].metrics[world, 0].tolist(), strict=True))


@pytest.mark.usefixtures("cyborg")
def test_it_has_the_shape_of_ours() -> None:
    ours = make_game(find_game("cage2"), {"steps": 20}, [0]).spec
    theirs = make().spec
    assert theirs.groups == tuple(replace(group, state_shape=None) for group in ours.groups)  # it shows critics none
    assert theirs.turns == ours.turns


@pytest.mark.usefixtures("cyborg")
def test_actions_have_the_same_numbers() -> None:
    game = make(red="sleep")
    start(game)
    world: Any = game._worlds[0]
    theirs = [f"{type(a).__name__} {a.hostname or ''}".strip() for a in world._blue.possible_actions]
    assert theirs == [action_name(i) for i in range(145)]
    assert original.HOSTS == NAMES


@pytest.mark.usefixtures("cyborg")
def test_it_keeps_every_promise() -> None:
    options: list[dict[str, Any]] = [
        {},
        {"red": "mixed", "green": True},
        {"true_state": "step", "wrapper": "challenge2"},
    ]
    for each in options:
        assert [
            f"{f.promise}: {f.problem}" for f in check("cage2", simulator="cyborg", steps=12, **each) if f.problem
        ] == []


@pytest.mark.usefixtures("cyborg")
def test_the_same_key_gives_the_same_episode_whatever_other_code_draws() -> None:
    game, actions = make(), [0, 140, 3, 30] * 5
    start(game)
    first = play(game, actions)
    random.seed(99)
    before = random.getstate()
    start(game)
    again = play(game, actions)
    assert random.getstate() == before  # the global generator is unchanged
    assert np.array_equal(first[0], again[0])
    assert np.array_equal(first[1], again[1])
    start(game, seed=1)
    assert not np.array_equal(first[1], play(game, actions)[1])


def test_a_simulator_is_made_once(cyborg: type[original.CybORG]) -> None:
    game = make(worlds=2)
    assert cyborg.made == 0  # the spec does not need a simulator
    for seed in range(3):
        start(game, seed)
        play(game, [0] * 20)
    assert cyborg.made == 2


@pytest.mark.usefixtures("cyborg")
def test_worlds_have_their_own_options() -> None:
    game = make(worlds=3, red=["sleep", "b_line"], green=[False, False, True])
    start(game)
    play(game, [0] * 20)
    lost = [metrics(game, world)["hosts_lost"] for world in range(3)]
    assert lost[0] == 0 < lost[1]
    assert lost[2] == 0  # sleep again, with green
    seen, _ = play_bits(make(worlds=3, red="sleep", green=[False, True]))
    assert [bool(bits.any()) for bits in seen] == [False, True, False]


def play_bits(game: SimulatorGame) -> tuple[Any, Any]:
    start(game)
    seen, paid = play(game, [0] * 20)
    return np.array(seen).max(axis=0), paid


@pytest.mark.usefixtures("cyborg")
def test_rewards_and_the_end_arrive() -> None:
    game = make(red="sleep")
    start(game)
    _, paid = play(game, [0, action_of(RESTORE, 3), *[0] * 17])
    assert np.allclose(np.ravel(paid), [0, -1, *[0] * 17])
    assert not game.over.any()
    game.step([np.zeros((1, 1), np.int64)])
    assert game.over.all()
    assert game.signals[0].truncated.all()
    assert not game.signals[0].terminated.any()


@pytest.mark.usefixtures("cyborg")
def test_metrics_count_what_ours_count() -> None:
    game = make(red="b_line")
    start(game)
    world: Any = game._worlds[0]
    lost = impacts = 0
    actions = [
        action_of(APACHE, 1),
        action_of(SMSS, 1),
        action_of(RESTORE, 2),
        action_of(3, 4),
        action_of(ANALYSE, 4),
        0,
    ]
    for action in actions * 3:
        play(game, [action])
        lost += len(world._cyborg.root - {"User0"})
        impacts += type(world._cyborg.action["Red"]).__name__ == "Impact" and "Op_Server0" in world._cyborg.root
    assert lost > 0
    assert metrics(game) == {
        "hosts_lost": lost, "impacts": impacts, "restores": 3, "removes": 3, "decoys": 3,
    }  # fmt: skip


@pytest.mark.parametrize(("true_state", "asked"), [("never", 0), ("episode", 1), ("step", 20)])
def test_the_true_state_is_read_as_often_as_wanted(cyborg: type[original.CybORG], true_state: str, asked: int) -> None:
    game = make(true_state=true_state)
    start(game)
    play(game, [0] * 20)
    assert cyborg.asked == asked
    world: Any = game._worlds[0]
    entered = len(world._cyborg.entered - {"User0"})
    assert entered > 0
    known = {"never": {}, "episode": {"hosts_held": entered}, "step": {"hosts_held": entered, "hosts_entered": entered}}
    assert {name: value for name, value in metrics(game).items() if name not in METRICS} == known[true_state]
    assert bool(world.true_state) == bool(asked)


@pytest.mark.parametrize(("wrapper", "shown"), [("challenge", False), ("challenge2", True)])
@pytest.mark.usefixtures("cyborg")
def test_the_wrappers_differ_where_a_decoy_meets_a_scan(wrapper: str, shown: bool) -> None:
    game = make(wrapper=wrapper, red="meander")
    start(game)
    world: Any = game._worlds[0]
    table = world._blue.env
    decoy, scan = {"Service Name": "apache"}, {"Connections": [{"local_port": 80}]}
    assert table._interpret_connections([decoy]) == "None"
    assert table._interpret_connections([scan]) == "Scan"
    assert table._interpret_connections([decoy, scan]) == ("Scan" if shown else "None")
    met = []
    for _ in range(19):  # place the decoy on the host that red will scan next
        state = world._random_state._python
        peek = random.Random()
        peek.setstate(state)
        host = NAMES.index(peek.choice(original.HOSTS[-5:]))
        seen, _ = play(game, [action_of(APACHE, host)])
        met.append(bool(seen[0][0, 4 * host]))
    assert met == [shown] * 19


@pytest.mark.usefixtures("cyborg")
def test_scripted_and_trained_defenders_can_be_evaluated_there(tmp_path: Path, cli: Any) -> None:
    plan = make_plan({"game": "cage2", "learner": "react_restore", "simulator": "cyborg", "steps": 12, "seed": 3})
    spec = spec_of(plan)
    bindings = [bind_policy(part, plan, spec, "cpu") for part in assign(plan, spec)]
    scores = evaluate_policies(plan, spec, bindings, 6)
    assert scores.returns.shape == (6, 1)
    assert (scores.metrics["restores"] >= 0).all()
    run = remuda.train(
        "cage2", learner="ppo", steps=12, worlds=2, total_episodes=4, evaluate_episodes=1, layers=[8], device="cpu",
        pictures=False, quiet=True, out=tmp_path / "run",
    )  # fmt: skip
    here, there = (cli("evaluate", run.path, "--episodes", "3", *words) for words in ([], ["simulator=cyborg"]))
    assert (here.code, there.code) == (0, 0), there.err
    assert here.out != there.out
    assert cli("evaluate", run.path, "--episodes", "3", "simulator=cyborg").out == there.out
    assert "hosts_entered" in cli("evaluate", run.path, "--episodes", "3", "simulator=cyborg", "true_state=step").out


@pytest.mark.usefixtures("cyborg_for_all")
def test_it_can_be_trained_in_on_every_engine(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "learner": "ppo", "steps": 8, "worlds": 3, "total_episodes": 6, "evaluate_episodes": 1, "layers": [8],
        "device": "cpu", "pictures": False, "quiet": True, "simulator": "cyborg", "n_workers": 2,
    }  # fmt: skip

    def train(engine: str, deterministic: bool = True) -> dict[str, Any]:
        return remuda.train(
            "cage2", out=tmp_path / engine, engine=engine, deterministic=deterministic, **settings
        ).result

    waiting = [train(engine) for engine in ("sequential", "vectorized", "executor", "sync", "auto")]
    assert len({result["weights_sha256"] for result in waiting}) == 1
    free = train("actor-learner", deterministic=False)
    assert all(result["failures"]["episodes_failed"] == 0 for result in (*waiting, free))


@pytest.mark.usefixtures("cyborg")
def test_engines_know_that_the_original_plays_one_world_at_a_time() -> None:
    for simulator, cost, size in (("own", StepCost.BATCHED, 4), ("cyborg", StepCost.SLOW, 1)):
        plan = make_plan({"game": "cage2", "learner": "ppo", "simulator": simulator})
        assert find_game("cage2").step_cost_of(plan.options) is cost
        assert task_size(plan, workers=4) == size


def test_without_cyborg_the_error_says_where_to_get_it(monkeypatch: pytest.MonkeyPatch, cli: Any) -> None:
    monkeypatch.setitem(sys.modules, "CybORG", None)
    with pytest.raises(ConfigError, match=r"simulator=cyborg needs CybORG 2\.1") as error:
        make()
    assert MISSING in str(error.value)
    outcome = cli("evaluate", "cage2", "--policy", "sleep", "simulator=cyborg")
    assert outcome.code == 2
    assert MISSING in outcome.err
    assert len(outcome.err.splitlines()) == 1


def test_another_package_of_that_name_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cyborg: type[original.CybORG]
) -> None:
    (tmp_path / "CybORG" / "Shared" / "Scenarios" / "Scenario2.yaml").unlink()
    with pytest.raises(ConfigError, match=f"no Scenario2.*{MISSING}"):
        make()
    for name in ("CybORG.Agents", "CybORG.Agents.Wrappers"):
        monkeypatch.delitem(sys.modules, name)
    other = ModuleType("CybORG")
    monkeypatch.setitem(sys.modules, "CybORG", other)
    with pytest.raises(ConfigError, match=MISSING):
        make()


def test_a_cyborg_with_other_actions_is_refused(cyborg: type[original.CybORG], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(original, "ON_HOSTS", original.ON_HOSTS[:-1])
    with pytest.raises(ConfigError, match=f"132 actions instead.*{MISSING}"):
        start(make())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"simulator": "cyborg", "observation": "truth"}, "observation=truth is for simulator=own"),
        ({"true_state": "step"}, "true_state=step is for simulator=cyborg"),
        ({"simulator": "cyborg", "true_state": "often"}, "true_state='often'"),
        ({"simulator": "cybrog"}, "simulator='cybrog'"),
    ],
)
@pytest.mark.usefixtures("cyborg")
def test_options_it_does_not_support_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        make_game(find_game("cage2"), options, [0])


@pytest.mark.usefixtures("cyborg")
def test_it_plays_the_rules_that_are_installed_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    make(rules="head")
    for wrong in ("leaderboard", ["head", "leaderboard"]):
        with pytest.raises(ConfigError, match=r"plays rules=head; say so, or check out commit 606813b"):
            make(rules=wrong)
    original.make_it_the_leaderboards(monkeypatch)
    make(rules="leaderboard")
    with pytest.raises(ConfigError, match=r"plays rules=leaderboard; say so, or check out the last version"):
        make()


@pytest.mark.usefixtures("cyborg")
def test_a_version_between_the_two_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    original.make_it_the_leaderboards(monkeypatch, fixes=1)
    with pytest.raises(ConfigError, match="one of two late fixes"):
        make()


@pytest.mark.usefixtures("cyborg")
def test_blue_remembers_there_as_it_does_here() -> None:
    """Fed with the bits of one game, memory and compact actions of the other show the same."""
    options = {"red": "b_line", "observation": "memory", "actions": "compact", "horizon": "terminal"}
    game, memory = make(**options), np.zeros(1, MEMORY)
    start(game)
    forget(memory[0])
    expected, allowed = np.zeros(FEATURES, np.float32), np.zeros(N_COMPACT, np.bool_)
    features, mask = np.zeros((1, 1, FEATURES), np.float32), np.zeros((1, 1, N_COMPACT), np.bool_)
    for turn in range(20):
        action = 7 * turn % N_COMPACT
        full = int(full_action(memory[0], action))
        game.step([np.full((1, 1), action)])
        world: Any = game._worlds[0]
        assert type(world._cyborg.get_last_action("Blue")).__name__ == action_name(full).split(" ")[0]
        remember(memory[0], world._obs, full)
        write_features(memory[0], expected)
        write_mask(memory[0], allowed)
        game.observe(0, 0, 1, features)
        game.mask(0, 0, 1, mask)
        np.testing.assert_array_equal(features[0, 0], expected)
        assert game.over[0] or (mask[0, 0] == allowed).all()
    assert game.signals[0].terminated.all()
    assert not game.signals[0].truncated.any()


@pytest.mark.usefixtures("cyborg")
def test_blue_believes_there_as_it_does_here() -> None:
    game, belief = make(red="b_line", observation="belief"), Belief.of(1)
    start(game)
    belief.counts[0] = suppose(belief.hypotheses[0])
    expected, shown = np.zeros(TRUTH_FEATURES, np.float32), np.zeros((1, 1, TRUTH_FEATURES), np.float32)
    world: Any = game._worlds[0]
    for turn in range(20):
        game.step([np.full((1, 1), 7 * turn)])
        conclude(belief, 0, world._obs, 7 * turn, 0, False)
        write_belief(belief.hypotheses[0], belief.counts[0], turn + 1, belief.written, expected)
        game.observe(0, 0, 1, shown)
        np.testing.assert_array_equal(shown[0, 0], expected)


@pytest.mark.usefixtures("cyborg")
def test_blue_has_the_same_hypotheses_there_and_the_planner_plays_on_them() -> None:
    options = {"observation": "hypotheses", "actions": "useful", "horizon": "terminal"}
    game, belief = make(red="b_line", **options), Belief.of(1)
    start(game)
    belief.counts[0] = suppose(belief.hypotheses[0])
    shown = np.zeros((1, 1, HYPOTHESES_BYTES), np.uint8)
    world: Any = game._worlds[0]
    for turn in range(20):
        game.step([np.full((1, 1), 12 + turn)])
        conclude(belief, 0, world._obs, world._memory[0].action, 0, False)
        game.observe(0, 0, 1, shown)
        count = belief.counts[0]
        assert shown[0, 0, ALL_HYPOTHESES:].view(np.int64).tolist() == [count, turn + 1, 0]
        expected = belief.hypotheses[0, :count].tobytes()
        assert shown[0, 0, : count * HYPOTHESIS.itemsize].tobytes() == expected
    scores = remuda.evaluate("cage2", 1, learner="planner", simulator="cyborg", red="b_line", steps=5, **options)
    assert len(scores.returns) == 1
