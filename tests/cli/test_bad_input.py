"""The command line refuses bad input in one sentence, and nothing is made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from outcomes import assert_refused

BAD: dict[str, tuple[list[str], str]] = {
    "no such command": (["trane"], "trane"),
    "no game": (["train"], "game"),
    "unknown game": (["train", "treasurehnt"], "'treasurehunt'"),
    "a file of settings for a game": (["train", "plan.yaml"], "--config plan.yaml"),
    "unknown engine": (["train", "treasurehunt", "--engine", "vectorised"], "'vectorized'"),
    "unknown learner": (["train", "treasurehunt", "--learner", "inq"], "'iqn'"),
    "unknown flag": (["train", "treasurehunt", "--agent", "3"], "'agents'"),
    "unknown key": (["train", "treasurehunt", "agent=3"], "'agents'"),
    "unknown option of the game": (["train", "treasurehunt", "game.spwan=3"], "'spawn'"),
    "unknown option of the learner": (["train", "treasurehunt", "iqn.layr=3"], "'layer'"),
    "a flag that is no number": (["train", "treasurehunt", "--agents", "many"], "--agents"),
    "a seed that is no number": (["train", "treasurehunt", "--seed", "abc"], "--seed should be a whole number"),
    "seeds that are no number": (["train", "treasurehunt", "seeds=many"], "seeds='many' should be a whole number"),
    "a setting without its sign": (["train", "treasurehunt", "learner", "ppo"], "write learner=ppo"),
    "training in the wrong place": (["cage2", "train"], "remuda train preset=cage2_record"),
    "a flag of another library": (["evaluate", "treasurehunt", "--deterministic"], "greedy by default"),
    "settings of nobody": (["settings", "pppo"], "'ppo'"),
    "a directory that is no run": (["cage2", "leaderboard", "/none"], "/none is not a run"),
    "a flag without its value": (["train", "treasurehunt", "--agents"], "--agents"),
    "an unknown flag without its value": (["train", "treasurehunt", "--lr"], "--lr"),
    "a word that is no assignment": (["train", "treasurehunt", "lr"], "key=value"),
    "a short flag": (["train", "treasurehunt", "-x"], "key=value"),
    "python in a word": (["train", "treasurehunt", "lr=!!python/name:os.system"], "not plain YAML"),
    "a reserved name": (["train", "treasurehunt", "callback=3"], "callback"),
    "a flag as a word": (["evaluate", "treasurehunt", "learner=random", "episodes=3"], "episodes is not a setting"),
    "two games": (["evaluate", "treasurehunt", "learner=random", "game=cage2"], "game is not a setting"),
    "no agents": (["train", "treasurehunt", "--agents", "0"], "agents"),
    "more agents than cells": (["train", "treasurehunt", "--agents", "400"], "361 free cells"),
    "a huge herd": (["train", "treasurehunt", "--agents", str(10**12)], "agents"),
    "a huge herd on a huge field": (
        ["train", "treasurehunt", "--agents", "1000000", "height=2000", "width=2000"], "memory",
    ),
    "batch larger than the replay": (["train", "treasurehunt", "batch_size=64", "replay_size=10"], "batch_size=64"),
    "replay buffer smaller than an episode": (["train", "treasurehunt", "replay_size=64"], "replay_size=64"),
    "negative seed": (["train", "treasurehunt", "--seed", "-1"], "seed"),
    "no epochs": (["train", "treasurehunt", "--epochs", "0"], "epochs"),
    "epochs and episodes": (["train", "treasurehunt", "--epochs", "1", "--total-episodes", "9"], "epochs"),
    "no such config": (["train", "treasurehunt", "--config", "missing.yaml"], "missing.yaml"),
    "no such run to freeze": (["train", "treasurehunt", "learners={0: frozen:nowhere/0}"], "nowhere"),
    "no such run to resume": (["resume", "nowhere"], "nowhere"),
    "no such run to watch": (["watch", "nowhere"], "nowhere"),
    "no such thing to evaluate": (["evaluate", "nowhere"], "nowhere"),
    "an untrained herd to evaluate": (["evaluate", "treasurehunt"], "trained or scripted"),
    "no episodes to evaluate": (["evaluate", "treasurehunt", "learner=random", "--episodes", "0"], "--episodes"),
    "no share of random actions": (["evaluate", "treasurehunt", "learner=random", "--epsilon", "2"], "--epsilon"),
    "no such game to check": (["check", "treasurehnt"], "'treasurehunt'"),
    "no such game to list": (["games", "treasurehnt"], "'treasurehunt'"),
    "no such learner to list": (["learners", "inq"], "'iqn'"),
    "a game of another folder": (["check", "thieves:ENTRY"], "in the folder that has thieves.py"),
    "a metric that no run has": (["sweep", "treasurehunt", "lr=log(1e-4, 1e-2)", "metric=gmes"], "did you mean 'gems'"),
    "no run": (["watch"], "RUN is missing: a run directory"),
    "learners that are no number": (["train", "treasurehunt", "n_learners=some"], "should be a whole number or 'auto'"),
    "a board beside no path": (["train", "treasurehunt", "out=5", "--board"], "out=5 should be the path"),
    "a board beside a study at no path": (
        ["train", "treasurehunt", "out=5", "--seeds", "2", "--board"], "out=5 should be the path",
    ),
    "learners that nobody can count": (["resume", "nowhere", "--n-learners", "9" * 5000], "n_learners"),
    "a number with a comma": (["train", "treasurehunt", "total_episodes=1,500"], "should be a whole number"),
    "half an episode": (["train", "treasurehunt", "total_episodes=1.5"], "should be a whole number"),
    "an algorithm of others": (["train", "treasurehunt", "learner=mappo"], "ppo is one for each agent here"),
    "an algorithm of the examples": (["train", "treasurehunt", "learner=DQN"], "`remuda examples dqn`"),
    "an option of another learner": (["train", "treasurehunt", "passes=3"], "is an option of learner ppo, not of iqn"),
    "another unit": (["train", "treasurehunt", "total_timesteps=9"], "'total_episodes' here, which counts episodes"),
    "an id without its library": (["train", "CartPole-v1"], "'gymnasium:CartPole-v1'"),
    "a factory without its module": (["train", "simple_tag_v3"], "'mpe2.simple_tag_v3:parallel_env'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_makes_nothing(cli: Any, name: str) -> None:
    words, match = BAD[name]
    assert_refused(cli(*words), match)


MODULE = """
import gymnasium
from remuda import Game, GameEntry, Options
raise_if_imported = 1 / {divisor}

class Walk(gymnasium.Env):
    def __init__(self, size): ...

class Field(Game): ...
"""
ENTRY = 'THE_FIELD: GameEntry = GameEntry("field", "a field", Options, Field)\n'


def test_a_file_is_answered_with_the_game_in_it(cli: Any) -> None:
    """The file is read, but not run: nobody asked for that."""
    path = Path("walking.py")
    path.write_text(MODULE.format(divisor=0))
    for word in ("walking.py", "walking"):
        outcome = cli("train", word)
        assert outcome.err == f"error: game {word!r} is a module: name the game in it too, walking:Walk\n"
    path.write_text(MODULE.format(divisor=0) + ENTRY)
    assert cli("train", "walking.py").err.endswith("name the game in it too, walking:THE_FIELD\n")
    path.write_text("not python")
    assert "walking:NAME" in cli("train", "walking.py").err


def test_a_wrong_name_in_a_file_is_answered_with_the_right_one(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("running.py").write_text(MODULE.format(divisor=1) + ENTRY)
    for word, match in {
        "running.py:Walk": "name it as Python would import it, running:Walk",
        "running:walk": "module 'running' has no 'walk': did you mean running:Walk?",
        "running:Field": "is a Game: give its entry, running:THE_FIELD",
        "running:Walk": "size (game running:Walk) has no default: give it, size=VALUE",
    }.items():
        outcome = cli("train", word)
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err.removesuffix("\n").endswith(match)


def test_bad_input_in_a_real_shell() -> None:
    remuda_ = Path(sys.executable).with_name("remuda")
    done = subprocess.run([remuda_, "train", "treasurehnt"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "error: unknown game 'treasurehnt': did you mean 'treasurehunt'?\n"


@pytest.mark.parametrize(
    "text",
    ["a: [1", "- 1", "game: !!python/object/apply:os.system ['touch executed']", "\x00"],
)
def test_a_damaged_config_is_one_line(cli: Any, tmp_path: Path, text: str) -> None:
    config = tmp_path / "plan.yaml"
    config.write_text(text)
    assert_refused(cli("train", "--config", config), "plan.yaml")


def test_an_existing_directory_is_left_alone(cli: Any, tmp_path: Path) -> None:
    out = tmp_path / "mine"
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    assert_refused(cli("train", "treasurehunt", "--out", out), f"{out} exists already")
    assert [path.name for path in out.iterdir()] == ["thesis.txt"]
    assert_refused(cli("train", "treasurehunt", "--out", out / "thesis.txt"), "exists already")
    assert_refused(cli("train", "treasurehunt", "--out", out / "thesis.txt" / "run"), "cannot be written")
    assert (out / "thesis.txt").read_text() == "years of work"


def test_a_damaged_run_is_one_line(cli: Any, trained: Any, copy_of: Any) -> None:
    run = copy_of(trained())
    (run.path / "config.yaml").write_text("game: treasurehunt\nagents: 2\n")
    for command in ("resume", "evaluate", "watch"):
        assert_refused(cli(command, run.path), "agents")


@pytest.mark.parametrize("words", [["seed=-1"], ["n_workers=abc"], ["n_workers=-3"], ["seed=1.5"], ["lr=3"]])
def test_bad_words_for_a_run_are_one_line(cli: Any, trained: Any, words: list[str]) -> None:
    assert_refused(cli("evaluate", trained().path, "--episodes", "2", *words), words[0].split("=")[0])


def test_runs_near_a_directory_that_is_none_are_named(cli: Any, trained: Any) -> None:
    run = trained()
    for target in (run.path.parent / "none", run.path.parent):
        for command in ("evaluate", "resume", "watch"):
            done = cli(command, target)
            assert (done.code, done.out) == (2, "")
            assert f"is not a run: it has no config.yaml; runs near it: {run.path}" in done.err


def test_seeds_as_a_word_are_a_study(cli: Any, words: list[str]) -> None:
    done = cli("train", *words, "seeds=2", "--out", "study")
    assert done.code == 0, done.err
    assert len(list(Path("study").glob("runs/*/*/config.yaml"))) == 2


def test_a_checkpoint_that_is_not_there_is_one_line(cli: Any, trained: Any) -> None:
    for command in ("resume", "evaluate", "watch"):
        assert_refused(cli(command, trained().path, "--checkpoint", "000000007"), "000000012")
    assert_refused(cli("evaluate", trained().path, "--checkpoint", "bestt"), "the best one is called best")


def test_a_finished_run_says_so(cli: Any, trained: Any) -> None:
    assert_refused(cli("resume", trained().path), "is finished")


def test_going_on_from_the_best_is_one_line(cli: Any, trained: Any, copy_of: Any) -> None:
    assert_refused(cli("resume", copy_of(trained()).path, "--checkpoint", "best"), "best")
