"""The three trackers, each as a function that opens a log for one run. Their packages are imported when asked for."""

from __future__ import annotations

import contextvars
import io
import json
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from semfocus.errors import MissingExtra


@dataclass(frozen=True)
class Run:
    """What a tracker is told about a run."""

    id: str
    name: str  # for people, and fit for a folder
    config: Mapping[str, Any]
    step: int  # up to which its metrics are known from an earlier session; -1 for none


class Log(Protocol):
    """Where the metrics of one run go."""

    def write(self, step: int, values: Mapping[str, float]) -> None: ...
    def close(self) -> None: ...


class TensorBoardLog:
    """Event files in a folder of the run's name; what an earlier session wrote beyond its checkpoint is purged."""

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
    """An offline run; nothing is sent anywhere until somebody syncs it."""

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
        # trackio ends the current run when another begins; in a context of its own each run stays. And it prints
        # several lines a run, which do not belong among the results.
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


def tensorboard(place: str) -> Callable[[Run], Log]:
    """Event files under the directory `place`."""
    module = _module("tensorboard", "torch.utils.tensorboard", "writing for TensorBoard")
    return lambda run: TensorBoardLog(module, Path(place).expanduser(), run)


def wandb(place: str) -> Callable[[Run], Log]:
    """Offline runs of the project `place`."""
    module = _module("wandb", "wandb", "writing for Weights & Biases")
    return lambda run: WandbLog(module, place, run)


def trackio(place: str) -> Callable[[Run], Log]:
    """Local runs of the project `place`."""
    module = _module("trackio", "trackio", "writing for trackio")
    return lambda run: TrackioLog(module, place, run)


BACKENDS: dict[str, Callable[[str], Callable[[Run], Log]]] = {
    "tensorboard": tensorboard,
    "trackio": trackio,
    "wandb": wandb,
}


def _module(package: str, name: str, purpose: str) -> Any:
    """The module of a tracker. Asked for before training: that a package is missing is said at once."""
    try:
        return import_module(name)
    except ImportError:
        raise MissingExtra(package, "trackers", purpose) from None
