"""A user's torch module for one agent, with the weights of every agent as rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from remuda.core import rng
from remuda.core.errors import ConfigError
from remuda.core.rng import Keys
from remuda.learners.stack import WeightLayout
from remuda.learners.user_modules import refuse_state, try_input

MakeModule = Callable[[], nn.Module]


class AgentModule:
    """The network of one agent as its author made it, and where its parameters are in a row of weights."""

    def __init__(self, owner: str, make: MakeModule, example: Tensor) -> None:
        """`owner` is named in error messages; `example` is an input, which lazy modules get their shapes from."""
        self.owner, self._make, self._example = owner, make, example
        self.template = self._build(np.uint64(0))
        self._thread_local = threading.local()
        self.layout = WeightLayout()
        for name, parameter in self.template.named_parameters():
            self.layout.add(name, tuple(parameter.shape), 0.0, pad=False)
        if not self.layout.entries:
            raise ConfigError(f"the network of {owner} has no parameters: there is nothing to learn")

    def _build(self, key: np.uint64) -> nn.Module:
        with rng.torch_seeded(key):
            module = self._make()
            if not isinstance(module, nn.Module):
                raise ConfigError(f"the network of {self.owner} is a {type(module).__name__}, not a torch nn.Module")
            if any(isinstance(p, nn.parameter.UninitializedParameter) for p in module.parameters()):
                self.try_input(module)
        self._check(module)
        return module

    def try_input(self, function: Callable[[Tensor], Any]) -> Any:
        """What `function` makes of an example of an input; raises ConfigError with its shape if it raises."""
        return try_input(function, self._example, f"the network of {self.owner}")

    def _check(self, module: nn.Module) -> None:
        refuse_state(module, f"the network of {self.owner}")
        odd = next((name for name, p in module.named_parameters() if p.dtype != torch.float32), None)
        if odd is not None:
            raise ConfigError(f"the network of {self.owner} has parameters {odd} that are not float32")

    def initial_rows(self, keys: Keys) -> NDArray[np.float32]:
        """Weights as the module itself draws them, one row per key, (agents, columns)."""
        return np.stack([self._flat(self._build(key)) for key in keys])

    def _flat(self, module: nn.Module) -> NDArray[np.float32]:
        flat: NDArray[np.float32] = torch.cat([p.detach().reshape(-1) for p in module.parameters()]).numpy()
        return flat

    def modules(self, count: int) -> list[nn.Module]:
        """`count` copies of the module for this thread: `functional_call` changes a module while it runs."""
        own: list[nn.Module] = self._thread_local.__dict__.setdefault("modules", [])
        own += [self.new_module() for _ in range(count - len(own))]
        return own[:count]

    def new_module(self) -> nn.Module:
        """A new instance of the module, for the caller to load weights into."""
        return deepcopy(self.template)

    def call(self, function: Callable[..., Any], rows: Sequence[Tensor], *arguments: Any) -> Any:
        """`function(*modules, *arguments)`, with one module per row of weights, (columns,), differentiable in them."""
        nets = self.modules(len(rows))
        weights = {
            f"nets.{i}.{name}": array[0]
            for i, row in enumerate(rows)
            for name, array in self.layout.arrays(row.unsqueeze(0)).items()
        }
        return torch.func.functional_call(_Caller(nets, function), weights, arguments)


class _Caller(nn.Module):
    """Calls a function with modules, so that `functional_call` can give all of them weights at once."""

    def __init__(self, nets: list[nn.Module], function: Callable[..., Any]) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nets)
        self._function = function

    def forward(self, *arguments: Any) -> Any:
        return self._function(*self.nets, *arguments)
