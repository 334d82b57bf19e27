"""The IQN networks of a herd, as functions of stacked weights.

frames → body → features ─┐        (the body may be a recurrent cell, whose output the features are)
                          × → noisy layer → noisy head: value and advantages → quantiles of Q
τ → cosines → layer → φ ──┘
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from remuda.core import rng
from remuda.core.game import Group
from remuda.core.learner import DenseFlops
from remuda.core.rng import Keys
from remuda.learners.body import Body, own_body
from remuda.learners.devices import to_device
from remuda.learners.products import LANE, filled
from remuda.learners.recurrent import CELLS, RecurrentCell
from remuda.learners.stack import MIN_ROWS, StackedNetwork, WeightLayout, linear, padded

if TYPE_CHECKING:
    from remuda.learners.iqn.options import IQNOptions


COSINES = 64
"""Cosine features of a quantile."""
COMPILER = "inductor"
"""The backend of torch.compile; it needs a C++ compiler."""
ACTING_PHI = "acting_phi"
"""Name of the embedded quantiles that acting uses, among the arrays."""


@dataclass(frozen=True)
class Noise:
    """Factorised Gaussian noise of the two noisy layers (NoisyNet), per agent."""

    layer_in: Tensor  # (agents, 1, in)
    layer_out: Tensor  # (agents, out, 1)
    head_in: Tensor  # (agents, 1, in)
    head_out: Tensor  # (agents, out, 1)

    @classmethod
    def draw(cls, keys: Keys, which: int, network: IQNNetwork, device: torch.device) -> Noise | None:
        """Noise number `which` of each agent's key; None if the noise is off."""
        if not network.noisy:
            return None
        eps = cls.factors(keys, which, network)
        a, b, c, d = to_device(eps, device).split_with_sizes(cls.sizes(network), dim=1)
        return cls(a.unsqueeze(1), b.unsqueeze(2), c.unsqueeze(1), d.unsqueeze(2))

    @classmethod
    def factors(cls, keys: Keys, which: int, network: IQNNetwork) -> NDArray[np.float32]:
        """All four arrays of each agent, one behind the other, (agents, numbers)."""
        eps = rng.normals(rng.keys(keys, which), sum(cls.sizes(network))).astype(np.float32)
        factors: NDArray[np.float32] = np.sign(eps) * np.sqrt(np.abs(eps))
        return factors

    @staticmethod
    def sizes(network: IQNNetwork) -> tuple[int, int, int, int]:
        """Numbers of the four arrays, with padding."""
        return network.width, network.width, network.width, network.outputs


class IQNNetwork(StackedNetwork):
    """Shapes and forward passes of IQN. It holds no weights: they are arguments."""

    def __init__(self, group: Group, options: IQNOptions, precision: str, device: str) -> None:
        group.require_discrete("iqn")
        super().__init__(group, options.frames, precision, device)
        self.options = options
        self.width = padded(options.layer)
        self.outputs = padded(group.actions + 1)
        self.noisy = options.sigma > 0
        self.cell: RecurrentCell | None = None
        if options.body in CELLS:
            inputs = options.frames * self.obs_size
            self.cell = RecurrentCell(str(options.body), inputs, options.layer, precision, "iqn.layer")
        self.body = Body(str(options.body), group, options.frames, options.layer) if own_body(options.body) else None
        self.layout = self._layout()
        self._cosines = math.pi * torch.arange(1, COSINES + 1, dtype=torch.float32, device=self.device)
        k = options.acting_quantiles
        self.acting_taus = (torch.arange(k, dtype=torch.float32, device=self.device) + 0.5) / k
        """Fixed quantiles, (acting quantiles,)."""
        self._acting_rows = torch.arange(max(k, MIN_ROWS), device=self.device) % k

    def _layout(self) -> WeightLayout:
        options, layout = self.options, WeightLayout()
        if self.cell is not None:
            self.cell.add_to(layout)
        elif self.body is None:
            self._add(layout, "body", self.frames * self.obs_size, options.layer, transposed=True)
        else:
            for name, shape in self.body.shapes.items():
                layout.add(f"body.{name}", shape, init_scale=0.0, pad=False)
        self._add(layout, "phi", COSINES, options.layer)
        self._add(layout, "layer", options.layer, options.layer, transposed=True, noisy=self.noisy)
        self._add(layout, "head", options.layer, self.actions + 1, noisy=self.noisy)
        return layout

    def _add(
        self, layout: WeightLayout, name: str, inputs: int, outputs: int, transposed: bool = False, noisy: bool = False
    ) -> None:
        """Append a linear layer, in a row as compiled kernels need it: see `kernels.WeightPlaces`."""
        width, scale = filled(outputs), math.sqrt(1.0 / inputs)
        if name == "head":
            matrix, vector = (padded(outputs), filled(inputs)), (width,)
        elif transposed:
            matrix, vector = ((filled(inputs) if name == "layer" else padded(inputs)) + 1, width), (width,)
        else:
            matrix, vector = (width + 1, padded(inputs)), (width + LANE,)
        layout.add(f"{name}.weight", (outputs, inputs), scale, memory=matrix, transposed=transposed)
        layout.add(f"{name}.bias", (outputs,), scale, memory=vector)
        if noisy:
            sigma, shape = self.options.sigma, (outputs, inputs)
            layout.add(f"{name}.weight_sigma", shape, 0.0, sigma, memory=matrix, transposed=transposed)
            layout.add(f"{name}.bias_sigma", (outputs,), 0.0, sigma, memory=vector)

    def initial_rows(self, keys: Keys) -> NDArray[np.float32]:
        """Initial weights, one row per key."""
        rows = self.layout.initial_rows(keys)
        if self.body is not None:
            size = self.body.size
            for row, key in zip(rows, keys, strict=True):
                row[:size] = self.body.initial_weights(key)
        return rows

    def compile_passes(self) -> None:
        """Compile the passes of an update; each shape of batch is compiled once, when it first comes."""
        for name in ("features", "mean_advantages", "quantiles"):
            setattr(self, name, torch.compile(getattr(self, name), dynamic=False, backend=COMPILER))

    @property
    def memory_size(self) -> int:
        """Numbers of the recurrent state; 0 without one."""
        return 0 if self.cell is None else self.cell.memory_size

    def unroll(self, arrays: dict[str, Tensor], x: Tensor, begun: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Features of sequences, (agents, sequences, turns, width), and the recurrent states after them.

        x is (agents, sequences, turns, inputs), memory (agents, sequences, memory_size). Where `begun` (agents,
        sequences, turns) is False the state stays as it is.
        """
        assert self.cell is not None
        agents, sequences, turns, inputs = x.shape
        if not turns:
            return x.new_zeros((agents, sequences, 0, self.width)), memory
        read = self.cell.read(arrays, x.reshape(agents, sequences * turns, inputs)).view(agents, sequences, turns, -1)
        outputs = []
        for turn in range(turns):
            after = self.cell.step(arrays, read[:, :, turn], memory)
            memory = torch.where(begun[:, :, turn, None], after, memory)
            outputs.append(memory[:, :, : self.width])
        return torch.stack(outputs, dim=2), memory

    def features(self, arrays: dict[str, Tensor], x: Tensor) -> Tensor:
        """Features of the input: x (agents, rows, inputs) → (agents, rows, width)."""
        if self.body is not None:
            return self.body.forward(arrays, x[:, :, : self.frames * self.obs_size], self.width)
        return linear(x, arrays["body.weight"], arrays["body.bias"], self.precision).relu()

    def phi(self, arrays: dict[str, Tensor], taus: Tensor) -> Tensor:
        """Embedded quantiles: taus (agents, rows) → (agents, rows, width)."""
        cosines = (taus.unsqueeze(2) * self._cosines).cos()
        return linear(cosines, arrays["phi.weight"], arrays["phi.bias"], self.precision).relu()

    def for_acting(self, arrays: dict[str, Tensor]) -> dict[str, Tensor]:
        """The arrays with the embedding of the fixed quantiles added, which depends on the weights alone."""
        agents = arrays["phi.weight"].shape[0]
        phi = self.phi(arrays, self.acting_taus[self._acting_rows].expand(agents, -1))
        return {**arrays, ACTING_PHI: phi[:, : self.options.acting_quantiles]}

    def mean_advantages(self, arrays: dict[str, Tensor], features: Tensor) -> Tensor:
        """Advantages averaged over the fixed quantiles, without noise: (agents, rows, actions).

        This is enough to find the best action: the value of the state adds the same to every action.
        """
        agents, rows, width = features.shape
        hidden = (features.unsqueeze(2) * arrays[ACTING_PHI].unsqueeze(1)).view(agents, -1, width)
        hidden = linear(hidden, arrays["layer.weight"], arrays["layer.bias"], self.precision).relu_()
        # The head is linear, so it can be applied to the mean over k quantiles: 1/k of the work.
        hidden = hidden.view(agents, rows, -1, width).mean(dim=2)
        out = linear(hidden, arrays["head.weight"], arrays["head.bias"], self.precision)
        return out[:, :, 1 : self.actions + 1]

    def quantiles(self, arrays: dict[str, Tensor], features: Tensor, taus: Tensor, noise: Noise | None) -> Tensor:
        """Q at each τ: features (agents, rows, width), taus (agents, rows * q) → (agents, rows, q, actions)."""
        agents, rows, width = features.shape
        phi = self.phi(arrays, taus).view(agents, rows, -1, width)
        hidden = (features.unsqueeze(2) * phi).view(agents, -1, width)
        layer = _noisy(arrays, "layer", (noise.layer_in, noise.layer_out) if noise else None)
        hidden = linear(hidden, *layer, self.precision).relu()
        head = _noisy(arrays, "head", (noise.head_in, noise.head_out) if noise else None)
        return self._dueling_q(linear(hidden, *head, self.precision)).view(agents, rows, -1, self.actions)

    def _dueling_q(self, out: Tensor) -> Tensor:
        """Dueling: Q from the value in column 0 and the advantages after it."""
        advantages = out[:, :, 1 : self.actions + 1]
        return out[:, :, :1] + advantages - advantages.mean(dim=2, keepdim=True)

    @property
    def plain(self) -> bool:
        """Whether one layer reads observations: no body of the user's or ours, no memory."""
        return self.body is None and self.cell is None

    def dense_flops(self) -> DenseFlops:
        """Of the plain network: φ of the fixed quantiles counts once per update, the head there once per state."""
        options, layer = self.options, self.options.layer
        body, head = 2.0 * self.frames * self.obs_size * layer, 2.0 * layer * (1 + self.actions)
        phi, hidden = 2.0 * COSINES * layer, 2.0 * layer * layer
        act = body + options.acting_quantiles * hidden + head
        quantile = phi + hidden + head
        behind = body + options.quantiles * quantile  # a state and its quantiles in the target network
        # Of observations and cosines there is no gradient.
        learned = 2.0 * body + options.quantiles * (3.0 * quantile - phi)
        update = options.batch_size * (act + behind + learned) + options.acting_quantiles * phi
        return DenseFlops(act=act, learn_step=0.0, learn_update=update)

    def acting_bytes(self, worlds: int) -> int:
        """Bytes of one agent's largest activation while acting."""
        return 4 * max(worlds, MIN_ROWS) * max(self.options.acting_quantiles * self.width, self.inputs)

    def update_bytes(self) -> int:
        """Bytes of one agent's activations in an update."""
        return 4 * 4 * self.options.batch_size * self.options.quantiles * self.width


def _noisy(arrays: dict[str, Tensor], name: str, noise: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
    weight, bias = arrays[f"{name}.weight"], arrays[f"{name}.bias"]
    if noise is None:
        return weight, bias
    inner, outer = noise
    weight = weight + arrays[f"{name}.weight_sigma"] * (outer * inner)
    return weight, bias + arrays[f"{name}.bias_sigma"] * outer.squeeze(2)
