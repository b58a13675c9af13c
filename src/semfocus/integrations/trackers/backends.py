"""The backends of the trackers: each opens a log for a run. Their packages are imported when a backend is chosen."""

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
    return lambda run: TensorBoardLog(module, Path(directory).expanduser(), run)


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


def _module(package: str, name: str, purpose: str) -> Any:
    """Import the module of a tracker. This happens before training, so that a missing package is reported at once."""
    try:
        return import_module(name)
    except ImportError:
        raise MissingExtra(package, "trackers", purpose) from None
