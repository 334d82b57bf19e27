"""Scripted players of the social dilemmas. They see what learners see, and know nothing else.

A player walks to the nearest thing it wants. Where moves are absolute it needs the compass in its view. Without
anything in sight it walks straight on for a while, then another way. One action in ten is random, so that players do
not block each other for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from remuda.core.game import Group
from remuda.core.kernels import kernel
from remuda.core.policy import Policy, PolicyInput, PolicyOutput
from remuda.core.rng import below, uniform

RANDOM_SHARE = 0.1
STRIDE = 8
"""Turns that a player walks straight on while nothing is in sight."""


class Wants(NamedTuple):
    """What a player does, as numbers for compiled code; channels are counted in the view."""

    goal: int  # the channel of what it walks to
    other_goal: int  # another such channel, or -1
    crowd: int  # how many things of the goal's kind must be near, within distance 2, before it takes one
    fire_at: int  # the channel of what it fires at, or -1
    fire: int  # the action that fires
    relative: bool  # whether moves are relative to the facing; else the view has a compass


class ScriptedPlayer(Policy):
    """Walks to what it wants, and fires at what it does not like."""

    def __init__(self, group: Group, agents: int, wants: Wants) -> None:
        super().__init__(group, agents)
        self.wants = wants

    def act(self, inputs: PolicyInput, first: int, last: int) -> PolicyOutput:
        """Choose for each agent in each world from its view alone."""
        obs = np.ascontiguousarray(inputs.obs[-1])  # (worlds, agents, side, side, channels)
        actions = np.empty(obs.shape[:2], np.int64)
        _choose(obs, inputs.ages, inputs.keys, self.wants, self.group.actions, actions)
        return PolicyOutput(actions)


def scripted(
    about: str,
    goal: int,
    other_goal: int = -1,
    crowd: int = 0,
    fire_at: int = -1,
    fire: int = 0,
    relative: bool = False,
) -> Callable[[Group, int], ScriptedPlayer]:
    """What makes a player that does this; `about` is what `remuda learners` says of it."""
    wants = Wants(goal, other_goal, crowd, fire_at, fire, relative)

    def make(group: Group, agents: int) -> ScriptedPlayer:
        return ScriptedPlayer(group, agents, wants)

    make.__doc__ = about
    return make


@kernel(allocates=False)
def _choose(obs: Any, ages: Any, keys: Any, wants: Any, actions: int, out: Any) -> None:
    for w in range(out.shape[0]):
        for a in range(out.shape[1]):
            out[w, a] = _action(obs[w, a], ages[w, a], keys[w, a], wants, actions)


@kernel(allocates=False)
def _action(view: Any, age: int, key: Any, wants: Any, actions: int) -> int:
    if uniform(key, 0) < RANDOM_SHARE:
        return int(below(key, 1, min(actions, 7)))
    if wants.fire_at >= 0 and _in_beam(view, wants.fire_at):
        return int(wants.fire)
    ahead, right = _nearest(view, wants)
    if ahead == 0 and right == 0:
        way = (age // STRIDE * 7 + age // (4 * STRIDE)) % 4
        ahead = 1 - way if way % 2 == 0 else 0
        right = 2 - way if way % 2 == 1 else 0
    return _step_towards(view, ahead, right, wants.relative)


@kernel(allocates=False)
def _in_beam(view: Any, channel: int) -> bool:
    """Whether something is 1 or 2 cells ahead, or diagonally ahead."""
    own, middle = view.shape[0] - 2, view.shape[1] // 2
    return bool(
        view[own - 1, middle, channel]
        or view[own - 2, middle, channel]
        or view[own - 1, middle - 1, channel]
        or view[own - 1, middle + 1, channel]
    )


@kernel(allocates=False)
def _nearest(view: Any, wants: Any) -> Any:
    """How far ahead and to the right the nearest thing is that the player wants; (0, 0) if there is none."""
    side = view.shape[0]
    own, middle = side - 2, side // 2
    best, ahead, right = 10 * side, 0, 0
    for y in range(side):
        for x in range(side):
            wanted = view[y, x, wants.goal] or (wants.other_goal >= 0 and view[y, x, wants.other_goal])
            distance = abs(own - y) + abs(x - middle)
            if wanted and 0 < distance < best and _count_near(view, y, x, wants.goal) >= wants.crowd:
                best, ahead, right = distance, own - y, x - middle
    return ahead, right


@kernel(allocates=False)
def _count_near(view: Any, y: int, x: int, channel: int) -> int:
    count = 0
    for dy in range(-2, 3):
        for dx in range(-2, 3):
            r, c = y + dy, x + dx
            inside = 0 <= r < view.shape[0] and 0 <= c < view.shape[1]
            if inside and 0 < dy * dy + dx * dx <= 4 and view[r, c, channel]:
                count += 1
    return count


@kernel(allocates=False)
def _step_towards(view: Any, ahead: int, right: int, relative: bool) -> int:
    """The action of a step ahead, back, right or left; for absolute moves the last four channels are a compass."""
    forward = abs(ahead) >= abs(right)
    turns = (0 if ahead > 0 else 2) if forward else (3 if right > 0 else 1)  # to the left
    if relative:
        return 4 if turns == 0 else (5 if turns == 2 else (3 if turns == 3 else 2))
    own, middle = view.shape[0] - 2, view.shape[1] // 2
    facing, compass = 0, view.shape[2] - 4
    for f in range(4):
        if view[own, middle, compass + f]:
            facing = f
    way = (facing + turns) % 4  # 0 south, 1 east, 2 north, 3 west
    return 4 if way == 0 else (2 if way == 1 else (5 if way == 2 else 3))
