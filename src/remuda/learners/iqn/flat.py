"""What compiled kernels need to know of a network: where arrays are in the row of an agent, and space to compute in."""

from __future__ import annotations

import numba
import numpy as np
import torch
from numpy.typing import NDArray

from remuda.learners.iqn.kernels import COSINES, ROWS, Memory, NoisyLayers, Sizes, WeightPlaces
from remuda.learners.iqn.network import IQNNetwork, Noise
from remuda.learners.products import LANE, SPARE, filled

ARRAYS = [
    "body.weight", "body.bias", "phi.weight", "phi.bias", "layer.weight", "layer.bias", "head.weight", "head.bias",
    "layer.weight_sigma", "layer.bias_sigma", "head.weight_sigma", "head.bias_sigma",
]  # fmt: skip
"""Names of the arrays in the order of WeightPlaces."""


def can_be_compiled(network: IQNNetwork) -> bool:
    """Whether the kernels have everything that this network needs."""
    return (
        network.plain and network.precision == "fp32" and network.device.type == "cpu" and not numba.config.DISABLE_JIT
    )


class FlatLayout:
    """Where arrays are in a row, and how large what is computed from them is."""

    def __init__(self, network: IQNNetwork, acting: bool = False) -> None:
        """`acting`: for ROWS states at a time, not for a batch."""
        options = network.options
        self.sizes = Sizes(
            network.inputs, filled(options.layer), network.actions, filled(network.actions),
            ROWS if acting else options.batch_size, options.quantiles, filled(options.quantiles),
            options.acting_quantiles, filled(options.acting_quantiles),
        )  # fmt: skip
        self.noisy, self.noise_sizes = network.noisy, Noise.sizes(network)
        known = {entry.name: entry.offset for entry in network.layout.entries}
        self.places = WeightPlaces._make(known.get(name, 0) for name in ARRAYS)

    def read_noise(self, draws: NDArray[np.float32], out: NDArray[np.float32]) -> None:
        """Copy the noise of one agent, in the order of `Noise.sizes`, to NoisyLayers.noise."""
        width, first = self.sizes.width, 0
        for i, count in enumerate(self.noise_sizes):
            own = min(count, len(out) - i * width)  # without the padding of the outputs
            out[i * width : i * width + own] = draws[first : first + own]
            first += count

    def layers(self) -> NoisyLayers:
        """Space for layers with noise."""
        width, heads = self.sizes.width, 1 + self.sizes.actions
        return NoisyLayers(
            zeros(3 * width + heads), zeros((width + 1) * width), zeros(width), zeros(heads * width).reshape(heads, -1),
            zeros(heads),
        )  # fmt: skip

    def memory(self) -> Memory:
        """Space for an update."""
        sizes = self.sizes
        width, rows = sizes.width, sizes.batch + SPARE
        lanes = max(sizes.lanes, sizes.acting_lanes)
        heads = 1 + sizes.actions
        return Memory(
            identity=np.arange(max(sizes.inputs, width, rows, lanes, COSINES) + SPARE),
            seen=np.zeros(sizes.inputs, np.bool_),
            columns=np.zeros(sizes.inputs + SPARE + 1, np.int64),
            tile=zeros(ROWS * max(sizes.inputs, sizes.batch)),
            index=np.zeros(width + SPARE + 1, np.int64),
            active=np.zeros(width + SPARE + 1, np.int64),
            cosines=zeros(COSINES * sizes.lanes),
            cosine_rows=zeros(sizes.lanes * COSINES),
            acting_cosines=zeros(COSINES * sizes.acting_lanes),
            acting_phi=zeros((width + SPARE) * sizes.acting_lanes),
            phi=zeros((width + SPARE) * sizes.lanes),
            x=zeros((width + SPARE) * lanes),
            hidden=zeros(lanes * width),
            hidden_grad=zeros(sizes.lanes * width),
            hidden_grad_t=zeros((width + 1) * sizes.lanes),
            x_grad=zeros((width + SPARE) * sizes.lanes),
            means=zeros(rows * width),
            advantages=zeros(rows * sizes.columns),
            head_t=zeros(width * sizes.columns),
            parts=zeros(LANE),
            values=zeros(sizes.quantiles),
            targets=zeros(sizes.quantiles),
            pulls=zeros(sizes.quantiles),
            best=np.zeros(sizes.batch, np.int64),
            features=zeros(3 * rows * width).reshape(3, -1),
            head_grad=zeros(heads * width).reshape(heads, -1),
            head_bias_grad=zeros(heads),
        )


def zeros(size: int) -> NDArray[np.float32]:
    """Zeros, aligned as torch aligns memory: vectors that cross lines of the cache take longer."""
    array: NDArray[np.float32] = torch.zeros(size, dtype=torch.float32).numpy()
    return array
