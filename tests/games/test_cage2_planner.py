"""The planner of CAGE 2, and the observation that it reads: the hypotheses of blue's belief."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import remuda
from remuda.core import rng
from remuda.core.errors import ConfigError
from remuda.core.game import make_game
from remuda.core.policy import PolicyInput
from remuda.core.rng import Stream
from remuda.games.cage2.belief import ALL_HYPOTHESES, HYPOTHESES, HYPOTHESES_BYTES, HYPOTHESIS, suppose
from remuda.games.cage2.compact import N_COMPACT, compact_name
from remuda.games.cage2.defenders import Planner
from remuda.games.cage2.game import Cage2
from remuda.games.cage2.network import NAMES, action_name
from remuda.games.cage2.planner import BASE_POLICIES, base_action, find_unsure
from remuda.games.registry import find_game

PLANNED = {"observation": "hypotheses", "actions": "useful", "horizon": "terminal", "rules": "leaderboard"}
ENTERPRISE1 = NAMES.index("Enterprise1")


def start(worlds: int, **options: Any) -> Cage2:
    game = make_game(find_game("cage2"), {"red": "mixed", **PLANNED, **options}, list(range(worlds)))
    assert isinstance(game, Cage2)
    reset(game, 0)
    return game


def reset(game: Cage2, episode: int) -> None:
    game.reset(np.arange(game.worlds), rng.keys(rng.key(episode, Stream.CHECK), np.arange(game.worlds)))


def observe(game: Cage2) -> NDArray[np.uint8]:
    out = np.zeros((game.worlds, 1, HYPOTHESES_BYTES), np.uint8)
    game.observe(0, 0, 1, out)
    return out


def plan(game: Cage2, worlds: list[int], keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The actions in these worlds, given these keys."""
    mask = np.zeros((game.worlds, 1, N_COMPACT), np.bool_)
    game.mask(0, 0, 1, mask)
    ages = np.zeros((len(worlds), 1), np.int64)
    inputs = PolicyInput(observe(game)[None, worlds], ages, mask[worlds], keys[:, None], 0.0)
    actions: NDArray[np.int64] = Planner(game.spec.groups[0], 1).act(inputs, 0, 1).actions[:, 0]
    assert mask[worlds, 0, actions].all()
    return actions


def random_actions(turn: int, worlds: int) -> NDArray[np.int64]:
    draws = rng.uniforms(rng.keys(rng.key(5, Stream.CHECK), np.array([turn])), worlds)[0]
    return (draws * N_COMPACT).astype(np.int64)[:, None]


def test_it_shows_the_hypotheses_of_the_belief_and_nothing_of_earlier_episodes() -> None:
    worlds, unsure = 30, 0
    game = start(worlds, rules=["leaderboard", "head"])
    believing = start(worlds, rules=["leaderboard", "head"], observation="belief")
    for episode in range(2):
        for one in (game, believing):
            reset(one, episode)
        for turn in range(15):
            for one in (game, believing):
                one.step([random_actions(turn, worlds)])
            seen, belief = observe(game)[:, 0], believing.belief
            shown = seen[:, :ALL_HYPOTHESES].copy().view(HYPOTHESIS)
            header = seen[:, ALL_HYPOTHESES:].copy().view(np.int64)
            np.testing.assert_array_equal(header[:, 0], belief.counts)
            assert (header[:, 1] == turn + 1).all()
            assert header[:, 2].tolist() == [1, 0] * (worlds // 2)
            for w, count in enumerate(belief.counts):
                assert shown[w, :count].tobytes() == belief.hypotheses[w, :count].tobytes()
                assert not np.frombuffer(shown[w, count:].tobytes(), np.uint8).any()
                unsure += count > 1
    assert unsure > 100


def test_it_keeps_every_promise_of_a_game() -> None:
    found = remuda.check("cage2", red="mixed", **PLANNED)
    assert [f"{f.promise}: {f.problem}" for f in found if not f.good] == []


def test_it_restores_a_server_whose_service_is_certainly_down() -> None:
    game = start(6, red="b_line")
    for _ in range(30):
        game.step([np.zeros((6, 1), np.int64)])
    assert not game.state["service_up"].any()
    actions = plan(game, list(range(6)), np.arange(6).astype(np.uint64))
    assert {compact_name(int(action)) for action in actions} == {"Restore Op_Server0"}


def test_worlds_in_which_blue_saw_and_did_the_same_get_the_same_action() -> None:
    """Given the same random numbers, and whatever red did unseen."""
    worlds, chosen = 300, set[int]()
    game = start(worlds)
    histories = [b""] * worlds
    pairs = 0
    for turn in range(20):
        game.step([np.repeat(random_actions(turn, 1), worlds, axis=0)])
        histories = [history + game.episode.bits[w].tobytes() for w, history in enumerate(histories)]
        twins, first = list[int](), dict[bytes, int]()
        for w, history in enumerate(histories):
            twin = first.setdefault(history, w)
            if len(twins) < 12 and game.state[w].tobytes() != game.state[twin].tobytes():
                twins += [twin, w]
        actions = plan(game, twins, np.full(len(twins), 7, np.uint64))
        assert (actions[::2] == actions[1::2]).all()
        pairs += len(actions) // 2
        chosen |= set(actions.tolist())
    assert pairs > 20
    assert len(chosen) > 5


def test_a_base_policy_does_not_repair_what_blue_is_unsure_of() -> None:
    h = np.zeros(HYPOTHESES, HYPOTHESIS)
    suppose(h)
    assert find_unsure(h[:2]) == (0, 0, 0, 0)  # the network is the same in both
    s = h[0].network
    s.root[ENTERPRISE1] = 1
    h[0].network.malware[ENTERPRISE1] = h[1].network.malware[ENTERPRISE1] = 1
    unsure = find_unsure(h[:2])
    assert unsure == (1 << ENTERPRISE1, 1 << ENTERPRISE1, 0, 1 << ENTERPRISE1)  # Analyse finds the same in both
    h[1].network.malware[ENTERPRISE1] = 0
    assert find_unsure(h[:2]).found == 0  # now it tells them apart
    for policy in BASE_POLICIES:
        assert action_name(base_action(s, 50, 0, policy)) == "Restore Enterprise1"
        assert action_name(base_action(s, 50, unsure.now, policy)) == "DecoyFemitter User2"


def test_it_plays_better_than_defenders_without_a_plan() -> None:
    settings: dict[str, Any] = {"rules": "leaderboard", "red": ["b_line", "meander"], "steps": 50}
    planned = remuda.evaluate("cage2", 4, learner="planner", **(settings | PLANNED))
    restoring = remuda.evaluate("cage2", 50, learner="react_restore", **settings)
    assert planned.returns.max() < 0
    assert planned.returns.mean() > restoring.returns.mean() + 5


def test_the_leaderboard_gives_it_what_it_needs() -> None:
    scored = remuda.cage2_leaderboard("planner", episodes=1)
    assert scored.returns["b_line"].shape == (1, 3)
    assert (scored.returns["sleep"] == 0).all()  # it does not pay for repairs of what nobody attacks


@pytest.mark.parametrize(
    "options",
    [
        {"observation": "belief"},
        {"observation": "bits", "actions": "full"},
        {"actions": "full"},
        {"workflow": "user,op_host,op_server,enterprise,defender"},
    ],
)
def test_other_observations_and_actions_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^Planner is a script for observation=hypotheses and actions=useful, "):
        remuda.evaluate("cage2", 1, learner="planner", **(PLANNED | options))


def test_green_users_are_refused() -> None:
    with pytest.raises(ConfigError, match="observation=hypotheses goes with green=false"):
        start(1, green=True)
