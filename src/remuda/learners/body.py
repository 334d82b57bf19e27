"""A torch module, the user's own or a shipped one, as the first part of a network."""

from __future__ import annotations

import math
import threading
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from remuda.core import rng, session
from remuda.core.code_names import load_code
from remuda.core.errors import ConfigError, message_of
from remuda.core.game import Group
from remuda.learners.bodies import SHIPPED_BODIES
from remuda.learners.recurrent import CELLS
from remuda.learners.stack import MIN_ROWS, pad_rows
from remuda.learners.user_modules import refuse_state, try_input

DEFAULT_BODY = "mlp"
"""The name of the network that a learner has without a body."""
NAMES = (DEFAULT_BODY, *SHIPPED_BODIES, *CELLS)
"""Values of the option `body` that are not names of code."""


class Body:
    """A user's module in place of the first layer, with its own weights for each agent.

    The user's class is called with obs_shape, frames and width. It then maps (rows, frames, *obs) to (rows, width).
    The module runs once per agent on that agent's rows: any module works, and agents cannot mix.
    """

    def __init__(self, path: str, group: Group, frames: int, width: int) -> None:
        self.path = path
        self.group = group
        self.frames = frames
        self.width = width
        self.factory = SHIPPED_BODIES[path] if path in SHIPPED_BODIES else _import_class(path)
        self.template = self._build(np.uint64(0))
        self._thread_local = threading.local()
        self.shapes = {name: tuple(p.shape) for name, p in self.template.named_parameters()}
        self.size = sum(math.prod(shape) for shape in self.shapes.values())
        self._check_output()

    def _build(self, key: np.uint64) -> nn.Module:
        with rng.torch_seeded(key):
            try:
                module = self.factory(obs_shape=self.group.obs_shape, frames=self.frames, width=self.width)
            except Exception as error:  # the user's code may raise anything
                raise ConfigError(
                    f"body={self.path!r} raised {type(error).__name__}: {message_of(error)}; it was called with "
                    f"obs_shape={self.group.obs_shape}, frames={self.frames}, width={self.width}"
                ) from error
            if isinstance(module, nn.Module) and any(map(nn.parameter.is_lazy, module.parameters())):
                self._call(module)  # lazy modules get their shapes, and draw their weights, now
        if not isinstance(module, nn.Module):
            raise ConfigError(f"body={self.path!r} made a {type(module).__name__}, not a torch nn.Module")
        refuse_state(module, f"body={self.path!r}")
        return module

    def _call(self, module: nn.Module) -> Any:
        """What the module makes of zeros."""
        return try_input(module, torch.zeros((MIN_ROWS, self.frames, *self.group.obs_shape)), f"body={self.path!r}")

    def _check_output(self) -> None:
        found = self._call(self.template)
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        if shape != (MIN_ROWS, self.width):
            given = (MIN_ROWS, self.frames, *self.group.obs_shape)
            raise ConfigError(f"body={self.path!r} maps {given} to {shape}; it should give {(MIN_ROWS, self.width)}")

    def initial_weights(self, key: np.uint64) -> NDArray[np.float32]:
        """Initial weights of one agent as the module itself draws them, flat."""
        parameters = [p.detach().reshape(-1) for p in self._build(key).parameters()]
        flat: NDArray[np.float32] = torch.cat(parameters).float().numpy()
        return flat

    def new_module(self) -> nn.Module:
        """A new instance of the module, for the caller to load weights into."""
        return deepcopy(self.template)

    def forward(self, arrays: dict[str, Tensor], x: Tensor, width: int) -> Tensor:
        """Run each agent's module on its own rows: x (agents, rows, frames * obs) → (agents, rows, width)."""
        padded_x = pad_rows(x)
        outputs = [self._forward_agent(arrays, padded_x[i], i) for i in range(len(padded_x))]
        features = torch.stack(outputs)[:, : x.shape[1]]
        return torch.nn.functional.pad(features, (0, width - self.width))

    def _forward_agent(self, arrays: dict[str, Tensor], x: Tensor, agent: int) -> Tensor:
        weights = {name: arrays[f"body.{name}"][agent] for name in self.shapes}
        frames = x.view(-1, self.frames, *self.group.obs_shape)
        # functional_call changes the module during the call, so threads must not share one.
        if not hasattr(self._thread_local, "module"):
            self._thread_local.module = self.new_module()
        out: Tensor = torch.func.functional_call(self._thread_local.module, weights, (frames,))
        return out


def _import_class(path: str) -> Any:
    if session.is_session_name(path):
        if (body := session.find(path)) is None:
            raise ConfigError(f"body={path!r} was defined in another Python session: put it into a file, module:Class")
        return body
    if ":" not in path:
        raise ConfigError(f"body={path!r} should be {', '.join(NAMES)}, or module:Class")
    found = load_code(path, f"body={path!r}")
    if isinstance(found, type) and not issubclass(found, nn.Module):
        raise ConfigError(f"body={path!r} is a class, but not of torch modules: derive it from nn.Module")
    return found


def own_body(path: str | None) -> bool:
    """Whether a value of the option `body` names a module: not the default network, not a recurrent cell."""
    return path is not None and path not in CELLS and path != DEFAULT_BODY
