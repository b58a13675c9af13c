"""A Ray cluster of nodes that are simulated on this machine, bound to the loopback interface, and what strikes them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from semfocus.execution.cluster import ray_access
from tests.training.helpers import runtime

QUIET = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
HEALTH = {  # sooner than Ray's own, and not so soon that a busy machine is taken for a dead one
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 3000,
    "health_check_failure_threshold": 4,
}
NODE = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "object_store_memory": 80 * 2**20}
ROOT = Path(__file__).parents[2]
OFTEN = runtime(checkpoint_seconds=0, cohort_size=1)


class Machines:
    """A head without room for work, on which the driver runs, and nodes."""

    def __init__(self) -> None:
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # loopback
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(
            initialize_head=True,
            head_node_args=NODE | {"num_cpus": 0, "include_dashboard": False, "_system_config": HEALTH},
        )
        self.nodes = [self.cluster.add_node(**NODE) for _ in range(2)]

    @property
    def executor(self) -> str:
        """Without a shared disk, as on most clusters."""
        return f"ray:{self.cluster.address},shared=no"

    def kill_workers(self) -> None:
        for node in self.nodes:
            for pid in workers_of(node):
                os.kill(pid, signal.SIGKILL)

    def replace(self, node: Any) -> None:
        """Take away what is left of a node, and add another."""
        self.cluster.remove_node(node, allow_graceful=False)
        self.nodes[self.nodes.index(node)] = self.cluster.add_node(**NODE)

    def close(self) -> None:
        import ray

        ray.shutdown()
        self.cluster.shutdown()
        ray_access.read_again()


def pids_of(node: Any) -> list[int]:
    """The raylet of a node, and every process that it started."""
    found = [node.all_processes["raylet"][0].process.pid]
    for pid in found:  # grows meanwhile
        with suppress(OSError):
            found += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return found


def workers_of(node: Any) -> list[int]:
    """The processes of a node that train just now."""
    return processes_of(node, "ray::semfocus-")


def processes_of(node: Any, name: str) -> list[int]:
    """The processes of a node that Ray has given a name that begins so."""
    pids = []
    for pid in pids_of(node):
        with suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_text().startswith(name):
                pids.append(pid)
    return pids


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)
