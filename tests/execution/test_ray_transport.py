"""Between driver and workers on Ray: the mailbox that is full, and the head that no longer answers."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from semfocus.errors import SemfocusError
from semfocus.execution.cluster import on_ray
from semfocus.execution.cluster.ray_transport import RayTransport


def test_a_full_mailbox_keeps_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_ray, "MAX_BACKLOG", 3)
    mailbox = on_ray.Mailbox()
    assert mailbox.tell("a", [("one", None)] * 3)
    assert mailbox.tell("a", [("beat", None), ("runs", b"1")])
    mailbox.stop(["b"])
    assert not mailbox.tell("b", [("runs", b"2")])
    assert mailbox.take() == [("one", None)] * 3 + [("runs", b"1"), ("runs", b"2")]
    assert mailbox.take() == []


def test_runs_beyond_what_a_mailbox_holds_stay_with_their_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that waits for an answer to its question, or is slow, must not fill the memory of its machine."""
    monkeypatch.setattr(on_ray, "MAX_BYTES", 10)
    mailbox = on_ray.Mailbox()
    assert mailbox.tell("a", [("runs", b"x" * 11)]), "one is always taken"
    with pytest.raises(RuntimeError, match="the driver does not take what is in it"):
        mailbox.tell("b", [("runs", b"y")])
    assert mailbox.tell("b", [("beat", None)])
    assert mailbox.take() == [("runs", b"x" * 11), ("beat", None)]
    assert mailbox.tell("b", [("runs", b"y")])


def test_a_head_that_does_not_answer_is_noticed_while_nothing_waits_to_be_sent() -> None:
    """Ray itself would end the driver after a minute, without a word of what to do."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    transport = object.__new__(RayTransport)
    transport.head, transport.head_seen, transport.looked_at = f"127.0.0.1:{port}", -1e9, -1e9
    transport.executor = SimpleNamespace(head_is_lost=False)  # type: ignore[assignment]
    with pytest.raises(SemfocusError, match=r"has not answered .* what workers saved is kept: start the cluster again"):
        transport.poll(0.0)
    assert transport.executor.head_is_lost
