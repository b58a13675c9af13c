"""The document config.json of a run, and the trained model of a run directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from semfocus.config import AttentionConfig, ModelConfig, RunConfig, TrainingConfig
from semfocus.config.run import check_recorded_id
from semfocus.errors import CorruptData, UsageError, check_int
from semfocus.model.encoder import Encoder
from semfocus.spec import Spec
from semfocus.store import RunDirectory, RunStore
from semfocus.tasks import Task
from semfocus.training.cohort import MOMENTS, spec_of
from semfocus.training.objective import get_objective, objective_of

SIZES = ("vocab_size", "num_classes", "seq_len")  # of a task, in the order of Spec
MAX_SIZE = 2**31  # that is accepted from a run directory


def document(config: RunConfig, task: Task) -> dict[str, Any]:
    """The content of config.json: the config, the fingerprint of the data, the objective, and the sizes of the model.

    UsageError if task, objective and attention do not fit together.
    """
    spec_of(config, task)
    sizes = {name: getattr(task, name) for name in SIZES}
    more = {"objective": objective_of(task).name, "data": task.fingerprint(), "sizes": sizes}
    more |= {"facts": task.facts} if task.facts else {}
    return config.model_dump(mode="json") | more


def recorded_fields(run: RunDirectory) -> dict[str, Any]:
    """The fields of config.json, after a check that the run is named after them."""
    fields, is_sealed = run.read_config()
    check_recorded_id(fields, run.id, is_sealed)
    return fields


def config_of(run: RunDirectory) -> RunConfig:
    """The config that a run was made from."""
    fields = recorded_fields(run)
    try:
        return RunConfig.model_validate({name: fields[name] for name in RunConfig.model_fields if name in fields})
    except ValidationError as error:
        reasons = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors(include_url=False)]
        raise CorruptData(f"{run.path / 'config.json'} does not describe a run: {'; '.join(reasons)}") from None


def checkpoint_epochs(run: RunDirectory) -> dict[float, int]:
    """The epochs of a run's checkpoints, oldest first, and the step of each: {0: 0, 1: 80, 20: 1600}.

    Whole epochs are ints; one saved between two is a fraction.
    """
    steps = run.checkpoint_steps()[::-1]
    if not steps:
        return {}
    per_epoch = max(1, _total_steps(run) // config_of(run).training.epochs)
    return {step // per_epoch if step % per_epoch == 0 else step / per_epoch: step for step in steps}


def load(
    run: str | Path | RunDirectory,
    step: int | None = None,
    out: Path | str | None = None,
    *,
    epoch: float | None = None,
    checkpoint: str = "last",
) -> Encoder:
    """The model of a run, by its path or the beginning of its id, at its newest or a kept checkpoint.

    model = semfocus.load("runs/1f0c...")
    model.predict(tokens)
    semfocus.load("1f0c", epoch=20)              # one that `--keep 20` left; 0 is the initialisation
    semfocus.load("1f0c", checkpoint="last")     # the default; checkpoint="20" is epoch=20
    """
    directory = run if isinstance(run, RunDirectory) else RunStore(out).find(str(run))
    fields = recorded_fields(directory)
    objective = get_objective(fields.get("objective", "classification"))
    try:
        training = TrainingConfig.model_validate(fields["training"])
        spec = Spec(
            ModelConfig.model_validate(fields["model"]),
            AttentionConfig.model_validate(fields["attention"]),
            *(check_int(f"sizes.{name}", fields["sizes"][name], 1, MAX_SIZE) for name in SIZES),
            is_causal=objective.is_causal,
            predicts_positions=objective.predicts_positions,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptData(f"{directory.path / 'config.json'} does not describe a model: {error}") from None
    if not directory.checkpoint_steps() and (directory.status() or {}).get("state") in ("done", "diverged"):
        raise UsageError(
            f"run {directory.id} has ended, and its checkpoints are not here: it has metrics, and no model. "
            "Bring them from where it was trained: semfocus pack --checkpoints last"
        )
    like = torch.empty(spec.layout.size, device="meta")  # (P,)
    expect = dict.fromkeys(("parameters", *MOMENTS[training.optimizer]), like)
    saved = directory.load_checkpoint(_step_meant(directory, step, epoch, checkpoint), expect=expect)
    if saved is None:
        raise UsageError(f"run {directory.id} has no checkpoint yet; train it first")
    directory.check_logs()  # what is measured on its model is an answer about the run
    return Encoder(_as_trained(spec, directory, saved.step), saved.tensors["parameters"]).eval()


def _as_trained(spec: Spec, run: RunDirectory, step: int) -> Spec:
    """The spec with the mechanisms of this step, where they change during training."""
    if not spec.plan.turns(spec.seq_len):
        return spec
    return spec.at(step / _total_steps(run))


def _total_steps(run: RunDirectory) -> int:
    try:
        return check_int("steps", (run.status() or {}).get("steps"), 1, MAX_SIZE)
    except UsageError as error:
        raise CorruptData(f"{run.path / 'status.json'} does not say how long the run is: {error}") from None


def _step_meant(run: RunDirectory, step: int | None, epoch: float | None, checkpoint: str) -> int | None:
    """The step of the requested checkpoint, given by step, epoch or name; None: the newest."""
    if (step is not None) + (epoch is not None) + (checkpoint != "last") > 1:
        raise UsageError(f"give one of step = {step}, epoch = {epoch}, checkpoint = {checkpoint!r}")
    if checkpoint != "last":
        try:
            epoch = float(checkpoint)
        except ValueError:
            raise UsageError(f"checkpoint = {checkpoint!r} is neither 'last' nor an epoch such as '20'") from None
    if epoch is None:
        return step
    steps = checkpoint_epochs(run)
    if epoch not in steps:
        known = ", ".join(f"{known:g}" for known in steps) or "none"
        raise UsageError(
            f"run {run.id} has no checkpoint of epoch {epoch:g}; it has {known}. "
            f"Train with --keep {epoch:g} (keep_epochs in Python) to have one"
        )
    return steps[epoch]
