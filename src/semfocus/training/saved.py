"""What a run directory says about its run, and a trained model taken out of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from semfocus.config import AttentionConfig, ModelConfig, RunConfig, TrainingConfig
from semfocus.errors import CorruptData, UsageError, whole_number
from semfocus.model import Encoder, Spec
from semfocus.store import RunDirectory, RunStore
from semfocus.tasks import Task
from semfocus.training.cohort import MOMENTS

SIZES = ("num_symbols", "num_classes", "width")  # of a task, as Spec takes them
MOST = 2**31  # that a size found in a run directory is believed to be


def document(config: RunConfig, task: Task) -> dict[str, Any]:
    """What config.json holds: the config, what identifies the data, and the sizes that a model needs without them."""
    sizes = {name: getattr(task, name) for name in SIZES}
    return config.model_dump(mode="json") | {"data": task.fingerprint(), "sizes": sizes}


def config_of(run: RunDirectory) -> RunConfig:
    """The config that a run was made from."""
    fields = run.config()
    try:
        return RunConfig.model_validate({name: fields[name] for name in RunConfig.model_fields if name in fields})
    except (ValidationError, UsageError) as error:
        raise CorruptData(f"{run.path / 'config.json'} does not describe a run: {error}") from None


def load(run: str | Path | RunDirectory, step: int | None = None, out: Path | str | None = None) -> Encoder:
    """The model of a run, by its path or the beginning of its id, at its newest or a kept checkpoint.

    model = semfocus.load("runs/1f0c...")
    model.predict(tokens)
    """
    found = run if isinstance(run, RunDirectory) else RunStore(out).find(str(run))
    fields = found.config()
    try:
        training = TrainingConfig.model_validate(fields["training"])
        spec = Spec(
            ModelConfig.model_validate(fields["model"]),
            AttentionConfig.model_validate(fields["attention"]),
            *(whole_number(f"sizes.{name}", fields["sizes"][name], 1, MOST) for name in SIZES),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptData(f"{found.path / 'config.json'} does not describe a model: {error}") from None
    row = torch.empty(spec.layout.size, device="meta")
    checkpoint = found.load_checkpoint(step, expect=dict.fromkeys(("parameters", *MOMENTS[training.optimizer]), row))
    if checkpoint is None:
        raise UsageError(f"run {found.id} has no checkpoint yet; train it first")
    return Encoder(spec, checkpoint.tensors["parameters"]).eval()
