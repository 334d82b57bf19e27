"""PPO: advantages and updates against plain programs for one network."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from remuda.core import rng
from remuda.core.fragment import Fragment
from remuda.core.game import make_game
from remuda.core.learner import LearnerContext
from remuda.core.policy import PolicyBinding
from remuda.core.rng import Stream
from remuda.core.task import Task
from remuda.games.registry import find_game
from remuda.learners.ppo.experience import frame_stacks, next_frame_stacks
from remuda.learners.ppo.learner import PPO
from remuda.learners.ppo.moments import RunningMoments
from remuda.learners.ppo.options import PPOOptions
from remuda.learners.ppo.policy import sample
from remuda.learners.ppo.rounds import Round, gather_rounds
from remuda.learners.transitions import find_transitions
from remuda.rollout.config import RolloutConfig
from remuda.rollout.rollout import Rollout
from remuda.testing.odd_games import RESPAWN

AGENTS, WORLDS, TURNS = 3, 4, 20
OPTIONS = PPOOptions(layers=[12, 10], frames=2, passes=1, minibatches=1, lr=0.01, gamma=0.9, gae_lambda=0.8)


def learner(options: PPOOptions = OPTIONS, first: int = 0, last: int = AGENTS) -> PPO:
    group = make_game(find_game("treasurehunt"), {"agents": AGENTS}, [0]).spec.groups[0]
    return PPO(LearnerContext(group, 0, first, last, first, 5, TURNS, WORLDS, 100), options)


def play(own: PPO, turns: int = TURNS) -> Fragment:
    policy = PPO.make_policy(own.context.group, AGENTS, own.options, "fp32", "cpu")
    policy.load(own.rows(), 0)
    game = make_game(find_game("treasurehunt"), {"agents": AGENTS, "turns": TURNS}, range(WORLDS))
    rollout = Rollout(game, [PolicyBinding(0, 0, AGENTS, policy)], RolloutConfig(1, WORLDS))
    rollout.start(Task(tuple(range(WORLDS))))
    return rollout.play(rollout.empty_fragments(turns))[0]


def changed(fragment: Fragment, **arrays: Any) -> Fragment:
    return Fragment(**{**vars(fragment), **arrays})


def plain(own: PPO, name: str, agent: int) -> nn.Sequential:
    """One network of one agent as torch modules."""
    named = own.network.layout.unpack(own.weights[agent].numpy())
    layers: list[nn.Module] = []
    for i in range(3):
        weight, bias = named[f"{name}.{i}.weight"], named[f"{name}.{i}.bias"]
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        layer.load_state_dict({"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)})
        layers += [layer, nn.Tanh()] if i < 2 else [layer]
    return nn.Sequential(*layers)


def plain_advantages(own: PPO, fragment: Fragment, world: int, agent: int) -> list[float]:
    """Generalised advantages of one agent in one world, straight from the definition."""
    every_turn = np.arange(fragment.turns)
    found, rows = find_transitions(fragment, False), (every_turn, np.full(fragment.turns, world))
    after = next_frame_stacks(fragment, found.after, 2, rows, agent)
    critic = plain(own, "critic", agent)
    now = torch.from_numpy(frame_stacks(fragment, 2)[:, world, agent]).float()
    values = critic(now)[:, 0].tolist()
    rewards = fragment.rewards[:, world, agent]
    deltas = []
    for t in range(fragment.turns):
        last = t == fragment.turns - 1 or fragment.truncated[t, world, agent]
        beyond = critic(torch.from_numpy(after[t]).float()).item() if last else values[min(t + 1, len(values) - 1)]
        beyond = 0.0 if fragment.terminated[t, world, agent] else beyond
        deltas.append(rewards[t] + 0.9 * beyond - values[t])
    result = []
    for t in range(fragment.turns):
        total, factor = 0.0, 1.0
        for later in range(t, fragment.turns):
            total += factor * deltas[later]
            factor *= 0.9 * 0.8
            if fragment.terminated[later, world, agent] or fragment.truncated[later, world, agent]:
                break
        result.append(total)
    return result


def respawn_fragments(frames: int, turns: int) -> list[Fragment]:
    """An episode in which agents die and come back, in slices of `turns` turns."""
    game = make_game(RESPAWN, {"turns": 20}, range(WORLDS))
    group = game.spec.groups[0]
    policy = PPO.make_policy(group, group.size, PPOOptions(layers=[8], frames=frames), "fp32", "cpu")
    policy.load(policy.rows, 0)
    rollout = Rollout(game, [PolicyBinding(0, 0, group.size, policy)], RolloutConfig(1, WORLDS))
    rollout.start(Task(tuple(range(WORLDS))))
    fragments = []
    while not game.over.all():
        fragments += rollout.play(rollout.empty_fragments(turns))
    return fragments


def plain_stack(fragment: Fragment, frames: int, at: tuple[int, int, int], age: int) -> list[int]:
    """The observations up to turn `at[0]` that are not older than the agent, after zeros for the missing ones."""
    turn, world, agent = at
    own = [
        fragment.obs[fragment.before + turn - back, world, agent].reshape(-1) if back <= age else np.zeros(4)
        for back in reversed(range(frames))
    ]
    return np.concatenate(own).astype(int).tolist()


@pytest.mark.parametrize("turns", [20, 3])
@pytest.mark.parametrize("frames", [1, 2, 4])
def test_frame_stacks_hold_only_frames_of_the_same_episode(frames: int, turns: int) -> None:
    ends = 0
    for fragment in respawn_fragments(frames, turns):
        stacks, found = frame_stacks(fragment, frames), find_transitions(fragment, False)
        for turn, world, agent in np.argwhere(fragment.alive):
            age = int(fragment.ages[turn, world, agent])
            assert stacks[turn, world, agent].tolist() == plain_stack(fragment, frames, (turn, world, agent), age)
            rows = (np.array([turn]), np.array([world]))
            (after,) = next_frame_stacks(fragment, found.after, frames, rows, agent)
            assert after.tolist() == plain_stack(fragment, frames, (turn + 1, world, agent), age + 1)
            ends += bool(fragment.terminated[turn, world, agent])
    assert ends > 10


@pytest.mark.parametrize("turns", [20, 3])
@pytest.mark.parametrize("frames", [1, 3])
def test_a_round_has_the_frame_stacks_of_all_fragments_world_by_world(frames: int, turns: int) -> None:
    fragments = respawn_fragments(frames, turns)
    group = make_game(RESPAWN, {}, [0]).spec.groups[0]
    own = PPO(LearnerContext(group, 0, 0, group.size, 0, 5, 20, WORLDS, 100), PPOOptions(layers=[8], frames=frames))
    for one in gather_rounds(fragments, False, own.network, own.weights):
        for agent in range(one.first, one.last):
            expected = [
                frame_stacks(fragment, frames)[:, world, agent][
                    find_transitions(fragment, False).learnable[:, world, agent]
                ]
                for fragment in fragments
                for world in range(WORLDS)
            ]
            assert np.array_equal(one.rows.stacks[agent - one.first], np.concatenate(expected))
            assert not one.padded_stacks[:, :, one.rows.stacks.shape[2] :].any()


def advantages_of(own: PPO, fragment: Fragment, tiled: bool = True) -> Round:
    """The round of one fragment, with its advantages."""
    own.tiled = tiled
    (one,) = gather_rounds([fragment], False, own.network, own.weights)
    own.fill_advantages(one, own.learning(one))
    return one


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("turns", [TURNS, 7])
def test_advantages_follow_the_definition_and_bootstrap_at_a_cut(turns: int, tiled: bool) -> None:
    own = learner()
    fragment = play(own, turns)
    assert fragment.truncated[-1].all() == (turns == TURNS)
    advantages = advantages_of(own, fragment, tiled).rows.advantages.reshape(AGENTS, WORLDS, turns)
    for world in range(WORLDS):
        for agent in range(AGENTS):
            expected = plain_advantages(own, fragment, world, agent)
            np.testing.assert_allclose(advantages[agent, world], expected, atol=1e-4)


def test_truncation_bootstraps_and_termination_does_not() -> None:
    own = learner(OPTIONS.model_copy(update={"normalise_values": False}))
    fragment = play(own)
    died = changed(fragment, terminated=fragment.truncated, truncated=fragment.terminated)
    truncated, terminated = (
        one.rows.advantages.reshape(AGENTS, WORLDS, TURNS)[:, :, -1]
        for one in (advantages_of(own, fragment), advantages_of(own, died))
    )
    rows = advantages_of(own, died).rows
    last = (rows.returns - rows.advantages).reshape(AGENTS, WORLDS, TURNS)[:, :, -1]  # values by the critic
    np.testing.assert_allclose(terminated, fragment.rewards[-1].T - last, atol=1e-5)
    assert np.abs(truncated - terminated).max() > 1e-6


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("agent", range(AGENTS))
def test_the_update_equals_the_plain_one(agent: int, tiled: bool) -> None:
    own = learner(OPTIONS.model_copy(update={"normalise_values": False}))
    fragment = play(own)
    one = advantages_of(own, fragment, tiled).rows
    actor, critic = plain(own, "actor", agent), plain(own, "critic", agent)

    def rows(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array[:, :, agent].swapaxes(0, 1).reshape(WORLDS * TURNS, *array.shape[3:]))

    x, actions = rows(frame_stacks(fragment, 2)).float(), rows(fragment.actions)
    adv, old = torch.from_numpy(one.advantages[agent]), rows(fragment.extras["log_prob"])
    std = adv.std(correction=0)
    chosen = actor(x).log_softmax(dim=1)
    ratio = (chosen[torch.arange(len(x)), actions] - old).exp()
    scaled = (adv - adv.mean()) / std
    policy_loss = -torch.minimum(ratio * scaled, ratio.clamp(0.8, 1.2) * scaled).mean()
    value_loss = (critic(x)[:, 0] - torch.from_numpy(one.returns[agent])).square().mean()
    entropy = -(chosen.exp() * chosen).sum(dim=1).mean()
    parameters = [*actor.parameters(), *critic.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=0.01)
    (policy_loss + 0.5 * value_loss - 0.01 * entropy).backward()
    nn.utils.clip_grad_norm_(parameters, 0.5)
    optimiser.step()

    own.take(fragment)
    own.update(1)
    moved = own.network.layout.unpack(own.weights[agent].numpy())
    expected = [p for network in (actor, critic) for p in network.parameters()]
    for (name, array), parameter in zip(moved.items(), expected, strict=True):
        large = np.abs(parameter.grad.numpy()) > 1e-6
        np.testing.assert_allclose(array[large], parameter.detach().numpy()[large], atol=2e-5, err_msg=name)


def test_slices_of_the_herd_learn_the_same_bits() -> None:
    options = OPTIONS.model_copy(update={"passes": 2, "minibatches": 3})
    whole = learner(options)
    fragment = play(whole)
    fragment.alive[11:, :, 2] = False  # one agent dies earlier than its neighbours
    parts = [learner(options, 0, 1), learner(options, 1, 3)]
    for own in (whole, *parts):
        own.take(own.context.select([fragment]))
        own.update(1)
    assert torch.equal(whole.weights, torch.cat([own.weights for own in parts]))


@pytest.mark.parametrize("tiled", [True, False])
def test_minibatches_of_a_size_are_as_many_as_fit_into_the_turns_of_the_agent(tiled: bool) -> None:
    sized, counted = (
        PPOOptions(layers=[8], passes=2, minibatch_size=16),
        PPOOptions(layers=[8], passes=2, minibatches=5),
    )
    fragment = play(learner(sized))
    two, one = learner(counted), learner(sized)
    one.tiled = two.tiled = tiled
    for own in (one, two):
        own.take(fragment)
        assert own.planned_steps(1).tolist() == [2 * 5] * AGENTS  # 80 turns of each agent
        own.update(1)
        assert own.steps.tolist() == [10] * AGENTS
    assert one.rows().tobytes() == two.rows().tobytes()
    alive = fragment.alive.copy()
    alive[3:, 1:, 2] = False  # agent 2 is left with 20 turns and 3 in each of the other three worlds
    one.take(changed(fragment, alive=alive))
    assert one.planned_steps(1).tolist() == [10, 10, 2 * (29 // 16)]
    one.update(1)
    assert one.steps.tolist() == [20, 20, 12]


def test_all_ratios_are_one_in_the_first_step() -> None:
    own = learner()
    own.take(play(own))
    own.update(1)
    assert np.abs(own.report()["kl"]).max() < 1e-6


def test_sampling_follows_the_probabilities() -> None:
    probs = np.tile(np.array([0.5, 0.0, 0.3, 0.2], np.float32), (2000, 2, 1))
    keys = rng.keys(rng.keys(rng.key(0, Stream.CHECK), np.arange(2000))[:, None], np.arange(2))
    actions = np.empty((2000, 2), np.int64)
    sample(probs, keys, actions)
    share = np.bincount(actions.reshape(-1), minlength=4) / actions.size
    np.testing.assert_allclose(share, [0.5, 0.0, 0.3, 0.2], atol=0.03)
    assert share[1] == 0.0


def test_it_learns_the_rewarded_action() -> None:
    """If only one action has a reward, it is soon chosen nearly always."""
    own = learner(OPTIONS.model_copy(update={"passes": 4, "minibatches": 2, "lr": 0.02}))
    for _ in range(25):
        fragment = play(own)
        own.take(changed(fragment, rewards=(fragment.actions == 2).astype(np.float32)))
        own.update(1)
    assert (play(own).actions == 2).mean() > 0.9


def test_state_restores_everything() -> None:
    one, two = learner(), learner()
    one.take(play(one))
    one.update(1)
    two.restore({name: array.copy() for name, array in one.state().items()})
    fragment = play(one)
    for own in (one, two):
        own.take(fragment)
        own.update(1)
    assert torch.equal(one.weights, two.weights)
    assert np.array_equal(one.rows(), two.rows())


def test_published_weights_contain_the_normalisation_of_observations() -> None:
    own = learner(OPTIONS.model_copy(update={"normalise_observations": True}))
    first = play(own)
    own.take(first)
    own.update(1)
    fragment = play(own)
    seen = first.obs[first.before :][:-1].reshape(TURNS * WORLDS, AGENTS, -1).astype(np.float64) * own.network.scale
    for agent in range(AGENTS):
        std = seen[:, agent].std(axis=0)
        std[std < 1e-3] = 1.0
        stacks = frame_stacks(fragment, 2)[:, 0, agent] * own.network.scale
        standard = (stacks - np.tile(seen[:, agent].mean(axis=0), 2)) / np.tile(std, 2)
        logits = plain(own, "actor", agent)(torch.from_numpy(standard).float())
        chosen = logits.log_softmax(1).gather(1, torch.from_numpy(fragment.actions[:, 0, agent])[:, None])[:, 0]
        np.testing.assert_allclose(fragment.extras["log_prob"][:, 0, agent], chosen.detach(), atol=2e-4)
    own.take(fragment)
    own.update(1)
    assert np.abs(own.report()["kl"]).max() < 1e-4  # learning uses the same normalisation as acting


def test_running_moments_are_those_of_all_rows() -> None:
    own = RunningMoments(2, 3)
    rows = np.random.default_rng(0).normal(3.0, 2.0, (50, 3))
    for part in (rows[:1], rows[1:20], rows[20:20], rows[20:]):
        own.add(1, part)
    mean, std = own.mean_and_std()
    np.testing.assert_allclose(mean[1], rows.mean(axis=0))
    np.testing.assert_allclose(std[1], rows.std(axis=0))
    assert (mean[0] == 0).all()
    assert (std[0] == 1).all()
