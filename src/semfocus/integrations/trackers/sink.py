"""A training callback that sends each new evaluation of each run to a tracker."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any, Protocol

from semfocus.errors import UsageError, unknown
from semfocus.integrations.trackers.backends import BACKENDS, Backend, Log, Run

MAX_OPEN_LOGS = 64  # each may hold a file and a thread


class Progress(Protocol):
    """The part of `semfocus.training.Progress` that a sink reads."""

    @property
    def members(self) -> Sequence[Any]: ...
    @property
    def session_steps(self) -> int: ...


Callback = Callable[[Any], None]


class TrackerFailed(UserWarning):
    """A tracker raised an error; it gets no further data, and training continues."""


class Sink:
    """A callback for `train` that never raises; close it when training ends."""

    def __init__(self, name: str, start: Callable[[Run], Log]) -> None:
        self.name = name
        self._start = start
        self._logs: dict[str, Log] = {}  # open logs by run id, least recently used first
        self._sent: dict[str, int] = {}  # last step sent, by run id
        self._failed = False

    def __call__(self, progress: Progress) -> None:
        """Send every evaluation that was not sent before."""
        for member in progress.members:
            step = member.last.get("step", -1)
            # The first progress of a resumed run repeats the last evaluation of the session before.
            sent = self._sent.setdefault(member.run.id, step if progress.session_steps == 0 else -1)
            if step > sent and not self._failed:
                self._call(lambda member=member, sent=sent: self._write(member, sent))
                self._sent[member.run.id] = step
        current = {member.run.id for member in progress.members}
        for run in [run for run in self._logs if run not in current][: max(0, len(self._logs) - MAX_OPEN_LOGS)]:
            self._call(self._logs.pop(run).close)

    def close(self) -> None:
        """Close all logs."""
        while self._logs:
            self._call(self._logs.popitem()[1].close)

    def _write(self, member: Any, sent: int) -> None:
        run = member.run.id
        log = self._logs.pop(run, None) or self._start(_describe(member, sent))
        self._logs[run] = log
        numbers = {name: value for name, value in member.last.items() if isinstance(value, (int, float))}
        log.write(member.last["step"], {name: value for name, value in numbers.items() if name != "step"})

    def _call(self, action: Callable[[], None]) -> None:
        """Call `action`; turn any error into a warning, because the results are safe in the run directory."""
        try:
            action()
        except Exception as error:
            self._failed = True
            text = f"{self.name} failed and gets nothing more: {type(error).__name__}: {error}"
            warnings.warn(text, TrackerFailed, stacklevel=2)


def parse_sink(text: str, backends: Mapping[str, Backend] = BACKENDS) -> Sink:
    """Return the sink that `tensorboard:DIR`, `wandb:PROJECT` or `trackio:PROJECT` names."""
    kind, _, destination = text.partition(":")
    if kind not in backends:
        raise unknown("tracker", kind, backends, "; write for example tensorboard:logs")
    if not destination.strip():
        raise UsageError(
            f"{text!r} does not say where to: write for example {kind}:{'logs' if kind == 'tensorboard' else 'focus'}"
        )
    return Sink(kind, backends[kind](destination.strip()))


@contextmanager
def tracking(
    callback: Callback, trackers: Sequence[str], backends: Mapping[str, Backend] = BACKENDS
) -> Iterator[Callback]:
    """Yield a callback that calls `callback` and sends to all these trackers; close them at the end."""
    sinks = [parse_sink(text, backends) for text in trackers]

    def call_all(progress: Progress) -> None:
        callback(progress)
        for sink in sinks:
            sink(progress)

    try:
        yield call_all
    finally:
        for sink in sinks:
            sink.close()


def _describe(member: Any, sent: int) -> Run:
    config = member.config
    task = PurePath(config.task.name).stem
    name = f"{task}-{config.attention.mechanism}-{config.seed}-{member.run.id[:8]}"
    return Run(member.run.id, re.sub(r"[^A-Za-z0-9_.+-]", "_", name), config.model_dump(mode="json"), sent)
