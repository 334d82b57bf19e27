"""Films: what a run leaves, how it is drawn, and which environments can be watched."""

from __future__ import annotations

import builtins
import io
import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from PIL import Image, ImageColor
from rich.console import Console

import remuda
from remuda.core.errors import ConfigError, RunError
from remuda.runs.callbacks.pictures import FILMS, MAX_FILMS, films, thin
from remuda.runs.curve import smoothed
from remuda.runs.film import film_of_run, trained_bindings
from remuda.runs.film_data import Film, PictureLimits, read_film
from remuda.runs.film_picture import draw_film
from remuda.runs.film_terminal import play_in_terminal

GYM: dict[str, Any] = {
    "learner": "ppo", "layers": [8], "worlds": 2, "total_episodes": 4, "evaluate_episodes": 2, "device": "cpu",
    "turns": 15, "quiet": True,
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


@pytest.mark.promise
def test_a_foreign_environment_is_made_with_pictures(tmp_path: Path) -> None:
    run = remuda.train("gymnasium:CartPole-v1", out=tmp_path / "run", **GYM)
    assert (run.path / "herd.gif").is_file()
    film = film_of_run(run, trained_bindings(run), 0, PictureLimits(5, 60))
    assert 2 <= len(film.turns) <= 6
    assert max(film.header["size"]) == 60
    assert remuda.watch(run, tmp_path / "film.gif").is_file()


def test_an_environment_without_pictures_is_said_before_training(tmp_path: Path, capfd: Any) -> None:
    run = remuda.train(Blind, out=tmp_path / "run", **{**GYM, "quiet": False})
    said = capfd.readouterr().err
    assert said.index("no `remuda watch`") < said.index("evaluation:")
    assert not (run.path / "herd.gif").exists()
    with pytest.raises(ConfigError, match="has nothing to show"):
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
