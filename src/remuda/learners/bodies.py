"""Shipped bodies: torch modules that turn the last observations of an agent into features."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn


class Cnn(nn.Module):
    """Convolutions over image-like observations, (height, width), with channels first or last; frames are channels too.

    Large images get the three layers of Mnih et al. 2015, small ones (grids) two layers of 3 × 3 filters.
    `remuda export` copies the source of this class, so it must not import remuda.
    """

    small_image = 36  # images whose shorter side is smaller get small filters that keep their size

    def __init__(self, obs_shape: tuple[int, ...], frames: int, width: int) -> None:
        super().__init__()
        if len(obs_shape) not in (2, 3):
            raise ValueError(f"observations of shape {obs_shape} are no images: give (height, width) or 3 axes")
        self.channels_last = len(obs_shape) == 3 and obs_shape[2] <= obs_shape[0]
        height, wide = obs_shape[:2] if self.channels_last or len(obs_shape) == 2 else obs_shape[1:]
        channels = frames * math.prod(obs_shape) // (height * wide)
        if min(height, wide) < self.small_image:
            layers = [nn.Conv2d(channels, 16, 3, padding=1), nn.Conv2d(16, 32, 3, stride=2, padding=1)]
        else:
            layers = [nn.Conv2d(channels, 32, 8, stride=4), nn.Conv2d(32, 64, 4, stride=2), nn.Conv2d(64, 64, 3)]
        self.layers = nn.ModuleList(layers)
        with torch.no_grad():
            size = self._convolve(torch.zeros(1, channels, height, wide)).shape[1]
        self.last = nn.Linear(size, width)

    def _convolve(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x.flatten(1)

    def forward(self, frames: Tensor) -> Tensor:
        """(rows, frames, *obs) → (rows, width)."""
        if frames.ndim == 5:
            images = frames.movedim(4, 2) if self.channels_last else frames
            images = images.flatten(1, 2)  # frames and channels together
        else:
            images = frames
        return torch.relu(self.last(self._convolve(images)))


SHIPPED_BODIES: dict[str, Callable[..., nn.Module]] = {"cnn": Cnn}
