"""Cohorts on a Ray cluster: `--executor ray` starts one on this machine, `--executor ray:HOST:PORT` joins another.

    train(configs, executor="ray")                          a local one, which listens on this machine alone
    train(configs, executor="ray:10.0.0.1:6379,shared=no")  RAY_ADDRESS and `ray job submit` serve as well

One Ray task is one attempt at a cohort; Ray itself retries nothing (`ray_transport`). What crosses the network is JSON
and archives of runs, read as files of a stranger would be; Ray's own protocol trusts whoever reaches it, which is why
an open cluster is refused (docs/cluster.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from semfocus.errors import UsageError
from semfocus.execution.cluster.dispatcher import Dispatcher
from semfocus.execution.cluster.on_ray import sees
from semfocus.execution.cluster.options import parse_options
from semfocus.execution.cluster.packing import Settings
from semfocus.execution.cluster.ray_connection import connect, explained
from semfocus.execution.cluster.ray_transport import RayTransport
from semfocus.execution.cohorts import form_cohorts
from semfocus.execution.executor import Executor, Machines, RunOutcome, outcomes_of, register_executor
from semfocus.store import RunStore, atomic
from semfocus.store.runs import CLUSTER
from semfocus.training.progress import Callback
from semfocus.training.runtime import Runtime
from semfocus.training.session import Job

PROBE_SECONDS = 30.0
WORDS_A_SECOND = 200  # that a driver hears beside its work


@dataclass(frozen=True)
class RayOptions:
    """What may stand after `ray:`."""

    address: str = ""  # empty: RAY_ADDRESS, else a cluster of this machine alone
    shared: str = "auto"  # yes: workers write into --out, a disk of all; no: they bring runs; auto: looks
    cpus: int = 1  # of one cohort, and its threads
    workers: int = 0  # at most so many at a time; 0: as the cluster has room
    retries: int = 5
    lease: float = 60.0  # seconds


@register_executor
class RayExecutor(Executor):
    """Trains cohorts as tasks of a Ray cluster."""

    name = "ray"

    def __init__(self, runtime: Runtime, options: str = "") -> None:
        super().__init__(runtime)
        self.head_is_lost = False  # any call of Ray's would then wait until it ends this process
        self.options = parse_options(RayOptions, self.name, options)
        if self.options.shared not in ("auto", "yes", "no"):
            raise UsageError(f"--executor ray: shared = {self.options.shared!r} is not one of auto, yes, no")
        self.cpus = runtime.threads or self.options.cpus
        self.connection = connect(self.options.address, self.options.workers, self.cpus)
        self.ray = self.connection.ray
        try:
            self.device = self._device()
        except BaseException:
            self.close()
            raise

    def form_cohorts(self, jobs: Sequence[Job]) -> list[list[Job]]:
        return form_cohorts(jobs, self.runtime, self.device, self.slots())

    def slots(self, share: float = 1.0, without: Collection[str] = ()) -> int:
        """How many cohorts that need this share of a GPU find room at a time, on other machines than those."""
        nodes = [node for node in self.nodes() if node["NodeID"] not in without]
        return count_slots(nodes, self.cpus, share if self.device == "cuda" else 0.0, self.options.workers)

    def nodes(self) -> list[dict[str, Any]]:
        return [node for node in self.ray.nodes() if node["Alive"]]

    def devices(self) -> str:
        """The machines in words: `3 machines: 12 CPUs, 2 GPUs (H100)`."""
        nodes = self.nodes()
        cpus, gpus = (sum(node["Resources"].get(kind, 0) for node in nodes) for kind in ("CPU", "GPU"))
        kinds = sorted(
            {name[17:] for node in nodes for name in node["Resources"] if name.startswith("accelerator_type:")}
        )
        named = f", {gpus:g} GPUs ({', '.join(kinds) or 'of an unknown kind'})" if gpus else ", no GPU"
        return f"{len(nodes)} machine{'s' * (len(nodes) != 1)}: {cpus:g} CPUs{named}"

    def machines(self) -> Machines:
        return Machines(self.devices(), self.slots(), self.device)

    def run(self, cohorts: Sequence[Sequence[Job]], store: RunStore, on_progress: Callback) -> list[RunOutcome]:
        probe, clean_up = self._probe(store)
        settings = Settings(
            hand_back=probe is None,
            retries=self.options.retries,
            lease=self.options.lease,
            beat=min(max(1.0, self.slots() / WORDS_A_SECOND), self.options.lease / 5),
            threads=self.cpus,
            probe=probe,
            device=self.device,
        )
        transport = RayTransport(self)
        try:
            failed = Dispatcher(cohorts, store, self.runtime, transport, settings, on_progress).run()
        finally:
            transport.close()
            clean_up()
        return outcomes_of(cohorts, failed)

    def close(self) -> None:
        if not self.head_is_lost:
            self.connection.close()

    def _device(self) -> str:
        """As asked, or what the cluster has; the driver's own machine does not matter."""
        gpus = sum(node["Resources"].get("GPU", 0) for node in self.nodes())
        asked = self.runtime.device.partition(":")[0]
        if asked == "auto":
            return "cuda" if gpus else "cpu"
        if asked not in ("cpu", "cuda"):
            raise UsageError(
                f"device = {self.runtime.device!r} is not one of auto, cpu, cuda, as a Ray cluster has them"
            )
        if asked == "cuda" and not gpus:
            raise UsageError(
                f"device = {self.runtime.device!r} is not there: the cluster has {self.devices()}. Add a machine "
                "with a GPU (`ray start --address=HOST:PORT --num-gpus=1` on it), or give --device cpu"
            )
        return asked

    def _probe(self, store: RunStore) -> tuple[tuple[str, str] | None, Callable[[], None]]:
        """A file that says whether workers see the driver's disk; None when they are to bring their runs."""
        if self.options.shared == "no":
            return None, lambda: None
        path, token = store.root / CLUSTER / f"probe-{os.urandom(8).hex()}", os.urandom(16).hex()
        atomic.write_text(path, token)

        def clean_up() -> None:
            path.unlink(missing_ok=True)

        probe = str(path), token
        if self.options.shared == "yes" or self.connection.is_local or self._all_see(probe):
            return probe, clean_up
        clean_up()
        return None, lambda: None

    def _all_see(self, probe: tuple[str, str]) -> bool:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

        looking = self.ray.remote(num_cpus=0, max_retries=0)(sees)
        refs = [
            looking.options(scheduling_strategy=On(node["NodeID"], soft=False)).remote(*probe) for node in self.nodes()
        ]
        try:
            return all(self.ray.get(refs, timeout=PROBE_SECONDS))
        except self.ray.exceptions.RayError as error:
            raise explained(error) from error


def count_slots(nodes: Sequence[dict[str, Any]], cpus: int, gpu: float, most: int = 0) -> int:
    """How many tasks of this size fit onto these machines, each as a whole onto one."""
    slots = 0
    for node in nodes:
        room = node["Resources"].get("CPU", 0) // cpus
        slots += int(min(room, node["Resources"].get("GPU", 0) // gpu) if gpu else room)
    return min(slots, most) if most else slots
