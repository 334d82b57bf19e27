"""The IQN network of a herd as functions of stacked weights.

frames → body → features ─┐
                          × → noisy layer → noisy head: value and advantages → quantiles of Q
τ → cosines → layer → φ ──┘
"""

from __future__ import annotations

import math
import threading
from copy import deepcopy
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from remuda import rng
from remuda.errors import ConfigError
from remuda.game import Group
from remuda.learners.stack import LEAST_ROWS, Layout, StackedNetwork, add_linear, fill_rows, input_scale, linear, padded
from remuda.rng import Keys

if TYPE_CHECKING:
    from remuda.learners.iqn import IQNOptions

COSINES = 64
UNFIT = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
ACTING_PHI = "acting_phi"


@dataclass(frozen=True)
class Noise:
    """Factorised Gaussian noise of the two noisy layers, per agent."""

    layer_in: Tensor  # (agents, 1, in)
    layer_out: Tensor  # (agents, out, 1)
    head_in: Tensor
    head_out: Tensor

    @classmethod
    def draw(cls, keys: Keys, which: int, network: IQNNetwork, device: torch.device) -> Noise | None:
        """Noise number `which` of each agent's key; none where the noise is off."""
        if not network.noisy:
            return None
        width, outputs = network.width, network.outputs
        sizes = (width, width, width, outputs)
        eps = rng.normals(rng.keys(keys, which), sum(sizes)).astype(np.float32)
        eps = np.sign(eps) * np.sqrt(np.abs(eps))
        a, b, c, d = torch.from_numpy(eps).to(device).split_with_sizes(sizes, dim=1)
        return cls(a.unsqueeze(1), b.unsqueeze(2), c.unsqueeze(1), d.unsqueeze(2))


class IQNNetwork(StackedNetwork):
    """Shapes and forward passes; the weights are always an argument."""

    def __init__(self, group: Group, options: IQNOptions, precision: str, device: str) -> None:
        super().__init__(group, options.frames, precision, device)
        self.options = options
        self.width = padded(options.layer)
        self.outputs = padded(group.actions + 1)
        self.noisy = options.sigma > 0
        self.scale = input_scale(group)
        self.body = Body(options.body, group, options) if options.body else None
        self.layout = self._layout()
        self._cosines = math.pi * torch.arange(1, COSINES + 1, device=self.device)
        k = options.acting_quantiles
        rows = torch.arange(max(k, LEAST_ROWS), device=self.device) % k
        self._acting_taus = (rows + 0.5) / k

    def _layout(self) -> Layout:
        options, layout = self.options, Layout()
        inputs, layer, outputs = self.frames * self.obs_size, options.layer, self.actions + 1
        if self.body is None:
            add_linear(layout, "body", inputs, layer)
        else:
            for name, shape in self.body.shapes.items():
                layout.add(f"body.{name}", shape, spread=0.0, pad=False)
        add_linear(layout, "phi", COSINES, layer)
        for name, width in (("layer", layer), ("head", outputs)):
            add_linear(layout, name, layer, width)
            if self.noisy:
                layout.add(f"{name}.weight_sigma", (width, layer), spread=0.0, centre=options.sigma)
                layout.add(f"{name}.bias_sigma", (width,), spread=0.0, centre=options.sigma)
        return layout

    def initial(self, keys: Keys) -> NDArray[np.float32]:
        """First weights, one row per key."""
        rows = self.layout.initial(keys)
        if self.body is not None:
            size = self.body.size
            for row, key in zip(rows, keys, strict=True):
                row[:size] = self.body.initial(key)
        return rows

    def features(self, arrays: dict[str, Tensor], x: Tensor) -> Tensor:
        """What the body makes of its input, (agents, rows, width)."""
        if self.body is not None:
            return self.body.forward(arrays, x[:, :, : self.frames * self.obs_size], self.width)
        return linear(x, arrays["body.weight"], arrays["body.bias"], self.precision).relu()

    def phi(self, arrays: dict[str, Tensor], taus: Tensor) -> Tensor:
        """Embedded quantiles: taus (agents, rows) → (agents, rows, width)."""
        cosines = (taus.unsqueeze(2) * self._cosines).cos()
        return linear(cosines, arrays["phi.weight"], arrays["phi.bias"], self.precision).relu()

    def for_acting(self, arrays: dict[str, Tensor]) -> dict[str, Tensor]:
        """The arrays, with the embedding of the fixed quantiles, which changes only with the weights."""
        agents = arrays["phi.weight"].shape[0]
        phi = self.phi(arrays, self._acting_taus.expand(agents, -1))
        return {**arrays, ACTING_PHI: phi[:, : self.options.acting_quantiles]}

    def preferences(self, arrays: dict[str, Tensor], x: Tensor) -> Tensor:
        """Mean advantage over the fixed quantiles, without noise: (agents, rows, actions).

        The state's value is the same for every action, so the best action needs no more.
        """
        features = self.features(arrays, x)
        agents, rows, width = features.shape
        hidden = (features.unsqueeze(2) * arrays[ACTING_PHI].unsqueeze(1)).view(agents, -1, width)
        hidden = linear(hidden, arrays["layer.weight"], arrays["layer.bias"], self.precision).relu_()
        # The head is linear, so it may follow the mean: a k-th of the work.
        hidden = hidden.view(agents, rows, -1, width).mean(dim=2)
        out = linear(hidden, arrays["head.weight"], arrays["head.bias"], self.precision)
        return out[:, :, 1 : self.actions + 1]

    def quantiles(self, arrays: dict[str, Tensor], x: Tensor, taus: Tensor, noise: Noise | None) -> Tensor:
        """Q at each τ: x (agents, rows, inputs), taus (agents, rows * q) → (agents, rows, q, actions)."""
        features = self.features(arrays, x)
        agents, rows, width = features.shape
        phi = self.phi(arrays, taus).view(agents, rows, -1, width)
        hidden = (features.unsqueeze(2) * phi).view(agents, -1, width)
        layer = _noisy(arrays, "layer", (noise.layer_in, noise.layer_out) if noise else None)
        hidden = linear(hidden, *layer, self.precision).relu()
        head = _noisy(arrays, "head", (noise.head_in, noise.head_out) if noise else None)
        return self._duel(linear(hidden, *head, self.precision)).view(agents, rows, -1, self.actions)

    def _duel(self, out: Tensor) -> Tensor:
        """Value in column 0, advantages after it."""
        advantages = out[:, :, 1 : self.actions + 1]
        return out[:, :, :1] + advantages - advantages.mean(dim=2, keepdim=True)

    def acting_bytes(self, worlds: int) -> int:
        """Bytes one agent's largest activation takes while acting."""
        return 4 * max(worlds, LEAST_ROWS) * max(self.options.acting_quantiles * self.width, self.inputs)

    def update_bytes(self) -> int:
        """Bytes one agent's activations take in an update."""
        return 4 * 4 * self.options.batch_size * self.options.quantiles * self.width


def _noisy(arrays: dict[str, Tensor], name: str, noise: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
    weight, bias = arrays[f"{name}.weight"], arrays[f"{name}.bias"]
    if noise is None:
        return weight, bias
    inner, outer = noise
    weight = weight + arrays[f"{name}.weight_sigma"] * (outer * inner)
    return weight, bias + arrays[f"{name}.bias_sigma"] * outer.squeeze(2)


class Body:
    """A user's own module in place of the first layer, one instance's weights per agent.

    The class is called with (obs_shape, frames, width) and maps (rows, frames, *obs) to (rows, width).
    Each agent's module runs by itself: any module works, and none can see another's rows.
    """

    def __init__(self, path: str, group: Group, options: IQNOptions) -> None:
        self.path = path
        self.group = group
        self.frames = options.frames
        self.layer = options.layer
        self.factory = _import_class(path)
        self.template = self._build(np.uint64(0))
        self._own = threading.local()
        self.shapes = {name: tuple(p.shape) for name, p in self.template.named_parameters()}
        self.size = sum(math.prod(shape) for shape in self.shapes.values())
        self._check_output()

    def _build(self, key: np.uint64) -> nn.Module:
        with rng.torch_seeded(key):
            try:
                module = self.factory(obs_shape=self.group.obs_shape, frames=self.frames, width=self.layer)
            except Exception as error:  # the user's own code: whatever it raises is told in a sentence
                raise ConfigError(f"body={self.path!r} raised {type(error).__name__}: {error}") from error
        if not isinstance(module, nn.Module):
            raise ConfigError(f"body={self.path!r} made a {type(module).__name__}, not a torch nn.Module")
        for part in module.modules():
            if isinstance(part, UNFIT):
                raise ConfigError(
                    f"body={self.path!r} contains {type(part).__name__}, which keeps state or draws chance of its own: "
                    "agents would depend on each other; use LayerNorm, or leave it out"
                )
        return module

    def _check_output(self) -> None:
        x = torch.zeros((LEAST_ROWS, self.frames, *self.group.obs_shape))
        with torch.no_grad():
            shape = tuple(self.template(x).shape)
        if shape != (LEAST_ROWS, self.layer):
            raise ConfigError(
                f"body={self.path!r} maps {tuple(x.shape)} to {shape}; it should give {(LEAST_ROWS, self.layer)}"
            )

    def initial(self, key: np.uint64) -> NDArray[np.float32]:
        """The first weights of one agent, as the module itself draws them."""
        parameters = [p.detach().reshape(-1) for p in self._build(key).parameters()]
        flat: NDArray[np.float32] = torch.cat(parameters).float().numpy()
        return flat

    def fresh(self) -> nn.Module:
        """A module of its own, for somebody to put weights into."""
        return deepcopy(self.template)

    def forward(self, arrays: dict[str, Tensor], x: Tensor, width: int) -> Tensor:
        """Each agent's module on its own rows, (agents, rows, width)."""
        filled = fill_rows(x)
        outputs = [self._one(arrays, filled[i], i) for i in range(len(filled))]
        features = torch.stack(outputs)[:, : x.shape[1]]
        return torch.nn.functional.pad(features, (0, width - self.layer))

    def _one(self, arrays: dict[str, Tensor], x: Tensor, agent: int) -> Tensor:
        weights = {name: arrays[f"body.{name}"][agent] for name in self.shapes}
        frames = x.view(-1, self.frames, *self.group.obs_shape)
        # functional_call puts the weights into the module for the time of the call: one module per thread.
        if not hasattr(self._own, "module"):
            self._own.module = self.fresh()
        out: Tensor = torch.func.functional_call(self._own.module, weights, (frames,))
        return out


def _import_class(path: str) -> Any:
    module_name, sign, name = path.partition(":")
    if not sign:
        raise ConfigError(f"body={path!r} should be module:Class")
    try:
        return getattr(import_module(module_name), name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ConfigError(f"body={path!r} cannot be imported: {error}") from None
