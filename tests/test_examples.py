"""The example game, and the page that explains it: both must be true."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import remuda
from commons import AGENT, BERRY, ENTRY, STEPS, Commons, CommonsOptions
from remuda.core import rng
from remuda.core.game import GameEntry, make_game
from remuda.core.rng import Stream
from remuda.games.grid import DOWN, EMPTY, LEFT, RIGHT, WALL
from remuda.learners.herd import assign, bind_policy
from remuda.runs.evaluation import evaluate_policies
from remuda.runs.settings import make_plan, spec_of
from remuda.testing.game_conformance import CHECKS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "examples" / "commons.py"
PAGE = (ROOT / "docs" / "write-a-game.md").read_text(encoding="utf-8")
STAY = len(STEPS) - 1
SMALL: dict[str, Any] = {
    "turns": 20, "worlds": 4, "total_episodes": 8, "layer": 16, "batch_size": 8, "frames": 1, "device": "cpu",
    "evaluate_episodes": 4, "pictures": False,
}  # fmt: skip


def fences(kind: str) -> list[str]:
    """What stands between ```kind and ``` in the page."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """Every line of the page that is a command: indented, outside fences."""
    prose = re.sub(r"^```.*?^```$", "", PAGE, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^    (\S.*)$", prose, re.MULTILINE)


def start(worlds: int = 1, seed: int = 0, **options: Any) -> Commons:
    game = make_game(ENTRY, options, list(range(worlds)))
    assert isinstance(game, Commons)
    game.reset(np.arange(worlds), rng.keys(rng.key(seed, Stream.CHECK), np.arange(worlds)))
    return game


def lone(**options: Any) -> Commons:
    """One agent in the middle of a bare field without growth."""
    game = start(**{"agents": 1, "size": 7, "berries": 0.0, "growth": 0.0, **options})
    game.planes[0][game.planes[0] == AGENT] = EMPTY
    game.planes[0, 3, 3] = AGENT
    game.cells[0, 0] = 3, 3
    return game


def move(game: Commons, *actions: int) -> list[float]:
    """One turn in world 0; what each agent earned."""
    game.signals[0].rewards[:] = 0
    game.step([np.array([actions], np.int64)])
    earned: list[float] = game.signals[0].rewards[0].tolist()
    return earned


def train(out: Path, **changes: Any) -> remuda.Run:
    return remuda.train("commons:ENTRY", out=out, quiet=True, **{**SMALL, **changes})


# The rules.


def test_a_berry_is_eaten_once_and_counted() -> None:
    game = lone()
    game.planes[0, 3, 4] = game.planes[0, 1, 1] = BERRY
    assert move(game, RIGHT) == [1.0]
    assert move(game, LEFT) == [0.0]
    assert move(game, RIGHT) == [0.0]
    assert game.signals[0].metrics[0].tolist() == [[1.0, 1.0]]


def test_walls_others_and_staying_leave_everything_as_it_is() -> None:
    game = start(agents=10, size=6, berries=0.0, growth=0.0)
    before = game.planes.copy()
    assert move(game, *[STAY] * 10) == [0.0] * 10
    assert np.array_equal(game.planes, before)
    for action in range(len(STEPS)):
        for _ in range(5):
            move(game, *[action] * 10)
        assert (game.planes[0] == AGENT).sum() == 10
        assert (game.planes[0] == WALL).sum() == 20
        assert all(game.planes[0, row, col] == AGENT for row, col in game.cells[0])


def test_berries_grow_beside_berries_and_nowhere_else() -> None:
    game = lone(growth=1.0)
    game.planes[0, 1, 1] = BERRY
    game.begin()
    assert np.argwhere(game.planes[0] == BERRY).tolist() == [[1, 1], [1, 2], [2, 1], [2, 2]]
    bare = lone(growth=1.0)
    for _ in range(5):
        move(bare, DOWN)
    assert (bare.planes != BERRY).all()


def test_growth_has_the_chance_it_says() -> None:
    game = start(worlds=4000, agents=1, size=6, berries=0.0, growth=0.05)
    game.planes[:, 1:-1, 1:-1] = EMPTY
    game.planes[:, 1, 1:3] = BERRY  # the cell below has two neighbours, the one right of it two, the next one
    game.begin()
    grown = (game.planes == BERRY).mean(axis=0)
    expected = {(2, 1): 0.1, (2, 2): 0.1, (2, 3): 0.05, (1, 3): 0.05, (2, 4): 0.0, (3, 1): 0.0}
    for cell, chance in expected.items():
        assert abs(grown[cell] - chance) < 0.02, cell


def test_ten_agents_fit_on_the_smallest_field_and_two_are_no_trouble_either() -> None:
    for agents in (2, 10):
        assert (start(worlds=50, agents=agents, size=6).planes == AGENT).sum(axis=(1, 2)).tolist() == [agents] * 50


# The promises.


@pytest.mark.parametrize("options", [{}, {"agents": 10, "size": 6}, {"agents": 1, "radius": 9, "turns": 1}])
def test_the_game_keeps_every_promise(options: dict[str, Any]) -> None:
    assert [finding for finding in remuda.check(ENTRY, **options) if not finding.good] == []


@pytest.mark.promise
def test_one_plan_one_result(tmp_path: Path) -> None:
    """One by one, all at once, at lag 1, and in two worker processes."""
    for lag in (0, 1):
        runs = [
            train(tmp_path / f"{lag}-{engine}", engine=engine, n_workers=workers, lag=lag, deterministic=True)
            for engine, workers in (("sequential", 1), ("vectorized", 2), ("executor", 2))
        ]
        assert len({run.result["weights_sha256"] for run in runs}) == 1
        assert [len(run.result["processes"]) for run in runs] == [0, 0, 2]


FIELD: dict[str, Any] = {"agents": 2, "size": 9, "turns": 50, "growth": 0.04, "worlds": 16}
LEARNING: dict[str, Any] = {
    "total_episodes": 240, "layer": 64, "batch_size": 64, "epsilon": "0.9:0.05:0.5", "tau": 0.02,
    "evaluate_episodes": 64,
}  # fmt: skip


@pytest.mark.slow
def test_the_herd_learns_to_pick(tmp_path: Path) -> None:
    """After a short training everybody eats much more than by chance."""
    herd = train(tmp_path / "herd", **FIELD, **LEARNING).result["evaluation"]["mean_return"]
    chance = random_returns(**FIELD)
    assert min(herd) > 1.5 * max(chance), (herd, chance)


def random_returns(**settings: Any) -> list[float]:
    """What random players get, per agent."""
    plan = make_plan({"game": "commons:ENTRY", "learner": "random", **settings})
    spec = spec_of(plan)
    bindings = [bind_policy(part, plan, spec, "cpu") for part in assign(plan, spec)]
    returns: list[float] = evaluate_policies(plan, spec, bindings, 64).summary()["mean_return"]
    return returns


# The page.


def test_the_python_of_the_page_is_the_file() -> None:
    shown = [line for block in fences("python") for line in block.splitlines() if line.strip()]
    written = [line for line in SOURCE.read_text(encoding="utf-8").splitlines() if line.strip()]
    assert shown == written


def test_every_block_is_python_output_or_a_command() -> None:
    assert set(re.findall(r"^```(.+)$", PAGE, re.MULTILINE)) == {"python", "text"}
    assert all(line.startswith(("remuda ", "NUMBA_DISABLE_JIT=1 remuda ")) for line in commands())


def test_the_page_counts_right() -> None:
    code = re.sub(r'"""(.|\n)*?"""', "", SOURCE.read_text(encoding="utf-8"))
    lines = [line for line in code.splitlines() if line.strip() and not line.startswith(("from ", "import "))]
    assert f"The game has {len(lines)} lines" in " ".join(PAGE.split())


def test_the_page_shows_what_check_says(cli: Any) -> None:
    good, bad = fences("text")[:2]
    assert cli("check", "commons:ENTRY").out == good
    (finding,) = [found for found in remuda.check(UNTOLD) if not found.good]
    told = f"FAIL {finding.promise}\n     {finding.problem}\n     for training this means: {finding.meaning}\n"
    assert told == bad


class Untold(Commons):
    def end(self) -> None:
        super().end()
        self.signals[0].truncated[:] = False


UNTOLD = GameEntry("untold", "the line with `truncated` taken out", CommonsOptions, Untold)


def test_the_page_explains_every_finding() -> None:
    table = re.search(r"^\| promise .*\n\|[- |]+\n((\|.*\n)+)", PAGE, re.MULTILINE)
    assert table is not None
    assert [row.split("|")[1].strip() for row in table[1].splitlines()] == [promise for promise, _, _ in CHECKS]


def test_the_commands_of_the_page_run(cli: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """In the page's order, each with what those before it left; only the sizes are smaller."""
    for line in commands():
        if line.startswith("NUMBA_DISABLE_JIT=1 "):
            continue
        _, command, *words = shlex.split(line)
        smaller = [f"{name}={value}" for name, value in SMALL.items()] if command == "train" else []
        fewer = ["--episodes", "4"] if command == "evaluate" else []
        slower = ["--speed", "1000"] if "--terminal" in words else []
        done = cli(command, *words, *smaller, *fewer, *slower)
        assert done.code == 0, (line, done)
    with Image.open("commons.gif") as film:
        assert film.n_frames > 1
    same = [remuda.Run(f"runs/{name}").result["weights_sha256"] for name in ("one", "all", "two")]
    assert len(set(same)) == 1


@pytest.mark.slow
def test_the_commands_without_compiling_run_and_end_with_the_same_weights(tmp_path: Path) -> None:
    interpreted = [line for line in commands() if line.startswith("NUMBA_DISABLE_JIT=1 ")]
    assert len(interpreted) == 2
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    outputs = []
    for line in interpreted:
        _, _, command, *words = shlex.split(line)
        smaller = [f"{name}={value}" for name, value in SMALL.items() if command == "train" or name == "turns"]
        json_ = ["--json"] if command == "train" else []
        done = subprocess.run(
            [sys.executable, "-W", "error::RuntimeWarning", "-m", "remuda", command, *words, *smaller, *json_],
            env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, (line, done.stderr)
        outputs.append(done.stdout)
    compiled = train(tmp_path / "compiled", engine="sequential", max_failures=0.0)
    assert json.loads(outputs[1])["weights_sha256"] == compiled.result["weights_sha256"]
