"""The Ray cluster: one that exists, or one of our own on this machine."""

from __future__ import annotations

import importlib
import math
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from remuda.core.errors import ConfigError, first_line
from remuda.core.machine import cores, folder_for_sockets, process_tree
from remuda.core.plan import Plan
from remuda.transport.temporary import TemporaryFolder

LOOPBACK = "127.0.0.1"
SOCKET_NAME = "/remuda-ray-12345678/r/session_2030-01-01_00-00-00_000000_1234567/sockets/plasma_store"
"""What the longest of Ray's sockets is called in the folder for temporary files."""
CONNECT_LIMIT_S = 10.0
"""Longest a cluster may take to accept a connection."""
PROGRESS_GROUP = "progress"
"""The concurrency group of an actor's `progress` method: its thread answers while another one plays."""
SAVE_GROUP = "save"
"""The concurrency group of a learner that writes its snapshot while it goes on learning."""
RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # sends no statistics
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # the future default; without it Ray warns about the change
}
"""Environment variables for Ray, where the user has not set them."""


class Cluster:
    """The Ray cluster that a run uses: one that exists, or one of our own on this machine that ends with us."""

    def __init__(self, ray: Any, plan: Plan, store_bytes: int, learning_agents: int = 0) -> None:
        """Joins the cluster at `plan.address`, else uses the one this process has joined, else starts one."""
        self._agents = learning_agents
        self._learners: int | None = None  # decided once: they do not move when nodes join
        self._bundles: Any = None  # the placement group of the learners
        self._ray, self.plan = ray, plan
        self.address = plan.address or "this process's"
        self.ours = False  # whether we started it
        self._joined = not ray.is_initialized()  # whether we have to leave it
        self._folder: TemporaryFolder | None = None
        wanted = {"CPU": plan.actor_cpus, "GPU": plan.actor_gpus, **plan.actor_resources}
        self.resources_per_actor = {name: amount for name, amount in wanted.items() if amount}
        claims = {"CPU": plan.learner_cpus, "GPU": plan.learner_gpus}
        self.resources_per_learner = {name: amount for name, amount in claims.items() if amount}
        for name, value in RAY_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        with _keep_signal_handlers():
            if plan.address:
                self._join()
            elif self._joined:
                self._start(store_bytes)

    def _join(self) -> None:
        """Join a cluster that exists.

        The address is tried first: where nothing listens, Ray itself tries for minutes and then ends the process.
        """
        try:
            if self.address != "auto":
                host, _, port = self.address.rpartition(":")
                if not host or not port.isdigit():
                    raise ValueError("an address is HOST:PORT, or auto")
                socket.create_connection((host, int(port)), CONNECT_LIMIT_S).close()
            if not self._joined:
                raise ValueError("this process has joined another one")
            self._ray.init(address=self.address, log_to_driver=False, logging_level="ERROR")
        except (OSError, ValueError, RuntimeError, OverflowError) as error:
            raise ConfigError(
                f"address={self.address}: no Ray cluster answers there ({first_line(error)}); start one with "
                "`ray start --head`, or leave address out"
            ) from None

    def _start(self, store_bytes: int) -> None:
        """Start a cluster: reachable from this machine only, without a dashboard, its files in a temporary folder."""
        self.ours = True
        workers = self.plan.n_workers or cores()
        cpus = workers * self.plan.actor_cpus + self.learner_count() * self.plan.learner_cpus
        self._folder = TemporaryFolder("remuda-ray-", folder_for_sockets(SOCKET_NAME))
        before = set(process_tree(os.getpid()))
        try:
            with _loopback_only():
                self._ray.init(
                    address="local",
                    num_cpus=max(cores(), math.ceil(cpus)),
                    resources={name: amount * workers for name, amount in self.plan.actor_resources.items()},
                    object_store_memory=store_bytes,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level="ERROR",
                    _node_ip_address=LOOPBACK,
                    _temp_dir=str(self._folder.path / "r"),  # Ray opens it to everybody; nobody gets through ours
                )
        except Exception as error:  # Ray raises many types here, bare Exception among them
            raise self._start_error(first_line(error)) from error
        if (address := self._ray.nodes()[0]["NodeManagerAddress"]) != LOOPBACK:
            raise self._start_error(f"this version of Ray insists on listening beyond this machine ({address})")
        self._folder.kill_with_us(pid for pid in process_tree(os.getpid()) if pid not in before)

    def _start_error(self, reason: str) -> ConfigError:
        """The error to raise; what was started is ended first."""
        self.close()
        return ConfigError(
            f"Ray: no cluster could be started here: {reason}; "
            "start one with `ray start --head` and give its address, or do without Ray"
        )

    def start_actor(self, kind: type, *args: Any) -> Any:
        """Start an actor of this kind on any node with the resources for it; nodes are used evenly.

        Ray must not restart it by itself (`max_restarts`): whoever started it learns of its end, takes its tasks back,
        and starts another one.
        """
        return self._ray.remote(concurrency_groups={PROGRESS_GROUP: 1})(kind).options(
            num_cpus=self.plan.actor_cpus,
            num_gpus=self.plan.actor_gpus,
            resources=self.plan.actor_resources,
            scheduling_strategy="SPREAD",
            max_restarts=0,
        ).remote(*args)  # fmt: skip

    def learner_count(self) -> int:
        """Learner actors: as many as the plan says, or their share of the cluster; never more than agents."""
        if self._learners is None:
            self._learners = self._count_learners()
        return self._learners

    def _count_learners(self) -> int:
        asked = self.plan.n_learners
        if asked is None or not self._agents:
            return 0
        if isinstance(asked, int):
            return min(asked, self._agents)
        # A cluster of our own offers as many places as we ask for, so the cores of this machine decide.
        total = _resources_here() if self.ours else self._ray.cluster_resources()
        shares = {"CPU": learner_share(total.get("CPU", 0.0)), "GPU": total.get("GPU", 0.0)}
        counts = [int(shares[name] // amount) for name, amount in self.resources_per_learner.items()]
        return max(1, min([self._agents, *counts]))

    def reserve(self, learners: int) -> None:
        """Reserve a place for every learner, spread over the nodes. Ray moves those of a node that dies elsewhere."""
        if self.resources_per_learner:
            group = importlib.import_module("ray.util.placement_group")
            self._bundles = group.placement_group([self.resources_per_learner] * learners, strategy="SPREAD")

    def has_places(self) -> bool:
        """Whether every learner has a place; not while Ray looks for another one after a node died."""
        group = importlib.import_module("ray.util.placement_group")
        return self._bundles is None or group.placement_group_table(self._bundles)["state"] == "CREATED"

    def start_learner(self, kind: type, index: int, *args: Any) -> Any:
        """Start an actor in place `index`."""
        strategy: Any = "SPREAD"
        if self._bundles is not None:
            strategies = importlib.import_module("ray.util.scheduling_strategies")
            strategy = strategies.PlacementGroupSchedulingStrategy(self._bundles, placement_group_bundle_index=index)
        return self._ray.remote(concurrency_groups={PROGRESS_GROUP: 1, SAVE_GROUP: 1})(kind).options(
            num_cpus=self.plan.learner_cpus,
            num_gpus=self.plan.learner_gpus,
            scheduling_strategy=strategy,
            max_restarts=0,
        ).remote(*args)  # fmt: skip

    def node_names(self) -> dict[str, str]:
        """The address of every node, by its id."""
        return {entry["NodeID"]: entry["NodeManagerAddress"] for entry in self._ray.nodes()}

    def resources(self) -> dict[str, float]:
        """The cluster's total of each resource that actors need."""
        total = self._ray.cluster_resources()
        return {name: total.get(name, 0.0) for name in self.resources_per_actor}

    def actor_capacity(self) -> int:
        """Actors that the cluster has resources for beside the learners, at least one."""
        learners = self.learner_count()
        taken = {name: amount * learners for name, amount in self.resources_per_learner.items()}
        counts = (
            int((total - taken.get(name, 0.0)) // self.resources_per_actor[name])
            for name, total in self.resources().items()
        )
        return max(1, min(counts, default=cores()))

    def is_node_alive(self, node: str) -> bool:
        """Whether Ray counts a node as alive."""
        return any(entry["NodeID"] == node and entry["Alive"] for entry in self._ray.nodes())

    def close(self) -> None:
        """Leave the cluster, and end it if we started it."""
        if self._bundles is not None:
            with suppress(Exception):  # Ray raises many types where the cluster is gone
                importlib.import_module("ray.util.placement_group").remove_placement_group(self._bundles)
        if self._joined:
            self._ray.shutdown()
        if self._folder is not None:
            self._folder.close()


def _resources_here() -> dict[str, float]:
    return {"CPU": float(cores()), "GPU": float(importlib.import_module("torch").cuda.device_count())}


def learner_share(cpus: float) -> float:
    """Of so many cores, those for learners: learning takes 70 to 80 % of the time of the shipped games."""
    return cpus * 2 / 3


@contextmanager
def _loopback_only() -> Iterator[None]:
    """Have Ray use the loopback address as this machine's address.

    On macOS and Windows that is its default. On Linux it takes the address that other machines see, and listens there,
    unless this constant is False.
    """
    constants: Any = importlib.import_module("ray._private.ray_constants")
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def _keep_signal_handlers() -> Iterator[None]:
    """Keep our handler of SIGTERM: `ray.init` installs its own, which would end the run without saving."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def require_ray() -> Any:
    """The module `ray`, or an error that says how to install it."""
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise ConfigError("Ray is needed for this, and is not installed here: pip install 'remuda-rl[ray]'") from None
