"""Rollouts: an episode is the same however it is batched or sliced, and every signal is in its own turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from remuda.core.fragment import Fragment, Purpose
from remuda.core.game import Game, GameEntry, make_game
from remuda.core.policy import Policy, PolicyBinding, PolicyInput, PolicyOutput, RandomPolicy, explore
from remuda.core.task import Task
from remuda.games.registry import find_game
from remuda.rollout.config import RolloutConfig, empty_fragments
from remuda.rollout.rollout import Rollout
from remuda.testing import ERRANDS, GIFTS, MASKED, ODD, RESPAWN, UNEQUAL

TREASURE = find_game("treasurehunt")
SMALL = {"height": 6, "width": 6, "turns": 12, "spawn": 0.1}
GAMES = [(TREASURE, SMALL), *((entry, {}) for entry in ODD), (ERRANDS, {})]
IDS = [entry.name for entry, _ in GAMES]
every_game = pytest.mark.parametrize(("entry", "options"), GAMES, ids=IDS)
PER_TURN = ("actions", "rewards", "terminated", "truncated", "alive", "ages")


class Stacked(Policy):
    """Chooses by a sum over the agent's own frames and stores that sum; ε-greedy."""

    frames = 3
    extras = ("sum",)

    def act(self, inputs: PolicyInput, first: int, last: int) -> PolicyOutput:
        assert inputs.obs.shape[:3] == (self.frames, *inputs.keys.shape)
        frames = np.arange(self.frames)[::-1, None, None]
        axes = tuple(range(3, inputs.obs.ndim))
        sums = np.where(frames <= inputs.ages, inputs.obs.sum(axis=axes, dtype=np.float64), 0)
        total = (sums * (1 + frames)).sum(axis=0)
        greedy = total.astype(np.int64) % self.group.actions
        if inputs.mask is not None:
            greedy = np.where(inputs.mask[..., 0], 0, 1)
        chance = np.full(last - first, 0.5 if inputs.exploration is None else inputs.exploration)
        return PolicyOutput(explore(greedy, chance, inputs, self.group.actions), {"sum": total.astype(np.float32)})


def bind_policies(game: Game, policy: type[Policy] = Stacked) -> list[PolicyBinding]:
    return [PolicyBinding(g, 0, group.size, policy(group, group.size)) for g, group in enumerate(game.spec.groups)]


def start_rollout(
    entry: GameEntry,
    options: dict[str, Any],
    episodes: Sequence[int],
    policy: type[Policy] = Stacked,
    exploration: float | None = None,
    purpose: Purpose = Purpose.TRAIN,
    **config: Any,
) -> Rollout:
    """A rollout of a plan with four worlds that has started these episodes."""
    config = {"seed": 3, "worlds": 4, **config}
    game = make_game(entry, options, [episode % config["worlds"] for episode in episodes])
    rollout = Rollout(game, bind_policies(game, policy), RolloutConfig(**config))
    rollout.start(Task(tuple(episodes), purpose, exploration))
    return rollout


def play_whole(entry: GameEntry, options: dict[str, Any], episodes: Sequence[int], **arguments: Any) -> list[Fragment]:
    rollout = start_rollout(entry, options, episodes, **arguments)
    return rollout.play(rollout.empty_fragments())


def play_slices(rollout: Rollout, turns: int) -> list[list[Fragment]]:
    """The started episodes, `turns` turns at a time."""
    parts = []
    while not rollout.game.over.all():
        parts.append(rollout.play(rollout.empty_fragments(turns)))
    return parts


def assert_same_world(a: Fragment, world_a: int, b: Fragment, world_b: int) -> None:
    """Two worlds of two fragments have the same episode, up to the turn in which it ends."""
    turns = min(a.turns, b.turns)
    for name in PER_TURN:
        mine, other = getattr(a, name)[:, world_a], getattr(b, name)[:, world_b]
        alive = a.alive[:turns, world_a] if name not in ("alive",) else np.True_
        assert np.array_equal(np.where(alive, mine[:turns], 0), np.where(alive, other[:turns], 0)), name
    assert not a.alive[turns:, world_a].any()
    assert not b.alive[turns:, world_b].any()
    frames = min(a.before, b.before) + turns + 1
    assert np.array_equal(a.obs[:frames, world_a], b.obs[:frames, world_b])
    assert np.array_equal(a.metrics[world_a], b.metrics[world_b])
    for name in a.extras:
        assert np.array_equal(a.extras[name][:turns, world_a], b.extras[name][:turns, world_b])


@pytest.mark.parametrize("parallel", [True, False], ids=["parallel", "in order"])
@every_game
def test_an_episode_does_not_depend_on_the_worlds_beside_it(
    entry: GameEntry, options: dict[str, Any], parallel: bool
) -> None:
    together = play_whole(entry, options, (4, 1, 2, 7), parallel_actions=parallel)
    for column, episode in enumerate((4, 1, 2, 7)):
        alone = play_whole(entry, options, (episode,), parallel_actions=parallel)
        for a, b in zip(together, alone, strict=True):
            assert_same_world(a, column, b, 0)


@pytest.mark.parametrize("parallel", [True, False], ids=["parallel", "in order"])
@every_game
def test_one_forward_pass_per_agent_plays_the_same(entry: GameEntry, options: dict[str, Any], parallel: bool) -> None:
    stacked = play_whole(entry, options, (0, 1), parallel_actions=parallel)
    for a, b in zip(
        stacked, play_whole(entry, options, (0, 1), parallel_actions=parallel, one_by_one=True), strict=True
    ):
        assert_same_world(a, 0, b, 0)
        assert_same_world(a, 1, b, 1)


def test_a_rollout_can_be_used_again() -> None:
    rollout = start_rollout(RESPAWN, {}, (0, 1))
    rollout.play(rollout.empty_fragments(5))
    rollout.start(Task((4, 5)))
    (again,) = rollout.play(rollout.empty_fragments())
    (fresh,) = play_whole(RESPAWN, {}, (4, 5))
    assert_same_world(again, 0, fresh, 0)
    assert_same_world(again, 1, fresh, 1)


@pytest.mark.parametrize("changed", [{"seed": 4}, {"purpose": Purpose.EVALUATE}])
@pytest.mark.parametrize("entry", [TREASURE, RESPAWN], ids=["treasurehunt", "respawn"])
def test_seed_and_purpose_decide_the_randomness(entry: GameEntry, changed: dict[str, Any]) -> None:
    options = SMALL if entry is TREASURE else {}
    (a,), (b,) = play_whole(entry, options, (0,)), play_whole(entry, options, (0,), **changed)
    assert not np.array_equal(a.obs, b.obs)
    assert not np.array_equal(a.actions, b.actions)


def test_episodes_of_one_world_differ() -> None:
    (a,) = play_whole(TREASURE, SMALL, (1, 5))
    assert a.origin.worlds.tolist() == [1, 1]
    assert not np.array_equal(a.obs[:, 0], a.obs[:, 1])


def joined(parts: list[list[Fragment]], name: str) -> np.ndarray:
    return np.concatenate([getattr(part[0], name) for part in parts])


@pytest.mark.parametrize("turns", [1, 2, 5, 12])
@pytest.mark.parametrize(("entry", "options"), GAMES[:-1], ids=IDS[:-1])  # not where rewards reach who is away
def test_slices_joined_are_the_whole_episode(entry: GameEntry, options: dict[str, Any], turns: int) -> None:
    groups = play_whole(entry, options, (0, 1, 2))
    parts = play_slices(start_rollout(entry, options, (0, 1, 2)), turns)
    assert [part[0].origin.first_turn for part in parts] == list(range(0, groups[0].turns, turns))
    for g, one in enumerate(groups):
        mine = [[part[g]] for part in parts]
        for name in (*PER_TURN, "versions"):
            assert np.array_equal(joined(mine, name), getattr(one, name)), name
        obs = np.concatenate([part[g].obs[part[g].before : -1] for part in parts])
        assert np.array_equal(obs, one.obs[one.before : -1])
        assert np.array_equal(parts[-1][g].obs[-1], one.obs[-1])
        assert np.array_equal(parts[-1][g].metrics, one.metrics)
        assert np.array_equal(np.concatenate([part[g].extras["sum"] for part in parts]), one.extras["sum"])


def test_slices_joined_are_the_whole_episode_when_agents_die_as_a_turn_begins() -> None:
    """What happens at the start of a slice's first turn still belongs to the turn before."""
    options = {"at_begin": True, "longest_rest": 0}
    (one,) = play_whole(RESPAWN, options, (0, 1, 2))
    assert one.terminated.any()
    parts = play_slices(start_rollout(RESPAWN, options, (0, 1, 2)), 3)
    for name in PER_TURN:
        assert np.array_equal(joined(parts, name), getattr(one, name)), name


@pytest.mark.parametrize("turns", [1, 2, 5])
@pytest.mark.parametrize("parallel", [True, False], ids=["parallel", "in order"])
@every_game
def test_the_frames_before_a_slice_are_the_last_observations_that_each_agent_acted_on(
    entry: GameEntry, options: dict[str, Any], parallel: bool, turns: int
) -> None:
    parts = play_slices(start_rollout(entry, options, (0, 1, 2), parallel_actions=parallel), turns)
    for g in range(len(parts[0])):
        shape = parts[0][g].alive.shape[1:]
        seen = {where: [np.zeros_like(parts[0][g].obs[0, 0, 0])] * 2 for where in np.ndindex(shape)}
        for part in parts:
            assert part[g].before == 2
            for where, own in seen.items():
                assert np.array_equal(part[g].obs[(slice(2), *where)], np.stack(own[-2:]))
                own += list(part[g].obs[(slice(2, -1), *where)][part[g].alive[(slice(None), *where)]])


@pytest.mark.parametrize("parallel", [True, False], ids=["parallel", "in order"])
def test_the_reward_of_a_turn_is_the_sum_between_two_observations(parallel: bool) -> None:
    """Observations contain what the agent was given so far, so their differences are the true rewards."""
    (fragment,) = play_whole(GIFTS, {}, (0, 1), parallel_actions=parallel)
    received = fragment.obs[fragment.before :, :, :, 1]
    assert received[-1].min() > 0
    assert np.array_equal(fragment.rewards, np.diff(received, axis=0))


def test_gifts_arrive_in_the_turn_that_the_order_of_play_implies() -> None:
    agents, turns = 3, 12
    gift = 1 + np.arange(agents) + agents * np.arange(turns)[:, None]  # (turns, giver)
    (parallel,) = play_whole(GIFTS, {}, (0,))
    assert np.array_equal(parallel.rewards[:, 0], np.roll(gift, 1, axis=1))
    (ordered,) = play_whole(GIFTS, {}, (0,), parallel_actions=False)
    assert np.array_equal(ordered.rewards[:, 0, 0], gift[:, 2])  # the last agent gives after all have observed
    for agent in (1, 2):  # agents before it in the order have given before it observes
        assert np.array_equal(ordered.rewards[1:-1, 0, agent], gift[2:, agent - 1])
        assert ordered.rewards[-1, 0, agent] == 0


def test_agents_observe_earlier_agents_of_the_same_turn_only_without_parallel_actions() -> None:
    (parallel,) = play_whole(GIFTS, {}, (0,))
    (ordered,) = play_whole(GIFTS, {}, (0,), parallel_actions=False)
    assert parallel.obs[2, 0, :, 1].tolist() == [0, 0, 0]
    assert ordered.obs[2, 0, :, 1].tolist() == [0, 1, 2]


@pytest.mark.parametrize("parallel", [True, False], ids=["parallel", "in order"])
@pytest.mark.parametrize(
    "options", [{}, {"longest_rest": 0}, {"at_begin": True}, {"at_begin": True, "longest_rest": 0}]
)
def test_deaths_split_an_agents_turns_into_segments_with_right_ages_and_flags(
    options: dict[str, Any], parallel: bool
) -> None:
    """Ages, flags and rewards agree with the turn and segment numbers in the observations."""
    (fragment,) = play_whole(RESPAWN, {"turns": 30, **options}, (0, 1, 2), parallel_actions=parallel)
    deaths = 0
    for world in range(3):
        for agent in range(3):
            segment = fragment.obs[fragment.before : -1, world, agent, 3]
            alive = fragment.alive[:, world, agent]
            assert alive[0]
            for turn in np.flatnonzero(alive):
                age = int((alive[:turn] & (segment[:turn] == segment[turn])).sum())
                assert fragment.ages[turn, world, agent] == age
                assert fragment.rewards[turn, world, agent] == 1 + turn
                last = turn + 1 == fragment.turns
                dies = not last and not (alive[turn + 1] and segment[turn + 1] == segment[turn])
                assert fragment.terminated[turn, world, agent] == dies
                assert fragment.truncated[turn, world, agent] == last
                deaths += dies
            assert not fragment.terminated[:, world, agent][~alive].any()
            assert not fragment.truncated[:, world, agent][~alive].any()
    assert deaths == fragment.metrics.sum() > 20
    assert alive.all() == (options.get("longest_rest") == 0)
    assert fragment.agent_steps == fragment.alive.sum()
    assert np.array_equal(fragment.returns, (fragment.rewards * fragment.alive).sum(axis=0))


@pytest.mark.parametrize("parallel", [True, False], ids=["parallel", "in order"])
def test_an_absence_is_not_the_end_of_a_life(parallel: bool) -> None:
    """Ages count actions, rewards that arrive meanwhile belong to the last action, and nothing is cut off behind it."""
    (fragment,) = play_whole(ERRANDS, {"turns": 20, "away": 3}, (0, 1), parallel_actions=parallel)
    for world in range(2):
        for agent in range(3):
            acted = np.flatnonzero(fragment.alive[:, world, agent])
            assert fragment.ages[acted, world, agent].tolist() == list(range(len(acted)))
            leaves = fragment.obs[fragment.before + acted, world, agent, 0] == 1
            assert np.diff(acted).tolist() == [4 if leaving else 1 for leaving in leaves[:-1]]
            expected = np.where(leaves, 1.0, 2.0)
            assert fragment.rewards[acted[:-1], world, agent].tolist() == expected[:-1].tolist()
            assert fragment.away[world, agent] == leaves[-1]
            assert fragment.truncated[acted[-1], world, agent] == (not leaves[-1])
    assert fragment.away.any()
    assert not fragment.away.all()
    assert not fragment.terminated.any()


def test_worlds_that_end_early_have_no_alive_agents_afterwards() -> None:
    (fragment,) = play_whole(MASKED, {}, (0, 1, 2, 3))
    lengths = 1 + fragment.obs[fragment.before, :, 0, 0] % 12
    assert len(set(lengths.tolist())) > 1
    assert fragment.turns == lengths.max()
    for world, length in enumerate(lengths):
        assert fragment.alive[:, world].all(axis=1).tolist() == [turn < length for turn in range(fragment.turns)]
        assert fragment.terminated[:, world].any(axis=1).nonzero()[0].tolist() == [length - 1]
        assert fragment.obs[fragment.before + length, world, 0, 2] == length
    assert not fragment.truncated.any()


@pytest.mark.parametrize("parallel", [True, False], ids=["parallel", "in order"])
def test_masks_are_stored_beside_their_observations_and_obeyed(parallel: bool) -> None:
    (fragment,) = play_whole(MASKED, {}, (0, 1, 2), policy=RandomPolicy, parallel_actions=parallel)
    assert fragment.mask is not None
    seen = fragment.obs[fragment.before :]
    forbidden = (seen[..., 2] + np.arange(3)) % 4
    assert np.array_equal(fragment.mask, np.arange(4) != forbidden[..., None])
    assert (fragment.actions != forbidden[:-1])[fragment.alive].all()


class Constant(Policy):
    """Chooses its version as action, and stores the index of the agent within the policy."""

    extras = ("own",)

    def act(self, inputs: PolicyInput, first: int, last: int) -> PolicyOutput:
        own = np.broadcast_to(np.arange(first, last), inputs.keys.shape)
        return PolicyOutput(np.full(inputs.keys.shape, self.versions[0]), {"own": own.astype(np.float32)})


def versioned(policy: Policy, version: int) -> Policy:
    policy.load(policy.rows, version)
    return policy


@pytest.mark.parametrize("parallel", [True, False], ids=["parallel", "in order"])
def test_several_policies_act_for_their_own_agents_with_their_own_version(parallel: bool) -> None:
    game = make_game(UNEQUAL, {"agents": 4}, [0, 1])
    walkers, sitters = game.spec.groups
    bindings = [
        PolicyBinding(0, 0, 1, versioned(Constant(walkers, 1), 2)),
        PolicyBinding(0, 1, 3, versioned(Stacked(walkers, 2), 7)),
        PolicyBinding(0, 3, 4, versioned(Constant(walkers, 1), 1)),
        PolicyBinding(1, 0, 5, versioned(Constant(sitters, 5), 4)),
    ]
    rollout = Rollout(game, bindings, RolloutConfig(0, 2, parallel))
    rollout.start(Task((0, 1)))
    first, second = rollout.play(rollout.empty_fragments())
    assert first.before == 2
    assert second.before == 0
    assert first.versions.tolist() == [[2, 7, 7, 1]] * 12
    assert second.versions.tolist() == [[4] * 5] * 12
    assert (first.actions[:, :, 0] == 2).all()
    assert (first.actions[:, :, 3] == 1).all()
    assert len(np.unique(first.actions[:, :, 1:3])) == 3
    assert sorted(first.extras) == ["own", "sum"]
    assert (second.extras["own"] == np.arange(5)).all()
    assert not first.extras["own"].any()  # a policy counts agents from its own first one
    assert first.extras["sum"][:, :, 1:3].all()
    assert not first.extras["sum"][:, :, [0, 3]].any()


def test_a_version_may_change_between_slices() -> None:
    rollout = start_rollout(TREASURE, SMALL, (0, 1))
    for version in (3, 4):
        rollout.bindings[0].policy.load(rollout.bindings[0].policy.rows, version)
        (part,) = rollout.play(rollout.empty_fragments(2))
        assert (part.versions == version).all()


def test_groups_keep_their_shapes() -> None:
    fragments = play_whole(UNEQUAL, {}, (0, 1))
    assert [f.obs.shape for f in fragments] == [(15, 2, 3, 4), (15, 2, 4, 2, 3)]
    assert [f.obs.dtype for f in fragments] == [np.float32, np.uint8]
    assert [f.origin.group for f in fragments] == [0, 1]
    assert fragments[1].actions.max() == 4
    assert fragments[0].metrics[..., 0].tolist() == [[12.0] * 3] * 2


def test_exploration_is_the_policys_own_or_greedy_or_a_probability() -> None:
    """Exploration changes nothing but the share of random actions, and that is what the task says."""

    def share(exploration: float | None) -> float:
        (fragment,) = play_whole(UNEQUAL, {"agents": 40, "turns": 40}, range(4), exploration=exploration, worlds=4)[:1]
        greedy = fragment.extras["sum"].astype(np.int64) % 3
        return float((fragment.actions != greedy).mean())

    assert share(0.0) == 0.0
    for exploration, chance in ((None, 0.5), (0.3, 0.3), (1.0, 1.0)):
        assert abs(share(exploration) - chance * 2 / 3) < 5 * np.sqrt(0.25 / 6400)


def test_agents_explore_independently() -> None:
    (fragment,) = play_whole(TREASURE, {**SMALL, "turns": 400}, (0, 1), policy=RandomPolicy)
    actions = fragment.actions.reshape(400, 4)
    same = (actions[:, :, None] == actions[:, None, :]).mean(axis=0)[~np.eye(4, dtype=bool)]
    assert np.abs(same - 1 / 4).max() < 5 * np.sqrt(3 / 16 / 400)
    assert abs((actions[1:] == actions[:-1]).mean() - 1 / 4) < 5 * np.sqrt(3 / 16 / 1600)


def test_random_actions_are_uniform_over_the_allowed_ones() -> None:
    game = make_game(MASKED, {"agents": 400, "turns": 1}, [0])
    (fragment,) = play_whole(MASKED, {"agents": 400, "turns": 1}, range(8), policy=RandomPolicy, worlds=8)
    shifted = (fragment.actions - np.arange(400)) % game.spec.groups[0].actions
    counts = np.bincount(shifted.ravel(), minlength=4)
    assert counts[0] == 0
    assert ((counts[1:] - 3200 / 3) ** 2 / (3200 / 3)).sum() < 2 + 5 * np.sqrt(4)


def test_before_turn_is_called_every_turn_and_may_raise() -> None:
    rollout = start_rollout(TREASURE, SMALL, (0,))
    calls: list[int] = []

    def before_turn() -> None:
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rollout.play(rollout.empty_fragments(), before_turn)
    assert len(calls) == 5


def test_empty_fragments_have_the_worlds_of_the_plan() -> None:
    game = make_game(TREASURE, SMALL, [0])
    (fragment,) = empty_fragments(
        game.spec, bind_policies(game), RolloutConfig(0, 4), Task((3, 9)), first_turn=2, turns=5
    )
    assert fragment.origin.worlds.tolist() == [3, 1]
    assert fragment.origin.episodes.tolist() == [3, 9]
    assert (fragment.origin.first_turn, fragment.turns, fragment.before) == (2, 5, 2)
