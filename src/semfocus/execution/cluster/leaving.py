"""What becomes of a study when its driver is interrupted: it is cancelled, unless whoever sits there says otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from semfocus.errors import SemfocusError


class Detached(SemfocusError):
    """The driver has left; another one goes on with the study."""


_ask: ContextVar[Callable[[], str]] = ContextVar("ask", default=lambda: "cancel")


@contextmanager
def asking(ask: Callable[[], str]) -> Iterator[None]:
    """Within the block, Ctrl-C asks: `ask()` returns cancel or detach."""
    token = _ask.set(ask)
    try:
        yield
    finally:
        _ask.reset(token)


def wants_to_detach() -> bool:
    return _ask.get()() == "detach"
