"""How the models of trained runs attend, at any kept checkpoint; stored with the run as a dispersion measurement.

measured = measure_run(run, split="train", rows=1000, checkpoint="all").measured
measured.checkpoints["last"].delta_full["95"]
diagnosis = diagnose_runs(["1f0c", "9a3e"], mask_stability=True)
diagnosis.table6                                Table 6, as the paper does it and from one model each
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from semfocus.analysis.comparability import comparability_key
from semfocus.analysis.table6 import one_model, published, two_models
from semfocus.config import RunConfig
from semfocus.diagnostics.checkpoint_stats import ERROR, K, RunExamples, Split, checkpoint_stats
from semfocus.diagnostics.masks import measure_mask_stability
from semfocus.diagnostics.sentences import left_out
from semfocus.errors import UsageError
from semfocus.measurements import Dispersion, MaskStability, keep
from semfocus.measurements.kinds import LAST
from semfocus.report.diagnosis_text import condition_table, newest_rows, norm_table
from semfocus.report.text import TextTable
from semfocus.store import RunDirectory, RunStore
from semfocus.training.loading import checkpoint_epochs, load

ALL = "all"
ROWS = 1000  # by default
Progress = Callable[[int, int], None]  # done, total
ProgressBar = Callable[[str], AbstractContextManager[Progress]]  # takes a title


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

    def to_dict(self) -> dict[str, Any]:
        """The checkpoints asked for, as tables and pages take them."""
        about = {"task": self.task, "mechanism": self.mechanism, "seed": self.config.seed}
        return about | {"checkpoints": self.now.document["checkpoints"]}


def find_run(text: str, out: Path | str | None = None) -> RunDirectory:
    """A run by its path or the beginning of its id. A checkpoint of another library is refused."""
    place = Path(text)
    if any(os.path.isfile(place / name) for name in ("model.safetensors", "model.safetensors.index.json")):
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
    examples = RunExamples.of(run, k, split, rows, ROWS)
    chosen = _chosen(run, checkpoint)
    checkpoints: dict[str, dict[str, Any]] = {}
    for done, (key, (epoch, step)) in enumerate(chosen.items()):
        progress(done, len(chosen))
        model = load(run, step).to(device)
        checkpoints[key] = {"epoch": float(epoch), **checkpoint_stats(model, examples.batch, examples.k, device)}
    progress(len(chosen), len(chosen))
    document = examples.settings | {"error": ERROR, "checkpoints": checkpoints}
    measured = keep(run, Dispersion.from_payload(document, math.inf), examples.usual | {"error": ERROR})
    return MeasuredRun(run, examples.config, measured, tuple(checkpoints))


@dataclass(frozen=True, eq=False)
class RunsDiagnosis:
    """Measured runs, with Table 6 and, where it was asked for, the stability of their masks."""

    runs: list[MeasuredRun]
    masks: list[MaskStability]  # one for each run, or none at all
    table6: list[dict[str, Any]]
    asked_k: int | None

    def to_json(self) -> str:
        """The stored documents of each run, and the rows of Table 6."""
        documents = [{"run": run.run.id, "dispersion": run.measured.document} for run in self.runs]
        for document, stability in zip(documents, self.masks, strict=False):
            document["mask_stability"] = stability.document
        return json.dumps({"runs": documents, "table6": self.table6}, indent=2)

    def tables(self) -> list[TextTable]:
        """Table 6 at the newest checkpoint of each run or pair, and the norms of the weights."""
        return [*map(condition_table, newest_rows(self.table6)), norm_table([run.to_dict() for run in self.runs])]

    def mask_lines(self) -> list[str]:
        """For each run: the share of its kept keys that stay, by noise."""
        lines = []
        for run, stability in zip(self.runs, self.masks, strict=False):
            pairs = zip(stability.noise, stability.kept, strict=True)
            epoch = max(checkpoint.epoch for checkpoint in run.now.checkpoints.values())
            shares = ", ".join(f"{size:g}: {share:.1%}" for size, share in pairs if share is not None)
            shares = shares or "no query of finite scores drops a key"
            lines.append(f"{run.label}, epoch {epoch:g}: kept keys that stay, by noise: {shares}")
        return lines

    def warnings(self) -> list[str]:
        """Runs that were measured with another k than asked for, and queries that were left out."""
        lines = []
        for run in self.runs:
            if self.asked_k not in (None, run.measured.k):
                lines.append(f"{run.label}: measured with its own k = {run.measured.k}, not with --k {self.asked_k}")
            lines += warnings_of(run)
        return lines

    def save(self, path: Path | str) -> Path:
        """Write one HTML page; its figures stand beside it."""
        from semfocus.report.page.diagnosis import write_runs_page

        documents = [run.to_dict() for run in self.runs]
        pairs = zip(documents, self.masks, strict=False)
        stabilities = [document | {"measured": stability.document} for document, stability in pairs]
        return write_runs_page(documents, self.table6, stabilities, Path(path))


def diagnose_runs(
    names: Sequence[str],
    *,
    k: int | None = None,
    split: Split = "train",
    rows: int | None = None,
    checkpoint: str = LAST,
    mask_stability: bool = False,
    device: str | torch.device = "cpu",
    out: Path | str | None = None,
    progress_bar: ProgressBar = lambda title: nullcontext(lambda done, total: None),
) -> RunsDiagnosis:
    """Measure runs, given by path or by the beginning of their id. None: the default of each measurement.

    The stability of masks is measured at one checkpoint: the chosen one, or the last of all.
    """
    options: dict[str, Any] = {"split": split, "device": device}
    options |= {name: value for name, value in (("k", k), ("rows", rows)) if value is not None}
    measured: list[MeasuredRun] = []
    masks: list[MaskStability] = []
    for run in [find_run(name, out) for name in dict.fromkeys(names)]:
        with progress_bar(f"measuring {run.id}") as progress:
            measured.append(measure_run(run, checkpoint=checkpoint, progress=progress, **options))
        if mask_stability:
            at = LAST if checkpoint == ALL else checkpoint
            with progress_bar(f"adding noise to {run.id}") as progress:
                masks.append(measure_mask_stability(run, checkpoint=at, progress=progress, **options))
    return RunsDiagnosis(measured, masks, tables(measured), k)


def tables(runs: Sequence[MeasuredRun]) -> list[dict[str, Any]]:
    """Rows of Table 6 at the checkpoints asked for: pairs of a full and a top-k run that differ in nothing else, each
    run alone, and the paper's numbers."""
    rows: list[dict[str, Any]] = []
    keys = {run.run.id: (comparability_key(run.run.config()), run.config.seed) for run in runs}
    for heavy in runs:
        topk = heavy.config.attention.plan.sole
        if topk is None or topk.keeps_largest is None:
            continue
        for full in runs:
            sole = full.config.attention.plan.sole
            if sole is not None and sole.keeps_all and keys[full.run.id] == keys[heavy.run.id]:
                shared = [key for key in heavy.asked if key in full.asked]
                rows += [
                    {**_about(heavy), "full": full.run.id, **two_models(full.now, heavy.now, key)} for key in shared
                ]
    for alone in runs:
        rows += [{**_about(alone), **one_model(alone.now, key)} for key in alone.asked]
    for task in dict.fromkeys(run.task for run in runs):
        paper = published(task)
        rows += [paper] if paper is not None else []
    return rows


def warnings_of(run: MeasuredRun) -> list[str]:
    """Warnings about the newest checkpoint that was asked for."""
    newest = max(run.now.checkpoints.values(), key=lambda checkpoint: checkpoint.epoch)
    if newest.not_finite and not newest.queries:
        return [f"{run.label}: no query has finite scores; this run has diverged, and there is nothing to measure."]
    return [f"{run.label}: {line}" for line in left_out(newest.not_finite, newest.empty)]


def _about(run: MeasuredRun) -> dict[str, Any]:
    return {"task": run.task, "seed": run.config.seed, "mechanism": run.mechanism, "run": run.run.id}


def _chosen(run: RunDirectory, checkpoint: str) -> dict[str, tuple[float, int]]:
    """Epoch and step of the chosen checkpoints, by the key they are stored under."""
    intact = run.intact_steps()  # a measurement of an older model than the newest says so
    there = {epoch: step for epoch, step in checkpoint_epochs(run).items() if step in intact}
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
