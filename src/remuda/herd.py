"""Who is in the herd: which learner or player has which agents, and how to make them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from remuda.collect import Seat, shares
from remuda.config import Plan
from remuda.errors import ConfigError, UnknownName
from remuda.game import GameSpec, Group
from remuda.games import find_game
from remuda.learners.iqn import IQN
from remuda.learners.learner import Learner, Post
from remuda.learners.ppo import PPO
from remuda.policy import Policy, RandomPolicy

LEARNERS: dict[str, type[Learner]] = {"iqn": IQN, "ppo": PPO}
PLAYERS: dict[str, type[Policy]] = {"random": RandomPolicy}
FROZEN = "frozen"


@dataclass(frozen=True)
class Part:
    """Neighbouring agents of one group with the same kind of player."""

    group: int
    first: int
    last: int
    herd_first: int
    player: str  # a learner, a scripted player, or frozen:RUN[/agents]

    @property
    def agents(self) -> int:
        """How many."""
        return self.last - self.first

    @property
    def learns(self) -> bool:
        """Whether it has a learner."""
        return self.player in LEARNERS


def assign(plan: Plan, spec: GameSpec) -> list[Part]:
    """Deal the herd's agents out to players: `learner` for all, `learners` where it says otherwise."""
    players = [plan.learner] * spec.agents
    for key, player in plan.learners.items():
        for agent in _agents(key, spec.agents, "learners"):
            players[agent] = player
    known = [*LEARNERS, *PLAYERS, *find_game(plan.game).players]
    for player in set(players):
        if player not in known and not player.startswith(f"{FROZEN}:"):
            raise UnknownName("learner", player, [*known, "frozen:RUN/agent"])
    parts: list[Part] = []
    for index, group in enumerate(spec.groups):
        offset = spec.first_agent(index)
        edges = [i for i in range(1, group.size) if players[offset + i] != players[offset + i - 1]]
        for first, last in zip([0, *edges], [*edges, group.size], strict=True):
            parts.append(Part(index, first, last, offset + first, players[offset + first]))
    return parts


def _agents(text: str, count: int, option: str) -> range:
    """`3` or `0-3` as a range of agents."""
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text.strip())
    if not match:
        raise ConfigError(f"{option}: {text!r} should be an agent or a range of agents, e.g. 3 or 0-3")
    first = int(match[1])
    last = int(match[2]) if match[2] else first
    if first > last or last >= count:
        raise ConfigError(f"{option}: agents {text} do not exist: the herd has agents 0 to {count - 1}")
    return range(first, last + 1)


def learner_options(plan: Plan, name: str) -> Any:
    """The validated options of a learner."""
    return LEARNERS[name].options_type().read(plan.learner_options.get(name, {}), f"learner {name}")


def tolerated_lag(plan: Plan, parts: Sequence[Part]) -> int:
    """Versions that may lie between acting and learning: what was asked for, or what the learners tolerate."""
    tolerated = min((LEARNERS[part.player].max_lag for part in parts if part.learns), default=0)
    if plan.max_lag is not None and plan.max_lag > tolerated:
        raise ConfigError(f"max_lag={plan.max_lag} is more than the learners of this herd tolerate: use {tolerated}")
    return tolerated if plan.max_lag is None else plan.max_lag


def make_seat(part: Part, plan: Plan, spec: GameSpec, device: str) -> Seat:
    """Whoever acts for this part; a learner's policy has no weights until they are published."""
    group = spec.groups[part.group]
    players: dict[str, Callable[[Group, int], Policy]] = {**PLAYERS, **find_game(plan.game).players}
    policy: Policy
    if part.learns:
        options = learner_options(plan, part.player)
        policy = LEARNERS[part.player].make_policy(group, part.agents, options, plan.precision, device)
    elif part.player in players:
        policy = players[part.player](group, part.agents)
    else:
        policy = _frozen(part, spec, device)
    return Seat(part.group, part.first, part.last, policy)


def make_learners(part: Part, plan: Plan, spec: GameSpec, device: str, slices: int, threads: int = 1) -> list[Learner]:
    """The part's learners, its agents split into balanced slices."""
    return [make_learner(part, plan, spec, device, own, threads) for own in shares(part.agents, slices)]


def make_learner(
    part: Part, plan: Plan, spec: GameSpec, device: str, agents: tuple[int, int], threads: int = 1
) -> Learner:
    """A learner for agents first … last-1 of a part."""
    first, last = agents
    post = Post(
        group=spec.groups[part.group],
        group_index=part.group,
        first=part.first + first,
        last=part.first + last,
        herd_first=part.herd_first + first,
        seed=plan.seed,
        turns=spec.turns,
        round_episodes=plan.round_episodes,
        total_updates=plan.updates_due(plan.total_episodes),
        precision=plan.precision,
        device=device,
        threads=threads,
    )
    return LEARNERS[part.player](post, learner_options(plan, part.player))


def _frozen(part: Part, spec: GameSpec, device: str) -> Policy:
    """A player from another run, with its weights; `frozen:RUN` takes the agents of the same numbers."""
    from remuda.run import Run  # a run can contain a frozen player, so the two know each other

    text = part.player.removeprefix(f"{FROZEN}:")
    path, slash, agents = text.rpartition("/")
    chosen = range(part.herd_first, part.herd_first + part.agents)
    if slash and re.fullmatch(r"\d+(-\d+)?", agents) and not Path(text).is_dir():
        source = Run(Path(path))
        chosen = _agents(agents, source.spec.agents, part.player)
    else:
        source = Run(Path(text))
    if len(chosen) not in (1, part.agents):
        raise ConfigError(f"{part.player} names {len(chosen)} agents for {part.agents} places")
    places = [chosen[i] if len(chosen) == part.agents else chosen[0] for i in range(part.agents)]
    return source.policy(places, spec.groups[part.group], device)


def weights_sha256(policies: Iterable[Policy]) -> str:
    """A fingerprint of all agents' weights in herd order, without padding."""
    digest = hashlib.sha256()
    for policy in policies:
        for arrays in policy.weights():
            for name in sorted(arrays):
                array = np.ascontiguousarray(arrays[name], "<f4")
                digest.update(f"{name}{array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


def parameters(policies: Sequence[Policy]) -> int:
    """Numbers in all networks together, without padding."""
    return sum(a.size for policy in policies for arrays in policy.weights() for a in arrays.values())
