"""Attempts as Ray tasks, and a mailbox beside the driver, an actor into which workers put their words.

Should the mailbox be lost, workers that find it gone save and stop, their last words are the values of their tasks,
and the next attempts get a new one.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semfocus.errors import SemfocusError
from semfocus.execution.cluster.messages import Adopted, Gone, Message, Work
from semfocus.execution.cluster.on_ray import Mailbox, attempt_task, decoded
from semfocus.execution.cluster.ray_connection import explained, first_line

if TYPE_CHECKING:
    from semfocus.execution.ray_executor import RayExecutor

SLOTS_SECONDS = 5.0  # between two looks at which machines there are
HEAD_SECONDS = 20.0  # Ray gives up after 60
ANSWER_SECONDS = 0.05  # of the mailbox, at least


class RayTransport:
    """An engine (`messages.Transport`) on Ray."""

    name = "ray"

    def __init__(self, executor: RayExecutor) -> None:
        self.executor, self.ray = executor, executor.ray
        self.mailbox = self._new_mailbox()
        self.lost_mailboxes = 0
        self.asked: Any = None  # for the words in the mailbox, without an answer so far
        self.words: list[Message | Gone] = []  # that came with an answer
        self.task = self.ray.remote(max_retries=0)(attempt_task)
        self.refs: dict[Any, str] = {}
        self.files: dict[str, Any] = {}  # data files that Ray has, by their sums
        self.avoided: set[str] = set()
        self.counted: dict[float, int] = {}  # slots by share
        self.looked_at = -SLOTS_SECONDS
        self.head = self.ray.get_runtime_context().gcs_address
        self.head_seen = time.monotonic()

    def _new_mailbox(self) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

        here = On(self.ray.get_runtime_context().get_node_id(), soft=False)
        return self.ray.remote(num_cpus=0, max_restarts=0)(Mailbox).options(scheduling_strategy=here).remote()

    def slots(self, share: float) -> int:
        self._look()
        if share not in self.counted:
            self.counted[share] = self.executor.slots(share, self.avoided)
        return self.counted[share]

    def _look(self) -> None:
        """Now and then: whether the head lives, and then which machines there are is no longer known."""
        now = time.monotonic()
        if now - self.looked_at > SLOTS_SECONDS:
            self.looked_at = now
            if self._head_answers(now):
                self.counted = {}

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
            ids = [node["NodeID"] for node in self.executor.nodes() if node["NodeID"] in self.avoided]
            if len(ids) < len(self.executor.nodes()):
                options["label_selector"] = {"ray.io/node-id": f"!in({','.join(ids)})"}
        ref = self.task.options(**options).remote(work.encode(), parcel, files, self.mailbox)
        self.refs[ref] = work.attempt

    def poll(self, seconds: float) -> list[Message | Gone]:
        self._look()  # also when nothing waits to be sent
        refs = list(self.refs)
        if refs:
            ready, _ = self.ray.wait(refs, num_returns=len(refs), timeout=0)
            if not ready:
                ready, _ = self.ray.wait(refs, timeout=seconds)
        else:
            ready = []
            time.sleep(min(seconds, 0.05))
        # What a task has said before it ended comes first, so that the mailbox is asked after a look at the tasks.
        was_asked_before = self.asked is not None
        if not self._hear(seconds) or (was_asked_before and not self._hear(seconds)):
            return []
        words, self.words = self.words, []
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

    def _hear(self, seconds: float) -> bool:
        """Ask the mailbox, or wait for its answer to an earlier question; whether one came."""
        if self.asked is None:
            self.asked = self.mailbox.take.remote()
        if not self.ray.wait([self.asked], timeout=max(seconds, ANSWER_SECONDS))[0]:
            return False
        asked, self.asked = self.asked, None
        try:
            self.words += decoded(self.ray.get(asked))
        except self.ray.exceptions.RayActorError as error:
            self.lost_mailboxes += 1
            if self.lost_mailboxes >= self.executor.options.retries:
                raise explained(error) from error
            self.mailbox = self._new_mailbox()
        return True

    def stop(self, attempts: Sequence[str]) -> None:
        self.mailbox.stop.remote(list(attempts))

    def forget(self, attempt: str) -> None:
        if self.executor.head_is_lost:
            return
        self.mailbox.stop.remote([attempt])
        for ref, known in list(self.refs.items()):
            if known == attempt:
                del self.refs[ref]
                with suppress(self.ray.exceptions.RayError):
                    self.ray.cancel(ref, force=True)

    def avoid(self, place: str) -> None:
        self.avoided.add(place)
        self.counted.clear()

    def detach(self) -> bool:
        return False

    def close(self) -> None:
        self.refs.clear()
        if not self.executor.head_is_lost:
            with suppress(Exception):  # the cluster may be gone
                self.ray.kill(self.mailbox)
