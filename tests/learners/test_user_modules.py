"""Torch modules of one's own, as bodies and as networks of learners: what is refused, and in which words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import remuda
from dqn import DQN
from remuda.core.errors import ConfigError

SMALL: dict[str, Any] = {"turns": 6, "worlds": 2, "total_episodes": 2, "quiet": True, "pictures": False}
REFUSED: dict[str, Callable[[], nn.Module]] = {
    "BatchNorm1d": nn.LazyBatchNorm1d, "Dropout": nn.Dropout, "RReLU": nn.RReLU,
}  # fmt: skip


class Plain(nn.Module):
    """A lazy layer, and behind it what a subclass adds."""

    last: Callable[[], nn.Module] = nn.ReLU

    def __init__(self, obs_shape: tuple[int, ...], frames: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.LazyLinear(width), self.last())

    def forward(self, frames: Any) -> Any:
        return self.layers(frames)


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("learner", ["iqn", "ppo"])
def test_a_body_with_a_state_of_its_own_is_refused(tmp_path: Path, learner: str, name: str) -> None:
    body = type("Stateful", (Plain,), {"last": staticmethod(REFUSED[name])})
    with pytest.raises(
        ConfigError, match=rf"^body='session:Stateful-.*' contains {name}, which keeps state .*LayerNorm"
    ):
        remuda.train("treasurehunt", out=tmp_path / "run", learner=learner, body=body, **SMALL)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", REFUSED)
def test_a_learner_with_such_a_network_is_refused(tmp_path: Path, name: str) -> None:
    class Own(DQN):
        """The network of the example, and something behind its first layer."""

        @staticmethod
        def network(group: remuda.Group, options: Any) -> nn.Module:
            return nn.Sequential(nn.Flatten(), nn.LazyLinear(8), REFUSED[name](), nn.LazyLinear(group.actions))

    with pytest.raises(ConfigError, match=rf"^the network of Own contains {name}, which keeps state"):
        remuda.train("treasurehunt", out=tmp_path / "run", learner=Own, **SMALL)


def test_a_body_that_takes_other_inputs_is_told_the_shape(tmp_path: Path) -> None:
    convolution = type("Convolution", (Plain,), {"forward": lambda self, x: nn.Conv3d(3, 8, 2)(x)})
    with pytest.raises(
        ConfigError, match=r"raised RuntimeError: .*; its input is \(rows, frames, \*obs_shape\) = \(16"
    ):
        remuda.train("treasurehunt", out=tmp_path / "run", learner="ppo", body=convolution, **SMALL)
