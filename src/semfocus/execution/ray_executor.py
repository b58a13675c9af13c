"""Cohorts on a Ray cluster: `--executor ray` starts one on this machine, `--executor ray:HOST:PORT` joins another.

    train(configs, executor="ray")                          a local one, which listens on this machine alone
    train(configs, executor="ray:10.0.0.1:6379,shared=no")  RAY_ADDRESS and `ray job submit` serve as well

One Ray task is one attempt at a cohort; Ray itself retries nothing. Workers talk to a mailbox beside the driver, an
actor. What crosses the network is JSON and archives of runs, read as files of a stranger would be; Ray's own protocol
trusts whoever reaches it, which is why an open cluster is refused (docs/cluster.md).
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semfocus.errors import SemfocusError, UsageError
from semfocus.execution.cluster.dispatcher import Dispatcher, Settings
from semfocus.execution.cluster.messages import Adopted, Gone, Message, Work
from semfocus.execution.cluster.on_ray import Mailbox, attempt_task, decoded, sees
from semfocus.execution.cluster.options import parse_options
from semfocus.execution.cluster.ray_connection import connect, explained, first_line
from semfocus.execution.cohorts import form_cohorts
from semfocus.execution.executor import Executor, Machines, RunOutcome, outcomes_of, register_executor
from semfocus.store import RunStore, atomic
from semfocus.store.runs import CLUSTER
from semfocus.training.runtime import Runtime
from semfocus.training.session import Job
from semfocus.training.trainer import Callback

SLOTS_SECONDS = 5.0  # between two looks at which machines there are
PROBE_SECONDS = 30.0
HEAD_SECONDS = 20.0  # Ray gives up after 60
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
        nodes = [node for node in self.nodes() if node["NodeManagerHostname"] not in without]
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


class RayTransport:
    """Attempts as Ray tasks, and a mailbox."""

    name = "ray"

    def __init__(self, executor: RayExecutor) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

        self.executor, self.ray = executor, executor.ray
        here = On(self.ray.get_runtime_context().get_node_id(), soft=False)
        self.mailbox = self.ray.remote(num_cpus=0, max_restarts=0)(Mailbox).options(scheduling_strategy=here).remote()
        self.task = self.ray.remote(max_retries=0)(attempt_task)
        self.refs: dict[Any, str] = {}
        self.files: dict[str, Any] = {}  # data files that Ray has, by their sums
        self.avoided: set[str] = set()
        self.counted: dict[float, int] = {}  # slots by share
        self.counted_at = -SLOTS_SECONDS
        self.head = self.ray.get_runtime_context().gcs_address
        self.head_seen = time.monotonic()

    def slots(self, share: float) -> int:
        now = time.monotonic()
        if now - self.counted_at > SLOTS_SECONDS:
            self.counted_at = now
            if self._head_answers(now):
                self.counted = {}
        if share not in self.counted:
            self.counted[share] = self.executor.slots(share, self.avoided)
        return self.counted[share]

    def _head_answers(self, now: float) -> bool:
        """Ray would end this process, in a minute and without saying what to do."""
        host, _, port = self.head.rpartition(":")
        try:
            socket.create_connection((host, int(port)), SLOTS_SECONDS).close()
        except OSError:
            if now - self.head_seen < HEAD_SECONDS:
                return False
            self.executor.head_is_lost = True
            raise SemfocusError(
                f"the head of the Ray cluster at {self.head} has not answered for {HEAD_SECONDS:g} s; what workers "
                "saved is kept: start the cluster again, and the same command goes on from there"
            ) from None
        self.head_seen = now
        return True

    def adopt(self) -> list[Adopted]:
        return []  # Ray ends the tasks of a driver that has ended

    def submit(self, work: Work, parcel: bytes | None, share: float) -> None:
        for name, digest in work.data.items():
            if digest not in self.files:  # once for all machines; each fetches it once
                self.files[digest] = self.ray.put(Path(name).read_bytes())
        files = {name: [self.files[digest]] for name, digest in work.data.items()}
        options: dict[str, Any] = {"num_cpus": self.executor.cpus, "name": f"semfocus-{work.attempt}"}
        if self.executor.device == "cuda":
            options["num_gpus"] = share
        if self.avoided:
            ids = [node["NodeID"] for node in self.executor.nodes() if node["NodeManagerHostname"] in self.avoided]
            if len(ids) < len(self.executor.nodes()):
                options["label_selector"] = {"ray.io/node-id": f"!in({','.join(ids)})"}
        ref = self.task.options(**options).remote(work.encode(), parcel, files, self.mailbox)
        self.refs[ref] = work.attempt

    def poll(self, seconds: float) -> list[Message | Gone]:
        refs = list(self.refs)
        if refs:
            ready, _ = self.ray.wait(refs, num_returns=len(refs), timeout=0)
            if not ready:
                ready, _ = self.ray.wait(refs, timeout=seconds)
        else:
            ready = []
            time.sleep(min(seconds, 0.05))
        words: list[Message | Gone] = list(decoded(self.ray.get(self.mailbox.take.remote())))
        for ref in ready:
            attempt = self.refs.pop(ref)
            try:
                words += decoded(self.ray.get(ref))
            except self.ray.exceptions.RayTaskError as error:  # an error of ours, not of a run
                raise explained(error) from error
            except self.ray.exceptions.RayError as error:
                memory = isinstance(error, self.ray.exceptions.OutOfMemoryError)
                words.append(Gone(attempt, first_line(error), out_of_memory=memory))
        return words

    def stop(self, attempts: Sequence[str]) -> None:
        self.ray.get(self.mailbox.stop.remote(list(attempts)))

    def forget(self, attempt: str) -> None:
        if self.executor.head_is_lost:
            return
        self.mailbox.stop.remote([attempt])
        for ref, known in list(self.refs.items()):
            if known == attempt:
                del self.refs[ref]
                with suppress(self.ray.exceptions.RayError):
                    self.ray.cancel(ref, force=True)

    def avoid(self, node: str) -> None:
        self.avoided.add(node)

    def detach(self) -> bool:
        return False

    def close(self) -> None:
        self.refs.clear()
        if not self.executor.head_is_lost:
            with suppress(Exception):  # the cluster may be gone
                self.ray.kill(self.mailbox)
