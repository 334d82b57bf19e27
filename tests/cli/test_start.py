"""How the command line starts and ends: quickly, with its version, and with the right exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import remuda
from remuda.cli import main as main_module

COMMANDS = Path(main_module.__file__).parent
HEAVY = ("torch", "numba", "gymnasium", "matplotlib", "ray")
LOADED = f"""
import json, sys
from remuda.cli.main import main
try:
    main()
finally:
    print(json.dumps([name for name in {HEAVY} if name in sys.modules]), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["games"], ["engines"], ["train", "--help"], ["compare", "--help"], ["trane"]]
)
def test_starting_imports_nothing_heavy(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert json.loads(done.stderr.splitlines()[-1]) == []


def test_the_version_is_printed(cli: Any) -> None:
    outcome = cli("--version")
    assert (outcome.code, outcome.out, outcome.err) == (0, f"remuda {remuda.__version__}\n", "")


def test_no_file_of_commands_is_long() -> None:
    for path in COMMANDS.glob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 250, path.name


@pytest.mark.parametrize("json_", [[], ["--json"]])
@pytest.mark.parametrize("command", ["train", "resume"])
def test_a_run_stopped_by_a_signal_exits_with_its_number(
    cli: Any, trained: Any, monkeypatch: pytest.MonkeyPatch, command: str, json_: list[str]
) -> None:
    stopped = remuda.load(trained().path)
    stopped.stopped_by = 15
    monkeypatch.setattr(remuda, command, lambda *path, **settings: stopped)
    outcome = cli(command, str(stopped.path) if command == "resume" else "treasurehunt", *json_)
    assert outcome.code == 128 + 15
    assert "weights" in outcome.out + outcome.err, "the summary comes first"


def test_resume_passes_the_episodes_on(cli: Any, trained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def resume(path: Path, **settings: Any) -> remuda.Run:
        seen.update(settings)
        return remuda.load(path)

    monkeypatch.setattr(remuda, "resume", resume)
    assert cli("resume", trained().path, "--total-episodes", "24", "--engine", "sequential").code == 0
    assert seen == {"total_episodes": 24, "engine": "sequential", "trust": False}


@pytest.mark.parametrize("name", ["train", "evaluate", "record", "export", "watch", "compare", "check"])
def test_commands_call_the_public_functions(cli: Any, trained: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    class Called(Exception):
        """Raised in place of the function."""

    def instead(*values: Any, **settings: Any) -> None:
        raise Called

    monkeypatch.setattr(remuda, name, instead)
    with pytest.raises(Called):
        cli(name, "treasurehunt" if name in ("train", "compare", "check") else trained().path)
