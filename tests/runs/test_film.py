"""Films: what a run leaves, how it is drawn, and which environments can be watched."""

from __future__ import annotations

import builtins
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from PIL import Image, ImageColor
from rich.console import Console

import remuda
from remuda.core.errors import ConfigError, GameError, RunError
from remuda.core.game import Game, make_game
from remuda.core.scene import agent_colour
from remuda.games.registry import SHIPPED, find_game
from remuda.runs.callbacks.pictures import FILMS, MAX_FILMS, films, thin
from remuda.runs.curve import smoothed
from remuda.runs.film import film_of_run, trained_bindings
from remuda.runs.film_data import Film, PictureLimits, PlayedTurn, film_of, kinds_seen, read_film
from remuda.runs.film_picture import draw_film, write_film
from remuda.runs.film_terminal import play_in_terminal

GYM: dict[str, Any] = {
    "learner": "ppo", "layers": [8], "minibatches": 2, "worlds": 2, "total_episodes": 4, "evaluate_episodes": 2,
    "device": "cpu", "turns": 15, "quiet": True,
}  # fmt: skip


class Blind(gymnasium.Env[Any, Any]):
    """An environment without pictures."""

    observation_space = gymnasium.spaces.Box(0, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 0.0, False, False, {}


@pytest.fixture(scope="module")
def run(trained: Any) -> remuda.Run:
    return trained(pictures=True)


def played_at_random(game: Game, turns: int) -> Iterator[PlayedTurn]:
    dice = np.random.default_rng(0)
    game.reset(np.array([0]), np.array([7], np.uint64))
    yield PlayedTurn(game, np.zeros(game.spec.agents))
    for _ in range(turns):
        game.step([dice.integers(0, group.actions, (1, group.size)) for group in game.spec.groups])
        yield PlayedTurn(game, np.zeros(game.spec.agents))


def random_film(name: str, turns: int = 12) -> Film:
    game = make_game(find_game(name), {}, [0])
    return film_of(played_at_random(game, turns), game.spec, {})


def last_film(run: remuda.Run) -> Film:
    return read_film(films(run.path)[-1])


def test_a_run_leaves_a_film_of_the_untrained_herd_and_one_of_the_last_version(run: remuda.Run) -> None:
    first, *_, last = films(run.path)
    assert (int(first.stem), int(last.stem)) == (0, run.plan.total_episodes)
    before, now = read_film(first), read_film(last)
    assert before.header["episodes"] == 0
    assert len(now.turns) == run.spec.turns + 1
    assert now.turns[0]["scores"] == [0.0, 0.0]
    assert before.turns[0]["agents"] == now.turns[0]["agents"]  # the same episode …
    assert before.turns[-1]["scores"] != now.turns[-1]["scores"]  # … played otherwise


def test_evaluated_versions_leave_films(trained: Any) -> None:
    run = trained(pictures=True, evaluate_every=6)
    evaluated = set(run.evaluations["episodes"].tolist())
    assert len(evaluated) > 1
    assert evaluated <= {int(path.stem) for path in films(run.path)}


def test_the_film_shows_what_the_newest_weights_do(run: remuda.Run) -> None:
    played = film_of_run(run, trained_bindings(run), 0)
    assert played.turns == last_film(run).turns


def test_a_film_drawn_shows_agents_in_their_colours(run: remuda.Run) -> None:
    film = last_film(run)
    image = next(draw_film(film, 210))
    for number, row, col, _ in film.turns[0]["agents"]:
        centre = (14 + col * 30 + 15, 40 + row * 30 + 5)  # in the agent's disc, above its number
        wanted = ImageColor.getrgb(film.header["colours"][number])
        assert np.abs(np.subtract(image.getpixel(centre), wanted)).max() < 12


@pytest.mark.promise
@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_game_has_a_film(name: str) -> None:
    film = random_film(name)
    *_, image = draw_film(film, 480)
    drawn = np.array([colour for _, colour in image.getcolors(1 << 24) or []])
    for wanted in (*(colour for _, colour, _ in kinds_seen(film)), *film.header["colours"]):
        nearest = np.abs(drawn - np.array(ImageColor.getrgb(wanted))).max(axis=1).min()
        assert nearest < 24, f"{wanted} is not to be seen"  # smooth edges shift the colour of the legend's thin frames
    if film.header["size"]:
        assert {number for turn in film.turns for number, *_ in turn["agents"]} == set(
            range(len(film.header["agents"]))
        )
    file = io.StringIO()
    play_in_terminal(film, 1000, Console(file=file, force_terminal=True, color_system="truecolor", width=400))
    for kind, _, _ in kinds_seen(film):
        assert kind in file.getvalue()


@pytest.mark.promise
def test_who_is_it_has_a_ring_that_the_legend_explains() -> None:
    film = random_film("tag", 40)
    for turn in film.turns:
        (ringed,) = [number for number, _, _, _, *rings in turn["agents"] if rings]
        assert turn["lines"] == [f"agent {ringed} is it"]
    assert "it" in [name for name, _, _ in kinds_seen(film)]


def test_the_legend_of_cage2_explains_the_marks_on_its_boxes() -> None:
    film = random_film("cage2", 60)
    explained = {name[0]: shade for name, shade, _ in kinds_seen(film) if name.endswith("acts here")}
    marks = {mark: shade for turn in film.turns for _, *look in turn["boxes"] for mark, shade in look[3]}
    assert explained.items() >= {mark: shade for mark, shade in marks.items() if len(mark) == 1}.items()
    assert {"R", "B"} <= marks.keys()


def test_the_legend_has_what_is_seen_and_nothing_else() -> None:
    kinds = [
        ["floor", "#ffffff", "cell"],
        ["wall", "#000000", "cell"],
        ["beam", "#ffff00", "cell"],
        ["it", "#ff0000", "frame"],
    ]
    turns: list[dict[str, Any]] = [{"turn": 0, "scores": [0.0], "cells": [[0, 0], [1, 0]], "agents": [[0, 0, 0, None]]}]
    film = Film({"game": "g", "agents": ["a"], "colours": ["#123456"], "kinds": kinds, "size": [1, 2]}, turns)
    assert kinds_seen(film) == []
    turns.append({"turn": 1, "scores": [0.0], "cells": [[1, 1]], "agents": [[0, 0, 0, None, "#ff0000"]]})
    assert [name for name, _, _ in kinds_seen(film)] == ["wall", "it"]
    turns.append({"turn": 2, "scores": [0.0], "cells": [], "agents": [], "beams": [[0, 1, "#ffff00"]]})
    assert [name for name, _, _ in kinds_seen(film)] == ["wall", "beam", "it"]


def test_who_is_away_has_an_empty_circle(run: remuda.Run) -> None:
    film = last_film(run)
    film.turns = [film.turns[0], {**film.turns[1], "agents": film.turns[1]["agents"][1:]}]
    here, away = draw_film(film, 210)
    place = (14 + 210 + 14 + 3, 40 + 9)  # inside the first circle of the score board, left of the number
    assert np.abs(np.subtract(here.getpixel(place), ImageColor.getrgb(film.header["colours"][0]))).max() < 12
    assert min(away.getpixel(place)) > 200


@pytest.mark.parametrize("name", ["film.gif", "film.mp4", "film.webm"])
def test_films_are_written_in_the_format_of_the_name(run: remuda.Run, tmp_path: Path, name: str) -> None:
    target = remuda.watch(run, tmp_path / name, size=140, speed=20)
    start = target.read_bytes()[:12]
    if name == "film.gif":
        with Image.open(target) as film:
            assert film.n_frames == run.spec.turns + 1
            assert film.info["duration"] == 50
            assert film.width < 400
    else:
        assert start[4:8] == b"ftyp" if name == "film.mp4" else start.startswith(b"\x1aE\xdf\xa3")


def test_a_gif_keeps_the_colours_that_mean_something(tmp_path: Path) -> None:
    """A violet frame and a beam, each in one turn, from which no palette is made, among many other colours."""
    dice = np.random.default_rng(0)
    kinds = [[f"k{i}", "#{:02x}{:02x}{:02x}".format(*dice.integers(0, 256, 3)), "cell"] for i in range(30)]
    kinds.append(["violet", "#9678c8", "frame"])
    common: dict[str, Any] = {"game": "g", "agents": ["a"], "colours": ["#3b7dd8"], "kinds": kinds}
    looks = [[i, i, i, "", []] for i in range(30)]
    network = {**common, "size": [], "columns": ["c"], "boxes": [[f"b{i}", 0] for i in range(30)]}
    grid = {**common, "size": [20, 20]}
    still = {"scores": [0.0], "cells": [], "agents": [], "boxes": []}
    turns = [{"turn": i, **still} for i in range(20)]
    turns[0].update(boxes=looks, cells=[[i, i % 30] for i in range(400)])
    turns[7].update(boxes=[[0, 0, 30, "", []]], beams=[[0, 1, "#fae65a"]])
    turns[8].update(boxes=[looks[0]])
    for header, place in ((network, (14 + 20, 40 + 25)), (grid, (14 + 30, 40 + 10))):
        film = Film(header, turns)
        write_film(film, tmp_path / "film.gif", 400, 8)
        wanted = list(draw_film(film, 400))[7].getpixel(place)
        with Image.open(tmp_path / "film.gif") as written:
            written.seek(7)
            shown = written.convert("RGB").getpixel(place)
        assert header is grid or wanted == (150, 120, 200)
        assert np.abs(np.subtract(shown, wanted)).max() <= 8


def test_other_formats_and_a_missing_encoder_are_refused(
    run: remuda.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"should end in \.gif, \.mp4, \.webm"):
        remuda.watch(run, tmp_path / "film.avi")
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "imageio_ffmpeg":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"remuda-rl\[video\]"):
        remuda.watch(run, tmp_path / "film.mp4")


def test_the_terminal_has_the_same_colours(run: remuda.Run) -> None:
    film = last_film(run)
    file = io.StringIO()
    play_in_terminal(film, 1000, Console(file=file, force_terminal=True, color_system="truecolor", width=120))
    for colour in (*film.header["colours"], *(kind[1] for kind in film.header["kinds"])):
        assert "2;{};{};{}".format(*ImageColor.getrgb(colour)) in file.getvalue()


def test_the_terminal_shows_facing_rings_and_who_is_away_and_breaks_no_entry() -> None:
    kinds = [["floor", "#ffffff", "cell"], ["wall", "#000000", "cell"], ["it", "#ffd21f", "frame"]]
    colours = [f"#{i:02x}8040" for i in range(12)]
    agents = [[0, 0, 0, 3], [1, 0, 1, 0, "#ffd21f"], [11, 0, 3, 2]]
    turn = {"turn": 0, "scores": [-1000.0] * 12, "cells": [[2, 1]], "agents": agents}
    header = {"game": "g", "agents": ["a"] * 12, "colours": colours, "kinds": kinds, "size": [1, 4]}
    console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=40, record=True)
    play_in_terminal(Film(header, [turn]), 0, console)
    lines = [line.rstrip() for line in console.export_text(clear=False).splitlines()]
    assert "■ wall  □ it" in lines
    begun = lines.index("0▸1▴  11")
    assert lines[begun + 1] == "turn 0 of 0   0  -1000.0   1  -1000.0"
    assert lines[begun + 5] == " 11  -1000.0  herd -12000.0"
    written = console.export_text(styles=True)
    assert "48;2;255;210;31" in written  # the ground of who has the ring
    assert "48;2;11;128;64" in written
    assert "48;2;5;128;64" not in written  # agent 5 is away


@pytest.mark.promise
def test_a_foreign_environment_is_made_with_pictures(tmp_path: Path) -> None:
    run = remuda.train("gymnasium:CartPole-v1", out=tmp_path / "run", **GYM)
    assert (run.path / "herd.gif").is_file()
    film = film_of_run(run, trained_bindings(run), 0, PictureLimits(5, 60))
    assert 2 <= len(film.turns) <= 6
    assert max(film.header["size"]) == 60
    assert film.header["agents"] == ["agent"]
    assert remuda.watch(run, tmp_path / "film.gif").is_file()


def test_environments_side_by_side_have_frames_in_the_colours_of_their_agents() -> None:
    game = make_game(find_game("gymnasium:CartPole-v1"), {"agents": 2, "render_mode": "rgb_array"}, [0])
    game.reset(np.array([0]), np.array([7], np.uint64))
    picture = game.render(0)
    width = picture.shape[1] // 2
    for agent in (0, 1):
        colour = ImageColor.getrgb(agent_colour(agent))
        assert (picture[:, [agent * width, (agent + 1) * width - 1]] == colour).all()
        assert not (picture[20:-20, agent * width + 20 : (agent + 1) * width - 20] == colour).all(-1).any()


@pytest.mark.promise
def test_a_machine_without_a_screen_draws_without_a_word() -> None:
    code = """
import numpy as np
from remuda.games.registry import find_game
from remuda.runs.film import make_pictured
game = make_pictured(find_game("gymnasium:CartPole-v1"), {}, 0)
game.reset(np.array([0]), np.array([7], np.uint64))
assert game.render(0).size > 0
"""
    screens = ("DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR", "SDL_VIDEODRIVER")
    environment = {name: value for name, value in os.environ.items() if name not in screens}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_environment_without_pictures_is_said_before_training(tmp_path: Path, capfd: Any) -> None:
    run = remuda.train(Blind, out=tmp_path / "run", **{**GYM, "quiet": False})
    said = capfd.readouterr().err
    assert said.index("no `remuda watch`") < said.index("evaluation:")
    assert not (run.path / "herd.gif").exists()
    with pytest.raises(ConfigError, match="has nothing to show"):
        run.watch()


class Undrawable(Blind):
    """An environment whose library for pictures is not installed."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    render_mode = "rgb_array"

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 0.0, False, True, {}

    def render(self) -> Any:
        raise ImportError("no module named easel: pip install easel")


def test_an_environment_that_cannot_be_drawn_costs_the_film_and_not_the_run(tmp_path: Path, capfd: Any) -> None:
    run = remuda.train(Undrawable, out=tmp_path / "run", **{**GYM, "quiet": False})
    assert run.result["finished"]
    assert "no film: " in (said := capfd.readouterr().err)
    assert "cannot be drawn: no module named easel: pip install easel" in said
    with pytest.raises(GameError, match="cannot be drawn: no module named easel"):
        run.watch()


def test_old_films_are_thinned_and_the_first_stays(tmp_path: Path) -> None:
    (tmp_path / FILMS).mkdir()
    for episodes in range(MAX_FILMS + 1):
        (tmp_path / FILMS / f"{episodes:09d}.json").touch()
    thin(tmp_path)
    kept = [int(path.stem) for path in films(tmp_path)]
    assert len(kept) <= MAX_FILMS // 2 + 2
    assert kept[0] == 0
    assert kept[-1] == MAX_FILMS


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": "remuda-film"}', "nonsense", "[" * 100_000])
def test_a_damaged_film_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "film.json").write_text(content)
    with pytest.raises(RunError):
        read_film(tmp_path / "film.json")


def test_films_of_episodes_that_are_trained_again_are_removed(run: remuda.Run, copy_of: Any) -> None:
    copy = copy_of(run)
    later = copy.path / FILMS / "000099999.json"
    later.write_text(json.dumps({}))
    remuda.resume(copy.path, total_episodes=15, quiet=True)
    assert not later.exists()
    assert [int(path.stem) for path in films(copy.path)][-1] == 15


def test_a_short_last_round_makes_no_spike() -> None:
    values = np.array([1.0] * 20 + [100.0])
    weights = np.array([16.0] * 20 + [1.0])
    assert smoothed(values, weights)[-1] < 5
    assert smoothed(np.array([1.0, 100.0]), np.array([16.0, 1.0]))[-1] < 10
