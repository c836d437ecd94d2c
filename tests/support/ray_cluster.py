"""A small Ray cluster on this machine, run as a script: a head without CPUs, and raylets with one each.

It prints a line of JSON with its address, the pids of the raylets that have CPUs, and that of the head's server (GCS).
For each line on stdin it adds a raylet and prints its pid. It ends at the end of stdin.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from ray.cluster_utils import Cluster

STORE_BYTES = 200 << 20


def main() -> None:
    """Runs the cluster."""
    common: dict[str, Any] = {
        "object_store_memory": STORE_BYTES, "node_ip_address": "127.0.0.1", "include_dashboard": False,
    }  # fmt: skip
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **common})

    def add() -> int:
        return _pid(cluster.add_node(num_cpus=1, **common), "raylet")

    try:
        raylets = [add() for _ in range(int(sys.argv[1]))]
        say({"address": cluster.address, "raylets": raylets, "head": _pid(cluster.head_node, "gcs_server")})
        for _ in sys.stdin:
            say({"raylet": add()})
    finally:
        cluster.shutdown()


def _pid(node: Any, name: str) -> int:
    return int(node.all_processes[name][0].process.pid)


def say(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
