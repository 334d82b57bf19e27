"""actions=useful in CAGE 2: masks what makes no difference in any hypothesis of blue's belief, and nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import remuda
from remuda.core import rng
from remuda.core.errors import ConfigError
from remuda.core.game import make_game
from remuda.core.rng import Stream
from remuda.games.cage2.compact import FIRST_DECOY_ACTION, N_COMPACT, PLAIN_ACTIONS
from remuda.games.cage2.game import Cage2
from remuda.games.cage2.network import ANALYSE, RESTORE, SLEEP
from remuda.games.cage2.simulator import Draws, TurnActions, transition
from remuda.games.cage2.state import NONE, REST, decode
from remuda.games.cage2.useful import HAS_MAIL
from remuda.games.registry import find_game

BELIEF = {"observation": "belief", "horizon": "terminal"}


def start(worlds: int, **options: Any) -> Cage2:
    game = make_game(find_game("cage2"), {"red": "mixed", **BELIEF, **options}, list(range(worlds)))
    assert isinstance(game, Cage2)
    game.reset(np.arange(worlds), rng.keys(rng.key(0, Stream.CHECK), np.arange(worlds)))
    return game


def mask(game: Cage2) -> NDArray[np.bool_]:
    out = np.zeros((game.worlds, 1, N_COMPACT), np.bool_)
    game.mask(0, 0, 1, out)
    return out[:, 0]


def random_actions(turn: int, worlds: int) -> NDArray[np.int64]:
    """Compact actions, the same in all worlds in every other turn; rather seldom one, so that red gets far."""
    draws = rng.uniforms(rng.keys(rng.key(5, Stream.CHECK), np.array([turn])), 2 * worlds)[0].reshape(2, worlds)
    if turn % 2:
        draws[:] = draws[:, :1]
    return np.where(draws[0] < 0.6, 0, draws[1] * N_COMPACT).astype(np.int64)[:, None]


def outcome(network: Any, action: int, leaderboard: bool) -> list[NDArray[Any]]:
    """What of the network matters after a step in which red rests: sessions, the service, broken mail servers."""
    after = network.copy()
    transition(after, TurnActions(np.int64(action), NONE, REST, NONE), Draws(NONE, True, 0.0), leaderboard)
    names = ("root", "removable", "pinned", "service_up", "service_stoppable")
    return [*(np.array(after[name]) for name in names), after["smtp_lost"] * HAS_MAIL]


def makes_difference(hypotheses: Any, action: int, leaderboard: bool) -> bool:
    """By trying it in every hypothesis; Analyse by what it would find."""
    verb, host = decode(action)
    if verb == ANALYSE:
        return len({bool(h.network.malware[host]) for h in hypotheses}) > 1
    return any(
        not np.array_equal(changed, same)
        for h in hypotheses
        for changed, same in zip(
            outcome(h.network, action, leaderboard), outcome(h.network, SLEEP, leaderboard), strict=True
        )
    )


@pytest.mark.parametrize("rules", ["leaderboard", "head"])
def test_exactly_the_actions_that_make_no_difference_are_masked(rules: str) -> None:
    worlds = 12
    useful, compact = (start(worlds, rules=rules, actions=name) for name in ("useful", "compact"))
    counts = {(verb, allowed): 0 for verb in (ANALYSE, ANALYSE + 1, RESTORE) for allowed in (True, False)}
    for turn in range(40):
        allowed = mask(useful)
        np.testing.assert_array_equal(allowed[:, FIRST_DECOY_ACTION:], mask(compact)[:, FIRST_DECOY_ACTION:])
        assert allowed[:, 0].all()  # Sleep
        for w in range(worlds):
            hypotheses = useful.belief.hypotheses[w, : useful.belief.counts[w]]
            for a in range(1, FIRST_DECOY_ACTION):
                wanted = makes_difference(hypotheses, int(PLAIN_ACTIONS[a]), rules == "leaderboard")
                assert allowed[w, a] == wanted
                counts[int(decode(PLAIN_ACTIONS[a])[0]), wanted] += 1
        actions = random_actions(turn, worlds)
        for game in (useful, compact):
            game.step([actions])
    assert min(counts.values()) > 10, counts


def test_with_the_truth_as_input_the_truth_is_the_only_hypothesis() -> None:
    worlds, repairs = 12, 0
    game, compact = (start(worlds, observation="truth", actions=name) for name in ("useful", "compact"))
    for turn in range(40):
        allowed = mask(game)
        np.testing.assert_array_equal(allowed[:, FIRST_DECOY_ACTION:], mask(compact)[:, FIRST_DECOY_ACTION:])
        for w in range(worlds):
            truth = [SimpleNamespace(network=game.state[w])]
            wanted = [makes_difference(truth, int(action), False) for action in PLAIN_ACTIONS[1:]]
            assert allowed[w, :FIRST_DECOY_ACTION].tolist() == [True, *wanted]
            repairs += sum(wanted)
        for one in (game, compact):
            one.step([random_actions(turn, worlds)])
    assert repairs > 100


def test_the_mask_is_a_function_of_what_blue_saw_and_did() -> None:
    """Worlds in which blue saw and did the same have the same mask, whatever red did unseen."""
    worlds, hidden_differences = 300, 0
    game, seeing = start(worlds, actions="useful"), start(worlds, observation="bits", actions="compact")
    histories: list[bytes] = [b""] * worlds
    for turn in range(25):
        actions = np.repeat(random_actions(2 * turn + 1, 1), worlds, axis=0)
        for one in (game, seeing):
            one.step([actions])
        bits = np.zeros((worlds, 1, 52), np.uint8)
        seeing.observe(0, 0, 1, bits)
        histories = [history + bits[w].tobytes() for w, history in enumerate(histories)]
        first: dict[bytes, int] = {}
        allowed = mask(game)
        for w, history in enumerate(histories):
            twin = first.setdefault(history, w)
            np.testing.assert_array_equal(allowed[w], allowed[twin])
            hidden_differences += game.state[w].tobytes() != game.state[twin].tobytes()
    assert hidden_differences > 100


def test_it_keeps_every_promise_of_a_game() -> None:
    found = remuda.check("cage2", red="mixed", actions="useful", rules="leaderboard", **BELIEF)
    assert [f"{f.promise}: {f.problem}" for f in found if not f.good] == []


def test_without_a_belief_it_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"actions=useful goes with observation=belief, not memory: .*actions=compact"
    ):
        start(1, observation="memory", actions="useful")
