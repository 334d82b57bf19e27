"""CAGE 2 as a game: options, probabilities, metrics, pictures, players. For its rules see tests/promises/parity."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import remuda
from remuda.core import rng
from remuda.core.errors import ConfigError, UnknownName
from remuda.core.game import make_game
from remuda.core.policy import Policy, PolicyBinding, PolicyInput
from remuda.core.rng import Stream
from remuda.core.task import Task
from remuda.games.cage2.defenders import DEFENDERS, NEEDED_OPTIONS, ReactMixed
from remuda.games.cage2.game import METRICS, Cage2
from remuda.games.cage2.network import (
    DECOYS,
    EXPLOITS,
    N_ACTIONS,
    NAMES,
    OP_SERVER,
    REMOVE,
    RESTORE,
    action_name,
    action_of,
)
from remuda.games.cage2.red import AGENTS
from remuda.games.cage2.state import EXPLOIT, NONE, SUCCEEDED
from remuda.games.registry import find_game
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout

TRACES = Path(__file__).parents[1] / "data" / "cage2" / "head"
SLEEP, USER0, USER4 = 0, NAMES.index("User0"), NAMES.index("User4")


def start(worlds: int = 1, seed: int = 0, numbers: list[int] | None = None, **options: Any) -> Cage2:
    numbers = list(range(worlds)) if numbers is None else numbers
    game = make_game(find_game("cage2"), options, numbers)
    assert isinstance(game, Cage2)
    game.reset(np.arange(len(numbers)), rng.keys(rng.key(seed, Stream.CHECK), np.arange(len(numbers))))
    return game


def step(game: Cage2, action: int) -> np.ndarray:
    """Play one step with the same action in every world; returns what each world earned."""
    game.signals[0].rewards[:] = 0
    game.step([np.full((game.worlds, 1), action)])
    return game.signals[0].rewards[:, 0].copy()


def metrics(game: Cage2, world: int = 0) -> dict[str, float]:
    return dict(zip(METRICS, game.signals[0].metrics[world, 0].tolist(), strict=True))


@pytest.mark.parametrize(
    "options",
    [{}, {"red": "mixed", "green": True}, {"red": "meander", "rules": "leaderboard", "wrapper": "challenge2"}],
    ids=["default", "mixed", "leaderboard"],
)
def test_it_keeps_every_promise_of_a_game(options: dict[str, Any]) -> None:
    assert [f"{f.promise}: {f.problem}" for f in remuda.check("cage2", **options) if not f.good] == []


def test_its_shape() -> None:
    spec = start().spec
    (blue,) = spec.groups
    assert (blue.name, blue.size, blue.obs_shape, blue.actions, spec.turns) == ("blue", 1, (52,), 145, 100)
    assert blue.metrics == ("hosts_lost", "impacts", "restores", "removes", "decoys")


@pytest.mark.parametrize(
    ("action", "name"),
    [
        (0, "Sleep"), (1, "Monitor"), (2, "Analyse Defender"), (27, "Remove User4"), (28, "DecoyApache Defender"),
        (55, "DecoyHarakaSMPT Enterprise0"), (79, "DecoySmss User4"), (126, "DecoyVsftpd Op_Server0"),
        (139, "Restore Op_Server0"), (144, "Restore User4"),
    ],
)  # fmt: skip
def test_actions_are_numbered_as_in_the_original(action: int, name: str) -> None:
    assert action_name(action) == name
    assert len({action_name(a) for a in range(N_ACTIONS)}) == N_ACTIONS


def test_decoys_fit_where_they_do_in_the_original() -> None:
    fits: dict[str, set[str]] = {}
    for host, name in enumerate(NAMES):
        for kind, decoy in enumerate(DECOYS):
            game = start(red="sleep")
            step(game, action_of(4 + kind, host))
            if game.state["blue_success"][0] == SUCCEEDED:
                fits.setdefault(name, set()).add(decoy.name)
    servers, workstation = {"Apache", "HarakaSMPT", "Tomcat", "Vsftpd"}, {"Apache", "Smss", "Svchost", "Tomcat"}
    expected = {name: servers for name in NAMES if name.startswith(("Defender", "Enterprise0", "Op_"))}
    expected |= {name: {"Femitter"} for name in ("Enterprise1", "Enterprise2")}
    expected |= {"User0": workstation, "User1": workstation}
    expected |= {"User2": {"Apache", "Femitter", "SSHD", "Tomcat"}, "User3": {"SSHD", "Vsftpd"}, "User4": {"Vsftpd"}}
    assert fits == expected
    assert sum(map(len, fits.values())) == 41


def test_undisturbed_b_line_stops_the_service_at_step_15_and_it_stays_down() -> None:
    """Unless an exploit fails by itself, which is possible through some entries only."""
    game = start(worlds=200, steps=40)
    down = np.array([(step(game, SLEEP), game.state["service_up"] == 0)[1] for _ in range(40)])
    first = down.argmax(axis=0) + 1
    assert first.min() == 15
    assert (first == 15).mean() > 0.8
    assert (np.diff(down.astype(int), axis=0) >= 0).all()


def test_rewards_are_weights_of_lost_hosts_and_ten_for_the_service() -> None:
    game = start(worlds=50)
    for _ in range(30):
        earned = step(game, SLEEP)
    weights = np.array([0.1, 1, 1, 1, 0.1, 0.1, 0.1, 1, 0, 0.1, 0.1, 0.1, 0.1])
    expected = -((game.state["root"] > 0) @ weights + 10 * (game.state["service_up"] == 0))
    assert np.allclose(earned, expected)
    assert (earned < -10).any()


def test_metrics_count_what_they_say() -> None:
    game = start(red="sleep")
    remove, restore = action_of(REMOVE, USER4), action_of(RESTORE, OP_SERVER)
    for action in (remove, remove, restore, 28, 28, 29, SLEEP):  # the second Apache on one host fails
        step(game, action)
    assert metrics(game) == {"hosts_lost": 0, "impacts": 0, "restores": 1, "removes": 2, "decoys": 2}
    game = start(steps=100)
    lost = impacts = 0
    for _ in range(100):
        step(game, SLEEP)
        lost += int((np.delete(game.state["root"][0], USER0) > 0).sum())
        impacts += int(game.state["red"][0] == 5 and game.state["red_success"][0] == SUCCEEDED)
    assert (metrics(game)["hosts_lost"], metrics(game)["impacts"]) == (lost, impacts)
    assert impacts > 70


def test_the_last_step_truncates_and_nothing_happens_afterwards() -> None:
    game = start(worlds=2, steps=3)
    for turn in range(3):
        assert not game.over.any(), turn
        step(game, SLEEP)
    assert game.over.all()
    assert game.signals[0].truncated.all()
    assert not game.signals[0].terminated.any()
    before = game.state.copy()
    step(game, 132)
    assert np.array_equal(game.state, before)
    game.reset(np.array([1]), rng.keys(rng.key(9, Stream.CHECK), np.arange(1)))
    assert game.over.tolist() == [True, False]
    assert game.state[0] == before[0]


def test_long_episodes_do_not_overflow_their_counts() -> None:
    game = start(worlds=20, steps=1500, red="mixed")
    vsftpd = action_of(11, 1)
    for _ in range(1500):
        step(game, vsftpd)
    assert (game.state["decoys"][:, 1, 7] == 255).all()
    assert (game.state["root"][:, USER0] > 0).all()


@pytest.mark.parametrize(
    ("given", "name"), [("B_lineAgent", "b_line"), ("RedMeanderAgent", "meander"), ("SleepAgent", "sleep")]
)
def test_red_agents_may_have_the_names_of_the_original(given: str, name: str) -> None:
    game = start(red=given)
    assert game.spec.options["red"] == name
    assert start(red_agent=given).spec.options["red"] == name


def test_world_w_takes_entry_w_of_mixed_and_of_lists() -> None:
    game = start(numbers=[4, 0, 2, 7], red="mixed")
    assert [AGENTS[i] for i in game.rules.red] == ["meander", "b_line", "sleep", "meander"]
    game = start(numbers=[0, 1, 2], red=["sleep", "B_lineAgent"], green=[True, False], rules=["head", "leaderboard"])
    assert [AGENTS[i] for i in game.rules.red] == ["sleep", "b_line", "sleep"]
    assert game.rules.green.tolist() == [True, False, True]
    assert game.rules.leaderboard.tolist() == [False, True, False]
    for _ in range(20):
        earned = step(game, SLEEP)
    assert (earned[0], earned[2]) == (0.0, 0.0)
    assert earned[1] < 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"red": "dragon"}, "red='dragon'"),
        ({"red": []}, "red="),
        ({"red": ["mixed", "sleep"]}, "mixed"),
        ({"green": "often"}, "green='often'"),
        ({"steps": 0}, "steps=0"),
        ({"wrapper": "challenge3"}, "wrapper='challenge3'"),
        ({"rules": "tail"}, "rules='tail'"),
        ({"red": "sleep", "red_agent": "sleep"}, "twice"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        start(**options)


def test_unknown_options_name_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'wrapper'"):
        start(wraper="challenge")


def exploits(worlds: int = 4000, **options: Any) -> Counter[tuple[str, str]]:
    """How often each exploit was chosen on each host while blue slept."""
    game, seen = start(worlds=worlds, **options), Counter[tuple[str, str]]()
    for _ in range(25):
        step(game, SLEEP)
        state = game.state[(game.state["red"] == EXPLOIT) & (game.state["exploit"] != NONE)]
        seen.update(
            (NAMES[h], EXPLOITS[e - 1].name) for h, e in zip(state["red_target"], state["exploit"], strict=True)
        )
    return seen


def test_exploits_have_the_probabilities_of_the_original() -> None:
    seen = exploits()
    expected = {
        "User1": {"FTPDirectoryTraversal": 0.75, "SSHBruteForce": 0.25},
        "User2": {"EternalBlue": 0.75, "BlueKeep": 0.25},
        "User3": {"HarakaRCE": 0.75, "HTTPRFI": 1 / 12, "HTTPSRFI": 1 / 12, "BlueKeep": 1 / 12},
        "User4": dict.fromkeys(["SQLInjection", "HTTPRFI", "HTTPSRFI", "SSHBruteForce"], 1 / 16) | {"HarakaRCE": 0.75},
        "Enterprise2": dict.fromkeys(["HTTPRFI", "BlueKeep", "SSHBruteForce", "EternalBlue"], 1 / 16)
        | {"HTTPSRFI": 0.75},
        "Op_Server0": {"SSHBruteForce": 1.0},
    }
    for host, chances in expected.items():
        total = sum(count for (name, _), count in seen.items() if name == host)
        assert {exploit for name, exploit in seen if name == host} == set(chances)
        for exploit, p in chances.items():
            error = np.sqrt(p * (1 - p) / total)
            assert abs(seen[host, exploit] / total - p) <= 5 * error, (host, exploit)


def test_entries_detection_and_green_have_the_probabilities_of_the_original() -> None:
    game = start(worlds=8000, green=True)
    entries = np.bincount(game.red_state["entry"], minlength=13)
    assert entries[:9].sum() == 0
    assert np.abs(entries[9:] - 2000).max() < 5 * np.sqrt(8000 * 3 / 16)
    targets: list[np.ndarray] = []
    for _ in range(3):
        step(game, SLEEP)
        targets.append(game.state["green_target"].copy())
    drawn = np.concatenate(targets)
    assert abs((drawn == NONE).mean() - 0.5) < 5 * 0.5 / np.sqrt(drawn.size)
    hosts = np.bincount(drawn[drawn != NONE], minlength=13)
    assert set(np.flatnonzero(hosts)) == {1, 2, 3, 8, 9, 10, 11, 12}
    assert np.abs(hosts[hosts > 0] / hosts.sum() - 1 / 8).max() < 0.02
    users = (game.state["removable"] + game.state["pinned"]).sum(axis=1) == 1
    webs = users & np.isin(game.state["exploit"], [2, 3, 4])
    noticed = game.state["removable"][webs].sum() / webs.sum()
    assert abs(noticed - 0.95) < 5 * np.sqrt(0.95 * 0.05 / webs.sum())


def test_random_draws_do_not_depend_on_what_blue_does() -> None:
    idle, busy = start(worlds=30, green=True), start(worlds=30, green=True)
    for turn in range(30):
        step(idle, SLEEP)
        step(busy, 132 + turn % 13)
        assert np.array_equal(idle.state["green_target"], busy.state["green_target"])
    assert np.array_equal(idle.red_state["entry"], busy.red_state["entry"])
    assert not np.array_equal(idle.state["root"], busy.state["root"])


def test_the_picture_and_the_text_show_truth_belief_and_actions() -> None:
    game = start(steps=50)
    for _ in range(6):
        step(game, SLEEP)
    quiet = game.render(0)
    text = game.text(0)
    assert quiet.shape == (360, 560, 3)
    assert quiet.dtype == np.uint8
    for words in (*NAMES, "root", "blue: Sleep", "red: ", "reward -0.1", "OTService runs", "turn 6 of 50"):
        assert words in text
    for _ in range(14):
        step(game, SLEEP)
    assert "OTService is DOWN" in game.text(0)
    assert not np.array_equal(game.render(0), quiet)


def test_the_scene_has_a_box_per_host_filled_by_the_truth() -> None:
    game = start(steps=50)
    for _ in range(6):
        step(game, SLEEP)
    seen = game.scene(0)
    assert sorted(box.name for box in seen.boxes) == sorted(NAMES)
    truth = {box.name: seen.kinds[box.fill].name for box in seen.boxes}
    belief = {box.name: seen.kinds[box.frame].name for box in seen.boxes}
    assert truth["User0"] == "truth, red: root"
    assert belief["User0"] == "blue thinks clean"
    assert "blue: Sleep" in seen.lines[0]


def play(policy: Policy, episodes: tuple[int, ...], **options: Any) -> np.ndarray:
    game = make_game(find_game("cage2"), {"steps": 40, **options}, episodes)
    rollout = Rollout(game, [PolicyBinding(0, 0, 1, policy)], RolloutConfig(3, 64))
    rollout.start(Task(episodes))
    (fragment,) = rollout.play(rollout.empty_fragments())
    return fragment.actions[:, :, 0]


@pytest.mark.parametrize("name", DEFENDERS)
def test_defenders_play_each_world_independently(name: str) -> None:
    """One policy object plays in several rollouts: no world may influence another."""
    needed = {"greedy_repair": {"workflow": "all"}, **NEEDED_OPTIONS}
    options: dict[str, Any] = {"red": "mixed", **needed.get(name, {})}
    policy = DEFENDERS[name](start(**options).spec.groups[0], 1)
    together = play(policy, (0, 1, 2, 3), **options)
    alone = [play(policy, (world,), **options)[:, 0] for world in range(4)]
    assert np.array_equal(together, np.array(alone).T)
    sliced = []
    game = make_game(find_game("cage2"), {"steps": 40, **options}, [0, 1, 2, 3])
    rollout = Rollout(game, [PolicyBinding(0, 0, 1, policy)], RolloutConfig(3, 64))
    rollout.start(Task((0, 1, 2, 3)))
    while not game.over.all():
        sliced.append(rollout.play(rollout.empty_fragments(turns=7))[0].actions[:, :, 0])
    assert np.array_equal(np.concatenate(sliced), together)


@pytest.mark.parametrize("path", sorted(TRACES.glob("*__react_*.npz")), ids=lambda path: path.stem)
def test_defenders_do_what_was_recorded(path: Path) -> None:
    with np.load(path, allow_pickle=False) as trace:
        name, recorded = str(trace["blue"]), trace["blue_action"]
        seen = np.concatenate([trace["obs0"][:, None], trace["obs"][:, :-1]], axis=1)
    policy = DEFENDERS[name](start().spec.groups[0], 1)
    episodes, steps = recorded.shape
    frames = np.zeros((policy.frames - 1 + steps, episodes, 1, 52), np.uint8)
    frames[policy.frames - 1 :, :, 0] = seen.swapaxes(0, 1)
    for t in range(steps):
        keys = rng.keys(rng.key(t, Stream.CHECK), np.arange(episodes))[:, None]
        inputs = PolicyInput(frames[t : t + policy.frames], np.full((episodes, 1), t), None, keys, 0.0)
        chosen, did = policy.act(inputs, 0, 1).actions[:, 0], recorded[:, t]
        by_chance = (
            (name == "react_mixed" and t >= 8) & _idle(chosen) & _idle(did)
        )  # only then react_mixed draws at random
        assert np.array_equal(chosen[~by_chance], did[~by_chance]), t


def _idle(actions: np.ndarray) -> np.ndarray:
    return (actions == 0) | ((actions >= 28) & (actions < 132))


def test_a_defender_refuses_an_episode_that_is_too_long_for_it() -> None:
    with pytest.raises(ConfigError, match="up to 500 steps"):
        play(ReactMixed(start().spec.groups[0], 1), (0,), steps=501)


def test_a_defender_explores_if_asked_to() -> None:
    group = start().spec.groups[0]
    keys = rng.keys(rng.key(0, Stream.CHECK), np.arange(2000))[:, None]
    inputs = PolicyInput(np.zeros((1, 2000, 1, 52), np.uint8), np.zeros((2000, 1), np.int64), None, keys, 0.5)
    actions = DEFENDERS["sleep"](group, 1).act(inputs, 0, 1).actions
    assert abs((actions != 0).mean() - 0.5 * 144 / 145) < 0.06


def test_scripted_players_are_found_by_name(cli: Any) -> None:
    outcome = cli(
        "evaluate", "cage2", "--policy", "react_restore", "--red", "B_lineAgent", "steps=30", "--episodes", "5"
    )
    assert outcome.code == 0
    assert "over 5 episodes" in outcome.out
    outcome = cli("evaluate", "cage2", "--policy", "react_restor")
    assert outcome.code == 2
    assert "did you mean 'react_restore'" in outcome.err
    outcome = cli("evaluate", "treasurehunt", "--policy", "react_restore")
    assert outcome.code == 2  # it is a player of another game


EPISODE = """
import hashlib
from remuda.core.game import make_game
from remuda.core.policy import PolicyBinding
from remuda.core.task import Task
from remuda.games.registry import find_game
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout
options = dict(steps=40, red=["b_line", "meander", "meander"], green=[True, False], rules=["head", "leaderboard"])
for name in ("decoy_heavy", "react_mixed", "react_restore", "random_nodecoy"):
    entry = find_game("cage2")
    game = make_game(entry, options, range(4))
    binding = PolicyBinding(0, 0, 1, entry.players[name](game.spec.groups[0], 1))
    rollout = Rollout(game, [binding], RolloutConfig(4, 4))
    rollout.start(Task((0, 1, 2, 3)))
    (fragment,) = rollout.play(rollout.empty_fragments())
    for array in (fragment.obs, fragment.actions, fragment.rewards, fragment.metrics, game.state, game.red_state):
        print(hashlib.sha256(array.tobytes()).hexdigest())
    print(game.text(0), fragment.returns)
"""


def test_whole_episodes_are_the_same_compiled_and_not(capsys: pytest.CaptureFixture[str]) -> None:
    exec(EPISODE, {})
    compiled = capsys.readouterr().out
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", EPISODE],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert done.stdout == compiled
