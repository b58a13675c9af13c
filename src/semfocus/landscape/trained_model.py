"""A trained model with the examples on which its loss is measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from semfocus.config import RunConfig
from semfocus.errors import Diverged, UsageError
from semfocus.spec import Spec
from semfocus.store import RunDirectory, RunStore
from semfocus.tasks import Task
from semfocus.training import data
from semfocus.training.data import MappedRows, Rows
from semfocus.training.loading import SIZES, config_of, load
from semfocus.training.objective import objective_of


@dataclass(frozen=True)
class TrainedModel:
    """A model at E checkpoints: its spec, the parameters (E, P) of each, and the examples that all of them share."""

    spec: Spec
    parameters: Tensor
    rows: Rows | MappedRows  # of one member
    steps: tuple[int, ...]  # the training step of each checkpoint
    steps_per_epoch: int

    @property
    def epochs(self) -> list[float]:
        return [step / self.steps_per_epoch for step in self.steps]

    def first(self, count: int) -> TrainedModel:
        """The same with at most `count` examples."""
        return replace(self, rows=self.rows.between(0, count))


def find_run(run: str | Path | RunDirectory, out: Path | str | None = None) -> RunDirectory:
    """A run by its path or the beginning of its id. Raises Diverged if training diverged."""
    directory = run if isinstance(run, RunDirectory) else RunStore(out).find(str(run))
    status = directory.status() or {}
    if status.get("state") == "diverged":
        raise Diverged(
            f"run {directory.id} diverged at step {status.get('step')} (loss or gradient not finite): there is no "
            "trained model to look around; choose another run, or train it again with a smaller training.lr"
        )
    return directory


def open_trained_model(
    run: str | Path | RunDirectory,
    *,
    steps: tuple[int, ...] | None = None,
    device: torch.device | str = "cpu",
    out: Path | str | None = None,
) -> TrainedModel:
    """The model of a run at its newest checkpoint, or at those of `steps`, with the training examples."""
    directory = find_run(run, out)
    config = config_of(directory)
    task = config.task.build(directory.path.parent)
    _check_data(directory, config, task)
    steps = steps or (_newest(directory),)
    models = [load(directory, step) for step in steps]
    if any(model.spec != models[0].spec for model in models):
        raise UsageError(
            f"run {directory.id}: its mechanisms change between these checkpoints ({models[0].spec.plan}), and so "
            "would the loss; choose checkpoints between two changes"
        )
    examples, _ = data.opened(config, task)
    count = len(examples) - config.training.drop_one_row
    per_epoch = -(-count // config.training.batch_size)
    rows = data.place([examples], models[0].spec, torch.device(device), objective_of(task)).between(0, count)
    parameters = torch.stack([model.row() for model in models]).to(device)
    if not bool(parameters.isfinite().all()):
        raise Diverged(
            f"run {directory.id} has parameters that are not finite; there is no loss to measure around them"
        )
    return TrainedModel(models[0].spec, parameters, rows, steps, per_epoch)


def _newest(run: RunDirectory) -> int:
    checkpoint = run.load_checkpoint()
    if checkpoint is None:
        raise UsageError(f"run {run.id} has no checkpoint yet; train it first")
    return checkpoint.step


def _check_data(run: RunDirectory, config: RunConfig, task: Task) -> None:
    config.check(task)
    fields = run.config()
    if fields.get("data") != task.fingerprint():
        raise UsageError(
            f"run {run.id} was trained on other data than {config.task.name} gives now; "
            "put the file back as it was, or train again"
        )
    sizes = {name: getattr(task, name) for name in SIZES}
    if fields.get("sizes") != sizes:
        raise UsageError(f"run {run.id} has a model for {fields.get('sizes')}, but its task gives rows of {sizes}")
