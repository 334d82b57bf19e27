"""Devices of networks: which slice of the herd is on which, how arrays get there, and streams of their own.

On CPU all of it does nothing. It was never run on a GPU: tests run the same code on CPU devices, on torch's `meta`
device, and with a stand-in for CUDA's streams.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

_streams = threading.local()


def acting_device(devices: str) -> str:
    """The device on which policies act: the first of a list."""
    return devices.partition(",")[0]


def device_of_agent(devices: str, agent: int, agents: int) -> str:
    """The device on which the slice that begins with this agent learns: a list is shared evenly by the herd.

    It depends on the number of the agent alone, so that every engine, at any number of slices, places it the same way.
    """
    names = devices.split(",")
    return names[agent * len(names) // agents]


def to_device(array: NDArray[Any] | Tensor, device: torch.device | str) -> Tensor:
    """An array as a tensor on a device.

    To a GPU it goes through pinned memory and the caller does not wait: what is queued on the same stream afterwards
    runs after it, and torch's allocator keeps the pinned block until the copy is done. To the CPU nothing is copied.
    """
    tensor, target = torch.as_tensor(array), torch.device(device)
    if target.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(target, non_blocking=True)
    return tensor.to(target)


@contextmanager
def own_stream(device: str) -> Iterator[None]:
    """Run on a CUDA stream of the calling thread, so that collecting and learning overlap on a GPU.

    The stream first waits for what the thread's usual stream has queued (weights that were made or loaded there), and
    the usual stream waits for it at the end, so whoever reads results there finds them complete.
    """
    target = torch.device(device)
    if target.type != "cuda":
        yield
        return
    streams = _streams.__dict__.setdefault("by_device", {})
    if device not in streams:
        streams[device] = torch.cuda.Stream(target)  # type: ignore[no-untyped-call]
    stream, usual = streams[device], torch.cuda.current_stream(target)
    stream.wait_stream(usual)
    with torch.cuda.stream(stream):
        yield
    usual.wait_stream(stream)
