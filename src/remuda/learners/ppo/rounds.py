"""Gathers a round: the turns that agents can learn from, as rows in the order of worlds and then time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from remuda.core.fragment import Fragment
from remuda.core.kernels import kernel
from remuda.learners.ppo.encoding import Encoded, encode, read_rows
from remuda.learners.ppo.experience import (
    Experience,
    fill_stack,
    frame_stacks,
    next_frame_stacks,
    places,
    privileged_states,
    rows_of,
)
from remuda.learners.ppo.network import PPONetwork
from remuda.learners.ppo.policy import DRAW, LOG_PROB
from remuda.learners.transitions import Transitions, find_transitions


@dataclass(frozen=True)
class After:
    """What one agent observed after the turns where its data ends but the game does not, in the order of its rows."""

    stacks: NDArray[Any]  # (turns, frames * obs); with a body (turns, width): features
    states: NDArray[Any]  # (turns, state)


@dataclass(frozen=True)
class Round:
    """Rows of agents first … last-1 of a learner, equally many for each."""

    first: int
    last: int
    rows: Experience  # advantages and returns are zero at first
    padded_stacks: NDArray[Any]  # (agents, rows, inputs): the memory of `rows.stacks`, zero in padded columns
    features: NDArray[np.float32]  # (agents, rows, width): what a body makes of the stacks; no columns without one
    rewards: NDArray[np.float32]  # (agents, rows)
    terminated: NDArray[np.bool_]  # (agents, rows)
    cut_off: NDArray[np.bool_]  # (agents, rows): where values after the turn are those of `after`
    elapsed: NDArray[np.int64]  # (agents, rows): turns that discount the value after the turn
    after: list[After]  # per agent

    @property
    def count(self) -> int:
        """Rows of each agent."""
        return int(self.rows.actions.shape[1])


def gather_rounds(fragments: Sequence[Fragment], in_turn: bool, network: PPONetwork, weights: Tensor) -> list[Round]:
    """The rows of neighbouring agents that have equally many; agents without rows are left out."""
    if not fragments:
        return []
    sources = [_Source.of(fragment, find_transitions(fragment, in_turn), network, weights) for fragment in fragments]
    counts = sum(source.learnable.sum(axis=(0, 1)) for source in sources).tolist()
    return [_gather(sources, network, weights, first, last, rows) for first, last, rows in _alike(counts) if rows]


def _alike(counts: list[int]) -> Iterator[tuple[int, int, int]]:
    """Ranges of neighbours with equal counts: first, last + 1 and the count."""
    first = 0
    for count, group in groupby(counts):
        last = first + len(list(group))
        yield first, last, count
        first = last


@dataclass(frozen=True)
class _Source:
    """A fragment, and per-turn arrays (turns, worlds, agents, …) made of it."""

    fragment: Fragment
    learnable: NDArray[np.bool_]
    after: NDArray[np.int64]  # index of the observation after each turn, see Transitions
    arrays: dict[str, NDArray[Any]]
    states: NDArray[Any]  # (turns + 1, worlds, agents, state)
    encoded: Encoded | None

    @classmethod
    def of(cls, fragment: Fragment, found: Transitions, network: PPONetwork, weights: Tensor) -> _Source:
        encoded, none = None, np.zeros((*fragment.alive.shape, 0), np.float32)
        if network.body_columns:
            encoded = encode(network, weights, fragment, frame_stacks(fragment, network.frames))
        stores_draws = network.head is not None and network.head.stored_size > 0
        states = privileged_states(fragment, network.state_size)
        arrays: dict[str, NDArray[Any]] = {
            "states": states[:-1],
            "actions": fragment.extras[DRAW] if stores_draws else fragment.actions,
            "log_probs": fragment.extras[LOG_PROB],
            "mask": none.astype(np.bool_) if fragment.mask is None else fragment.mask[:-1],
            "memory": none if encoded is None else encoded.before,
            "place": none.astype(np.int64) if network.cell is None else places(fragment, network.options.sequence),
            "features": none if encoded is None else encoded.features,
            "rewards": fragment.rewards,
            "terminated": fragment.terminated,
            "cut_off": found.ends & ~fragment.terminated,
            "elapsed": found.elapsed,
        }
        return cls(fragment, found.learnable, found.after, arrays, states, encoded)


def _gather(sources: list[_Source], network: PPONetwork, weights: Tensor, first: int, last: int, rows: int) -> Round:
    """Copy the turns of agents first … last-1 from the fragments into arrays (agents, rows, …)."""
    own = {
        name: np.empty((last - first, rows, *array.shape[3:]), array.dtype) for name, array in sources[0].arrays.items()
    }
    columns = network.frames * network.obs_size
    padded = np.zeros((last - first, rows, network.inputs), sources[0].fragment.obs.dtype)
    for agent in range(first, last):
        row = 0
        for source in sources:
            fragment = source.fragment
            obs = fragment.obs.reshape(*fragment.obs.shape[:3], -1)
            begin, flags = row, (source.learnable, fragment.alive, fragment.ages)
            row = _copy_stacks(obs, flags, fragment.before, agent, network.frames, padded[agent - first], row)
            for name, array in source.arrays.items():
                own[name][agent - first, begin:row] = rows_of(array, source.learnable, agent)
    zeros = np.zeros((2, last - first, rows), np.float32)
    experience = Experience(
        padded[:, :, :columns], own["states"], own["actions"], own["log_probs"], zeros[0], zeros[1],
        own["mask"], own["memory"], own["place"],
    )  # fmt: skip
    after = [_after(sources, network, weights, agent) for agent in range(first, last)]
    signals = (own["rewards"], own["terminated"], own["cut_off"], own["elapsed"])
    return Round(first, last, experience, padded, own["features"], *signals, after)


def _after(sources: list[_Source], network: PPONetwork, weights: Tensor, agent: int) -> After:
    """What an agent observed after turns that are cut off."""
    stacks, states = [], []
    for source in sources:
        worlds, turns = np.nonzero(source.arrays["cut_off"][:, :, agent].T)  # in the order of rows
        own = next_frame_stacks(source.fragment, source.after, network.frames, (turns, worlds), agent)
        if source.encoded is not None and len(turns):
            memory = source.encoded.after[turns, worlds, agent] if network.memory_size else None
            arrays = {name: array[agent : agent + 1] for name, array in network.layout.arrays(weights).items()}
            own = read_rows(network, arrays, own, memory)
        elif source.encoded is not None:
            own = np.zeros((0, network.options.features), np.float32)
        stacks.append(own)
        states.append(source.states[source.after[turns, worlds, agent], worlds, agent])
    return After(np.concatenate(stacks), np.concatenate(states))


@kernel
def _copy_stacks(obs: Any, flags: Any, before: int, agent: int, frames: int, out: Any, row: int) -> int:
    """Write an agent's frame stacks to out[row], out[row + 1], …; returns the next row. Missing frames stay zero."""
    learnable, alive, ages = flags
    for w in range(alive.shape[1]):
        for t in range(alive.shape[0]):
            if learnable[t, w, agent]:
                fill_stack(obs, alive, before, (before + t, t, w, agent), frames, ages[t, w, agent], out[row])
                row += 1
    return row
