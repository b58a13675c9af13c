"""What runs inside a Ray cluster: attempts, and the mailbox beside the driver. Light to import."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semfocus.execution.cluster.messages import Message

Words = list[tuple[str, bytes | None]]  # messages: JSON, and runs
MAX_BACKLOG = 10_000  # messages that a mailbox keeps for a driver that does not take them; runs come beside them
MAX_BYTES = 2**30  # of runs; a worker keeps what finds no room, and stops when it has not been heard for its lease


class Mailbox:
    """Workers put their words into it, and learn whether they still count."""

    def __init__(self) -> None:
        self.words: Words = []
        self.size = 0  # of the runs in them, in bytes
        self.stopped: set[str] = set()

    def tell(self, attempt: str, words: Words) -> bool:
        """Whether this attempt goes on. One that does not may bring what it saves; the driver knows if it wants it."""
        if len(self.words) >= MAX_BACKLOG:
            words = [word for word in words if word[1] is not None]
        size = sum(len(parcel) for _, parcel in words if parcel is not None)
        if size and self.size and self.size + size > MAX_BYTES:
            raise RuntimeError("the mailbox is full: the driver does not take what is in it")
        self.size += size
        self.words += words
        return attempt not in self.stopped

    def take(self) -> Words:
        words, self.words, self.size = self.words, [], 0
        return words

    def stop(self, attempts: list[str]) -> None:
        self.stopped.update(attempts)


def attempt_task(work_text: str, parcel: bytes | None, files: dict[str, list[Any]], mailbox: Any) -> Words:
    """One attempt; its last words are the value of the task, without a detour."""
    import ray

    from semfocus.execution.cluster.messages import NobodyListens, Work
    from semfocus.execution.cluster.worker import Attempt

    work = Work.decode(work_text)

    def tell(messages: list[Message]) -> bool:
        try:
            return ray.get(mailbox.tell.remote(work.attempt, encoded(messages)), timeout=work.lease)
        except ray.exceptions.GetTimeoutError as error:
            raise RuntimeError(str(error)) from error
        except ray.exceptions.RayActorError as error:  # the driver is gone, or its mailbox is
            raise NobodyListens(str(error)) from error

    place = ray.get_runtime_context().get_node_id()  # several nodes may share the name of a host
    return encoded(Attempt(work, parcel, lambda name: ray.get(files[name][0]), tell, place).run())


def sees(path: str, token: str) -> bool:
    """Whether this machine has the driver's disk."""
    from semfocus.execution.cluster.shared_disk import shares_disk

    return shares_disk((path, token))


def encoded(messages: Sequence[Message]) -> Words:
    return [(json.dumps([m.attempt, m.kind, m.body]), m.parcel) for m in messages]


def decoded(words: Words) -> list[Message]:
    from semfocus.execution.cluster.messages import Message

    messages = []
    for text, parcel in words:
        attempt, kind, body = json.loads(text)
        messages.append(Message(attempt, kind, body, parcel))
    return messages
