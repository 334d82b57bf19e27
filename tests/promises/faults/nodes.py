"""A cluster of several nodes on this machine, as a program: prints its address, then does what it is told."""

from __future__ import annotations

import sys

from ray.cluster_utils import Cluster


def main() -> None:
    """`add` a node, `remove` one as if its machine had failed; the end of the input is the end of the cluster.

    Nobody plays on the head, to which a driver on this machine belongs: every actor's node can be removed.
    """
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(3):
        cluster.add_node(num_cpus=1)
    print(cluster.address, flush=True)
    for line in sys.stdin:
        match line.split():
            case ["add"]:
                node = cluster.add_node(num_cpus=1)
            case ["remove", name]:
                node = next(node for node in cluster.worker_nodes if node.node_id == name)
                cluster.remove_node(node, allow_graceful=False)
        print(node.node_id, flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
