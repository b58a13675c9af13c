"""Ctrl-C and SIGTERM interrupt a training: the trainer finishes its step, saves, and stops.

A process inherits which signals are held. One that is started within `held` hears none until it says `hear`: a signal
that comes while it imports what it needs is neither lost nor deadly.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.util import register_after_fork

from semfocus.errors import SemfocusError

STOPPING = (signal.SIGINT, signal.SIGTERM)
WORKER = "semfocus worker"  # the name of a process that says itself when it can hear


@dataclass
class Interruption:
    """The signal that was received; 0 if none was."""

    signal: int = 0


class Interrupted(SemfocusError):
    """A signal stopped training; everything up to the last step is saved."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}; saved: the same command goes on from here")
        self.exit_code = 128 + number


@contextmanager
def listening() -> Iterator[Interruption]:
    """Record signals instead of ending the process; a second Ctrl-C ends it. Only the main thread receives signals."""
    request = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def note(number: int, frame: object) -> None:
        if request.signal and number == signal.SIGINT:
            raise KeyboardInterrupt
        request.signal = number

    before = {number: signal.signal(number, note) for number in STOPPING}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def held() -> Iterator[None]:
    """Hold both signals back within the block, in this thread and in the processes that it starts."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def hear() -> None:
    """Receive both signals again, those included that came while they were held."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


def _hear_at_once(_: object) -> None:
    if multiprocessing.current_process().name != WORKER:
        hear()


# The process that forks workers holds signals for its life, and is Python's own for all processes that are forked
# from a server: those of others must hear from the start.
if signal.pthread_sigmask(signal.SIG_BLOCK, ()) >= {*STOPPING}:
    register_after_fork(Interruption, _hear_at_once)
