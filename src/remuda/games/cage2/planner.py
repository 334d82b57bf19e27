"""A planner: it plays every allowed action on from what blue believes, by the exact rules, and takes the cheapest.

A rollout draws a hypothesis by its weight, and goes on after the action with a base policy. All actions meet the same
draws. The worse half is dropped after every round, so that rollouts are spent on the actions that are hard to tell
apart. With several base policies an action costs what the best of them makes of it.

A base policy does not repair a host of which blue is unsure now, before it learns more. One that sees the drawn world
would: waiting looks free to it, and the planner waits forever (against Meander −17.1 ± 2.6 instead of −13.5 ± 0.9, 40
episodes of 100 steps).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remuda.core.kernels import kernel
from remuda.core.rng import Keys, fold, uniform
from remuda.games.cage2.belief import ALL_HYPOTHESES, HYPOTHESIS, WORDS
from remuda.games.cage2.compact import N_COMPACT, PAIRS
from remuda.games.cage2.memory import LONGEST, full_action
from remuda.games.cage2.network import (
    ANALYSE,
    CHECK_PORT,
    FIRST_DECOY,
    FOOTHOLD,
    N_HOSTS,
    NAMES,
    OP_SERVER,
    REMOVE,
    RESTORE,
    SLEEP,
)
from remuda.games.cage2.simulator import transition
from remuda.games.cage2.state import ATTACKED, EXPLOIT, SUCCEEDED, decode, has_session
from remuda.games.cage2.turn import choose_actions

ROLLOUTS = 50  # a round and action
ROUNDS = 4
DEPTH = 30  # steps of a rollout
LAST_RESTORES = 2  # a user host is not restored in so many last steps: that costs 1, and red there 0.1 a step


def _hosts(names: str) -> int:
    """Hosts as bits."""
    return sum(1 << NAMES.index(name) for name in names.split())


def _places(names: str) -> NDArray[np.int64]:
    return np.array([NAMES.index(name) for name in names.split()])


SERVERS = _places("Op_Server0 Enterprise2 Enterprise1 Enterprise0 Op_Host0 Op_Host1 Op_Host2")
USERS = _places("User1 User2 User3 User4")
DECOY_ORDER: NDArray[np.int64] = np.array(  # (pairs, 2): host and decoy
    [
        pair
        for host in _places(
            "User2 Enterprise1 Enterprise0 User1 Enterprise2 Op_Server0 Op_Host0 Op_Host1 Op_Host2 User0"
        ).tolist()
        for pair in PAIRS.tolist()
        if pair[0] == host
    ]
)
BASE_POLICIES: NDArray[np.int64] = np.array(
    # User hosts as bits: restored if red is root there; restored if it has a session that Remove does not end; Remove
    # where that is enough. They differ in what they leave to red: a lost user host costs 0.1 a step, a Restore 1.
    [
        [_hosts("User1 User2 User3 User4"), _hosts("User2 User3"), _hosts("User1 User2 User4")],  # best by Meander
        [0, 0, _hosts("User1 User2 User3 User4")],  # by B_line through User1
        [_hosts("User2 User3 User4"), _hosts("User2 User3 User4"), _hosts("User1 User2 User3 User4")],  # the others
    ]
)
CHOICE_DRAW = 0  # of a rollout's key: the hypothesis; the keys of its turns are folded from it


class Known(NamedTuple):
    """What blue knows in each world, read from the bytes of observation=hypotheses."""

    hypotheses: NDArray[Any]  # (worlds, agents, HYPOTHESES)
    words: NDArray[np.uint64]  # (worlds, agents, HYPOTHESES, WORDS): the same memory, to copy
    header: NDArray[np.int64]  # (worlds, agents, 3): how many hypotheses count, the turn, whether rules=leaderboard

    @classmethod
    def of(cls, seen: NDArray[np.uint8]) -> Known:
        """From observations, (worlds, agents, bytes)."""
        hypotheses = seen[..., :ALL_HYPOTHESES].copy().view(HYPOTHESIS)
        words = hypotheses.view(np.uint64).reshape(*hypotheses.shape, WORDS)
        return cls(hypotheses, words, seen[..., ALL_HYPOTHESES:].copy().view(np.int64))


class PlannerArrays(NamedTuple):
    """Room to work in."""

    world: NDArray[Any]  # (1,): the hypothesis that is played on
    words: NDArray[np.uint64]  # (1, WORDS): the same memory
    actions: NDArray[np.int64]  # (N_COMPACT,): those that are still compared
    costs: NDArray[np.int64]  # (N_COMPACT, policies): by action, the sum of its rollouts, in tenths

    @classmethod
    def new(cls) -> PlannerArrays:
        """Empty."""
        world = np.zeros(1, HYPOTHESIS)
        words = world.view(np.uint64).reshape(1, WORDS)
        return cls(world, words, np.zeros(N_COMPACT, np.int64), np.zeros((N_COMPACT, len(BASE_POLICIES)), np.int64))


class Unsure(NamedTuple):
    """Hosts, as bits, of which blue does not know whether red has a session, after its next action there."""

    now: Any  # and after any other action
    removed: Any
    clean: Any  # analysed, without finding anything
    found: Any  # analysed, and something was found


def choose_by_rollouts(seen: NDArray[np.uint8], mask: Any, keys: Keys, out: NDArray[np.int64]) -> None:
    """Write a compact action for each world and agent; `seen` are the bytes of observation=hypotheses."""
    _choose_all(Known.of(seen), mask, keys, PlannerArrays.new(), out)


@kernel
def _choose_all(known: Any, mask: Any, keys: Any, work: Any, out: Any) -> None:
    for w in range(out.shape[0]):
        for a in range(out.shape[1]):
            count, turn, leaderboard = known.header[w, a]
            game = LONGEST - turn if turn < LONGEST else LONGEST, leaderboard != 0
            h, words = known.hypotheses[w, a, :count], known.words[w, a]
            out[w, a] = _choose(h, words, mask[w, a], game, keys[w, a], work)


@kernel
def _choose(h: Any, words: Any, mask: Any, game: Any, key: Any, work: Any) -> int:
    """The cheapest allowed action in one world; the first of those that cost the same."""
    compared, unsure = 0, find_unsure(h)
    for action in range(N_COMPACT):
        if mask[action]:
            work.actions[compared] = action
            work.costs[action] = 0
            compared += 1
    for number in range(ROUNDS):
        for i in range(ROLLOUTS if compared > 1 else 0):
            rollout_key = fold(key, number * ROLLOUTS + i)
            drawn = _draw(h, uniform(rollout_key, CHOICE_DRAW))
            for action in work.actions[:compared]:
                blue = full_action(h[drawn].network, action)
                for policy in range(len(BASE_POLICIES)):
                    work.words[0] = words[drawn]
                    work.costs[action, policy] += _roll_out(work.world[0], blue, policy, unsure, game, rollout_key)
        compared = _keep_cheapest(work, compared)
    return int(work.actions[0])


@kernel
def _draw(h: Any, u: float) -> int:
    """A hypothesis by its weight, and a number in [0, 1)."""
    drawn = 0
    while drawn < len(h) - 1 and u >= h[drawn].weight:
        u -= h[drawn].weight
        drawn += 1
    return drawn


@kernel
def _keep_cheapest(work: Any, compared: int) -> int:
    """Sort the actions by cost, equal ones as they were; returns how many the next round compares."""
    for i in range(1, compared):
        action, j = work.actions[i], i
        while j > 0 and work.costs[work.actions[j - 1]].min() > work.costs[action].min():
            work.actions[j] = work.actions[j - 1]
            j -= 1
        work.actions[j] = action
    return min(compared, max(2, (compared + 1) // 2))


@kernel
def _roll_out(world: Any, blue: Any, policy: int, unsure: Any, game: Any, key: Any) -> int:
    """The cost of an action, one of the 145, and of what follows, in tenths; changes the world."""
    s, m, cost = world.network, world.red, 0
    left, leaderboard = game  # steps, and which rules
    hidden = _still_unsure(s, blue, unsure)
    s.blue = blue
    for step in range(min(DEPTH, left)):
        if step:
            s.blue = base_action(s, left - step, hidden, BASE_POLICIES[policy])
        actions, draws = choose_actions(s, m, world.agent, 0, False, fold(key, step))
        transition(s, actions, draws, leaderboard)
        if s.red == EXPLOIT and s.red_success == SUCCEEDED:
            host = 1 << np.int64(s.red_target)
            hidden = hidden & ~host if s.activity[s.red_target] == ATTACKED else hidden | host
        cost += s.cost
    return cost


@kernel
def _still_unsure(s: Any, blue: Any, unsure: Any) -> Any:
    """The hosts of which blue stays unsure after an action."""
    verb, host = decode(blue)
    there = np.int64(0)
    if verb == REMOVE:
        there = unsure.removed
    elif verb == ANALYSE:
        there = unsure.found if s.malware[host] else unsure.clean
    elif verb != RESTORE:
        there = unsure.now
    return unsure.now & ~(1 << host) | there & 1 << host


@kernel
def find_unsure(h: Any) -> Any:
    """Of which hosts blue is unsure, by its hypotheses."""
    now, removed, clean, found = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    for host in range(N_HOSTS):
        held, lasting, held_found, finds = 0, 0, 0, 0
        for i in range(len(h)):
            s = h[i].network
            session, malware = has_session(s, host), s.malware[host] != 0
            held += session
            lasting += s.root[host] != 0 or s.pinned[host] != 0
            held_found += session and malware
            finds += malware
        if host != FOOTHOLD:
            now |= (0 < held < len(h)) << host
            removed |= (0 < lasting < len(h)) << host
            found |= (0 < held_found < finds) << host
            clean |= (0 < held - held_found < len(h) - finds) << host
    return Unsure(now, removed, clean, found)


@kernel
def base_action(s: Any, left: int, hidden: Any, policy: Any) -> int:
    """What a base policy does, as one of the 145: repair what it may see, else place the next decoy, else sleep."""
    if not s.service_up:
        return _on(RESTORE, OP_SERVER)
    for host in SERVERS:
        if has_session(s, host) and not hidden >> host & 1:
            return _on(RESTORE, host)
    for host in USERS:
        if s.removable[host] and not hidden >> host & 1 and _remove_is_enough(s, host, policy):
            return _on(REMOVE, host)
    for host in USERS:
        lost = policy[0] if s.root[host] else policy[1] if has_session(s, host) else 0
        if lost >> host & 1 and left > LAST_RESTORES and not hidden >> host & 1:
            return _on(RESTORE, host)
    for i in range(len(DECOY_ORDER)):
        host, decoy = DECOY_ORDER[i]
        if not s.ports[host] & CHECK_PORT[decoy]:
            return _on(FIRST_DECOY + decoy, host)
    return SLEEP


@kernel
def _remove_is_enough(s: Any, host: int, policy: Any) -> bool:
    return not s.root[host] and policy[2] >> host & 1 and not (s.pinned[host] and policy[1] >> host & 1)


@kernel
def _on(verb: int, host: int) -> int:
    """A verb on a host, as one of the 145."""
    return 2 + (verb - ANALYSE) * N_HOSTS + host
