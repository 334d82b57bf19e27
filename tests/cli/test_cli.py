"""The command line: what it takes, what it prints, and what it says when it cannot."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

import remuda
from remuda.cli.main import app
from remuda.core.yamlfile import read_yaml

COMMANDS = [own.callback.__name__ for own in app.registered_commands if own.callback is not None]


def strict_json(text: str) -> Any:
    """Parse as every other program would: NaN is not JSON."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


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
    "a number with a comma": (["train", "treasurehunt", "total_episodes=1,500"], "should be a whole number"),
    "half an episode": (["train", "treasurehunt", "total_episodes=1.5"], "should be a whole number"),
    "an algorithm of others": (["train", "treasurehunt", "learner=mappo"], "ppo is one for each agent here"),
    "an algorithm of the examples": (["train", "treasurehunt", "learner=DQN"], "`remuda examples dqn`"),
    "an option of another learner": (["train", "treasurehunt", "passes=3"], "is an option of learner ppo, not of iqn"),
    "another unit": (["train", "treasurehunt", "total_timesteps=9"], "'total_episodes' here, which counts episodes"),
    "an id without its library": (["train", "CartPole-v1"], "'gymnasium:CartPole-v1'"),
    "a factory without its module": (["train", "simple_tag_v3"], "'mpe2.simple_tag_v3:parallel_env'"),
}  # fmt: skip


def assert_refused(outcome: Any, match: str, folder: Path | None = None) -> None:
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith("error: ")
    assert len(outcome.err.splitlines()) == 1
    assert match in outcome.err
    assert list((folder or Path()).iterdir()) == [], "something was made"


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


def test_json_is_one_object_with_all_that_scripts_need(cli: Any, words: list[str], trained: Any) -> None:
    outcome = cli("train", *words, "--json", "--out", "run")
    assert outcome.code == 0
    assert len(outcome.out.splitlines()) == 1
    result = strict_json(outcome.out)
    assert result["finished"] is True
    assert result["episodes"] == 12
    assert result["agent_steps"] == 12 * 12 * 2
    assert result["updates_per_agent"] == [12, 12]
    assert result["weights_sha256"] == trained().result["weights_sha256"]
    assert len(result["mean_return"]) == 2
    assert result["wall_s"] > 0
    assert result["cpu_s"] > 0
    for part in ("collect", "learn", "wait"):
        assert result["seconds"][part]["wall"] >= 0
        assert result["seconds"][part]["cpu"] >= 0
    assert 0 < result["seconds"]["collect"]["wall"] + result["seconds"]["learn"]["wall"] <= result["wall_s"]
    assert result["episodes_per_s"] == pytest.approx(12 / result["wall_s"])
    assert result["agent_steps_per_s"] == pytest.approx(288 / result["wall_s"])
    assert result["updates_per_s"] == pytest.approx(24 / result["wall_s"])
    assert result == remuda.Run("run").result


def test_json_is_json_where_there_is_no_spread(cli: Any, words: list[str], trained: Any) -> None:
    """One episode has no standard error."""
    strict_json(cli("train", *words, "evaluate_episodes=1", "--json").out)
    strict_json(cli("evaluate", trained().path, "--episodes", "1", "--json").out)


def test_words_beat_flags_beat_the_file(cli: Any, words: list[str]) -> None:
    settings = {**dict(word.split("=") for word in words[1:]), "game": "treasurehunt", "layer": 8, "worlds": 2}
    Path("plan.yaml").write_text(yaml.safe_dump({k: yaml.safe_load(str(v)) for k, v in settings.items()}))
    cli("train", "treasurehunt", "--config", "plan.yaml", "--out", "file")
    cli("train", "treasurehunt", "--config", "plan.yaml", "--worlds", "4", "--layer", "12", "--out", "flag")
    cli("train", "treasurehunt", "worlds=5", "--config", "plan.yaml", "--worlds", "4", "iqn.layer=14", "--out", "word")
    plans = [remuda.Run(name).plan for name in ("file", "flag", "word")]
    assert [plan.worlds for plan in plans] == [2, 4, 5]
    assert [plan.learner_options["iqn"]["layer"] for plan in plans] == [8, 12, 14]


def test_a_file_may_name_the_game(cli: Any, words: list[str]) -> None:
    Path("plan.yaml").write_text("game: treasurehunt\n" + "\n".join(word.replace("=", ": ") for word in words[1:]))
    assert cli("train", "--config", "plan.yaml", "--out", "alone").code == 0
    assert cli("train", "--config", "plan.yaml", "seed=5", "--out", "word").code == 0
    assert remuda.Run("word").plan.seed == 5


def test_a_word_may_name_the_game(cli: Any, words: list[str]) -> None:
    """As the error for a missing game advises."""
    assert cli("train", f"game={words[0]}", *words[1:], "--out", "run").code == 0


def test_a_word_may_name_the_directory(cli: Any, words: list[str]) -> None:
    """Either it is taken or it is refused in one line."""
    outcome = cli("train", *words, "out=elsewhere")
    if outcome.code == 0:
        assert remuda.Run("elsewhere").result["finished"]
    else:
        assert_refused(outcome, "out")


def test_flags_that_scripts_rely_on(cli: Any, words: list[str]) -> None:
    game, *rest = [w for w in words if w.split("=")[0] not in ("agents", "worlds", "total_episodes", "deterministic")]
    flags = "--agents 3 --worlds 2 --epochs 2 --seed 4 --learner iqn --engine sequential --n-workers 1 --deterministic"
    assert cli("train", game, *rest, *flags.split(), "--out", "run").code == 0
    plan = remuda.Run("run").plan
    assert (plan.options["agents"], plan.worlds, plan.total_episodes, plan.seed) == (3, 2, 4, 4)
    assert (plan.learner, plan.engine, plan.n_workers, plan.deterministic) == ("iqn", "sequential", 1, True)
    assert cli("train", game, *rest, "--total-episodes=3", "--lr=0.01", "--spawn", "0.2", "--out", "other").code == 0
    plan = remuda.Run("other").plan
    assert (plan.total_episodes, plan.learner_options["iqn"]["lr"], plan.options["spawn"]) == (3, 0.01, 0.2)


def test_runs_are_numbered(cli: Any, words: list[str]) -> None:
    assert cli("train", *words).code == 0
    first = Path("runs/treasurehunt-001/metrics.csv").read_bytes()
    assert cli("train", *words).code == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == ["treasurehunt-001", "treasurehunt-002"]
    assert Path("runs/treasurehunt-001/metrics.csv").read_bytes() == first


def test_training_ends_with_where_to_look(cli: Any, words: list[str]) -> None:
    outcome = cli("train", *words, "--out", "run")
    assert outcome.out == ""
    assert "remuda watch run" in outcome.err
    assert "MiB" in outcome.err, "it does not say what its memories take"


def test_what_cannot_be_watched_is_not_offered_for_watching(cli: Any) -> None:
    words = [
        "turns=3",
        "learner=ppo",
        "layers=[8]",
        "minibatches=1",
        "total_episodes=2",
        "worlds=2",
        "evaluate_episodes=2",
    ]
    for pictures in ("true", "false"):
        outcome = cli("train", "remuda.testing:GIFTS", *words, f"pictures={pictures}", "--out", f"run-{pictures}")
        assert outcome.code == 0
        assert f"look at run-{pictures}" in outcome.err
        assert "`remuda watch run" not in outcome.err
        assert cli("watch", f"run-{pictures}", "--terminal").code == 2


def test_resume_goes_on(cli: Any, train: Any, trained: Any) -> None:
    run = train(callback=lambda rows: rows[0]["round"] < 2)
    outcome = cli("resume", run.path, "--engine", "sequential", "--n-workers", "1", "--json")
    assert strict_json(outcome.out)["weights_sha256"] == trained().result["weights_sha256"]


def test_resume_from_a_named_checkpoint(cli: Any, trained: Any, copy_of: Any) -> None:
    outcome = cli("resume", copy_of(trained()).path, "--checkpoint", "000000006", "--json")
    assert strict_json(outcome.out)["weights_sha256"] == trained().result["weights_sha256"]


def scores(cli: Any, *words: str | Path) -> Any:
    outcome = cli("evaluate", *words, "--episodes", "8", "--json")
    assert outcome.code == 0, outcome.err
    return strict_json(outcome.out)


def world(words: list[str]) -> list[str]:
    """The words that make the tiny world, without those of its learner."""
    return [word for word in words if word.split("=")[0] in ("height", "width", "turns", "spawn", "worlds", "device")]


def test_evaluate_is_repeatable_and_greedy(cli: Any, trained: Any) -> None:
    run = trained().path
    greedy = scores(cli, run)
    assert greedy["episodes"] == 8
    assert len(greedy["mean_return"]) == len(greedy["mean_return_ci95"]) == 2
    assert greedy["total_return"] == pytest.approx(sum(greedy["mean_return"]))
    assert set(greedy["metrics"]) == {"gems", "food", "bones", "bumps"}
    assert scores(cli, run) == greedy
    assert scores(cli, run, "n_workers=1") == greedy
    assert scores(cli, run, "--epsilon", "1") != greedy
    assert scores(cli, run, "seed=9") != greedy


def test_the_interval_is_the_mean_plus_minus_two_standard_errors(cli: Any, trained: Any) -> None:
    few, many = (
        strict_json(cli("evaluate", trained().path, "--episodes", str(n), "--json").out)["total_return_ci95"]
        for n in (16, 256)
    )
    assert 0 < many < few / 2


def test_agents_of_two_runs_meet_in_one_world(cli: Any, trained: Any, words: list[str]) -> None:
    a, b = trained(), trained(seed=1)
    both = f"learners={{0: frozen:{a.path}/0, 1: frozen:{b.path}/1}}"
    mixed = scores(cli, "treasurehunt", *world(words), both)
    assert len(mixed["mean_return"]) == 2
    own = scores(cli, "treasurehunt", *world(words), f"learners={{0: frozen:{a.path}/0, 1: frozen:{a.path}/1}}")
    assert own == scores(cli, a.path), "a herd put together again plays as it did"
    assert mixed != own
    assert own == scores(cli, "treasurehunt", *world(words), f"learner=frozen:{a.path}")


def test_agents_that_do_not_fit_are_refused(cli: Any, trained: Any, words: list[str]) -> None:
    player = f"learner=frozen:{trained().path}"
    assert_refused(cli("evaluate", "treasurehunt", "radius=3", player), "see (150,)")
    assert_refused(cli("evaluate", "treasurehunt", f"learners={{0-1: frozen:{trained().path}/7}}"), "0 to 1")


def test_evaluate_prints_a_table(cli: Any, trained: Any) -> None:
    outcome = cli("evaluate", trained().path, "--episodes", "4")
    assert outcome.code == 0
    assert "over 4 episodes" in outcome.out
    assert "gems" in outcome.out


def test_a_mixed_herd_can_be_evaluated_and_watched(cli: Any, trained: Any) -> None:
    run = trained(agents=3, learners={"1": "random", "2": f"frozen:{trained().path}/0"})
    assert len(scores(cli, run.path)["mean_return"]) == 3
    assert cli("watch", run.path, "--out", "film.gif").code == 0


def test_the_best_can_be_evaluated(cli: Any, trained: Any) -> None:
    run = trained(evaluate_every=3, lr=0.05)
    assert scores(cli, run.path, "--checkpoint", "best")["episodes"] == 8
    assert scores(cli, run.path, "--checkpoint", "000000003") != scores(cli, run.path, "--checkpoint", "000000012")


def test_watch_films_every_turn(cli: Any, trained: Any) -> None:
    outcome = cli("watch", trained().path, "--out", "film.gif")
    assert outcome.code == 0
    assert outcome.out.strip() == "film.gif"
    shown_ms = []
    with Image.open("film.gif") as film:
        for frame in range(film.n_frames):  # a turn in which nothing moves lengthens the frame before it
            film.seek(frame)
            shown_ms.append(film.info["duration"])
    assert len(shown_ms) > 1
    assert sum(shown_ms) == 13 * min(shown_ms)
    other = cli("watch", trained().path, "--out", "other.gif", "--episode", "1")
    assert other.code == 0
    assert Path("other.gif").read_bytes() != Path("film.gif").read_bytes()


def test_a_film_that_cannot_be_written_is_one_line(cli: Any, trained: Any) -> None:
    assert_refused(cli("watch", trained().path, "--out", "nowhere/film.gif"), "nowhere")


def test_watch_in_the_terminal(cli: Any, trained: Any) -> None:
    outcome = cli("watch", trained().path, "--terminal", "--speed", "1000")
    assert outcome.code == 0
    assert "◆" in outcome.out
    assert "turn 12 of 12" in outcome.out
    assert list(Path().iterdir()) == []


def test_check_says_what_holds(cli: Any) -> None:
    outcome = cli("check", "treasurehunt", "turns=20", "agents=3")
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert len(lines) >= 8
    assert all(line.startswith("ok ") for line in lines)


def test_check_fails_on_a_game_that_breaks_its_promise(cli: Any) -> None:
    """The game lies where one stands."""
    Path("broken_game.py").write_text(
        "import dataclasses\n"
        "from remuda.games.treasurehunt import ENTRY, Treasurehunt\n"
        "class Endless(Treasurehunt):\n"
        "    def end(self):\n"
        "        super().end()\n"
        "        self.signals[0].rewards[:] = float('nan')\n"
        "BROKEN = dataclasses.replace(ENTRY, name='broken', make=Endless)\n"
    )
    outcome = cli("check", "broken_game:BROKEN")
    assert outcome.code == 1
    assert "FAIL rewards are finite" in outcome.out
    assert "for training this means" in outcome.out


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["games"], "treasurehunt"), (["games", "treasurehunt"], "spawn"), (["engines"], "sequential"),
        (["learners"], "frozen:RUN/agent"), (["learners", "iqn"], "batch_size"), (["settings"], "updates_per_episode"),
        (["settings", "ppo"], "gae_lambda"),
    ],
)  # fmt: skip
def test_lists(cli: Any, words: list[str], match: str) -> None:
    outcome = cli(*words)
    assert outcome.code == 0
    assert match in outcome.out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(cli: Any, command: str) -> None:
    outcome = cli(command, "--help")
    assert outcome.code == 0
    assert "Usage" in outcome.out
    assert outcome.err == ""


def test_help_lists_every_command(cli: Any) -> None:
    outcome = cli("--help")
    assert outcome.code == 0
    assert [command for command in COMMANDS if command not in outcome.out] == []


def test_no_words_at_all_show_the_help(cli: Any) -> None:
    outcome = cli()
    assert "Usage" in outcome.out + outcome.err
    assert "Traceback" not in outcome.err


def test_reward_transforms_are_listed_among_the_settings(cli: Any) -> None:
    assert "reward.inequity_alpha" in cli("settings").out
    assert "reward.team" in cli("settings", "reward").out
    assert "worlds" not in cli("settings", "reward").out
    assert "minibatches" in cli("settings", "ppo").out


def test_an_example_is_copied_into_a_new_folder(cli: Any) -> None:
    assert "are paid as a team" in cli("examples").out
    assert cli("examples", "team_reward", "--to", "new/folder").code == 0
    assert read_yaml(Path("new/folder/team_reward.yaml"))["metric"] == "game_return"
    Path("file").touch()
    assert_refused_alone(cli("examples", "commons", "--to", "file"), "file exists already")
    assert_refused_alone(cli("examples", "team_reward", "--to", "new/folder"), "exists already")


def assert_refused_alone(outcome: Any, match: str) -> None:
    assert (outcome.code, outcome.out) == (2, "")
    assert match in outcome.err


def test_what_the_game_pays_stands_beside_transformed_returns(cli: Any) -> None:
    words = ("learner=random", "agents=2", "turns=9", "spawn=0.3", "--episodes", "8")
    plain, team = (
        cli("evaluate", "treasurehunt", *words).out,
        cli("evaluate", "treasurehunt", *words, "reward.team=1").out,
    )
    paid = re.search(r"total return (-?[\d.]+)", plain)
    assert paid is not None
    assert f"after reward.*; the game pays {paid[1]} ±" in team
    assert "the game pays" not in plain
