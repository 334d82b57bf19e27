"""Sequences of a replay buffer, for networks with a memory: stored states, burn-in, and no padding in a loss.

A sequence is `length` turns of one life from a random one on, as in R2D2 (Kapturowski et al. 2019). In front of it up
to `burn_in` earlier turns of the same life bring the recurrent state that was stored when the agent acted up to date
with the weights of today; behind it are the observations that its values are taken from. Where the life is too short
for that, the rest is padding, and `valid` says so.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from remuda.core.kernels import kernel
from remuda.core.rng import Keys, below
from remuda.learners.replay import ReplayBuffer, fill_frame_stack, find_segment, n_step_return


class SequenceBatch(NamedTuple):
    """Sequences of some agents. A window is burn-in, the sequence, and the n turns behind it."""

    obs: NDArray[Any]  # (agents, sequences, window, frames * obs), in the game's dtype
    begun: NDArray[np.bool_]  # (agents, sequences, window): False before the agent's first turn: the state stays
    memory: NDArray[np.float32]  # (agents, sequences, numbers): the stored state before the first turn that has begun
    actions: NDArray[np.int64]  # (agents, sequences, length)
    returns: NDArray[np.float32]  # (agents, sequences, length): as in TransitionBatch
    discounts: NDArray[np.float32]  # (agents, sequences, length)
    ahead: NDArray[np.int64]  # (agents, sequences, length): where in the window the value behind them is taken from
    valid: NDArray[np.bool_]  # (agents, sequences, length): whether the turn exists
    next_mask: NDArray[np.bool_] | None  # (agents, sequences, length, actions)


class SequenceShape(NamedTuple):
    """How long sequences are, and how many there are in a batch."""

    sequences: int
    length: int
    burn_in: int
    n_step: int

    @property
    def window(self) -> int:
        """Observations of a sequence."""
        return self.burn_in + self.length + self.n_step


def sample_sequences(
    replay: ReplayBuffer, first: int, last: int, keys: Keys, shape: SequenceShape, gamma: NDArray[np.float64]
) -> SequenceBatch:
    """Draw sequences that begin anywhere in a life, for agents first … last-1, with one key per agent."""
    agents, count, length = last - first, shape.sequences, shape.length
    assert replay.memory is not None, "the buffer stores no recurrent states"
    row = (agents, count, length)
    out = SequenceBatch(
        obs=np.zeros((agents, count, shape.window, replay.frames * replay.obs.shape[2]), replay.obs.dtype),
        begun=np.ones((agents, count, shape.window), np.bool_),
        memory=np.zeros((agents, count, replay.memory.shape[2]), np.float32),
        actions=np.zeros(row, np.int64),
        returns=np.zeros(row, np.float32),
        discounts=np.zeros(row, np.float32),
        ahead=np.zeros(row, np.int64),
        valid=np.zeros(row, np.bool_),
        next_mask=None,
    )
    positions = np.zeros(row, np.int64)  # in the ring, of the observations that values are taken from
    stored = (replay.obs, replay.actions, replay.rewards, replay.terminated, replay.elapsed, replay.memory)
    own = (*(array[first:last] for array in stored), replay.table[first:last], replay.counts[first:last])
    _sample_sequences(own, keys, replay.frames, shape, gamma, out[:8], positions)
    if replay.mask is None:
        return out
    return out._replace(next_mask=replay.mask[np.arange(first, last)[:, None, None], positions])


@kernel
def _sample_sequences(
    stored: Any, keys: Any, frames: int, shape: Any, gamma: Any, out: Any, out_positions: Any
) -> None:
    obs, actions, rewards, terminated, elapsed, memory, table, counts = stored
    out_obs, out_begun, out_memory, out_actions, out_returns, out_discounts, out_ahead, out_valid = out
    _, length, burn_in, n_step = shape
    for a in range(out_actions.shape[0]):
        for b in range(out_actions.shape[1]):
            index = below(keys[a], b, counts[a])
            row = table[a, find_segment(table[a], index)]  # transitions before, first, begin, end
            start = row[1] + index - row[0]
            origin = start - burn_in  # where the window begins, which may be in front of the life
            for i in range(out_memory.shape[2]):
                out_memory[a, b, i] = memory[a, max(origin, row[1]), i]
            for w in range(out_obs.shape[2]):
                if origin + w < row[1]:
                    out_begun[a, b, w] = False
                elif origin + w < row[3]:
                    fill_frame_stack(obs[a], origin + w, row[2], frames, out_obs[a, b, w])
            for t in range(length):
                position = start + t
                if position >= row[3] - 1:
                    break
                ahead = min(position + n_step, row[3] - 1)
                total, discount = n_step_return(rewards[a], elapsed[a], position, ahead, gamma[a])
                out_valid[a, b, t] = True
                out_actions[a, b, t] = actions[a, position]
                out_returns[a, b, t] = total
                out_discounts[a, b, t] = 0.0 if terminated[a, ahead - 1] else discount
                out_ahead[a, b, t] = ahead - origin
                out_positions[a, b, t] = ahead
