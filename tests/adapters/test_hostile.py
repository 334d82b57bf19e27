"""Foreign environments that break what they promise: one sentence that says who, where and when."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import remuda
from remuda.core.errors import MAX_MESSAGE, ConfigError, GameError
from remuda.core.game import make_game
from remuda.games.registry import find_game
from remuda.testing.check import check

GAMES = "hostile_games"
PLAN: dict[str, Any] = {
    "engine": "vectorized", "learner": "random", "worlds": 2, "total_episodes": 4, "n_workers": 1, "pictures": False,
    "evaluate_episodes": 2, "quiet": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "ResetsToNothing",
            r"reset returned one value of type NoneType: it should return two values, \(observation, info\)",
        ),
        ("KnowsNoSpace", r"raised RuntimeError while it was made \(.*hostile_games.py, line \d+\): spaces are not kn"),
        ("UnreadableError", r"raised Unreadable in turn 0 of .* \(its message cannot be read: RuntimeError\)"),
        ("EndlessError", r"raised ValueError in turn 0 .*x… \(10,000,000 characters\)"),
        ("WrongShape", r"WrongShape: agent 0: an observation has shape \(3, 3\).*; in turn 0 of .*world 0, seed 0"),
        ("Stranger", r"Stranger: 'zorro' is among `agents`, but not among `possible_agents`; in turn 0"),
        ("PaysText", r"PaysText: step returned the reward '1': it should be a number; in turn 0"),
        ("PaysTextAlone", r"PaysTextAlone: step returned the reward '1': it should be a number; in turn 0"),
        ("Unseedable", r"Unseedable\.reset\(\) got .*'seed': reset should take seed and options"),
        ("UnseedableTwo", r"UnseedableTwo\.reset\(\) got .*'seed': reset should take seed and options"),
        ("Buggy", r"raised TypeError in turn 2 of .*, seed 0 \(.*hostile_games\.py, line \d+\): object of type 'int'"),
        ("Unseen", r"Unseen: step\(\) returned no observation of 'b', which is among `agents`; in turn 0"),
    ],
)
@pytest.mark.parametrize("engine", ["vectorized", "executor"])
def test_what_it_does_wrong_is_one_sentence(tmp_path: Path, name: str, said: str, engine: str) -> None:
    settings = {**PLAN, "engine": engine, "max_failures": 0}
    with pytest.raises(GameError, match=said) as raised:
        remuda.train(f"{GAMES}:{name}", out=tmp_path / "run", **settings)
    assert len(str(raised.value)) < 2 * MAX_MESSAGE
    assert all(path.stat().st_size < 1 << 20 for path in (tmp_path / "run").rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("NoSpace", "NoSpace has no observation_space: set it to one of gymnasium.spaces"),
        ("NoSpaceTwo", r"NoSpaceTwo has no method observation_space: write observation_space\(self, agent\)"),
        ("SpaceForAll", r"SpaceForAll has no method action_space: write action_space\(self, agent\)"),
        ("MADE", f"'{GAMES}:MADE' is a Plain, neither a GameEntry nor a factory: give the class, {GAMES}:Plain, or"),
        ("LOCAL", "is a Local, neither a GameEntry nor a factory: give its class, or a function that makes it"),
    ],
)
@pytest.mark.filterwarnings("ignore:Your environment should override")
def test_what_it_lacks_is_one_sentence(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_game(find_game(f"{GAMES}:{name}"), {}, [0])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ShowsStrangers", "step returns observations of 'zorro', not among `possible_agents`: they reach nobody"),
        ("TellsNoEnd", "step returns no terminations of 'a', 'b': False is assumed"),
        ("PaysOne", "step returns no rewards of 'b': 0 is assumed"),
    ],
)
def test_check_notes_what_step_says_of_strangers_or_does_not_say(name: str, said: str) -> None:
    notes = [finding.note for finding in check(f"{GAMES}:{name}") if finding.note]
    assert any(said in note for note in notes), notes
    assert not any(finding.note for finding in check(f"{GAMES}:Two"))


@pytest.mark.parametrize("away", [1, 250])
def test_check_notes_an_episode_that_ends_because_all_agents_are_away(cli: Any, away: int) -> None:
    said = (
        f"the list of agents became empty in turn {away}, but no flag says that 'a', 'b' ended: an empty list ends the "
        "episode; keep somebody in it while all are away, or set the flags"
    )
    told = cli("check", f"{GAMES}:AllAway", f"away={away}")
    assert [line for line in told.out.splitlines() if line.startswith("note ") and said in line]


def test_agents_that_take_turns_to_be_away_are_not_noted() -> None:
    findings = check(f"{GAMES}:TakesTurnsAway")
    assert [finding.note for finding in findings if "became empty" in finding.note] == []


def test_agents_that_cannot_be_told_apart_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="lists an agent twice in possible_agents"):
        remuda.train(f"{GAMES}:Twins", out=tmp_path / "run", **PLAN)


def test_names_of_agents_may_be_anything_hashable(tmp_path: Path) -> None:
    assert remuda.train(f"{GAMES}:Numbered", out=tmp_path / "run", **PLAN).result["episodes"] == 4


def test_programs_that_a_game_starts_in_a_worker_can_be_terminated(tmp_path: Path) -> None:
    """Workers do not answer stop signals; what they start inherits ignored signals, but no handlers."""
    settings = {**PLAN, "engine": "executor", "max_failures": 0}
    assert remuda.train(f"{GAMES}:StartsPrograms", out=tmp_path / "run", **settings).result["episodes"] == 4


def test_rounds_too_short_to_learn_from_are_said(tmp_path: Path) -> None:
    """Otherwise such a run comes to its end without a word, and nothing was learned."""
    settings = {**PLAN, "learner": "ppo", "layers": [4], "minibatches": 50}
    run = remuda.train(f"{GAMES}:Plain", out=tmp_path / "run", **settings)
    assert run.result["updates_per_agent"] == [0]
    assert run.result["failures"]["updates_skipped"] > 0
    assert "fewer turns of theirs than minibatches=50" in (tmp_path / "run" / "console.log").read_text()


@pytest.mark.parametrize("learner", ["iqn", "ppo"])
def test_what_a_game_does_to_torch_changes_nothing(tmp_path: Path, learner: str) -> None:
    network = {"layers": [4], "turns": 5} if learner == "ppo" else {"layer": 8, "batch_size": 4, "turns": 5}
    plan = {**PLAN, **network, "learner": learner, "deterministic": True}
    whole = remuda.train(f"{GAMES}:Plain", out=tmp_path / "plain", **plan)
    for engine in ("vectorized", "executor"):
        run = remuda.train(f"{GAMES}:SetsTorch", out=tmp_path / engine, **{**plan, "engine": engine})
        assert run.result["updates_per_agent"] == whole.result["updates_per_agent"]
        assert run.result["weights_sha256"] == whole.result["weights_sha256"]
        assert run.evaluate(2).returns.tolist() == whole.evaluate(2).returns.tolist()
    assert torch.get_default_dtype() is torch.float32
    assert torch.is_grad_enabled()


def test_nor_does_it_where_agents_act_one_after_another(tmp_path: Path) -> None:
    """The second agent chooses after the first one's environment has stepped, in the same turn."""
    plan = {**PLAN, "learner": "ppo", "turns": 5, "agents": 2, "parallel_actions": False, "deterministic": True}
    plain, changed = (
        remuda.train(f"{GAMES}:{name}", out=tmp_path / name, body=f"{GAMES}:OfTheDefaultType", **plan).result
        for name in ("Plain", "SetsTorch")
    )
    assert changed["failures"] == plain["failures"]
    assert changed["weights_sha256"] == plain["weights_sha256"]


@pytest.mark.parametrize("game", ["FreezesTime", "ClosesStreams"])
def test_what_a_game_does_to_its_process_does_not_lose_the_run(tmp_path: Path, game: str) -> None:
    words = [f"{name}={value}" for name, value in PLAN.items() if name != "quiet"]
    command = [sys.executable, "-m", "remuda", "train", f"{GAMES}:{game}", *words, "--out", str(tmp_path / "run")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert remuda.Run(tmp_path / "run").result["episodes"] == 4


@pytest.mark.parametrize(("error", "code"), [("print()", 0), ("int('many')", 1)])
def test_an_error_is_one_also_where_the_output_was_closed(error: str, code: int) -> None:
    """Only what nobody can be told any more is no error."""
    program = (
        f"import sys, remuda.cli.main as own\ndef app(**_):\n    sys.stdout.close()\n    {error}\n"
        "own.app = app\nown.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == code


def test_observations_that_no_machine_can_hold_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="observes 1,000,000,000,000 numbers, more than"):
        remuda.train(f"{GAMES}:Endless", out=tmp_path / "run", **PLAN)
    assert not (tmp_path / "run").exists()
