"""Model FLOPs utilisation: operations as torch counts them, over a peak that is measured once."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import remuda
from remuda.core.game import Group
from remuda.core.machine import machine
from remuda.learners.iqn.learner import IQN
from remuda.learners.iqn.options import IQNOptions
from remuda.learners.ppo.learner import PPO
from remuda.learners.ppo.options import PPOOptions
from remuda.runs import utilisation


def network(widths: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, (inputs, outputs) in enumerate(pairwise(widths)):
        layers += [nn.Tanh()] * bool(i) + [nn.Linear(inputs, outputs)]
    return nn.Sequential(*layers)


def counted(work: Any) -> int:
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def test_ppo_counts_the_operations_that_torch_counts() -> None:
    group, rows = Group("all", 1, (3, 7), "float32", 5), 40
    own = PPO.dense_flops(group, PPOOptions(layers=[12, 20], frames=2, passes=[4, 3]), agent=1)
    assert own is not None
    actor, critic, x = network([42, 12, 20, 5]), network([42, 12, 20, 1]), torch.randn(rows, 42)
    assert own.act * rows == counted(lambda: actor(x))
    gradient = counted(lambda: (actor(x).sum() + critic(x).sum()).backward())
    with torch.no_grad():
        assert own.learn_step * rows == 3 * gradient + counted(lambda: critic(x))
    assert own.learn_update == 0


class Quantiles(nn.Module):
    """IQN's network for one agent, without noise, which needs no products."""

    def __init__(self, inputs: int, layer: int, actions: int) -> None:
        super().__init__()
        self.body, self.phi = nn.Linear(inputs, layer), nn.Linear(64, layer)
        self.layer, self.head = nn.Linear(layer, layer), nn.Linear(layer, 1 + actions)

    def hidden(self, x: torch.Tensor, cosines: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layer(torch.relu(self.body(x))[:, None] * torch.relu(self.phi(cosines))))


def test_iqn_counts_the_operations_that_torch_counts() -> None:
    group, rows, q, k = Group("all", 1, (3, 7), "float32", 5), 40, 6, 4
    options = IQNOptions(layer=12, frames=2, quantiles=q, acting_quantiles=k, batch_size=rows)
    own = IQN.dense_flops(group, options, agent=0)
    assert own is not None
    net, x, fixed, drawn = Quantiles(42, 12, 5), torch.randn(rows, 42), torch.randn(k, 64), torch.randn(rows, q, 64)

    def act() -> None:
        net.head(net.hidden(x, fixed).mean(dim=1))

    def values() -> torch.Tensor:
        return net.head(net.hidden(x, drawn))

    with torch.no_grad():
        assert own.act * rows + 2 * 64 * 12 * k == counted(act)
        choices = counted(act) + counted(values)
    assert own.learn_update == choices + counted(lambda: values().sum().backward())
    assert own.learn_step == 0
    assert IQN.dense_flops(group, IQNOptions(body="gru", layer=16), agent=0) is None


def test_the_peak_is_measured_once_per_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(utilisation, "cache_base", lambda: tmp_path)
    first = utilisation.peak_flops()
    assert first > 1e8
    monkeypatch.setattr(utilisation, "_measure_peak", lambda: 1.0)
    assert utilisation.peak_flops() == first
    (tmp_path / utilisation.PEAK_FILE).write_text("not json")
    assert utilisation.peak_flops() == 1.0


def test_a_run_of_iqn_reports_it_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny: dict[str, Any]) -> None:
    monkeypatch.setattr(utilisation, "peak_flops", lambda: 1e6)
    result = remuda.train("treasurehunt", out=tmp_path / "run", quiet=True, **tiny).result
    assert min(result["mfu"].values()) > 0


def test_a_run_reports_how_much_of_the_processor_its_networks_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(utilisation, "peak_flops", lambda: 1e6)
    plan: dict[str, Any] = {
        "game": "cage2", "learner": "ppo", "layers": [8], "steps": 10, "worlds": 4, "total_episodes": 8,
        "pictures": False, "quiet": True, "device": "cpu",
    }  # fmt: skip
    result = remuda.train(out=tmp_path / "run", **plan).result
    own = PPO.dense_flops(Group("blue", 1, (52,), "uint8", 145), PPOOptions(layers=[8]), 0)
    assert own is not None
    seconds = {name: result["seconds"][name]["cpu"] for name in ("learn", "collect")}
    expected = {"learn": own.learn_step * 80 / 1e6, "collect": own.act * 80 / 1e6}
    for name, amount in expected.items():
        assert np.isclose(result["mfu"][name] * seconds[name], amount)
    assert result["mfu"]["run"] > 0


@pytest.mark.parametrize(
    "content", ["5", "[1]", "null", '{"%s": 0.0}', '{"%s": -1.0}', '{"%s": Infinity}', "[" * 10**5]
)
def test_a_damaged_file_of_peaks_is_written_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str) -> None:
    """It is read when training has ended: an error there would cost the run its result."""
    monkeypatch.setattr(utilisation, "cache_base", lambda: tmp_path)
    monkeypatch.setattr(utilisation, "_measure_peak", lambda: 3.0)
    path = tmp_path / utilisation.PEAK_FILE
    path.write_text(content.replace("%s", machine()))
    assert utilisation.peak_flops() == 3.0
    assert json.loads(path.read_text()) == {machine(): 3.0}


def test_a_cache_that_takes_no_file_costs_nothing_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(utilisation, "cache_base", lambda: tmp_path / "file")
    monkeypatch.setattr(utilisation, "_measure_peak", lambda: 3.0)
    assert utilisation.peak_flops() == 3.0
