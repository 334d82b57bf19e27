"""Scripted blue players, as a reference for scores.

A policy has no memory between turns. A defender that needs one recomputes it from all observations of the episode.
(The player `random` is not here: every game has it.)
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
from remuda.games.cage2.belief import HYPOTHESES_BYTES
from remuda.games.cage2.compact import N_COMPACT
from remuda.games.cage2.network import ANALYSE, FIRST_DECOY, N_ACTIONS, N_DECOYS, N_HOSTS, NAMES, REMOVE, RESTORE
from remuda.games.cage2.observation import BITS
from remuda.games.cage2.planner import choose_by_rollouts
from remuda.games.cage2.state import CLEAN, PRIVILEGED, UNSURE, USER_LEVEL
from remuda.games.cage2.workflow import HOST_TYPE_OF, HOST_TYPES, N_HOST_TYPES, ORDER_BITS, place_in_order

PRIORITY: NDArray[np.int64] = np.array(  # without User0, where red's session cannot be ended
    [
        NAMES.index(name)
        for name in (
            "Op_Server0", "Enterprise2", "Enterprise1", "Enterprise0", "Defender",
            "Op_Host0", "Op_Host1", "Op_Host2", "User1", "User2", "User3", "User4",
        )
    ]
)  # fmt: skip
OPENING: NDArray[np.int64] = np.array([51, 116, 55, 107, 120, 44, 43, 61])  # the decoys with which react_mixed begins
SCANNED = 1  # the two activity bits of a host, the first one lowest
NOTHING_TO_REPAIR = -1
MAX_FRAMES = 500  # the longest episode that ReactRemove and ReactMixed can play; official games have at most 100 steps
ANALYSES, REMOVES, RESTORES, DECOYS = (
    2 + (verb - ANALYSE) * N_HOSTS for verb in (ANALYSE, REMOVE, RESTORE, FIRST_DECOY)
)
NO_DECOY_ACTIONS = DECOYS + N_ACTIONS - RESTORES
FIRST_DRAW = 2  # the first draw of a turn's key that is free: `explore` uses those before


class Defender(Policy):
    """A scripted blue player."""

    needs = "observation=bits and actions=full"

    def __init__(self, group: Group, agents: int) -> None:
        if not self.fits(group):
            raise ConfigError(f"{type(self).__name__} is a script for {self.needs}: say so")
        super().__init__(group, agents)

    def fits(self, group: Group) -> bool:
        """Whether it can read what the group sees, and has its actions."""
        return group.actions == N_ACTIONS and group.obs_shape in ((BITS,), (BITS + ORDER_BITS,))

    def act(self, inputs: PolicyInput, first: int, last: int) -> PolicyOutput:
        """Choose by the script, then explore if asked to."""
        chosen = np.zeros(inputs.keys.shape, np.int64)
        self.choose(inputs, chosen)
        if inputs.exploration:
            chosen = explore(chosen, np.full(last - first, inputs.exploration), inputs, self.group.actions)
        return PolicyOutput(chosen)

    @abstractmethod
    def choose(self, inputs: PolicyInput, out: NDArray[np.int64]) -> None:
        """Write an action for each world and agent into `out`, which holds zeros (Sleep)."""


class Sleeper(Defender):
    """Does nothing."""

    def choose(self, inputs: PolicyInput, out: NDArray[np.int64]) -> None:
        """Leave every action at 0, which is Sleep."""


class RandomNoDecoy(Defender):
    """Any action but a decoy, uniformly."""

    def choose(self, inputs: PolicyInput, out: NDArray[np.int64]) -> None:
        """Draw an action."""
        _random_nodecoy(inputs.keys, out)


class DecoyHeavy(Defender):
    """A random decoy seven times in ten, otherwise any action."""

    def choose(self, inputs: PolicyInput, out: NDArray[np.int64]) -> None:
        """Draw whether to place a decoy, and which action."""
        _decoy_heavy(inputs.keys, out)


class ReactRestore(Defender):
    """Restores the first host that looks compromised."""

    def choose(self, inputs: PolicyInput, out: NDArray[np.int64]) -> None:
        """Use the latest observation only."""
        _react_restore(inputs.obs[-1], out)


class ReactRemove(Defender):
    """Removes what looks like a user shell; analyses once a host whose state is unsure."""

    frames = MAX_FRAMES
    mixed = False

    def choose(self, inputs: PolicyInput, out: NDArray[np.int64]) -> None:
        """Recompute the memory from the whole episode so far."""
        if inputs.ages.max(initial=0) >= self.frames:
            raise ConfigError(f"this defender plays episodes of up to {self.frames} steps: lower steps")
        _replay_episode(inputs.obs, inputs.ages, inputs.keys, self.mixed, out)


class ReactMixed(ReactRemove):
    """Restores privileged hosts, else acts as react_remove; begins with decoys and adds more on scanned hosts."""

    mixed = True


class GreedyRepair(Defender):
    """Restores the first host that looks compromised, in the order of its workflow."""

    def __init__(self, group: Group, agents: int) -> None:
        if group.obs_shape != (BITS + ORDER_BITS,):
            raise ConfigError(
                f"greedy_repair needs an order of repair: say workflow={','.join(HOST_TYPES)}, or another one"
            )
        super().__init__(group, agents)

    def choose(self, inputs: PolicyInput, out: NDArray[np.int64]) -> None:
        """Use the latest observation only."""
        _greedy_repair(inputs.obs[-1], out)


class Planner(Defender):
    """Plays every allowed action on from what blue believes, and takes the cheapest; see `planner`."""

    needs = "observation=hypotheses and actions=useful, without workflow"

    def fits(self, group: Group) -> bool:
        """Whether it sees hypotheses, and has the actions that its mask is for."""
        return group.actions == N_COMPACT and group.obs_shape == (HYPOTHESES_BYTES,)

    def choose(self, inputs: PolicyInput, out: NDArray[np.int64]) -> None:
        """Play rollouts."""
        choose_by_rollouts(inputs.obs[-1], inputs.mask, inputs.keys, out)


DEFENDERS: dict[str, Callable[[Group, int], Policy]] = {
    "sleep": Sleeper,
    "random_nodecoy": RandomNoDecoy,
    "decoy_heavy": DecoyHeavy,
    "react_restore": ReactRestore,
    "react_remove": ReactRemove,
    "react_mixed": ReactMixed,
    "greedy_repair": GreedyRepair,
    "planner": Planner,
}
NEEDED_OPTIONS: dict[str, dict[str, Any]] = {"planner": {"observation": "hypotheses", "actions": "useful"}}
"""Options of the game without which a defender does not play; for the others the defaults are right."""


@kernel
def _random_nodecoy(keys: Any, out: Any) -> None:
    for w in range(out.shape[0]):
        for a in range(out.shape[1]):
            action = below(keys[w, a], FIRST_DRAW, NO_DECOY_ACTIONS)
            out[w, a] = action if action < DECOYS else RESTORES + action - DECOYS


@kernel
def _decoy_heavy(keys: Any, out: Any) -> None:
    for w in range(out.shape[0]):
        for a in range(out.shape[1]):
            if uniform(keys[w, a], FIRST_DRAW) < 0.7:
                out[w, a] = DECOYS + below(keys[w, a], FIRST_DRAW + 1, N_DECOYS * N_HOSTS)
            else:
                out[w, a] = below(keys[w, a], FIRST_DRAW + 2, N_ACTIONS)


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
            best = N_HOST_TYPES
            for host in range(N_HOSTS):
                if _compromised(obs[w, a], host) != CLEAN:
                    place = place_in_order(obs[w, a, BITS:], HOST_TYPE_OF[host])
                    if place < best:
                        best = place
                        out[w, a] = RESTORES + host


@kernel
def _replay_episode(obs: Any, ages: Any, keys: Any, mixed: bool, out: Any) -> None:
    """Play through all frames of the episode to rebuild the memory, and take the action of the last frame."""
    frames = obs.shape[0]
    for w in range(out.shape[0]):
        for a in range(out.shape[1]):
            action, analysed, placed = 0, 0, 0
            for frame in range(frames - 1 - ages[w, a], frames):
                action, analysed, placed = _repair(obs[frame, w, a], analysed, placed, mixed)
            out[w, a] = _place_decoy(obs[frames - 1, w, a], keys[w, a]) if action == NOTHING_TO_REPAIR else action


@kernel
def _repair(obs: Any, analysed: int, placed: int, mixed: bool) -> Any:
    """One turn: the action, the hosts analysed since their last Remove (bits), how many opening decoys were placed."""
    host = _first_host(obs, PRIVILEGED, 0) if mixed else -1
    if host >= 0:
        return RESTORES + host, analysed, placed
    host = _first_host(obs, USER_LEVEL, 0)
    if host >= 0:
        return REMOVES + host, analysed & ~(1 << host), placed
    host = _first_host(obs, UNSURE, analysed)
    if host >= 0:
        return ANALYSES + host, analysed | 1 << host, placed
    if mixed and placed < len(OPENING):
        return OPENING[placed], analysed, placed + 1
    return NOTHING_TO_REPAIR if mixed else 0, analysed, placed


@kernel
def _first_host(obs: Any, level: int, excluded: int) -> Any:
    """The first host by PRIORITY with this compromise level that is not excluded (bits); -1 if there is none."""
    for host in PRIORITY:
        if not excluded >> host & 1 and _compromised(obs, host) == level:
            return host
    return -1


@kernel
def _compromised(obs: Any, host: int) -> Any:
    return obs[4 * host + 2] + 2 * obs[4 * host + 3]


@kernel
def _place_decoy(obs: Any, key: Any) -> Any:
    """Place a random decoy on the first scanned host for which a fair coin says yes; otherwise sleep."""
    for i in range(len(PRIORITY)):
        host = PRIORITY[i]
        if obs[4 * host] + 2 * obs[4 * host + 1] == SCANNED and uniform(key, FIRST_DRAW + 2 * i) < 0.5:
            return DECOYS + below(key, FIRST_DRAW + 2 * i + 1, N_DECOYS) * N_HOSTS + host
    return 0
