"""`remuda train` and `remuda resume`: words, flags, files and what they print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from outcomes import assert_refused, strict_json

import remuda


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
