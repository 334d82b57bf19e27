"""A user's own module as the first part of a network."""

from __future__ import annotations

import math
import threading
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from remuda.core import rng, session
from remuda.core.errors import ConfigError
from remuda.core.game import Group
from remuda.games.registry import user_module
from remuda.learners.stack import (
    LEAST_ROWS,
    fill_rows,
)

if TYPE_CHECKING:
    from remuda.learners.iqn.options import IQNOptions

UNFIT = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)


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
    if session.is_session_name(path):
        if (body := session.find(path)) is None:
            raise ConfigError(f"body={path!r} was defined in another Python session: put it into a file, module:Class")
        return body
    module_name, sign, name = path.partition(":")
    if not sign:
        raise ConfigError(f"body={path!r} should be module:Class")
    try:
        return getattr(user_module(module_name), name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ConfigError(f"body={path!r} cannot be imported: {error}") from None
