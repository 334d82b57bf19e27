"""What blue can conclude: how likely each true state is, from what blue saw and did and nothing else.

A hypothesis is a whole world: the network, a red script and what the script remembers. In each step every hypothesis is
played on with blue's action and with every outcome that red's draws can have. Those in which blue would have seen what
it saw stay, equal ones are joined, and the likeliest HYPOTHESES are kept. Blue knows the rules and the three scripts,
but not which of them it plays against. Until hypotheses are dropped this is Bayes' rule, without sampling.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remuda.core.kernels import kernel
from remuda.games.cage2.network import (
    BRUTE_FORCE,
    DETECTED,
    N_HOSTS,
    NO_EXPLOIT,
    OPTIONS,
    PREFER_TOP,
    PREFERRED,
)
from remuda.games.cage2.observation import ACTIVITY, COMPROMISED
from remuda.games.cage2.red import (
    AGENTS,
    B_LINE,
    ENTRIES,
    FIRST_ENTRY,
    RED_STATE,
    count_bits,
    next_action,
    record_choice,
    reset_red,
)
from remuda.games.cage2.simulator import Draws, TurnActions, transition
from remuda.games.cage2.state import ESCALATE, EXPLOIT, NONE, REST, SCAN, STATE, start
from remuda.games.cage2.truth import TRUTH_FEATURES, write_truth

HYPOTHESES = 24
CANDIDATES = 8 * HYPOTHESES
_SIZE = STATE.itemsize + RED_STATE.itemsize + 8
HYPOTHESIS = np.dtype(
    (
        np.record,
        [
            ("network", STATE),
            ("red", RED_STATE),
            ("agent", np.int64),  # a number in AGENTS
            ("padding", np.uint8, -_SIZE % 8),
            ("weight", np.float64),  # how likely it is
        ],
    )
)
WORDS = HYPOTHESIS.itemsize // 8
ALL_HYPOTHESES = HYPOTHESES * HYPOTHESIS.itemsize  # bytes
HEADER = 3  # whole numbers after the hypotheses: how many count, the turn, whether rules=leaderboard
HYPOTHESES_BYTES = ALL_HYPOTHESES + 8 * HEADER


class Belief(NamedTuple):
    """The hypotheses of all worlds, and room to work in."""

    hypotheses: NDArray[Any]  # (worlds, HYPOTHESES)
    words: NDArray[np.uint64]  # (worlds, HYPOTHESES, WORDS): the same memory as numbers, to copy and compare
    counts: NDArray[np.int64]  # (worlds,): how many hypotheses count
    candidates: NDArray[Any]  # (CANDIDATES + 2,): the last two are for a hypothesis while it is played on
    candidate_words: NDArray[np.uint64]  # (CANDIDATES + 2, WORDS)
    hashes: NDArray[np.uint64]  # (CANDIDATES,)
    written: NDArray[np.float32]  # (TRUTH_FEATURES,)

    @classmethod
    def of(cls, worlds: int) -> Belief:
        """For so many worlds."""
        hypotheses, candidates = np.zeros((worlds, HYPOTHESES), HYPOTHESIS), np.zeros(CANDIDATES + 2, HYPOTHESIS)
        return cls(
            hypotheses,
            hypotheses.view(np.uint64).reshape(worlds, HYPOTHESES, WORDS),
            np.zeros(worlds, np.int64),
            candidates,
            candidates.view(np.uint64).reshape(CANDIDATES + 2, WORDS),
            np.zeros(CANDIDATES, np.uint64),
            np.zeros(TRUTH_FEATURES, np.float32),
        )


ALMOST_1 = float(np.nextafter(1.0, 0.0))


@kernel
def suppose(h: Any) -> int:
    """Begin an episode: every script and entry is possible; returns how many hypotheses there are."""
    count = 0
    for agent in range(len(AGENTS)):
        entries = ENTRIES if agent == B_LINE else 1
        for entry in range(entries):
            start(h[count].network)
            reset_red(h[count].red, FIRST_ENTRY + entry)
            h[count].agent = agent
            h[count].weight = 1.0 / (len(AGENTS) * entries)
            count += 1
    return count


@kernel
def conclude(belief: Any, w: int, bits: Any, action: Any, wrapper: Any, leaderboard: Any) -> None:
    """Take in a step of world w: blue's action, one of the 145, and the 52 bits that it then saw."""
    h, found, active = belief.hypotheses[w], 0, 0
    for host in range(N_HOSTS):
        active |= (1 << host) * (bits[4 * host] > 0)
    for i in range(belief.counts[w]):
        found = _play_on(belief, belief.words[w, i], h[i].weight, found, bits, active, action, wrapper, leaderboard)
    if found:
        belief.counts[w] = _keep_likeliest(belief, h, belief.words[w], found)
        return
    # Red is none of the scripts, or the truth was dropped: what blue did and sees is all that is certain.
    for i in range(belief.counts[w]):
        asleep = TurnActions(np.int64(action), NONE, REST, NONE)
        transition(h[i].network, asleep, Draws(NONE, True, 0.0), leaderboard)
        for host in range(N_HOSTS):
            h[i].network.compromised[host] = bits[4 * host + 2] + 2 * bits[4 * host + 3]


@kernel
def _play_on(
    belief: Any,
    words: Any,
    weight: float,
    found: int,
    bits: Any,
    active: int,
    action: Any,
    wrapper: Any,
    leaderboard: Any,
) -> int:
    """Add what can follow from one hypothesis to the candidates; returns how many there are.

    `active` are the hosts on which blue saw something, as bits: red causes events only where it scans or exploits.
    """
    base, work = CANDIDATES, CANDIDATES + 1
    belief.candidate_words[base] = words
    before, after = belief.candidates[base], belief.candidates[work]
    verb, targets = next_action(before.agent, before.red, before.network)
    if active and verb not in (SCAN, EXPLOIT):
        return found
    share = weight / max(count_bits(targets), 1)
    for target in range(N_HOSTS) if targets else range(NONE, NONE + 1):
        if (targets and not targets >> target & 1) or (active and active != 1 << target):
            continue
        for number in range(_outcomes(before.network, verb, target)):
            draws, chance = _outcome(before.network, verb, target, number)
            if chance == 0.0:
                continue
            belief.candidate_words[work] = belief.candidate_words[base]
            record_choice(after.agent, after.red, verb, target)
            transition(after.network, TurnActions(np.int64(action), NONE, verb, target), draws, leaderboard)
            if looks_like(after.network, wrapper, bits):
                after.network.exploit = NONE  # nothing depends on it
                after.weight = share * chance
                found = _join(belief, found)
    return found


@kernel
def _outcomes(s: Any, verb: int, target: int) -> int:
    """How many outcomes of red's draws to look at."""
    if verb == EXPLOIT and s.scanned[target]:
        return 16  # 8 exploits, noticed or not
    return 2 if verb == ESCALATE else 1


@kernel
def _outcome(s: Any, verb: int, target: int, number: int) -> Any:
    """The draws of an outcome and its probability, which may be 0."""
    if verb == EXPLOIT and s.scanned[target]:
        exploit, noticed = 1 + number // 2, number % 2 == 0
        preferred = PREFERRED[s.known_ports[target]]
        if preferred == NO_EXPLOIT:
            return Draws(NO_EXPLOIT, True, 0.0), 1.0 if number == 0 else 0.0
        others = OPTIONS[s.known_ports[target]] & ~(1 << preferred)
        chance = 0.0
        if exploit == preferred:
            chance = PREFER_TOP if others else 1.0
        elif others >> exploit & 1:
            chance = (1.0 - PREFER_TOP) / count_bits(others)
        if exploit == BRUTE_FORCE:
            return Draws(exploit, True, 0.0), chance if noticed else 0.0
        return Draws(exploit, noticed, 0.0), chance * (DETECTED if noticed else 1.0 - DETECTED)
    if verb == ESCALATE:
        removable, pinned = np.int64(s.removable[target]), np.int64(s.pinned[target])
        first = removable / (removable + pinned) if removable + pinned else 1.0
        return Draws(NONE, True, 0.0 if number == 0 else ALMOST_1), first if number == 0 else 1.0 - first
    return Draws(NONE, True, 0.0), 1.0


@kernel
def _join(belief: Any, found: int) -> int:
    """Add the last candidate to an equal one, or append it; without room it replaces the least likely."""
    candidates, words, work = belief.candidates, belief.candidate_words, CANDIDATES + 1
    code = np.uint64(14695981039346656037)
    for i in range(WORDS - 1):  # the last word is the weight
        code = (code ^ words[work, i]) * np.uint64(1099511628211)
        code ^= code >> np.uint64(29)
    for j in range(found):
        if belief.hashes[j] == code:
            candidates[j].weight += candidates[work].weight
            return found
    place = found
    if found == CANDIDATES:
        place = 0
        for j in range(found):
            if candidates[j].weight < candidates[place].weight:
                place = j
        if candidates[place].weight >= candidates[work].weight:
            return found
    words[place] = words[work]
    belief.hashes[place] = code
    return max(found, place + 1)


@kernel
def _keep_likeliest(belief: Any, h: Any, words: Any, found: int) -> int:
    """Copy the likeliest candidates to `h`, with weights that sum to 1; returns how many."""
    candidates, count, total = belief.candidates, 0, 0.0
    while count < min(found, HYPOTHESES):
        best = 0
        for j in range(found):
            if candidates[j].weight > candidates[best].weight:
                best = j
        words[count] = belief.candidate_words[best]
        total += h[count].weight
        candidates[best].weight = -1.0
        count += 1
    for i in range(count):
        h[i].weight /= total
    return count


@kernel
def looks_like(s: Any, wrapper: Any, bits: Any) -> bool:
    """Whether blue would see these bits."""
    for host in range(N_HOSTS):
        a, c = s.activity[host], s.compromised[host]
        if (
            ACTIVITY[wrapper, a, 0] != bits[4 * host]
            or ACTIVITY[wrapper, a, 1] != bits[4 * host + 1]
            or COMPROMISED[c, 0] != bits[4 * host + 2]
            or COMPROMISED[c, 1] != bits[4 * host + 3]
        ):
            return False
    return True


@kernel
def write_belief(h: Any, count: int, turn: Any, scratch: Any, out: Any) -> None:
    """The expectation of what `write_truth` writes."""
    out[:] = 0.0
    for i in range(count):
        write_truth(h[i].network, h[i].red, h[i].agent, turn, scratch)
        weight = np.float32(h[i].weight)
        for j in range(len(out)):
            out[j] = min(out[j] + weight * scratch[j], 1.0)  # rounded, weights may add up to more than 1


@kernel
def write_hypotheses(words: Any, count: int, turn: Any, leaderboard: Any, out: Any) -> None:
    """The hypotheses of a world as bytes, and HEADER numbers; those that do not count are zero."""
    out[:HYPOTHESES_BYTES] = 0
    for i in range(count):
        for j in range(WORDS):
            _write_word(words[i, j], out[8 * (i * WORDS + j) :])
    _write_word(np.uint64(count), out[ALL_HYPOTHESES:])
    _write_word(np.uint64(turn), out[ALL_HYPOTHESES + 8 :])
    _write_word(np.uint64(leaderboard), out[ALL_HYPOTHESES + 16 :])


@kernel
def _write_word(word: Any, out: Any) -> None:
    for byte in range(8):
        out[byte] = word >> np.uint64(8 * byte) & np.uint64(255)
