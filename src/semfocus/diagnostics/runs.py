"""How the models of trained runs attend, at any kept checkpoint; stored with the run as a dispersion measurement.

measured = measure_run(run, split="train", rows=1000, checkpoint="all").measured
measured.checkpoints["last"].delta_full["95"]
tables(measurements)                            Table 6, as the paper does it and from one model each
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from semfocus.analysis.comparability import comparability_key
from semfocus.analysis.table6 import one_model, published, two_models
from semfocus.attention.mechanisms import parse_mechanism
from semfocus.config import RunConfig
from semfocus.diagnostics.checkpoint_stats import ERROR, checkpoint_stats
from semfocus.diagnostics.sentences import left_out
from semfocus.errors import UsageError, check_int, unknown
from semfocus.measurements import Dispersion, keep
from semfocus.measurements.kinds import LAST
from semfocus.store import RunDirectory, RunStore
from semfocus.tasks.base import Batch
from semfocus.training import data
from semfocus.training.loading import checkpoint_epochs, config_of, load

ALL = "all"
K, ROWS = 5, 1000  # by default
Split = Literal["train", "heldout"]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class MeasuredRun:
    """A run with its configuration and its dispersion, of the checkpoints measured now and before."""

    run: RunDirectory
    config: RunConfig
    measured: Dispersion
    asked: tuple[str, ...]  # the checkpoints measured now

    @property
    def now(self) -> Dispersion:
        """The measurement with no other checkpoints than those asked for."""
        return self.measured.only(self.asked)

    @property
    def task(self) -> str:
        return Path(self.config.task.name).stem

    @property
    def mechanism(self) -> str:
        return self.config.attention.mechanism

    @property
    def label(self) -> str:
        return f"{self.task}, {self.mechanism}, seed {self.config.seed}"


def find_run(text: str, out: Path | str | None = None) -> RunDirectory:
    """A run by its path or the beginning of its id. A checkpoint of another library is refused."""
    place = Path(text)
    if any((place / name).is_file() for name in ("model.safetensors", "model.safetensors.index.json")):
        raise UsageError(f"{text} is not a run but a model of another library; diagnose it with --model {text} --text")
    return RunStore(out).find(text)


def measure_run(
    run: RunDirectory,
    *,
    k: int = K,
    split: Split = "train",
    rows: int = ROWS,
    checkpoint: str = LAST,
    device: str | torch.device = "cpu",
    progress: Progress = lambda done, total: None,
) -> MeasuredRun:
    """Measure a run at its last, at all or at one kept checkpoint, and store the dispersion with the run.

    A top-k run is measured with its own k; `rows` 0 are all rows. Checkpoints measured before with the same k, split
    and rows are merged with these; measurements with other settings stay beside it.
    """
    config = config_of(run)
    splits = splits_of_run(run, config)
    batch = first_rows(splits, split, rows)
    k = focus_of(config, k)
    chosen = _chosen(run, checkpoint)
    checkpoints: dict[str, dict[str, Any]] = {}
    for done, (key, (epoch, step)) in enumerate(chosen.items()):
        progress(done, len(chosen))
        model = load(run, step).to(device)
        checkpoints[key] = {"epoch": float(epoch), **checkpoint_stats(model, batch, k, device)}
    progress(len(chosen), len(chosen))
    document = {"k": k, "split": split, "rows": len(batch), "error": ERROR, "checkpoints": checkpoints}
    measured = Dispersion.from_payload(document, math.inf)
    usual = {"k": focus_of(config, K), "split": "train", "rows": min(ROWS, len(splits["train"])), "error": ERROR}
    return MeasuredRun(run, config, keep(run, measured, usual), tuple(checkpoints))


def tables(runs: Sequence[MeasuredRun]) -> list[dict[str, Any]]:
    """Rows of Table 6 at the checkpoints asked for: pairs of a full and a top-k run that differ in nothing else, each
    run alone, and the paper's numbers."""
    found: list[dict[str, Any]] = []
    keys = {run.run.id: (comparability_key(run.run.config()), run.config.seed) for run in runs}
    for heavy in runs:
        if not heavy.mechanism.startswith("topk:"):
            continue
        for full in runs:
            if full.mechanism == "full" and keys[full.run.id] == keys[heavy.run.id]:
                shared = [key for key in heavy.asked if key in full.asked]
                found += [
                    {**_about(heavy), "full": full.run.id, **two_models(full.now, heavy.now, key)} for key in shared
                ]
    for alone in runs:
        found += [{**_about(alone), **one_model(alone.now, key)} for key in alone.asked]
    for task in dict.fromkeys(run.task for run in runs):
        paper = published(task)
        found += [paper] if paper is not None else []
    return found


def warnings_of(found: MeasuredRun) -> list[str]:
    """Warnings about the newest checkpoint that was asked for."""
    newest = max(found.now.checkpoints.values(), key=lambda checkpoint: checkpoint.epoch)
    if newest.not_finite and not newest.queries:
        return [f"{found.label}: no query has finite scores; this run has diverged, and there is nothing to measure."]
    return [f"{found.label}: {line}" for line in left_out(newest.not_finite, newest.empty)]


def splits_of_run(run: RunDirectory, config: RunConfig) -> dict[str, Batch]:
    """The training data ("train") and the held-out data ("heldout") of the run."""
    task = config.task.build()
    known = run.config().get("data")
    if known is not None and known != task.fingerprint():
        raise UsageError(
            f"run {run.id} was trained on other data than {config.task.name} gives now; put the file back as it was"
        )
    return dict(zip(("train", "heldout"), data.load(config, task), strict=True))


def first_rows(splits: dict[str, Batch], split: Split, rows: int) -> Batch:
    """The first `rows` rows of a split, or all it has; 0: all of them."""
    if split not in splits:
        raise unknown("split", split, splits)
    batch, count = splits[split], check_int("rows", rows, at_least=0) or None
    return Batch(batch.tokens[:count], batch.labels[:count], batch.lengths[:count])


def focus_of(config: RunConfig, k: int) -> int:
    """The k to measure with: the own k of a top-k run, else the given one."""
    mechanism, asked = parse_mechanism(config.attention.mechanism), check_int("k", k, at_least=1)
    return mechanism.size or asked if mechanism.score_order == "largest" else asked


def _about(found: MeasuredRun) -> dict[str, Any]:
    return {"task": found.task, "seed": found.config.seed, "mechanism": found.mechanism, "run": found.run.id}


def _chosen(run: RunDirectory, checkpoint: str) -> dict[str, tuple[float, int]]:
    """Epoch and step of the chosen checkpoints, by the key they are stored under."""
    there = checkpoint_epochs(run)
    if not there:
        raise UsageError(f"run {run.id} has no checkpoint yet; train it first")
    last = max(there)
    if checkpoint == LAST:
        return {LAST: (last, there[last])}
    if checkpoint == ALL:
        return {f"{epoch:g}": (epoch, step) for epoch, step in there.items()} | {LAST: (last, there[last])}
    try:
        epoch = float(checkpoint)
    except ValueError:
        raise UsageError(f"checkpoint = {checkpoint!r} must be last, all or an epoch such as 20") from None
    if epoch not in there:
        known = ", ".join(f"{known:g}" for known in there)
        raise UsageError(f"run {run.id} has no checkpoint of epoch {epoch:g}; it has {known}: train with --keep")
    return {f"{epoch:g}": (epoch, there[epoch])}
