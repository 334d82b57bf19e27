"""What every side does in a turn, and its random outcomes: drawn from one key, by the game and by a belief alike."""

from __future__ import annotations

from typing import Any

import numpy as np

from remuda.core.kernels import kernel
from remuda.core.rng import below, uniform
from remuda.games.cage2.attacker import decode_red, red_may
from remuda.games.cage2.network import DETECTED, GREEN_HOSTS, PREFER_TOP
from remuda.games.cage2.red import LEARNED, next_action, pick_bit, pick_exploit, record_choice
from remuda.games.cage2.simulator import Draws, TurnActions
from remuda.games.cage2.state import EXPLOIT, NONE

# Numbers of the draws from a turn's key. Each draw has a fixed purpose, so no draw depends on what happens.
TARGET, OTHER_EXPLOIT, TOP_EXPLOIT, NOTICED, SESSION, GREEN_ACTS, GREEN_TARGET = 0, 1, 2, 3, 4, 5, 6


@kernel
def choose_actions(s: Any, m: Any, agent: int, chosen: Any, green_acts: bool, key: Any) -> Any:
    """The actions of all sides in this turn, and its random outcomes."""
    green = NONE
    if green_acts and uniform(key, GREEN_ACTS) < 0.5:
        green = GREEN_HOSTS[below(key, GREEN_TARGET, len(GREEN_HOSTS))]
    if agent == LEARNED:
        action, target = decode_red(chosen if red_may(s, chosen) else 0)
    else:
        action, candidates = next_action(agent, m, s)
        target = pick_bit(candidates, uniform(key, TARGET))
        record_choice(agent, m, action, target)
    exploit = NONE
    if action == EXPLOIT:
        top = uniform(key, TOP_EXPLOIT) < PREFER_TOP
        exploit = pick_exploit(s.known_ports[target], uniform(key, OTHER_EXPLOIT), top)
    actions = TurnActions(np.int64(s.blue), green, action, target)
    return actions, Draws(exploit, uniform(key, NOTICED) < DETECTED, uniform(key, SESSION))
