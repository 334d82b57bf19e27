"""The wheel, built from a source distribution, in an empty environment with the fewest dependencies."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path
from urllib.request import urlopen

import pytest

pytestmark = pytest.mark.slow  # two minutes, most of them to install torch
REPOSITORY = Path(__file__).parents[3]
OPTIONAL = ("ray", "onnx", "pettingzoo", "optuna", "sklearn", "wandb", "mlflow", "imageio_ffmpeg")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an environment in which only the wheel and what it requires are installed."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), str(REPOSITORY)]
    _call(build, folder)  # the wheel is built from the sdist: what is missing in one is missing in the other
    (wheel,) = (folder / "dist").glob("*.whl")
    venv.create(folder / "venv", with_pip=True, symlinks=True)
    # The lock is a constraint here: it chooses versions, and installs nothing by itself.
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", REPOSITORY / "requirements.lock"]
    _call([folder / "venv/bin/python", *install, wheel], folder)
    (folder / "work").mkdir()
    return folder


def _call(command: list[str | Path], folder: Path) -> str:
    """Standard output of a command; fails with all it printed if it fails."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=_clean(), timeout=600)
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def _clean() -> dict[str, str]:
    """Nothing of this checkout may be imported, neither from PYTHONPATH nor from the working directory."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def _remuda(environment: Path, *words: str) -> str:
    return _call([environment / "venv/bin/remuda", *words], environment / "work")


def test_nothing_optional_is_installed(environment: Path) -> None:
    code = f"import importlib.util as u; print([n for n in {OPTIONAL!r} if u.find_spec(n)])"
    assert _call([environment / "venv/bin/python", "-c", code], environment / "work").strip() == "[]"


def test_the_description_has_absolute_links_only(environment: Path) -> None:
    code = "import importlib.metadata as m; print(m.metadata('remuda-rl').get_payload())"
    text = _call([environment / "venv/bin/python", "-c", code], environment / "work")
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert any(link.endswith("/docs/film.gif") for link in links)
    assert [link for link in links if not link.startswith("https://")] == []


def test_a_herd_is_trained_scored_filmed_and_exported(environment: Path) -> None:
    _remuda(environment, "train", "treasurehunt", "agents=2", "total_episodes=32", "--out", "first")
    result = json.loads((environment / "work/first/result.json").read_text())
    assert result["episodes"] == 32
    score = json.loads(_remuda(environment, "evaluate", "first", "--episodes", "16", "--json"))
    assert score["episodes"] == 16
    _remuda(environment, "watch", "first", "--out", "film.gif")
    assert (environment / "work/film.gif").read_bytes().startswith(b"GIF8")
    _remuda(environment, "export", "first", "--agent", "0", "--out", "agent")
    assert sorted(path.name for path in (environment / "work/agent").iterdir()) == ["network.py", "weights.safetensors"]


def test_the_board_shows_the_runs(environment: Path) -> None:
    _remuda(environment, "train", "treasurehunt", "agents=2", "total_episodes=16", "--out", "runs/shown")
    command = [environment / "venv/bin/remuda", "board", "runs", "--port", "0", "--no-open"]
    with subprocess.Popen(command, cwd=environment / "work", stdout=subprocess.PIPE, text=True, env=_clean()) as board:
        assert board.stdout is not None
        (address,) = re.findall(r"http://\S+", board.stdout.readline())
        with urlopen(address, timeout=60) as page:
            assert page.status == 200
            assert b"<script" in page.read()
        board.terminate()


def test_a_name_whose_library_is_missing_says_what_to_install(environment: Path) -> None:
    command = [environment / "venv/bin/remuda", "train", "pettingzoo:sisl/pursuit-v5"]
    done = subprocess.run(command, cwd=environment / "work", capture_output=True, text=True, env=_clean(), timeout=600)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("needs pettingzoo: pip install 'remuda-rl[envs]'\n")


def test_an_environment_trains_without_the_library_that_draws_it(environment: Path) -> None:
    _remuda(environment, "train", "gymnasium:CartPole-v1", "learner=ppo", "total_episodes=8", "--out", "cart")
    assert json.loads((environment / "work/cart/result.json").read_text())["finished"]


def test_examples_are_in_the_wheel_and_pass_the_checks(environment: Path) -> None:
    assert "commons" in _remuda(environment, "examples")
    _remuda(environment, "examples", "commons")
    assert "FAIL" not in _remuda(environment, "check", "commons:ENTRY")
