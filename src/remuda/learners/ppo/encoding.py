"""What actors and critics with a body see of a fragment, and the recurrent states in it, before learning begins."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from remuda.core.fragment import Fragment
from remuda.learners.ppo.network import PPONetwork
from remuda.learners.recurrent import memory_rows
from remuda.learners.stack import pad_frame_stacks

ROWS = 2500
"""Rows that a body reads in one call."""


class Encoded(NamedTuple):
    """A fragment as its bodies see it; all (turns, worlds, agents, …)."""

    features: NDArray[np.float32]
    before: NDArray[np.float32]  # recurrent states that each turn began with
    after: NDArray[np.float32]


@torch.no_grad()
def encode(network: PPONetwork, weights: Tensor, fragment: Fragment, stacks: NDArray[Any]) -> Encoded:
    """Read all turns with the current weights; `stacks` are its frame stacks, (turns, worlds, agents, frames * obs)."""
    shape = stacks.shape[:3]
    memory = np.zeros((*shape, network.memory_size), np.float32)
    encoded = Encoded(np.empty((*shape, network.options.features), np.float32), memory, np.zeros_like(memory))
    arrays = network.layout.arrays(weights)
    if network.cell is not None:
        _unroll(network, arrays, fragment, stacks, encoded)
        return encoded
    step = max(1, ROWS // shape[1])
    for agent in range(shape[2]):
        own = {name: array[agent : agent + 1] for name, array in arrays.items()}
        for first in range(0, shape[0], step):
            part = stacks[first : first + step, :, agent]
            features = read_rows(network, own, part.reshape(len(part) * shape[1], -1), None)
            encoded.features[first : first + step, :, agent] = features.reshape(len(part), shape[1], -1)
    return encoded


def _unroll(
    network: PPONetwork, arrays: dict[str, Tensor], fragment: Fragment, stacks: NDArray[Any], out: Encoded
) -> None:
    """Turn after turn, all agents at once; states are zero where a life begins."""
    assert fragment.memory is not None, "the policy did not ask for recurrent states"
    memory = np.array(fragment.memory[:, :, : network.memory_size])  # (worlds, agents, numbers)
    for turn in range(len(stacks)):
        memory[fragment.ages[turn] == 0] = 0
        out.before[turn] = memory
        x = pad_frame_stacks(stacks[turn].swapaxes(0, 1), network.scale, network.inputs, network.device)
        features, after = network.features(arrays, x, memory_rows(memory).to(network.device))
        assert after is not None
        memory = np.where(
            fragment.alive[turn][..., None], after[:, : len(memory)].transpose(0, 1).cpu().numpy(), memory
        )
        out.after[turn] = memory
        out.features[turn] = features[:, : len(memory), : out.features.shape[3]].transpose(0, 1).cpu().numpy()


@torch.no_grad()
def read_rows(
    network: PPONetwork, own: dict[str, Tensor], stacks: NDArray[Any], memory: NDArray[np.float32] | None
) -> NDArray[np.float32]:
    """What one agent's body makes of frame stacks (rows, frames * obs) after states (rows, numbers): (rows, width)."""
    x = pad_frame_stacks(stacks[None], network.scale, network.inputs, network.device)
    before = None if memory is None else memory_rows(memory[:, None]).to(network.device)
    features = network.features(own, x, before)[0]
    result: NDArray[np.float32] = features[0, : len(stacks), : network.options.features].cpu().numpy()
    return result
