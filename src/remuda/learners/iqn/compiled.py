"""Learns with compiled kernels, one agent after another: networks without a body, in fp32 on a CPU.

`IQN` itself has the readable form, with torch and several agents stacked.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from remuda.core import rng
from remuda.core.rng import Keys, Stream
from remuda.learners.iqn.flat import FlatLayout, zeros
from remuda.learners.iqn.gradient import adam_and_target, loss_gradient, norm_of
from remuda.learners.iqn.kernels import NO_MASK, Rows
from remuda.learners.iqn.network import IQNNetwork, Noise
from remuda.learners.replay import TransitionBatch

PARTS = 64
"""Numbers that a sum of squares is made in."""


class AgentRows(NamedTuple):
    """The rows of one agent that an update changes, as views, (columns,)."""

    weights: NDArray[np.float32]
    target: NDArray[np.float32]
    mean: NDArray[np.float32]
    square: NDArray[np.float32]


class CompiledUpdates:
    """Updates of one agent at a time, in memory that is used for all of them."""

    def __init__(self, network: IQNNetwork) -> None:
        self.network, self.acting_taus = network, network.acting_taus.numpy()
        self.layout = FlatLayout(network)
        self.grad = zeros(network.layout.size)
        self.noise = (self.layout.layers(), self.layout.layers())
        self.memory = self.layout.memory()
        self.parts = np.zeros(PARTS)

    def gradient(self, own: AgentRows, batch: TransitionBatch, keys: dict[Stream, Keys]) -> float:
        """The loss over the batch of one agent; its gradient is in `grad` until the next call."""
        layout, sizes = self.layout, self.layout.sizes
        if layout.noisy:
            for which, layers in enumerate(self.noise):
                layout.read_noise(Noise.factors(keys[Stream.NOISE], which, self.network)[0], layers.noise)
        shape = (2, sizes.batch, sizes.quantiles)
        taus = rng.uniforms(keys[Stream.TAU], 2 * sizes.batch * sizes.quantiles).astype(np.float32).reshape(shape)
        allowed = NO_MASK[:, 0] if batch.next_mask is None else batch.next_mask[0]
        rows = Rows(
            batch.obs[0], batch.next_obs[0], batch.actions[0], batch.returns[0], batch.discounts[0], allowed, taus
        )
        loss: float = loss_gradient(
            (own.weights, own.target), rows, np.float32(self.network.scale), layout.places, sizes, layout.noisy,
            self.noise, self.acting_taus, self.memory, self.grad,
        )  # fmt: skip
        return loss

    def step(self, own: AgentRows, loss: float, settings: tuple[float, float, float, float]) -> float:
        """One step with the last gradient, `settings` as in `adam_and_target`; returns the norm before.

        If loss or gradient are not finite, only the target network moves.
        """
        norm = float(norm_of(self.grad, self.parts)) if np.isfinite(loss) else np.nan
        if np.isfinite(norm):
            adam_and_target(own.weights, own.target, self.grad, own.mean, own.square, norm, settings)
        else:
            own.target[:] += np.float32(settings[3]) * (own.weights - own.target)
        return norm
