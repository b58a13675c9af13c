"""Experiment trackers that receive metrics during training: TensorBoard, Weights & Biases (offline) and trackio.

    with tracking(callback, ["tensorboard:logs"]) as on_progress:
        train(configs, "runs", on_progress=on_progress)

    tensorboard:DIR      event files under DIR, one folder per run      pip install 'semfocus[trackers]'
    wandb:PROJECT        offline runs under ./wandb; `wandb sync` uploads them
    trackio:PROJECT      trackio's local database; `trackio show` displays it

Every tracker uses the names of metrics.jsonl: train_loss, train_accuracy, heldout_loss, heldout_accuracy, lr and
epoch, by step. The run directory remains authoritative: a tracker that fails is dropped with a warning, and training
continues.
"""

from __future__ import annotations

import contextvars
import io
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path, PurePath
from typing import Any, Protocol

from semfocus.errors import MissingExtra, UsageError, expanded, unknown

MAX_OPEN_LOGS = 64  # each may hold a file and a thread


@dataclass(frozen=True)
class Run:
    """The description of a run that a tracker gets."""

    id: str
    name: str  # readable, and valid as the name of a folder
    config: Mapping[str, Any]
    step: int  # the last step that an earlier session has sent; -1 for none


class Log(Protocol):
    """The log of one run in a tracker."""

    def write(self, step: int, values: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


Backend = Callable[[str], Callable[[Run], Log]]  # destination -> function that opens the log of a run


class TensorBoardLog:
    """Event files in a folder with the run's name; steps after the checkpoint of an earlier session are purged."""

    def __init__(self, tensorboard: Any, folder: Path, run: Run) -> None:
        purge = run.step + 1 if run.step >= 0 else None
        self._writer = tensorboard.SummaryWriter(str(folder / run.name), purge_step=purge)
        if run.step < 0:
            self._writer.add_text("config", f"```json\n{json.dumps(run.config, indent=2)}\n```")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WandbLog:
    """An offline run; nothing is sent over the network until a user syncs it."""

    def __init__(self, wandb: Any, project: str, run: Run) -> None:
        quiet = wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True)
        self._run = wandb.init(
            project=project, id=run.id, name=run.name, config=dict(run.config), mode="offline",
            reinit="create_new", settings=quiet,
        )  # fmt: skip

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class TrackioLog:
    """A run in trackio's local database."""

    def __init__(self, trackio: Any, project: str, run: Run) -> None:
        # trackio ends the current run when another begins, unless each has a context of its own. It also prints
        # several lines per run, which would mix with the results.
        with redirect_stdout(io.StringIO()):
            self._run = contextvars.copy_context().run(
                trackio.init, project=project, name=run.name, config=dict(run.config), resume="allow", embed=False,
                auto_log_gpu=False, auto_log_cpu=False,
            )  # fmt: skip

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        with redirect_stdout(io.StringIO()):
            self._run.finish()


def tensorboard(directory: str) -> Callable[[Run], Log]:
    """Write event files under `directory`."""
    module = _module("tensorboard", "torch.utils.tensorboard", "writing for TensorBoard")
    return lambda run: TensorBoardLog(module, expanded(directory), run)


def wandb(project: str) -> Callable[[Run], Log]:
    """Write offline runs of `project`."""
    module = _module("wandb", "wandb", "writing for Weights & Biases")
    return lambda run: WandbLog(module, project, run)


def trackio(project: str) -> Callable[[Run], Log]:
    """Write local runs of `project`."""
    module = _module("trackio", "trackio", "writing for trackio")
    return lambda run: TrackioLog(module, project, run)


BACKENDS: dict[str, Backend] = {
    "tensorboard": tensorboard,
    "trackio": trackio,
    "wandb": wandb,
}


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


def _module(package: str, name: str, purpose: str) -> Any:
    """Import the module of a tracker. This happens before training, so that a missing package is reported at once."""
    try:
        return import_module(name)
    except ImportError:
        raise MissingExtra(package, "trackers", purpose) from None
