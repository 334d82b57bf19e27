"""Settings: from files, words and keywords to one plan, or to one sentence."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import remuda
from remuda.core.errors import ConfigError, UsageError
from remuda.core.game import GameEntry, Group
from remuda.core.plan import Plan
from remuda.core.yamlfile import read_assignments, read_yaml, write_yaml
from remuda.games.registry import SHIPPED, find_game
from remuda.learners.registry import SHIPPED_LEARNERS
from remuda.runs.peer_settings import INSTEAD
from remuda.runs.settings import OTHER_UNITS, PEER_NAMES, make_plan
from remuda.testing.broken_learners import Sound
from remuda.testing.odd_games import OddGame, OddOptions

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "unknown game": ({"game": "treasurehnt"}, "treasurehunt"),
    "no module": ({"game": "no_such_module:ENTRY"}, "no_such_module"),
    "no attribute": ({"game": "remuda.games.treasurehunt:NOTHING"}, "NOTHING"),
    "not a game": ({"game": "remuda.games.treasurehunt:GEM"}, "GameEntry"),
    "no module name": ({"game": ":ENTRY"}, ":ENTRY"),
    "a relative module": ({"game": ".games:ENTRY"}, ".games:ENTRY"),
    "a game that is a list": ({"game": ["treasurehunt"]}, "treasurehunt"),
    "unknown key": ({"agent": 3}, "agents"),
    "unknown option of the game": ({"game.spwan": 0.1}, "spawn"),
    "unknown option of the learner": ({"iqn.bach_size": 3}, "batch_size"),
    "unknown option among options": ({"options": {"heigth": 9}}, "height"),
    "unknown option among learner options": ({"learner_options": {"iqn": {"layr": 9}}}, "layer"),
    "a list for other agents": ({"lr": [0.1, 0.2, 0.3]}, "lr of learner iqn lists 3 values for a herd of 2"),
    "a list for some agents": (
        {"learners": {1: "ppo"}, "ppo.lr": [0.1]}, "lr of learner ppo lists 1 value for a herd of 2",
    ),
    "passes for other agents": ({"learner": "ppo", "passes": [1, 2, 3]}, "passes of learner ppo lists 3 values"),
    "updates for other agents": ({"updates_per_episode": [1.0]}, "lists 1 value for a herd of 2"),
    "the former name of features": ({"learner": "ppo", "ppo.width": 8}, "'width': it is called 'features' here"),
    "that name among learner options": (
        {"learner": "ppo", "learner_options": {"ppo": {"width": 8}}}, "it is called 'features' here",
    ),
    "a setting like no other": ({"zzzz": 8}, "`remuda settings`"),
    "unknown learner among learner options": ({"learner_options": {"iqm": {}}}, "iqn"),
    "options that are no mapping": ({"options": 3}, "options"),
    "learner options that are no mapping": ({"learner_options": {"iqn": 3}, "lr": 0.1}, "learner_options"),
    "unknown learner": ({"learner": "inq"}, "iqn"),
    "a learner that is a list": ({"learner": ["iqn"]}, "learner"),
    "unknown learner of an agent": ({"learners": {0: "rondom"}}, "random"),
    "a learner of an agent that is a list": ({"learners": {0: ["iqn"]}}, "learners"),
    "learners that are no mapping": ({"learners": "iqn"}, "learners"),
    "options of a scripted player": ({"learners": {0: {"learner": "random", "body": "gru"}}}, "leave out body"),
    "unknown option of an agent": ({"learners": {0: {"learner": "ppo", "bdy": "gru"}}}, "did you mean 'body'"),
    "a list of bodies": ({"body": ["gru", "mlp"]}, r"learners={0: {learner: iqn, body: gru}}"),
    "learner options by agent": ({"learner_options": {0: {"body": "gru"}}}, "learners={0: {learner: iqn, …}}"),
    "an option that other games have": ({"game": "harvest", "height": 5}, "The game has"),
    "an agent that is not there": ({"learners": {"0-2": "random"}}, "0 to 1"),
    "an agent twice": ({"learners": {"0": "random", "0-1": "iqn"}}, "agent 0 is listed twice, again in '0-1'"),
    "more episodes than a number has": ({"total_episodes": 1e308}, "a whole number up to 9223372036854775807"),
    "agents backwards": ({"learners": {"1-0": "random"}}, "1-0"),
    "an agent that is a word": ({"learners": {"first": "random"}}, "first"),
    "no agents": ({"agents": 0}, "agents"),
    "negative agents": ({"agents": -1}, "agents"),
    "half an agent": ({"agents": 1.5}, "agents"),
    "more agents than cells": ({"agents": 26, "height": 7, "width": 7}, "25 free cells"),
    "a field too small": ({"height": 2}, "height"),
    "no turns": ({"turns": 0}, "turns"),
    "no probability": ({"spawn": 1.5}, "spawn"),
    "a world without a probability": ({"spawn": [0.1, -0.1]}, "spawn"),
    "an empty list": ({"spawn": []}, "spawn"),
    "not a number": ({"spawn": float("nan")}, "spawn"),
    "infinite": ({"gem": float("inf")}, "gem"),
    "no worlds": ({"worlds": 0}, "worlds"),
    "no episodes": ({"total_episodes": 0}, "total_episodes"),
    "no epochs": ({"epochs": 0}, "epochs"),
    "half an epoch": ({"epochs": 1.5}, "epochs"),
    "epochs and episodes": ({"epochs": 2, "total_episodes": 9}, "epochs and total_episodes"),
    "negative seed": ({"seed": -1}, "seed"),
    "a seed too large": ({"seed": 2**64}, "seed"),
    "no updates": ({"updates_per_episode": 0}, "updates_per_episode"),
    "lag": ({"lag": 2}, "lag"),
    "precision": ({"precision": "fp8"}, "precision"),
    "device": ({"device": "tpu"}, "device"),
    "a limit that no clock reaches": ({"turn_limit_s": 1e10}, "less than or equal to 1000000000"),
    "no workers": ({"n_workers": 0}, "n_workers"),
    "batch larger than the replay buffer": ({"batch_size": 300, "replay_size": 200}, "batch_size=300"),
    "a batch too small": ({"batch_size": 1}, "batch_size"),
    "no layer": ({"layer": 0}, "layer"),
    "tau": ({"tau": 0}, "tau"),
    "learning rate": ({"lr": -1e-3}, "lr"),
    "learning rate at the end": ({"lr": "1e-3:-1e-3"}, "lr"),
    "discount": ({"gamma": 1.5}, "gamma"),
    "exploration": ({"epsilon": 2}, "epsilon"),
    "exploration in a list": ({"epsilon": [0.5, -0.5]}, "epsilon"),
    "schedule": ({"epsilon": "high:low"}, "epsilon"),
    "share of a schedule": ({"epsilon": "0.9:0.1:0"}, "epsilon"),
    "schedule that is not a number": ({"lr": "nan:nan"}, "lr"),
    "too few values": ({"lr": [1e-3]}, "lr"),
    "more than the default replay buffer ever holds": ({"batch_size": 20_000}, "batch_size"),
    "a start that never comes": ({"replay_size": 150, "learning_starts": 149}, "learning_starts"),
    "a body that draws chance": ({"body": "torch.nn:Dropout"}, "body"),
    "a body that is no path": ({"body": "Body"}, "body"),
    "a body that is not there": ({"body": "no_such_module:Body"}, "no_such_module"),
    "a body that is no module": ({"body": "builtins:dict"}, "body"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_settings_are_one_sentence(tmp_path: Path, name: str) -> None:
    """Through `train`, for some are only found when the herd is built; nothing may have been made by then."""
    settings, match = BAD[name]
    given = {"game": "treasurehunt", "total_episodes": 1, **settings}
    if "epochs" in settings and "total_episodes" not in settings:
        del given["total_episodes"]
    with pytest.raises(UsageError) as refusal:
        remuda.train(out=tmp_path / "run", quiet=True, **given)
    assert match in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "settings",
    [
        {"agents": 1_000_000, "height": 2000, "width": 2000},
        {"replay_size": 10**13},
        {"layer": 10**7},
        {"frames": 10**10},
        {"turns": 10**10},
        {"worlds": 10**10, "epochs": 1},
    ],
    ids=str,
)
def test_what_no_machine_can_hold_is_one_sentence(tmp_path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as refusal:
        remuda.train("treasurehunt", out=tmp_path / "run", quiet=True, **settings)
    assert "\n" not in str(refusal.value)
    assert "memory" in str(refusal.value)
    assert not (tmp_path / "run").exists()


def test_an_unknown_engine_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'vectorized'"):
        remuda.train("treasurehunt", engine="vectorised", out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_names_find_their_owner() -> None:
    plan = make_plan(
        {"game": "treasurehunt", "agents": 3, "game.turns": 50, "lr": 0.5, "iqn.layer": 8, "worlds": 4, "epochs": 5}
    )
    assert plan.options["agents"] == 3
    assert plan.options["turns"] == 50
    assert plan.learner_options["iqn"]["lr"] == 0.5
    assert plan.learner_options["iqn"]["layer"] == 8
    assert plan.total_episodes == 20


def test_hyphens_and_underscores_are_one() -> None:
    assert make_plan({"game": "treasurehunt", "total-episodes": 7}).total_episodes == 7


def test_a_plan_spells_out_every_option() -> None:
    plan = make_plan({"game": "treasurehunt"})
    assert plan.options["spawn"] == 0.005
    assert plan.learner_options["iqn"]["batch_size"] == 64


def test_options_of_nobody_are_not_taken() -> None:
    """A herd of random players has no learning rate."""
    with pytest.raises(UsageError, match="lr"):
        make_plan({"game": "treasurehunt", "learner": "random", "lr": 0.1})


def test_what_is_given_is_not_altered() -> None:
    settings = {"game": "treasurehunt", "learner_options": {"iqn": {"layer": 8}}, "options": {"turns": 5}, "lr": 0.1}
    before = copy.deepcopy(settings)
    make_plan(settings)
    assert settings == before


def test_a_written_plan_is_read_back(tmp_path: Path) -> None:
    given = {"spawn": [0.1, 0.2], "learners": {"0": "random"}, "replay_size": None, "epsilon": ["0.9:0.1:0.5", 0.2]}
    plan = make_plan({"game": "treasurehunt", **given})
    write_yaml(tmp_path / "plan.yaml", plan)
    assert Plan.read(read_yaml(tmp_path / "plan.yaml"), "the plan") == plan
    assert make_plan(read_yaml(tmp_path / "plan.yaml")) == plan


@pytest.mark.parametrize(
    "content",
    [
        b"a: [1, 2", b"- 1\n- 2\n", b"", b"just words", b"\xff\xfe\x00", b"a: \x00", b"a: b: c", b"[" * 20_000,
        b"a: !!python/object/apply:os.system ['touch executed']", b"a: !!python/name:os.system", b"a: !mine 3",
        b"a: *nowhere", b"? [1, 2]\n: 3\n? {a: b}\n: 4",
    ],
    ids=lambda content: content[:30],
)  # fmt: skip
def test_a_damaged_file_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "plan.yaml"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"plan\.yaml") as refusal:
        read_yaml(path)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_yaml(tmp_path / name)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("a=1", 1), ("a=1e-3", 1e-3), ("a=0.5", 0.5), ("a=true", True), ("a=word", "word"), ("a=[1, 2]", [1, 2]),
        ("a=null", None), ("a={0: iqn}", {0: "iqn"}), ("a=0.9:0.1:0.5", "0.9:0.1:0.5"), ("a=b=c", "b=c"),
        ("a=frozen:runs/x/0", "frozen:runs/x/0"),
    ],
)  # fmt: skip
def test_words_have_the_value_people_mean(word: str, value: Any) -> None:
    assert read_assignments([word]) == {"a": value}


@pytest.mark.parametrize("word", ["seed", "=3", "", "seed=", "a=[1, 2", "a=!!python/name:os.system"])
def test_words_of_another_form_are_one_sentence(word: str) -> None:
    with pytest.raises(UsageError) as refusal:
        read_assignments([word])
    assert "\n" not in str(refusal.value)


@given(total=st.integers(1, 500), size=st.integers(1, 60), rate=st.floats(0.01, 20))
def test_rounds_share_out_all_episodes_and_updates(total: int, size: int, rate: float) -> None:
    """Invariant 3: whatever the rounds, the sum is the plan's."""
    plan = Plan(game="g", total_episodes=total, episodes_per_update=size, updates_per_episode=rate)
    episodes = [plan.episodes_after(n) for n in range(plan.rounds + 1)]
    updates = [plan.updates_due(e) for e in episodes]
    assert episodes[0] == 0
    assert episodes[-1] == total
    assert all(0 < b - a <= size for a, b in pairwise(episodes))
    assert all(b >= a for a, b in pairwise(updates))
    assert abs(updates[-1] - total * rate) < 1.001


@pytest.mark.parametrize(
    ("learner", "peer", "ours"),
    [("ppo", "learning_rate", "lr"), ("iqn", "hidden_size", "layer"), ("ppo", "hidden_size", "layers"),
     ("ppo", "n_epochs", "passes"), ("iqn", "num_envs", "worlds"), ("ppo", "n_steps", "episodes_per_update"),
     ("iqn", "max_cycles", "turns"), ("iqn", "sgd_minibatch_size", "batch_size"),
     ("ppo", "sgd_minibatch_size", "minibatch_size")],
)  # fmt: skip
def test_a_name_of_another_library_is_answered_with_ours(learner: str, peer: str, ours: str) -> None:
    with pytest.raises(UsageError, match=f"unknown setting '{peer}': it is called '{ours}' here"):
        make_plan({"game": "treasurehunt", "learner": learner, peer: 1})


def test_a_name_of_another_library_for_an_option_of_another_learner_names_both() -> None:
    match = "ent_coef is called entropy here, and entropy is an option of learner ppo, not of iqn"
    with pytest.raises(UsageError, match=match):
        make_plan({"game": "treasurehunt", "learner": "iqn", "ent_coef": 0.1})


@pytest.mark.parametrize("peer", ["clip_range", "clip_param", "clip_coef"])
def test_the_clip_of_ppo_is_not_answered_with_that_of_another_learner(peer: str) -> None:
    match = f"{peer} is called clip here, and clip is an option of learner ppo, not the clip of iqn"
    with pytest.raises(UsageError, match=match):
        make_plan({"game": "treasurehunt", peer: 0.1})
    with pytest.raises(UsageError, match=f"unknown setting '{peer}': it is called 'clip' here"):
        make_plan({"game": "treasurehunt", "learner": "ppo", peer: 0.1})


def test_an_option_of_another_learner_with_a_counterpart_names_both() -> None:
    match = "it is called 'layer' here, which is one number, the width of its layer; layers is an option of learner ppo"
    with pytest.raises(UsageError, match=match):
        make_plan({"game": "treasurehunt", "layers": [64, 64]})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"learner": "ppo", "policy": "MlpPolicy"},
            r"no policy=MlpPolicy here: say learner=ppo, and layers=\[64, 64\]",
        ),
        ({"policy": "CnnPolicy"}, "no policy=CnnPolicy here: say learner=ppo, and body=cnn"),
        ({"learner": "ppo", "batch_size": 64}, "'batch_size': it is called 'minibatch"),
        ({"seeds": 5}, r"--seeds N`, or remuda.study\(game, seeds=N\)"),
        ({"policy_kwargs": {}}, "no setting 'policy_kwargs' here: the network is made of settings"),
        ({"verbose": 1}, "no setting 'verbose' here: the console always shows"),
        ({"learner": "ppo", "layers": 64}, r"should be a list, e.g. layers=\[64\]"),
        ({"learner": "ppo", "layers": "64,64"}, r"should be a list, e.g. layers=\[64,64\]"),
        ({"learner": "PPO"}, "did you mean 'ppo'"),
        ({"game": "cage2", "agent": "B_lineAgent"}, "it is called 'red' here"),
    ],
)
def test_settings_of_stable_baselines_are_answered_with_what_to_write(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make_plan({"game": "treasurehunt", **settings})


def test_an_environment_of_another_library_without_a_game_is_answered_with_its_name() -> None:
    with pytest.raises(UsageError, match="game=gymnasium:CartPole-v1 in place of env=CartPole-v1"):
        make_plan({"env": "CartPole-v1"})
    with pytest.raises(UsageError, match="game=treasurehunt in place of env=treasurehunt"):
        make_plan({"env": "treasurehunt"})


def test_what_to_write_instead_hides_no_setting() -> None:
    ours = {*Plan.model_fields, "train_interval", "agents", "turns"}
    for learner in SHIPPED_LEARNERS.values():
        ours |= set(learner.options_type().model_fields)
    assert not ours & set(INSTEAD)
    assert not set(PEER_NAMES) & set(INSTEAD)


def test_every_name_of_another_library_stands_for_a_setting_and_hides_none() -> None:
    ours = {*Plan.model_fields, "train_interval", "agents", "turns", "red"}
    for learner in SHIPPED_LEARNERS.values():
        ours |= set(learner.options_type().model_fields)
    assert {name for names in PEER_NAMES.values() for name in names} <= ours
    assert not ours & set(PEER_NAMES)
    assert set(OTHER_UNITS) <= ours


def test_agents_of_one_algorithm_may_differ_in_their_options() -> None:
    learners = {0: {"learner": "ppo", "body": "gru", "lr": 0.1}, "1-2": "ppo", 3: {"gamma": 0.5}}
    plan = make_plan({"game": "treasurehunt", "agents": 4, "learners": learners, "lr": 0.5, "ppo.features": 32})
    assert plan.learners == {"0": "ppo@0", "1-2": "ppo", "3": "iqn@3"}
    first, others, last = (plan.learner_options[name] for name in ("ppo@0", "ppo", "iqn@3"))
    assert (first["body"], first["lr"], first["features"]) == ("gru", 0.1, 32)
    assert (others["body"], others["lr"], others["features"]) == (None, 0.5, 32)
    assert (last["gamma"], last["lr"]) == (0.5, 0.5)
    assert make_plan(plan.model_dump()) == plan, "a run's config is read as it was written"
    assert make_plan({**plan.model_dump(), "lr": 0.7}).learner_options["ppo@0"]["lr"] == 0.7


def test_an_agent_with_a_memory_among_others_trains(tmp_path: Path, tiny: dict[str, Any]) -> None:
    own = {**tiny, "learners": {0: {"learner": "iqn", "body": "gru", "layer": 16}}}
    run = remuda.train("treasurehunt", out=tmp_path / "run", quiet=True, **own)
    arrays = [{name for name in run.checkpoint_arrays("policy") if name.startswith(f"{i}/")} for i in range(2)]
    assert len(arrays[0]) != len(arrays[1])
    assert run.metrics["player"].tolist()[:2] == ["iqn@0", "iqn"]
    assert remuda.Run(run.path).evaluate(episodes=2).returns.shape == (2, 2)


def test_the_default_width_of_iqn_fits_a_memory_and_stays_what_it_was_without_one() -> None:
    for body, layer in ((None, 250), ("mlp", 250), ("gru", 256), ("lstm", 256)):
        assert make_plan({"game": "treasurehunt", "body": body}).learner_options["iqn"]["layer"] == layer
    assert make_plan({"game": "treasurehunt", "body": "gru", "layer": 64}).learner_options["iqn"]["layer"] == 64


class WideOptions(remuda.OffPolicyOptions):
    """Options of a learner that has an option of the game."""

    height: int = 3


class Wide(Sound):
    """A learner whose option `height` treasurehunt has, too."""

    options_class = WideOptions


def test_an_option_of_game_and_learner_is_refused_unless_one_says_whose() -> None:
    settings = {"game": "treasurehunt", "learner": Wide}
    with pytest.raises(ConfigError, match=r"height is an option of the game and of .*: say game\.height=… or Wide"):
        make_plan({**settings, "height": 9})
    (own,) = make_plan({**settings, "game.height": 9}).learner_options.values()
    assert own["height"] == 3
    plan = make_plan({**settings, "Wide.height": 9})
    (own,) = plan.learner_options.values()
    assert (plan.options["height"], own["height"]) == (21, 9)
    assert make_plan({**settings, "options": {"height": 9}}).options["height"] == 9


def test_no_shipped_game_has_an_option_of_a_shipped_learner() -> None:
    for game in SHIPPED:
        for learner in SHIPPED_LEARNERS.values():
            assert not set(find_game(game).options.model_fields) & set(learner.options_type().model_fields)


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        (("round",), "metric 'round' of group 'odd' is also a column of every table: give it another name"),
        (("return",), "also a column of every table"),
        (("loss",), "also a column of learner iqn"),
        (("found", "found"), "listed twice"),
        (("a\nb",), "no name of a column"),
        (("",), "no name of a column"),
    ],
)
def test_metrics_that_cannot_be_columns_are_refused(metrics: tuple[str, ...], said: str) -> None:
    """They would overwrite other columns: a game's `round` those by which a resumed run knows its rows."""

    class Reports(OddGame):
        def __init__(self, options: OddOptions, worlds: Sequence[int]) -> None:
            super().__init__(options, worlds, Group("odd", 2, (3,), np.int32, 3, metrics, low=0, high=9))

    with pytest.raises(ConfigError, match=said):
        make_plan({"game": GameEntry("reports", "Reports.", OddOptions, Reports), "learner": "iqn"})
