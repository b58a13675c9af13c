"""A watcher of training that passes each new evaluation of each run on to a tracker."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any, Protocol

from semfocus.errors import UsageError, unknown
from semfocus.integrations.trackers.backends import BACKENDS, Log, Run

MOST_OPEN = 64  # logs of runs that have ended; each may hold a file and a thread


class Progress(Protocol):
    """The part of `semfocus.training.Progress` that is read."""

    @property
    def members(self) -> Sequence[Any]: ...
    @property
    def session_steps(self) -> int: ...


Callback = Callable[[Any], None]


class TrackerFailed(UserWarning):
    """A tracker could not take what it was given; it gets nothing more, and training goes on."""


class Sink:
    """Give it to `train` as a watcher, and close it in the end. It never raises."""

    def __init__(self, name: str, start: Callable[[Run], Log]) -> None:
        self.name = name
        self._start = start
        self._logs: dict[str, Log] = {}  # open ones by run id, the least recently used first
        self._sent: dict[str, int] = {}  # the last step by run id
        self._failed = False

    def __call__(self, progress: Progress) -> None:
        """Pass on every row that was not passed on before."""
        for member in progress.members:
            known = member.last.get("step", -1)
            # The first word about a resumed run repeats the last row of the session before.
            sent = self._sent.setdefault(member.run.id, known if progress.session_steps == 0 else -1)
            if known > sent and not self._failed:
                self._guarded(lambda member=member, sent=sent: self._write(member, sent))
                self._sent[member.run.id] = known
        current = {member.run.id for member in progress.members}
        for run in [run for run in self._logs if run not in current][: max(0, len(self._logs) - MOST_OPEN)]:
            self._guarded(self._logs.pop(run).close)

    def close(self) -> None:
        """Write out and close everything."""
        while self._logs:
            self._guarded(self._logs.popitem()[1].close)

    def _write(self, member: Any, sent: int) -> None:
        run = member.run.id
        log = self._logs.pop(run, None) or self._start(_described(member, sent))
        self._logs[run] = log
        numbers = {name: value for name, value in member.last.items() if isinstance(value, (int, float))}
        log.write(member.last["step"], {name: value for name, value in numbers.items() if name != "step"})

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # of whatever kind a tracker raises: results are safe in the run directory
            self._failed = True
            text = f"{self.name} failed and gets nothing more: {type(error).__name__}: {error}"
            warnings.warn(text, TrackerFailed, stacklevel=2)


def parse_sink(text: str) -> Sink:
    """The sink that a text names: `tensorboard:DIR`, `wandb:PROJECT` or `trackio:PROJECT`."""
    kind, _, place = text.partition(":")
    if kind not in BACKENDS:
        raise unknown("tracker", kind, BACKENDS, "; write for example tensorboard:logs")
    if not place.strip():
        raise UsageError(
            f"{text!r} does not say where to: write for example {kind}:{'logs' if kind == 'tensorboard' else 'focus'}"
        )
    return Sink(kind, BACKENDS[kind](place.strip()))


@contextmanager
def watched(watcher: Callback, trackers: Sequence[str]) -> Iterator[Callback]:
    """A watcher that tells `watcher` and all these trackers, which are closed in the end."""
    sinks = [parse_sink(text) for text in trackers]

    def tell(progress: Progress) -> None:
        watcher(progress)
        for sink in sinks:
            sink(progress)

    try:
        yield tell
    finally:
        for sink in sinks:
            sink.close()


def _described(member: Any, sent: int) -> Run:
    config = member.config
    task = PurePath(config.task.name).stem
    name = f"{task}-{config.attention.mechanism}-{config.seed}-{member.run.id[:8]}"
    return Run(member.run.id, re.sub(r"[^A-Za-z0-9_.+-]", "_", name), config.model_dump(mode="json"), sent)
