"""Three hosts on this machine: network namespaces joined by veth pairs and a bridge, with a Ray node on each."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

HOSTS = 3
NETWORK = "10.213.77"
PORT = 6379
START_LIMIT_S = 300.0
NODE = Path(__file__).parents[3] / "examples" / "cluster" / "ray-node.sh"
STORE = ("--object-store-memory", str(128 << 20))


def why_not() -> str:
    """Why hosts cannot be made here; empty if they can."""
    try:
        name = f"remuda{os.getpid()}"
        ip("netns", "add", name)
        ip("netns", "del", name)
    except (OSError, subprocess.CalledProcessError) as error:
        detail = getattr(error, "stderr", "") or str(error)
        return f"network namespaces are not allowed here ({detail.strip()})"
    return ""


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


class Hosts:
    """The first is Ray's head, without room for actors; each of the others has room for `cpus` of them."""

    def __init__(self, folder: Path, cpus: int) -> None:
        self._mark = f"r{os.getpid() % 100000}"
        self.names = [f"{self._mark}h{number}" for number in range(HOSTS)]
        self.processes: list[subprocess.Popen[bytes]] = []
        self._log = (folder / "ray.log").open("wb")
        self._switch = f"{self._mark}s"
        self._folder = tempfile.mkdtemp(prefix="ray-")  # of a short name: the paths of sockets have 107 bytes at most
        # Every node and the driver need the same token, as on real machines; Ray refuses whoever has another one.
        self._token = folder / "token"
        self._token.touch(mode=0o600)
        self._token.write_text(secrets.token_hex(32))
        try:
            self._join()
            self._start(folder, cpus)
        except BaseException:
            self.end()
            raise

    @staticmethod
    def address(host: int) -> str:
        return f"{NETWORK}.{host + 1}"

    def _join(self) -> None:
        """One link per host, all to a bridge in a namespace of its own, so that this machine's network is not in it."""
        ip("netns", "add", self._switch)
        ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", self._switch, "link", "set", "bridge", "up")
        for host, name in enumerate(self.names):
            ip("netns", "add", name)
            ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", f"port{host}", "netns", self._switch)
            ip("-n", self._switch, "link", "set", f"port{host}", "master", "bridge", "up")
            ip("-n", name, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "eth0", "up")

    def _start(self, folder: Path, cpus: int) -> None:
        self._node(0, "head", self.address(0), "--temp-dir", self._folder)
        self._wait_for_nodes(folder / "ray.log", 1)
        for host in range(1, HOSTS):
            self._node(host, "worker", self.address(host), self.address(0), "--num-cpus", str(cpus))
        self._wait_for_nodes(folder / "ray.log", HOSTS)

    @staticmethod
    def _wait_for_nodes(log: Path, count: int) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while log.read_text().count("Ray runtime started.") < count:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.5)

    def _node(self, host: int, *words: str) -> None:
        """The script that the documentation names."""
        self.processes.append(self.run(host, ["bash", str(NODE), *words, *STORE], self._log))

    def run(self, host: int, command: Sequence[str], out: object = None) -> subprocess.Popen[bytes]:
        """Start a program on a host."""
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self._token)}
        environment = {**os.environ, **token, "REMUDA_VENV": str(Path(sys.executable).parents[1])}
        return subprocess.Popen(
            ["ip", "netns", "exec", self.names[host], *command],
            env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
        )  # type: ignore[call-overload,no-any-return]  # fmt: skip

    def traffic(self, host: int) -> int:
        """Bytes that a host's link carried, both ways."""
        folder = "/sys/class/net/eth0/statistics"
        words = ["ip", "netns", "exec", self.names[host], "cat", f"{folder}/rx_bytes", f"{folder}/tx_bytes"]
        return sum(map(int, subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()))

    def link(self, host: int, state: str) -> None:
        """`up` or `down`."""
        ip("-n", self.names[host], "link", "set", "eth0", state)

    def end(self) -> None:
        """End every process on the hosts, then the hosts."""
        for name in (*self.names, self._switch):
            listed = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False).stdout
            for pid in sorted(map(int, listed.split())):
                try:
                    os.kill(pid, 9)
                except ProcessLookupError:
                    continue
        for process in self.processes:
            process.wait()
        for name in (*self.names, self._switch):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._log.close()
