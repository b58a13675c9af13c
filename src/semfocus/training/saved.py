"""What a run directory says about its run, and a trained model taken out of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from semfocus.config import AttentionConfig, ModelConfig, RunConfig
from semfocus.errors import CorruptData, UsageError
from semfocus.model import Encoder, Spec
from semfocus.store import RunDirectory, RunStore
from semfocus.tasks import Task


def document(config: RunConfig, task: Task) -> dict[str, Any]:
    """What config.json holds: the config, what identifies the data, and the sizes that a model needs without them."""
    sizes = {"num_symbols": task.num_symbols, "num_classes": task.num_classes, "width": task.width}
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
        sizes = fields["sizes"]
        spec = Spec(
            ModelConfig.model_validate(fields["model"]),
            AttentionConfig.model_validate(fields["attention"]),
            int(sizes["num_symbols"]),
            int(sizes["num_classes"]),
            int(sizes["width"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptData(f"{found.path / 'config.json'} does not describe a model: {error}") from None
    checkpoint = found.load_checkpoint(step)
    if checkpoint is None:
        raise UsageError(f"run {found.id} has no checkpoint yet; train it first")
    row = checkpoint.tensors.get("parameters")
    if row is None or row.shape != (spec.layout.size,):
        shape = None if row is None else tuple(row.shape)
        raise CorruptData(f"the checkpoint of run {found.id} holds parameters {shape}, not ({spec.layout.size},)")
    return Encoder(spec, row).eval()
