"""`remuda evaluate` and `remuda watch`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from outcomes import assert_refused, strict_json
from PIL import Image


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
