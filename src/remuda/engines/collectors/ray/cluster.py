"""The Ray cluster: one that exists, or one of our own on this machine."""

from __future__ import annotations

import importlib
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from remuda.core.errors import ConfigError, first_line
from remuda.core.machine import cores, process_tree
from remuda.core.plan import Plan

LOOPBACK = "127.0.0.1"
CONNECT_S = 10.0
"""Longest a cluster may take to answer at all."""
CLEANUP_PROGRAM = """
import os, shutil, signal, sys
from contextlib import suppress
family = []
for pid in sys.argv[2:]:
    with suppress(OSError):
        family.append(os.pidfd_open(int(pid)))
sys.stdin.read()
for process in family:
    with suppress(OSError):
        signal.pidfd_send_signal(process, signal.SIGKILL)
shutil.rmtree(sys.argv[1], ignore_errors=True)
"""
"""A program that only waits for us to be gone: some processes of Ray would live on for a minute."""
WATCH = "watch"
"""The thread of an actor that answers while it plays."""
QUIETLY = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nobody is told
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # what it does from now on, and warns about
}
"""Environment variables for Ray, where nobody has set them."""


class Cluster:
    """The Ray we work with: one that exists, or one of our own on this machine that ends with us."""

    def __init__(self, ray: Any, plan: Plan, store_bytes: int) -> None:
        self._ray, self.plan = ray, plan
        self.address = plan.address or "this process's"
        self.ours = False
        self._joined = not ray.is_initialized()
        self._folder: Path | None = None
        self._warden: subprocess.Popen[bytes] | None = None
        self.each = {"CPU": plan.actor_cpus, "GPU": plan.actor_gpus, **plan.actor_resources}
        self.each = {name: amount for name, amount in self.each.items() if amount}
        for name, value in QUIETLY.items():
            os.environ.setdefault(name, value)
        with _own_signals():
            if plan.address:
                self._join()
            elif self._joined:
                self._begin(store_bytes)

    def _join(self) -> None:
        """A cluster that exists; Ray itself would try for minutes where nobody listens, and then end the process."""
        try:
            if self.address != "auto":
                host, _, port = self.address.rpartition(":")
                if not host or not port.isdigit():
                    raise ValueError("an address is HOST:PORT, or auto")
                socket.create_connection((host, int(port)), CONNECT_S).close()
            if not self._joined:
                raise ValueError("this process has joined another one")
            self._ray.init(address=self.address, log_to_driver=False, logging_level="ERROR")
        except (OSError, ValueError, RuntimeError, OverflowError) as error:
            raise ConfigError(
                f"address={self.address}: no Ray cluster answers there ({first_line(error)}); start one with "
                "`ray start --head`, or leave address out"
            ) from None

    def _begin(self, store_bytes: int) -> None:
        """Reachable from this machine only, without a dashboard, its files in a folder that goes with it."""
        workers = self.plan.n_workers or cores()
        self._folder = Path(tempfile.mkdtemp(prefix="remuda-ray-"))
        self.ours = True
        before = set(process_tree(os.getpid()))
        try:
            with _within_this_machine():
                self._ray.init(
                    address="local",
                    num_cpus=max(cores(), math.ceil(workers * self.plan.actor_cpus)),
                    resources={name: amount * workers for name, amount in self.plan.actor_resources.items()},
                    object_store_memory=store_bytes,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level="ERROR",
                    _node_ip_address=LOOPBACK,
                    _temp_dir=str(self._folder),
                )
        except Exception as error:  # Ray raises what it likes, bare exceptions among it
            raise self._refused(first_line(error)) from error
        if (address := self._ray.nodes()[0]["NodeManagerAddress"]) != LOOPBACK:
            raise self._refused(f"this version of Ray insists on listening beyond this machine ({address})")
        own = [str(pid) for pid in process_tree(os.getpid()) if pid not in before]
        self._warden = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", CLEANUP_PROGRAM, str(self._folder), *own],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def _refused(self, why: str) -> ConfigError:
        """The error, with nothing left behind."""
        self.close()
        return ConfigError(
            f"engine=ray: no cluster could be started here: {why}; "
            "start one with `ray start --head` and give its address, or use engine=executor"
        )

    def add_worker(self, kind: type, *args: Any) -> Any:
        """An actor of this kind on any node with room for it, the nodes taking turns."""
        return self._ray.remote(concurrency_groups={WATCH: 1})(kind).options(
            num_cpus=self.plan.actor_cpus,
            num_gpus=self.plan.actor_gpus,
            resources=self.plan.actor_resources,
            scheduling_strategy="SPREAD",
            max_restarts=0,
        ).remote(*args)  # fmt: skip

    def has(self) -> dict[str, float]:
        """What of the things actors want there is, in all."""
        has = self._ray.cluster_resources()
        return {name: has.get(name, 0.0) for name in self.each}

    def actor_capacity(self) -> int:
        """Actors the cluster has room for, at least one."""
        return max(1, min((int(has // self.each[name]) for name, has in self.has().items()), default=cores()))

    def has_node(self, name: str) -> bool:
        """Whether a node is alive."""
        return any(node["NodeID"] == name and node["Alive"] for node in self._ray.nodes())

    def close(self) -> None:
        """Leave, and end what we began."""
        if self._joined:
            self._ray.shutdown()
        if self._warden is not None:
            self._warden.kill()
            self._warden.communicate()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def _within_this_machine() -> Iterator[None]:
    """Have Ray do on Linux what it does elsewhere: stay on the loopback interface when it is told to."""
    constants: Any = importlib.import_module("ray._private.ray_constants")
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def _own_signals() -> Iterator[None]:
    """Ray sets a handler of its own for SIGTERM: ours stays."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def require_ray() -> Any:
    """Ray, or one sentence that says how to have it."""
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise ConfigError("engine=ray needs Ray, which is not installed here: pip install 'remuda[ray]'") from None
