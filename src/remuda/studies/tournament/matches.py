"""The matches of a tournament: every entrant with every other, in every place.

In a match, one entrant, the focal one, has some of the places and the other one the rest. Where all places are alike,
the focal places go round: each place is focal equally often. Where a game has several groups, the focal entrant plays
one group after the other. Unless that gives both the same places, they then change roles. A game for one agent has no
opponents: both play the same episodes alone, and their returns are compared. All matches have the same test episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from remuda.core import rng
from remuda.core.errors import ConfigError
from remuda.core.game import GameSpec
from remuda.core.plan import Plan
from remuda.core.policy import Policy, PolicyBinding
from remuda.core.rng import Stream
from remuda.runs.evaluation import evaluate_policies
from remuda.studies.tournament.entrants import Entrant

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Match:
    """Two entrants that met: returns per episode of each as the focal one, mean over its places."""

    first: int
    second: int
    first_returns: Floats  # (episodes,)
    second_returns: Floats
    wins: float  # of the first, ties counted half
    games: int


def arrangements(spec: GameSpec, places: int | None) -> list[list[int]]:
    """The places of the first entrant, once for each way to sit; `places` is how many it has, default half of them."""
    if len(spec.groups) > 1:
        if places is not None:
            raise ConfigError("focal places can be chosen only where all places are alike: leave --focal out")
        starts = [spec.first_agent(g) for g in range(len(spec.groups))]
        return [[*range(start, start + group.size)] for start, group in zip(starts, spec.groups, strict=True)]
    if spec.agents == 1:
        return [[0]]
    count = places or spec.agents // 2
    if not 0 < count < spec.agents:
        raise ConfigError(f"--focal {places}: the game has {spec.agents} places, give 1 to {spec.agents - 1}")
    return [sorted((start + i) % spec.agents for i in range(count)) for start in range(spec.agents)]


def choose_pairs(entrants: Sequence[Entrant], limit: int | None, seed: int, self_play: bool) -> list[tuple[int, int]]:
    """All pairs, or a random part of them; which ones depends on names and seed, not on the order of entrants."""
    pairs = [*combinations(range(len(entrants)), 2)]
    if limit is not None and limit < len(pairs):
        base = rng.key(seed, Stream.STUDY, 1)
        chance = {pair: int(rng.keys(rng.keys(base, pair[0]), pair[1])) for pair in pairs}
        pairs = sorted(sorted(pairs, key=lambda pair: chance[pair])[:limit])
    return [*pairs, *((i, i) for i in range(len(entrants)) if self_play)]


class Arena:
    """Plays matches of one game; policies are loaded once."""

    def __init__(self, entrants: Sequence[Entrant], plan: Plan, spec: GameSpec, places: int | None) -> None:
        self.entrants, self.plan, self.spec = entrants, plan, spec
        self.arrangements = arrangements(spec, places)
        self._policies: dict[tuple[int, int], Policy] = {}

    def play_all(
        self, pairs: Sequence[tuple[int, int]], episodes: int, tell: Callable[[int], None] = lambda done: None
    ) -> list[Match]:
        """Play every pair on about so many episodes, the same number in each arrangement."""
        matches = []
        for number, (first, second) in enumerate(pairs):
            matches.append(self._play(first, second, max(1, episodes // len(self.arrangements))))
            tell(number + 1)
        return matches

    def _play(self, first: int, second: int, episodes: int) -> Match:
        if self.spec.agents == 1:
            alone, other = (self._returns([own], episodes)[:, 0] for own in (first, second))
            return Match(first, second, alone, other, _wins(alone, other), len(alone))
        focal, background = self._roles(first, second, episodes)
        if self._symmetric or first == second:
            return Match(first, second, focal, background, _wins(focal, background), len(focal))
        second_focal, first_background = self._roles(second, first, episodes)
        wins = _wins(focal, background) + _wins(first_background, second_focal)
        return Match(first, second, focal, second_focal, wins, 2 * len(focal))

    @property
    def _symmetric(self) -> bool:
        """Whether going round the places gives both entrants the same ones."""
        return len(self.spec.groups) == 2 or 2 * len(self.arrangements[0]) == self.spec.agents

    def _roles(self, focal: int, background: int, episodes: int) -> tuple[Floats, Floats]:
        """Returns per episode of the focal entrant and of the other, mean over the places each has."""
        found: tuple[list[Floats], list[Floats]] = ([], [])
        for places in self.arrangements:
            sides = [focal if place in places else background for place in range(self.spec.agents)]
            returns = self._returns(sides, episodes)
            others = [place for place in range(self.spec.agents) if place not in places]
            found[0].append(returns[:, places].mean(axis=1))
            found[1].append(returns[:, others].mean(axis=1))
        return np.concatenate(found[0]), np.concatenate(found[1])

    def _returns(self, sides: Sequence[int], episodes: int) -> Floats:
        """Returns of every place, (episodes, places), where each place has the entrant that `sides` says."""
        bindings = []
        for place, entrant in enumerate(sides):
            group = next(g for g in reversed(range(len(self.spec.groups))) if self.spec.first_agent(g) <= place)
            inside = place - self.spec.first_agent(group)
            bindings.append(PolicyBinding(group, inside, inside + 1, self._policy(entrant, place)))
        return evaluate_policies(self.plan, self.spec, bindings, episodes).returns

    def _policy(self, entrant: int, place: int) -> Policy:
        if (entrant, place) not in self._policies:
            self._policies[entrant, place] = self.entrants[entrant].policy(place, self.plan, self.spec)
        return self._policies[entrant, place]


def _wins(a: Floats, b: Floats) -> float:
    """In how many episodes the one had the higher return, ties counted half."""
    return float((a > b).sum() + (a == b).sum() / 2)
