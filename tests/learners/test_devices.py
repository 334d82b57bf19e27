"""Devices: the herd shared over a list, transfers, streams and `torch.compile`, on CPU and on torch's `meta` device.

No GPU is needed, and none was ever used: CUDA's streams are a stand-in that notes the order of calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import remuda
from remuda.core.errors import ConfigError
from remuda.core.game import Group
from remuda.engines.choose import resolve_device
from remuda.learners import devices
from remuda.learners.devices import acting_device, device_of_agent, own_stream, to_device
from remuda.learners.herd import assign, make_learners
from remuda.learners.iqn import learner as iqn_learner
from remuda.learners.iqn import network as iqn_network
from remuda.learners.iqn.network import IQNNetwork, Noise
from remuda.learners.iqn.options import IQNOptions
from remuda.learners.ppo.network import PPONetwork
from remuda.learners.ppo.options import PPOOptions
from remuda.runs.settings import make_plan, spec_of

GROUP = Group("agents", 4, (6,), np.float32, 3)


def test_a_list_of_devices_is_shared_evenly() -> None:
    assert [device_of_agent("a,b", agent, 5) for agent in range(5)] == ["a", "a", "a", "b", "b"]
    assert [device_of_agent("a,b,c,d", agent, 2) for agent in range(2)] == ["a", "c"]
    assert device_of_agent("cpu", 3, 5) == "cpu"
    assert acting_device("cuda:1,cuda:0") == "cuda:1"


@pytest.mark.parametrize("learner", ["iqn", "ppo"])
def test_slices_learn_on_their_own_devices(learner: str) -> None:
    plan = make_plan({"game": "treasurehunt", "agents": 4, "learner": learner})
    spec = spec_of(plan)
    (part,) = assign(plan, spec)
    learners = make_learners(part, plan, spec, "cpu,meta", 4)
    assert [own.context.device for own in learners] == ["cpu", "cpu", "meta", "meta"]
    assert [own.weights.device.type for own in learners] == ["cpu", "cpu", "meta", "meta"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("engine", ["vectorized", "actor-learner"])
def test_a_herd_on_a_list_of_devices_learns(trained: Any, train: Any, engine: str) -> None:
    run = train(engine=engine, device="cpu,cpu", deterministic=engine == "vectorized")
    assert run.result["finished"]
    if engine == "vectorized":
        assert run.result["weights_sha256"] == trained(engine="vectorized").result["weights_sha256"]


def test_devices_that_are_not_there_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="device=cpu,cuda:1: torch sees no CUDA device here"):
        resolve_device("cpu,cuda:1")
    assert resolve_device("auto") == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("cuda:0,cuda:1") == "cuda:0,cuda:1"
    with pytest.raises(ConfigError, match="torch sees only 2 CUDA devices here"):
        resolve_device("cuda:2")
    with pytest.raises(ConfigError, match=r"device='tpu,cpu'.* should be auto, cpu, cuda"):
        make_plan({"game": "treasurehunt", "device": "tpu,cpu"})


def test_arrays_stay_where_they_are_on_cpu() -> None:
    array = np.arange(6, dtype=np.float32)
    assert to_device(array, "cpu").data_ptr() == array.ctypes.data
    assert to_device(array, "meta").shape == (6,)


class _Pinned:
    """Stands for a tensor of the CPU, and notes what is done with it."""

    device = torch.device("cpu")

    def __init__(self, calls: list[Any]) -> None:
        self.calls = calls

    def pin_memory(self) -> _Pinned:
        self.calls.append("pin")
        return self

    def to(self, device: torch.device, non_blocking: bool = False) -> _Pinned:
        self.calls.append((str(device), non_blocking))
        return self


def test_arrays_go_to_a_gpu_through_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(torch, "as_tensor", lambda array: _Pinned(calls))
    to_device(np.zeros(1), "cuda:1")
    assert calls == ["pin", ("cuda:1", True)]


class _Stream:
    """Stands for a CUDA stream."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self.name, self.calls = name, calls

    def wait_stream(self, other: _Stream) -> None:
        self.calls.append(f"{self.name} waits for {other.name}")


def test_a_stream_of_its_own_starts_and_ends_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    made: list[_Stream] = []

    def make(device: torch.device) -> _Stream:
        made.append(_Stream("own", calls))
        return made[-1]

    @contextmanager
    def use(stream: _Stream) -> Iterator[None]:
        calls.append(f"enter {stream.name}")
        yield
        calls.append(f"leave {stream.name}")

    monkeypatch.setattr(torch.cuda, "Stream", make)
    monkeypatch.setattr(torch.cuda, "stream", use)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: _Stream("usual", calls))
    monkeypatch.setattr(devices, "_streams", type(devices._streams)())
    for _ in range(2):
        with own_stream("cuda:0"):
            calls.append("work")
    order = ["own waits for usual", "enter own", "work", "leave own", "usual waits for own"]
    assert calls == [*order, *order]
    assert len(made) == 1, "a thread keeps its stream"
    with own_stream("cpu"):
        pass
    assert len(made) == 1


def test_the_networks_of_iqn_compute_on_another_device() -> None:
    """On `meta`, torch refuses tensors that were left on the CPU."""
    network = IQNNetwork(GROUP, IQNOptions(layer=16, frames=2), "fp32", "meta")
    arrays = network.layout.arrays(torch.zeros((2, network.layout.size), device="meta"))
    features = network.features(arrays, torch.zeros((2, 8, network.inputs), device="meta"))
    taus = torch.zeros((2, 8 * 4), device="meta")
    noise = Noise.draw(np.zeros(2, np.uint64), 0, network, torch.device("meta"))
    assert network.quantiles(arrays, features, taus, noise).shape == (2, 8, 4, 3)
    assert network.mean_advantages(network.for_acting(arrays), features).shape == (2, 8, 3)


def test_the_networks_of_ppo_compute_on_another_device() -> None:
    network = PPONetwork(GROUP, PPOOptions(layers=[16]), "fp32", "meta")
    arrays = network.layout.arrays(torch.zeros((2, network.layout.size), device="meta"))
    x = torch.zeros((2, 8, network.inputs), device="meta")
    assert network.forward(arrays, "actor", x.clone()).device.type == "meta"
    assert network.forward(arrays, "critic", x.clone()).shape[:2] == (2, 8)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's own, while it traces
def test_compiled_passes_learn_the_same(tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """With a backend that only traces, so that the graph is torch.compile's and the arithmetic is not."""
    monkeypatch.setattr(iqn_network, "COMPILER", "eager")
    monkeypatch.setattr(iqn_learner, "can_be_compiled", lambda network: False)  # by our own kernels
    runs = [
        remuda.train("treasurehunt", out=tmp_path / str(compiled), quiet=True, engine="vectorized", n_workers=1,
                     compile=compiled, **tiny)
        for compiled in (False, True)
    ]  # fmt: skip
    plain, compiled = (run.result for run in runs)
    assert compiled["finished"]
    assert plain["weights_sha256"] == compiled["weights_sha256"]
