"""What is asked of a user's torch module before it is used: that it keeps no state, and takes its input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from remuda.core.errors import ConfigError, message_of

STATEFUL_MODULES = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd, nn.RReLU)
"""Modules that keep statistics or draw from torch's global generator: results would depend on the other agents."""


def refuse_state(module: nn.Module, owner: str) -> None:
    """Raise ConfigError if there is a stateful module in it; `owner` is what the message calls it."""
    for part in module.modules():
        if isinstance(part, STATEFUL_MODULES):
            raise ConfigError(
                f"{owner} contains {type(part).__name__}, which keeps state or draws random numbers of its own: "
                "agents would depend on each other; use LayerNorm, or leave it out"
            )


def try_input(function: Callable[[Tensor], Any], example: Tensor, owner: str) -> Any:
    """What `function` makes of an example of an input; raises ConfigError with its shape if it raises."""
    try:
        with torch.no_grad():
            return function(example)
    except ConfigError:
        raise
    except Exception as error:  # the user's code may raise anything
        raise ConfigError(
            f"{owner} raised {type(error).__name__}: {message_of(error)}; "
            f"its input is (rows, frames, *obs_shape) = {tuple(example.shape)}"
        ) from error
