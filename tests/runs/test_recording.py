"""Recordings: read back with plain numpy, replayed to the same observations, refused when damaged."""

from __future__ import annotations

import io
import json
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from remuda.core.errors import ConfigError, RemudaError, TraceError
from remuda.core.game import make_game
from remuda.games.registry import find_game
from remuda.runs.evaluation import EvaluationSetup, evaluate_policies
from remuda.runs.recording import Recording, read, record

GAMES: dict[str, dict[str, Any]] = {
    "treasurehunt": {"agents": 2, "turns": 15, "spawn": 0.1, "height": 9},
    "cage2": {"steps": 20, "red": ["b_line", "meander"], "worlds": 2},
    "remuda.testing:UNEQUAL": {"agents": 2},
    "remuda.testing:MASKED": {},
    "remuda.testing:RESPAWN": {"at_begin": True},
    "remuda.testing:GIFTS": {"parallel_actions": False},
}


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    path = tmp_path / "masked.npz"
    record("remuda.testing:MASKED", path, 5)
    return path


def equal(a: Recording, b: Recording) -> bool:
    if a.header != b.header or any(
        not np.array_equal(getattr(a, n), getattr(b, n)) for n in ("turns", "episodes", "worlds", "keys")
    ):
        return False
    pairs = [(vars(x), vars(y)) for x, y in zip(a.groups, b.groups, strict=True)]
    return all(
        (x[n] is None and y[n] is None) or (x[n].dtype == y[n].dtype and np.array_equal(x[n], y[n]))
        for x, y in pairs
        for n in x
    )


@pytest.mark.parametrize("game", GAMES)
def test_reading_gives_what_was_written(game: str, tmp_path: Path) -> None:
    path = tmp_path / "episodes.npz"
    written = record(game, path, 5, **GAMES[game])
    assert equal(read(path), written)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("game", GAMES)
def test_plain_numpy_reads_it_and_the_game_replays_it(game: str, tmp_path: Path) -> None:
    """The recorded keys and actions lead to the recorded observations, rewards and ends."""
    path = tmp_path / "episodes.npz"
    record(game, path, 5, **GAMES[game])
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    header = json.loads(arrays["header"].tobytes())
    world = make_game(find_game(header["game"]), header["options"], arrays["worlds"].tolist())
    count = len(arrays["turns"])
    world.reset(np.arange(count), arrays["keys"])
    groups = list(enumerate(world.spec.groups))

    def compare(turn: int, g: int, first: int, last: int) -> None:
        """What these agents see now is what was recorded, where they were there to see it."""
        group = world.spec.groups[g]
        seen = np.zeros((count, last - first, *group.obs_shape), group.obs_dtype)
        world.observe(g, first, last, seen)
        there = arrays[f"group{g}_alive"][:, turn, first:last]
        assert np.array_equal(seen[there], arrays[f"group{g}_observations"][:, turn, first:last][there])
        if group.masked:
            allowed = np.ones((count, last - first, group.actions), np.bool_)
            world.mask(g, first, last, allowed)
            assert np.array_equal(allowed[there], arrays[f"group{g}_action_mask"][:, turn, first:last][there])

    def act(turn: int, g: int, first: int, last: int) -> None:
        actions = arrays[f"group{g}_actions"][:, turn, first:last].copy()
        if world.spec.groups[g].masked:  # the file has zeros where nobody acted, and games may mind what is forbidden
            allowed = np.ones((count, last - first, world.spec.groups[g].actions), np.bool_)
            world.mask(g, first, last, allowed)
            idle = ~arrays[f"group{g}_alive"][:, turn, first:last]
            actions[idle] = allowed.argmax(axis=2)[idle]
        world.act(g, first, last, np.ascontiguousarray(actions))

    for turn in range(arrays["turns"].max()):
        world.begin()
        if header["parallel_actions"]:
            for g, group in groups:
                compare(turn, g, 0, group.size)
            for g, group in groups:
                act(turn, g, 0, group.size)
        else:
            for g, group in groups:
                for i in range(group.size):
                    compare(turn, g, i, i + 1)
                    act(turn, g, i, i + 1)
        world.end()
        assert np.array_equal(world.over, arrays["turns"] <= turn + 1)
    assert world.over.all()
    for g, _ in groups:
        last = arrays["turns"] - 1
        assert np.array_equal(world.signals[g].metrics, arrays[f"group{g}_metrics"][np.arange(count), last])
        paid = np.where(arrays[f"group{g}_alive"], arrays[f"group{g}_rewards"], 0).sum(axis=1)
        if "RESPAWN" not in game and "GIFTS" not in game:  # there some is paid before anybody looks, or to the dead
            np.testing.assert_allclose(paid, world.signals[g].rewards, rtol=1e-5)  # never emptied here: all of it


def test_what_lies_beyond_the_end_is_nothing(recorded: Path) -> None:
    recording = read(recorded)
    (group,) = recording.groups
    longest = int(recording.turns.max())
    assert len(set(recording.turns.tolist())) > 1, "episodes of different length"
    assert group.actions.shape[1] == longest
    assert group.observations.shape[1] == longest + 1
    assert group.action_mask is not None
    for episode, turns in enumerate(recording.turns):
        for name, array in vars(group).items():
            extra = name in ("observations", "action_mask")
            assert not array[episode, turns + extra :].any(), name
        assert group.alive[episode, :turns].all()
        assert group.terminated[episode, turns - 1].all()
        assert not group.terminated[episode, : turns - 1].any()


def test_metrics_are_told_turn_by_turn(tmp_path: Path) -> None:
    recording = record("treasurehunt", tmp_path / "a.npz", 3, turns=20, spawn=0.3, agents=1)
    (group,) = recording.groups
    events = np.diff(group.metrics, axis=1, prepend=0)  # (episodes, turns, agents, metrics)
    names = recording.header["groups"][0]["metrics"]
    assert events.min() == 0
    gems, food, bones, bumps = (events[..., names.index(name)] for name in ("gems", "food", "bones", "bumps"))
    assert gems.sum() > 0
    assert np.array_equal(group.rewards, 10 * gems + 5 * food - 10 * bones - bumps)


def test_a_trained_herd_plays_as_when_it_is_evaluated(trained: Any, tmp_path: Path) -> None:
    run = trained()
    recording = record(run.path, tmp_path / "a.npz", 70)  # more than are played at once
    setup = EvaluationSetup.of(run.path, {})
    scores = evaluate_policies(setup.plan, setup.spec, setup.bindings, 70)
    (group,) = recording.groups
    returns = np.where(group.alive, group.rewards, 0).sum(axis=1, dtype=np.float64)
    assert np.array_equal(returns, scores.returns)
    header = recording.header
    assert header["players"] == ["iqn", "iqn"]
    assert header["weights_sha256"] == run.result["weights_sha256"]
    assert (header["run"], header["checkpoint"], header["seed"]) == (str(run.path), "000000012", run.plan.seed)
    assert recording.episodes.tolist() == list(range(70))
    assert recording.worlds.tolist() == [episode % 3 for episode in range(70)]
    assert len(set(recording.keys.tolist())) == 70


def test_scripted_players_and_frozen_ones(trained: Any, tmp_path: Path) -> None:
    run = trained()
    game = {"height": 7, "width": 7, "turns": 5, "learners": {0: f"frozen:{run.path}/1", 1: "random"}}
    recording = record("treasurehunt", tmp_path / "a.npz", 2, **game)
    assert recording.header["players"] == [f"frozen:{run.path}/1", "random"]
    assert recording.header["run"] is None


def test_the_command(cli: Any, trained: Any, tmp_path: Path) -> None:
    out = tmp_path / "b.npz"
    done = cli("record", trained().path, "--episodes", "3", "--out", out)
    assert (done.code, done.err, done.out) == (0, "", f"{out}: 3 episodes, 36 turns\n")
    assert len(read(out).turns) == 3
    again = cli("record", trained().path, "--episodes", "3", "--out", out)
    assert again.code == 2
    assert "exists already" in again.err
    done = cli("record", "cage2", "steps=5", "learner=sleep", "--episodes", "2", "--out", tmp_path / "c.npz")
    assert done.code == 0
    assert read(tmp_path / "c.npz").header["players"] == ["sleep"]
    done = cli("record", "treasurehunt", "--turns", "4", "--episodes", "2", "--out", tmp_path / "d.npz")
    assert done.code == 0


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["record", "treasurehnt"], "'treasurehunt'"),
        (["record", "treasurehunt", "learner=iqn"], "trained or scripted"),
        (["record", "treasurehunt", "--episodes", "0"], "--episodes"),
        (["record", "treasurehunt", "--episodes", "100000000"], "episodes=100000000"),
        (["record", "treasurehunt", "--out", "no/such/place.npz"], "no directory"),
        (["record", "treasurehunt", "trns=3"], "'turns'"),
    ],
)
def test_mistakes_are_one_line(cli: Any, words: list[str], match: str) -> None:
    done = cli(*words)
    assert (done.code, done.out) == (2, "")
    assert len(done.err.splitlines()) == 1
    assert match in done.err
    assert list(Path().iterdir()) == []


def rewritten(path: Path, **changes: Any) -> Path:
    """A copy with some arrays replaced; None: left out."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {**file, **changes}
    target = path.with_name("changed.npz")
    np.savez(target, **{name: array for name, array in arrays.items() if array is not None})
    return target


def header_bytes(path: Path, **changes: Any) -> Any:
    header = {**read(path).header, **changes}
    return np.frombuffer(json.dumps(header).encode(), np.uint8)


def test_damaged_files_are_told_in_a_sentence(recorded: Path, tmp_path: Path) -> None:
    content = recorded.read_bytes()
    shape = read(recorded).groups[0].actions.shape
    group = read(recorded).header["groups"][0]
    objects = np.array([{"a": 1}], dtype=object)
    for changes, match in (
        ({"header": None}, "no header"),
        ({"turns": None}, "no turns"),
        ({"keys": None}, "'keys'"),
        ({"group0_rewards": None}, "group0_rewards"),
        ({"group0_action_mask": None}, "group0_action_mask"),
        ({"group0_actions": np.zeros(shape, np.int32)}, "int32"),
        ({"group0_actions": np.full(shape, 4, np.int64)}, "actions outside of its range"),
        ({"group0_actions": np.zeros((*shape, 1), np.int64)}, "of shape"),
        ({"turns": np.full(shape[0], -1)}, "of shape"),
        ({"header": np.frombuffer(b"{", np.uint8)}, "not JSON"),
        ({"header": np.frombuffer(b"[" * 100_000, np.uint8)}, "not JSON"),
        ({"header": np.frombuffer(b"[]", np.uint8)}, "remuda-recording"),
        ({"header": header_bytes(recorded, version=2)}, "version 2"),
        ({"header": header_bytes(recorded, groups=[])}, "no groups"),
        ({"header": header_bytes(recorded, groups=[3])}, "describe a game"),
        ({"header": header_bytes(recorded, groups=[{**group, "agents": "many"}])}, "describe a game"),
        ({"header": header_bytes(recorded, groups=[{**group, "obs_dtype": "nothing"}])}, "describe a game"),
        ({"header": header_bytes(recorded, groups=[{**group, "agents": 10**30}])}, "of shape"),
        ({"keys": objects}, "cannot be read"),
    ):
        with pytest.raises(TraceError, match=match):
            read(rewritten(recorded, **changes))
    for wrong, match in (
        (b"", "cannot be read"),
        (b"not a file of ours", "cannot be read"),
        (content[: len(content) // 2], "cannot be read"),
    ):
        path = tmp_path / "wrong.npz"
        path.write_bytes(wrong)
        with pytest.raises(TraceError, match=match):
            read(path)
    with pytest.raises(TraceError, match="does not exist"):
        read(tmp_path / "nothing.npz")
    with pytest.raises(TraceError, match="not a regular file"):
        read(tmp_path)


def test_any_flipped_byte_is_noticed_or_harmless(recorded: Path, tmp_path: Path) -> None:
    content, written = recorded.read_bytes(), read(recorded)
    path = tmp_path / "flipped.npz"
    for place in range(0, len(content), max(1, len(content) // 400)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
        with suppress(TraceError):
            assert equal(read(path), written), f"byte {place} was believed"  # nobody reads it, or it is noticed


def test_a_bomb_is_not_unpacked(recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remuda.runs.recording.MAX_BYTES", 1 << 16)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("header.npy", bytes(1 << 20))
    path = tmp_path / "bomb.npz"
    path.write_bytes(file.getvalue())
    with pytest.raises(TraceError, match="unpacks to"):
        read(path)


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("remuda.runs.recording.np.savez_compressed", refuse)
    with pytest.raises(RemudaError, match="No space left"):
        record("remuda.testing:MASKED", tmp_path / "a.npz", 2)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_left_alone(recorded: Path) -> None:
    before = recorded.read_bytes()
    with pytest.raises(ConfigError, match="exists already"):
        record("remuda.testing:MASKED", recorded, 2)
    assert recorded.read_bytes() == before


def test_a_recording_starts_its_episodes_again(tmp_path: Path) -> None:
    """As docs/recording.md has it."""
    record("treasurehunt", tmp_path / "a.npz", 3, turns=20, spawn=0.3, agents=2)
    recording = Recording.read(tmp_path / "a.npz")
    assert repr(recording) == "Recording of treasurehunt: 3 episodes, 60 turns"
    game = recording.start("treasurehunt")
    for t in range(int(recording.turns.max())):
        game.step([np.ascontiguousarray(group.actions[:, t]) for group in recording.groups])
    assert game.over.all()
    np.testing.assert_array_equal(game.signals[0].metrics, recording.groups[0].metrics[:, -1])


@pytest.mark.parametrize(
    ("change", "match"), [({"episodes": 0}, "episodes=0"), ({"exploration": -1}, "exploration=-1")]
)
def test_what_cannot_be_recorded_is_told_in_a_sentence(tmp_path: Path, change: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        record("treasurehunt", tmp_path / "a.npz", **change)
