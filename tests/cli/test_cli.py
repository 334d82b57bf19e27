"""Commands that list, check and explain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from remuda.cli.main import app
from remuda.core.yamlfile import read_yaml

COMMANDS = [own.callback.__name__ for own in app.registered_commands if own.callback is not None]


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
