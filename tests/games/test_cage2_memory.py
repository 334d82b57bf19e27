"""Blue's memory and compact actions in CAGE 2: known to blue, exact, and the same everywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import remuda
from remuda.core import rng
from remuda.core.errors import ConfigError
from remuda.core.game import make_game
from remuda.core.rng import Stream
from remuda.games.cage2.compact import FIRST_DECOY_ACTION, N_COMPACT, USEFUL_DECOYS, compact_name
from remuda.games.cage2.game import Cage2
from remuda.games.cage2.memory import FEATURES, MEMORY, forget, remember, write_features
from remuda.games.cage2.network import NAMES
from remuda.games.cage2.state import SUCCEEDED
from remuda.games.registry import find_game

MIXED = ["b_line", "meander", "sleep"]
MEMORY_AND_COMPACT = {"observation": "memory", "actions": "compact"}


def start(worlds: int, seed: int = 0, **options: Any) -> Cage2:
    game = make_game(find_game("cage2"), {"red": "mixed", **options}, list(range(worlds)))
    assert isinstance(game, Cage2)
    game.reset(np.arange(worlds), rng.keys(rng.key(seed, Stream.CHECK), np.arange(worlds)))
    return game


def observe(game: Cage2) -> NDArray[Any]:
    """What blue sees in each world, (worlds, numbers)."""
    group = game.spec.groups[0]
    out = np.zeros((game.worlds, 1, *group.obs_shape), group.obs_dtype)
    game.observe(0, 0, 1, out)
    return out[:, 0]


def mask(game: Cage2) -> NDArray[np.bool_]:
    out = np.zeros((game.worlds, 1, N_COMPACT), np.bool_)
    game.mask(0, 0, 1, out)
    return out[:, 0]


def random_actions(turn: int, worlds: int, limit: int) -> NDArray[np.int64]:
    draws = rng.uniforms(rng.keys(rng.key(5, Stream.CHECK), np.array([turn])), worlds)[0]
    return (draws * limit).astype(np.int64)[:, None]


@pytest.mark.parametrize(
    "options",
    [
        MEMORY_AND_COMPACT,
        {"observation": "truth", "actions": "compact", "horizon": "terminal"},
        {"observation": "belief", "actions": "compact", "rules": "leaderboard"},
        {"observation": "memory", "workflow": "distinct", "rules": "leaderboard"},
    ],
    ids=["memory", "truth", "belief", "workflow"],
)
def test_it_keeps_every_promise_of_a_game(options: dict[str, Any]) -> None:
    assert [f"{f.promise}: {f.problem}" for f in remuda.check("cage2", red="mixed", **options) if not f.good] == []


def test_worlds_that_differ_only_in_what_blue_cannot_know_show_the_same_features() -> None:
    """Worlds in which blue saw and did the same so far have the same features, whatever red did unseen."""
    worlds = 600
    seeing, remembering = (start(worlds, observation=name) for name in ("bits", "memory"))
    histories: list[bytes] = [b""] * worlds
    hidden_differences = 0
    for turn in range(30):
        action = np.repeat(random_actions(turn, 1, 145), worlds, axis=0)
        for game in (seeing, remembering):
            game.step([action])
        bits, features = observe(seeing), observe(remembering)
        histories = [history + bits[w].tobytes() for w, history in enumerate(histories)]
        first: dict[bytes, int] = {}
        for w, history in enumerate(histories):
            twin = first.setdefault(history, w)
            np.testing.assert_array_equal(features[w], features[twin])
            hidden_differences += remembering.state[w].tobytes() != remembering.state[twin].tobytes()
    assert hidden_differences > 300


def test_features_are_a_function_of_bits_and_actions_alone() -> None:
    """Recomputed from the bits that blue saw and the actions it took, they are the same numbers."""
    worlds = 30
    seeing = start(worlds, green=True)
    remembering = start(worlds, green=True, observation="memory")
    memory = np.zeros(worlds, MEMORY)
    again = np.zeros((worlds, FEATURES), np.float32)
    for w in range(worlds):
        forget(memory[w])
    for turn in range(100):
        actions = random_actions(turn, worlds, 145)
        for game in (seeing, remembering):
            game.step([actions])
        bits = observe(seeing)
        for w in range(worlds):
            remember(memory[w], bits[w], int(actions[w, 0]))
            write_features(memory[w], again[w])
        features = observe(remembering)
        np.testing.assert_array_equal(features, again)
        assert features.min() >= 0
        assert features.max() <= 1
    assert (seeing.state == remembering.state).all()


def test_blue_knows_which_of_its_decoys_are_up() -> None:
    game = start(200, observation="memory")
    for turn in range(100):
        game.step([random_actions(turn, 200, 145)])
        np.testing.assert_array_equal(game.memory["up"] > 0, game.state["decoys"] > 0)
        np.testing.assert_array_equal(game.memory["ports"], game.state["ports"])


def test_a_compact_decoy_is_allowed_exactly_where_one_is_left_and_then_succeeds() -> None:
    game = start(300, **MEMORY_AND_COMPACT)
    hosts = [NAMES.index(host) for host in USEFUL_DECOYS]
    forbidden = 0
    for turn in range(100):
        allowed = mask(game)
        assert allowed[:, :FIRST_DECOY_ACTION].all()
        placed = game.memory["up"][:, hosts].sum(axis=2)
        wanted = np.array([len(decoys) for decoys in USEFUL_DECOYS.values()])
        np.testing.assert_array_equal(allowed[:, FIRST_DECOY_ACTION:], placed < wanted)
        actions = random_actions(turn, 300, N_COMPACT)
        game.step([actions])
        decoy = actions[:, 0] >= FIRST_DECOY_ACTION
        may = allowed[np.arange(300), actions[:, 0]]
        assert (game.state["blue_success"][decoy & may] == SUCCEEDED).all()
        assert (game.state["blue"][decoy & ~may] == 0).all()
        forbidden += int((~may).sum())
    assert forbidden > 0
    assert len({compact_name(action) for action in range(N_COMPACT)}) == N_COMPACT == 40


@pytest.mark.parametrize(("horizon", "ends"), [("truncated", (False, True)), ("terminal", (True, False))])
def test_the_last_step_is_a_cut_or_the_end(horizon: str, ends: tuple[bool, bool]) -> None:
    game = start(3, steps=2, horizon=horizon)
    game.step([np.zeros((3, 1), np.int64)])
    assert not game.over.any()
    game.step([np.zeros((3, 1), np.int64)])
    signals = game.signals[0]
    assert game.over.all()
    assert (signals.terminated.all(), signals.truncated.all()) == ends


def test_the_clock_does_not_tell_when_a_shorter_game_ends() -> None:
    """Blue is not told whether 30, 50 or 100 steps are played, as in the challenge."""
    short, long = (start(6, steps=steps, observation="memory") for steps in (30, 100))
    for turn in range(30):
        for game in (short, long):
            game.step([random_actions(turn, 6, 145)])
        np.testing.assert_array_equal(observe(short), observe(long))


def test_the_truth_tells_worlds_apart_that_look_the_same() -> None:
    game = start(3, observation="truth")
    seen = observe(game)
    assert not (seen[0] == seen[1]).all()
    assert "study only" in (find_game("cage2").options.model_fields["observation"].description or "")


def test_critics_may_see_the_truth() -> None:
    remembering, knowing = (start(6, observation=name) for name in ("memory", "truth"))
    for turn in range(20):
        for game in (remembering, knowing):
            game.step([random_actions(turn, 6, 145)])
    state = np.zeros((6, *(remembering.spec.groups[0].state_shape or ())), np.float32)
    remembering.observe_state(0, state)
    np.testing.assert_array_equal(state, observe(knowing))


def test_a_wrong_observation_is_named() -> None:
    with pytest.raises(ConfigError, match="observation='pixels'"):
        make_game(find_game("cage2"), {"observation": "pixels"}, [0])
