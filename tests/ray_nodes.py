"""Ray for tests: one of this process, and a cluster of several nodes on this machine, a program and its handle."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

NODES = 3


@contextmanager
def ray_of_this_process() -> Iterator[None]:
    """A Ray with one node, which runs without an address use instead of starting and ending one each."""
    from remuda.engines.collectors.ray.cluster import Cluster, require_ray
    from remuda.runs.settings import make_plan

    cluster = Cluster(require_ray(), make_plan({"game": "treasurehunt", "n_workers": 8}), 256 << 20)
    yield
    cluster.close()


class RayNodes:
    """Three nodes with room for so many actors each, in processes of their own."""

    def __init__(self, cpus: int = 1) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(cpus)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.address = self._answer()

    def _answer(self) -> str:
        assert self.process.stdout is not None
        answer = self.process.stdout.readline().strip()
        assert answer, "the cluster ended"
        return answer

    def tell(self, word: str) -> str:
        """`add`, `remove NODE` or `remove any`; which node that was."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return self._answer()

    def end(self) -> None:
        self.process.communicate()


def main(cpus: int) -> None:
    """Print the address, then `add` a node or `remove` one as if its machine had failed, until the input ends.

    Nobody plays on the head, to which a driver on this machine belongs: every actor's node can be removed.
    """
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(NODES):
        cluster.add_node(num_cpus=cpus)
    print(cluster.address, flush=True)
    for line in sys.stdin:
        match line.split():
            case ["add"]:
                node = cluster.add_node(num_cpus=cpus)
            case ["remove", name]:
                node = next(node for node in cluster.worker_nodes if name in (node.node_id, "any"))
                cluster.remove_node(node, allow_graceful=False)
        print(node.node_id, flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
