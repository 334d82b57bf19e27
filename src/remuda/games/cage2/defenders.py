"""Reference defenders: scripted blue players that scores are compared with.

A policy keeps no memory, so those that need one replay what they have seen since the episode began.
`random` is remuda's own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remuda.core.errors import ConfigError
from remuda.core.game import Group
from remuda.core.kernels import kernel
from remuda.core.policy import Policy, PolicyInput, PolicyOutput, explore
from remuda.core.rng import below, uniform
from remuda.games.cage2.network import ANALYSE, FIRST_DECOY, N_ACTIONS, N_DECOYS, N_HOSTS, NAMES, REMOVE, RESTORE
from remuda.games.cage2.observation import BITS
from remuda.games.cage2.workflow import N_UNITS, ORDER_BITS, UNIT_OF, UNITS, place_of

PRIORITY: NDArray[np.int64] = np.array(  # User0 is red's for good
    [
        NAMES.index(name)
        for name in (
            "Op_Server0", "Enterprise2", "Enterprise1", "Enterprise0", "Defender",
            "Op_Host0", "Op_Host1", "Op_Host2", "User1", "User2", "User3", "User4",
        )
    ]
)  # fmt: skip
OPENING: NDArray[np.int64] = np.array([51, 116, 55, 107, 120, 44, 43, 61])  # decoys that react_mixed begins with
CLEAN, UNSURE, USER_LEVEL, PRIVILEGED = 0, 1, 2, 3  # the two bits of a host's compromise, first bit lowest
SCANNED = 1  # the two bits of its activity
ON_WATCH = -1  # nothing to repair
LONGEST = 500  # turns of which a replaying defender sees everything; five times the longest official game
ANALYSES, REMOVES, RESTORES, DECOYS = (
    2 + (verb - ANALYSE) * N_HOSTS for verb in (ANALYSE, REMOVE, RESTORE, FIRST_DECOY)
)
NO_DECOY_ACTIONS = DECOYS + N_ACTIONS - RESTORES
CHANCE = 2  # its draws start here; `explore` uses those before


class Defender(Policy):
    """A scripted blue player."""

    def act(self, inputs: PolicyInput, first: int, last: int) -> PolicyOutput:
        """Choose by the script; exploration is laid over it if asked for."""
        chosen = np.zeros(inputs.keys.shape, np.int64)
        self.choose(inputs, chosen)
        if inputs.exploration:
            chosen = explore(chosen, np.full(last - first, inputs.exploration), inputs, self.group.actions)
        return PolicyOutput(chosen)

    @abstractmethod
    def choose(self, inputs: PolicyInput, out: NDArray[np.int64]) -> None:
        """Write an action for each world and agent."""


class Sleeper(Defender):
    """Does nothing."""

    def choose(self, inputs: PolicyInput, out: NDArray[np.int64]) -> None:
        """Sleep is action 0."""


class RandomNoDecoy(Defender):
    """Any action but a decoy, uniformly."""

    def choose(self, inputs: PolicyInput, out: NDArray[np.int64]) -> None:
        """Throw a die."""
        _random_nodecoy(inputs.keys, out)


class DecoyHeavy(Defender):
    """A random decoy seven times in ten, otherwise any action."""

    def choose(self, inputs: PolicyInput, out: NDArray[np.int64]) -> None:
        """Throw dice."""
        _decoy_heavy(inputs.keys, out)


class ReactRestore(Defender):
    """Restores the first host that looks compromised."""

    def choose(self, inputs: PolicyInput, out: NDArray[np.int64]) -> None:
        """Look at the latest observation."""
        _react_restore(inputs.obs[-1], out)


class ReactRemove(Defender):
    """Removes what looks like a user shell, then analyses once what it is unsure of."""

    frames = LONGEST
    mixed = False

    def choose(self, inputs: PolicyInput, out: NDArray[np.int64]) -> None:
        """Replay the episode so far."""
        if inputs.ages.max(initial=0) >= self.frames:
            raise ConfigError(f"this defender follows episodes of up to {self.frames} steps: lower steps")
        _replay(inputs.obs, inputs.ages, inputs.keys, self.mixed, out)


class ReactMixed(ReactRemove):
    """Restores what is privileged, else as react_remove; opens with decoys and adds more where it is scanned."""

    mixed = True


class GreedyRepair(Defender):
    """Restores the first host that looks compromised, by the order of its workflow."""

    def __init__(self, group: Group, agents: int) -> None:
        if group.obs_shape != (BITS + ORDER_BITS,):
            raise ConfigError(f"greedy_repair goes by an order: say workflow={','.join(UNITS)}, or another one")
        super().__init__(group, agents)

    def choose(self, inputs: PolicyInput, out: NDArray[np.int64]) -> None:
        """Look at the latest observation."""
        _greedy_repair(inputs.obs[-1], out)


DEFENDERS: dict[str, Callable[[Group, int], Policy]] = {
    "sleep": Sleeper,
    "random_nodecoy": RandomNoDecoy,
    "decoy_heavy": DecoyHeavy,
    "react_restore": ReactRestore,
    "react_remove": ReactRemove,
    "react_mixed": ReactMixed,
    "greedy_repair": GreedyRepair,
}


@kernel
def _random_nodecoy(keys: Any, out: Any) -> None:
    for w in range(out.shape[0]):
        for a in range(out.shape[1]):
            action = below(keys[w, a], CHANCE, NO_DECOY_ACTIONS)
            out[w, a] = action if action < DECOYS else RESTORES + action - DECOYS


@kernel
def _decoy_heavy(keys: Any, out: Any) -> None:
    for w in range(out.shape[0]):
        for a in range(out.shape[1]):
            if uniform(keys[w, a], CHANCE) < 0.7:
                out[w, a] = DECOYS + below(keys[w, a], CHANCE + 1, N_DECOYS * N_HOSTS)
            else:
                out[w, a] = below(keys[w, a], CHANCE + 2, N_ACTIONS)


@kernel
def _react_restore(obs: Any, out: Any) -> None:
    for w in range(out.shape[0]):
        for a in range(out.shape[1]):
            for host in PRIORITY:
                if _compromised(obs[w, a], host) != CLEAN:
                    out[w, a] = RESTORES + host
                    break


@kernel
def _greedy_repair(obs: Any, out: Any) -> None:
    for w in range(out.shape[0]):
        for a in range(out.shape[1]):
            best = N_UNITS
            for host in range(N_HOSTS):
                if _compromised(obs[w, a], host) != CLEAN:
                    place = place_of(obs[w, a, BITS:], UNIT_OF[host])
                    if place < best:
                        best = place
                        out[w, a] = RESTORES + host


@kernel
def _replay(obs: Any, ages: Any, keys: Any, mixed: bool, out: Any) -> None:
    """Live through the frames of the episode again; what they say decides what is remembered."""
    frames = obs.shape[0]
    for w in range(out.shape[0]):
        for a in range(out.shape[1]):
            action, analysed, opened = 0, 0, 0
            for frame in range(frames - 1 - ages[w, a], frames):
                action, analysed, opened = _repair(obs[frame, w, a], analysed, opened, mixed)
            out[w, a] = _lay_decoy(obs[frames - 1, w, a], keys[w, a]) if action == ON_WATCH else action


@kernel
def _repair(obs: Any, analysed: int, opened: int, mixed: bool) -> Any:
    """One turn: the action, which hosts were analysed since their last Remove, and decoys of the opening."""
    host = _first(obs, PRIVILEGED, 0) if mixed else -1
    if host >= 0:
        return RESTORES + host, analysed, opened
    host = _first(obs, USER_LEVEL, 0)
    if host >= 0:
        return REMOVES + host, analysed & ~(1 << host), opened
    host = _first(obs, UNSURE, analysed)
    if host >= 0:
        return ANALYSES + host, analysed | 1 << host, opened
    if mixed and opened < len(OPENING):
        return OPENING[opened], analysed, opened + 1
    return ON_WATCH if mixed else 0, analysed, opened


@kernel
def _first(obs: Any, level: int, passed_over: int) -> Any:
    """The most important host with this compromise level that is not among those passed over; -1 if none."""
    for host in PRIORITY:
        if not passed_over >> host & 1 and _compromised(obs, host) == level:
            return host
    return -1


@kernel
def _compromised(obs: Any, host: int) -> Any:
    return obs[4 * host + 2] + 2 * obs[4 * host + 3]


@kernel
def _lay_decoy(obs: Any, key: Any) -> Any:
    """Toss a coin for each scanned host; the first that wins gets a decoy of any kind."""
    for i in range(len(PRIORITY)):
        host = PRIORITY[i]
        if obs[4 * host] + 2 * obs[4 * host + 1] == SCANNED and uniform(key, CHANCE + 2 * i) < 0.5:
            return DECOYS + below(key, CHANCE + 2 * i + 1, N_DECOYS) * N_HOSTS + host
    return 0
