"""The herd: which learner or player each agent has, and how to make them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.errors import ConfigError, UnknownName
from remuda.core.game import GameSpec, Group
from remuda.core.learner import Learner, LearnerContext
from remuda.core.plan import FROZEN, Plan
from remuda.core.policy import Policy, PolicyBinding
from remuda.core.ranges import split_evenly
from remuda.games.registry import find_game
from remuda.learners.devices import acting_device, device_of_agent
from remuda.learners.registry import PLAYERS, find_learner, is_learner, learner_names, learner_options
from remuda.learners.single_agent.base import SingleAgentLearner
from remuda.learners.single_agent.policy import SingleAgentPolicy


@dataclass(frozen=True)
class FrozenPolicy:
    """A trained policy that does not learn any more, with the weights of each agent.

    The process that starts training reads it from its run, once. Workers get it with their part of the herd and need no
    access to the run.
    """

    player: str  # a learner, or a scripted player, which has no weights
    options: Any  # of the learner
    precision: str
    weights: list[dict[str, NDArray[np.float32]]]  # one entry per agent

    def make(self, group: Group, device: str) -> Policy:
        """The policy with its weights loaded, for a group of the same shape."""
        if not is_learner(self.player):
            return PLAYERS[self.player](group, len(self.weights))
        policy = find_learner(self.player).make_policy(group, len(self.weights), self.options, self.precision, device)
        policy.load_weights(self.weights)
        return policy


_OWN = "copy an example of one with `remuda examples {name}`, then give learner={name}:{kind}"
_OFF_POLICY = "iqn is the off-policy learner here, or write your own (docs/write-a-learner.md)"
_ON_POLICY = "ppo is one for each agent here, with critic=state also with a critic that sees all"
PEER_LEARNERS = {
    "a2c": _OWN.format(name="a2c", kind="A2C"), "dqn": _OWN.format(name="dqn", kind="DQN"),
    **dict.fromkeys(("ddpg", "ddqn", "iql", "qmix", "qrdqn", "r2d2", "rainbow", "sac", "td3", "vdn"), _OFF_POLICY),
    **dict.fromkeys(("appo", "happo", "impala", "ippo", "mappo", "recurrentppo", "trpo"), _ON_POLICY),
}  # fmt: skip
"""Algorithms that people ask for by the names of other libraries, and what there is instead."""


@dataclass(frozen=True)
class Part:
    """Neighbouring agents of one group that have the same learner or player, and as many updates per episode."""

    group: int
    first: int  # agents first … last-1 of the group
    last: int
    herd_first: int  # herd-wide number of the first one
    player: str  # a learner, a scripted player, or frozen:RUN[/agents]
    frozen: FrozenPolicy | None = None  # loaded from the run that `player` names

    @property
    def agents(self) -> int:
        """Number of agents."""
        return self.last - self.first

    @property
    def learns(self) -> bool:
        """Whether it has a learner."""
        return is_learner(self.player)


def assign(plan: Plan, spec: GameSpec) -> list[Part]:
    """Split the herd into parts: each agent gets the player in `learners` that lists it, else `learner`."""
    players, listed = [plan.learner] * spec.agents, set[int]()
    for key, player in plan.learners.items():
        for agent in agent_range(key, spec.agents, "learners"):
            if agent in listed:
                raise ConfigError(f"learners: agent {agent} is listed twice, again in {key!r}: list each agent once")
            listed.add(agent)
            players[agent] = player
    known = [*PLAYERS, *find_game(plan.game).players]
    for player in set(players):
        if player not in known and not is_learner(player) and not player.startswith(f"{FROZEN}:"):
            if player.lower() in PEER_LEARNERS:
                raise ConfigError(f"unknown learner {player!r}: {PEER_LEARNERS[player.lower()]}")
            raise UnknownName("learner", player, [*learner_names(), *known, "frozen:RUN/agent", "module:Class"])
    rates = plan.updates_per_episode
    if isinstance(rates, list) and len(rates) != spec.agents:
        raise ConfigError(
            f"updates_per_episode lists {len(rates)} value{'s' * (len(rates) != 1)} for a herd of {spec.agents}: "
            "give one value, or one per agent of the whole herd"
        )
    parts: list[Part] = []
    for index, group in enumerate(spec.groups):
        offset = spec.first_agent(index)
        kinds = [(players[offset + i], plan.update_rate(offset + i)) for i in range(group.size)]
        edges = [i for i in range(1, group.size) if kinds[i] != kinds[i - 1]]
        for first, last in zip([0, *edges], [*edges, group.size], strict=True):
            parts.append(Part(index, first, last, offset + first, players[offset + first]))
    return parts


def agent_range(text: str, count: int, option: str) -> range:
    """`3` or `0-3` as a range of agents."""
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text.strip())
    if not match:
        raise ConfigError(f"{option}: {text!r} should be an agent or a range of agents, e.g. 3 or 0-3")
    first = int(match[1])
    last = int(match[2]) if match[2] else first
    if first > last or last >= count:
        raise ConfigError(f"{option}: agents {text} do not exist: the herd has agents 0 to {count - 1}")
    return range(first, last + 1)


def tolerated_lag(plan: Plan, parts: Sequence[Part]) -> int:
    """Largest policy lag of this run: `max_lag` of the plan, or what all its learners tolerate."""
    tolerated = min((find_learner(part.player).max_lag for part in parts if part.learns), default=0)
    if plan.max_lag is not None and plan.max_lag > tolerated:
        raise ConfigError(f"max_lag={plan.max_lag} is more than the learners of this herd tolerate: use {tolerated}")
    return tolerated if plan.max_lag is None else plan.max_lag


def bind_policy(part: Part, plan: Plan, spec: GameSpec, device: str) -> PolicyBinding:
    """The policy that acts for this part; one of a learner has no weights until they are published."""
    group, device = spec.groups[part.group], acting_device(device)
    players: dict[str, Callable[[Group, int], Policy]] = {**PLAYERS, **find_game(plan.game).players}
    policy: Policy
    if part.learns:
        options = learner_options(plan, part.player)
        policy = find_learner(part.player).make_policy(group, part.agents, options, plan.precision, device)
    elif part.player in players:
        policy = players[part.player](group, part.agents)
    else:
        assert part.frozen is not None, f"{part.player} was not loaded"
        policy = part.frozen.make(group, device)
    return PolicyBinding(part.group, part.first, part.last, policy)


def make_learners(part: Part, plan: Plan, spec: GameSpec, device: str, slices: int, threads: int = 1) -> list[Learner]:
    """The learners of a part, with balanced slices of its agents."""
    return [make_learner(part, plan, spec, device, agents, threads) for agents in split_evenly(part.agents, slices)]


def make_learner(
    part: Part, plan: Plan, spec: GameSpec, device: str, agents: tuple[int, int], threads: int = 1
) -> Learner:
    """A learner for agents first … last-1 of a part."""
    first, last = agents
    context = LearnerContext(
        group=spec.groups[part.group],
        group_index=part.group,
        first=part.first + first,
        last=part.first + last,
        herd_first=part.herd_first + first,
        seed=plan.seed,
        turns=spec.turns,
        round_episodes=plan.round_episodes,
        total_updates=plan.updates_due(plan.total_episodes, part.herd_first),
        precision=plan.precision,
        device=device_of_agent(device, part.herd_first + first, spec.agents),
        threads=threads,
        in_turn=spec.in_turn,
    )
    return find_learner(part.player)(context, learner_options(plan, part.player))


def stacking_lines(plan: Plan, spec: GameSpec, parts: Iterable[Part]) -> Iterator[str]:
    """For learners written for one agent: whether agents are computed together, by a test with two of them.

    Raises ConfigError if the network or the loss does not return what it should.
    """
    learning = sorted((part for part in parts if part.learns), key=lambda part: part.agents)
    for player, part in {part.player: part for part in learning}.items():
        kind, group = find_learner(player), spec.groups[part.group]
        if not issubclass(kind, SingleAgentLearner):
            continue
        policy = kind.make_policy(group, 1, learner_options(plan, player), plan.precision, "cpu")
        assert isinstance(policy, SingleAgentPolicy)
        policy.try_network()
        own = make_learner(part, plan, spec, "cpu", (0, min(part.agents, 2)))
        assert isinstance(own, SingleAgentLearner)
        try:
            stacking = own.try_stacking()
        except ConfigError:
            raise
        except Exception:  # the user's loss may raise anything; the run will say so when it learns
            continue
        if part.agents > 1:
            yield f"{player}: agents are computed {stacking}"


def weights_sha256(policies: Iterable[Policy]) -> str:
    """A hash of the weights of all agents, in the order of the herd and without padding."""
    digest = hashlib.sha256()
    for policy in policies:
        for arrays in policy.weights():
            for name in sorted(arrays):
                array = np.ascontiguousarray(arrays[name], "<f4")
                digest.update(f"{name}{array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


def count_parameters(policies: Sequence[Policy]) -> int:
    """Parameters of all networks together, without padding."""
    return sum(a.size for policy in policies for arrays in policy.weights() for a in arrays.values())
