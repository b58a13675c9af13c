"""Trained runs under the glass: how their models attend, at any kept checkpoint, stored with the run.

measured = measure_run(run, split="train", rows=1000, checkpoint="all")
measured["checkpoints"]["last"]["delta_full"]["95"]
tables(measurements)                            Table 6, as the paper does it and from one model each
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from semfocus.analysis.conditions import finite
from semfocus.analysis.table6 import one_model, published, two_models
from semfocus.attention.mechanisms import TopK, parse_mechanism
from semfocus.config import RunConfig
from semfocus.diagnostics.diagnosing import observe
from semfocus.diagnostics.norms import weight_norms
from semfocus.diagnostics.tally import PERCENTS, Summary, Tally
from semfocus.errors import UsageError, unknown, whole_number
from semfocus.model import Encoder
from semfocus.store import RunDirectory, RunStore, read_measurement, write_measurement
from semfocus.tasks.base import Batch
from semfocus.theory import stability
from semfocus.training import data
from semfocus.training.saved import checkpoint_epochs, config_of, load

NAME = "dispersion"
LAST, ALL = "last", "all"
ERROR = 0.001  # of quantiles over more than a few thousand queries, relative
PER_HEAD = ("delta", "delta_full", "delta_heavy", "separation", "in_degree", "entropy", "top_share")
TOKENS_AT_ONCE = 2**13
Split = Literal["train", "heldout"]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class MeasuredRun:
    """A run, what it was, and what its "dispersion" measurement says."""

    run: RunDirectory
    config: RunConfig
    measured: dict[str, Any]

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
    """A run by its path or the beginning of its id; for another library's checkpoint, where to take it instead."""
    place = Path(text)
    if any((place / name).is_file() for name in ("model.safetensors", "model.safetensors.index.json")):
        raise UsageError(f"{text} is not a run but a model of another library; diagnose it with --model {text} --text")
    return RunStore(out).find(text)


def measure_run(
    run: RunDirectory,
    *,
    k: int = 5,
    split: Split = "train",
    rows: int = 1000,
    checkpoint: str = LAST,
    device: str | torch.device = "cpu",
    progress: Progress = lambda done, total: None,
) -> MeasuredRun:
    """Measure a run at its last, at all or at one kept checkpoint, and keep the result with it as "dispersion".

    A top-k run is measured with its own k. What was measured before, with the same k, split and rows, is kept beside.
    """
    config = config_of(run)
    batch = rows_of_run(run, config, split, rows)
    k = focus_of(config, k)
    chosen = _chosen(run, checkpoint)
    found: dict[str, dict[str, Any]] = {}
    for done, (key, (epoch, step)) in enumerate(chosen.items()):
        progress(done, len(chosen))
        model = load(run, step).to(device)
        found[key] = {"epoch": float(epoch), **_at_checkpoint(model, batch, k, device)}
    progress(len(chosen), len(chosen))
    measured = {"k": k, "split": split, "rows": len(batch), "error": ERROR, "checkpoints": found}
    before = read_measurement(run, NAME)
    if before is not None and all(before.get(name) == measured[name] for name in ("k", "split", "rows", "error")):
        measured["checkpoints"] = before["checkpoints"] | found
    write_measurement(run, NAME, measured)
    return MeasuredRun(run, config, measured)


def tables(runs: Sequence[MeasuredRun]) -> list[dict[str, Any]]:
    """Rows of Table 6: a full and a top-k run that are otherwise alike, each run alone, and the paper's own."""
    found: list[dict[str, Any]] = []
    for heavy in runs:
        if not heavy.mechanism.startswith("topk:"):
            continue
        for full in runs:
            if full.mechanism == "full" and _setting(full.config) == _setting(heavy.config):
                shared = [key for key in heavy.measured["checkpoints"] if key in full.measured["checkpoints"]]
                found += [
                    {**_about(heavy), "full": full.run.id, **two_models(full.measured, heavy.measured, key)}
                    for key in shared
                ]
    for alone in runs:
        found += [{**_about(alone), **one_model(alone.measured, key)} for key in alone.measured["checkpoints"]]
    for task in dict.fromkeys(run.task for run in runs):
        paper = published(task)
        found += [paper] if paper is not None else []
    return found


def rows_of_run(run: RunDirectory, config: RunConfig, split: Split, rows: int) -> Batch:
    """The first `rows` rows that the run was trained on, or held out, fewer if it has fewer."""
    if split not in ("train", "heldout"):
        raise unknown("split", split, ("train", "heldout"))
    whole_number("rows", rows, at_least=1)
    task = config.task.build()
    known = run.config().get("data")
    if known is not None and known != task.fingerprint():
        raise UsageError(
            f"run {run.id} was trained on other data than {config.task.name} gives now; put the file back as it was"
        )
    train, heldout = data.load(config, task)
    batch = train if split == "train" else heldout
    return Batch(batch.tokens[:rows], batch.labels[:rows], batch.lengths[:rows])


def focus_of(config: RunConfig, k: int) -> int:
    """The k to look with: a top-k run's own."""
    mechanism = parse_mechanism(config.attention.mechanism)
    return mechanism.k if isinstance(mechanism, TopK) else whole_number("k", k, at_least=1)


def batches_of(batch: Batch, device: str | torch.device) -> Iterator[Batch]:
    """The same rows a few at a time, on the device."""
    size = max(1, TOKENS_AT_ONCE // max(1, batch.tokens.shape[1]))
    for first in range(0, len(batch), size):
        rows = slice(first, first + size)
        yield Batch(*(part[rows].to(device) for part in (batch.tokens, batch.labels, batch.lengths)))


def _setting(config: RunConfig) -> dict[str, Any]:
    """Task, model, recipe and seed: everything but how it attends."""
    return config.model_dump(mode="json", exclude={"attention", "label"})


def _about(found: MeasuredRun) -> dict[str, Any]:
    return {"task": found.task, "seed": found.config.seed, "mechanism": found.mechanism, "run": found.run.id}


def _chosen(run: RunDirectory, checkpoint: str) -> dict[str, tuple[float, int]]:
    """Epoch and step of the checkpoints meant, by the key they are stored under."""
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


def _at_checkpoint(model: Encoder, batch: Batch, k: int, device: str | torch.device) -> dict[str, Any]:
    tally = Tally(k, ERROR)
    observe(model, batches_of(batch, device), tally.see)
    if k > tally.longest:
        raise UsageError(f"k = {k} exceeds the length of the rows, {tally.longest}; choose k <= {tally.longest}")
    layers = [
        {"layer": i, **layer.whole.to_dict(), **norms, "stability": _stability(layer.whole, k)}
        | {"heads": [_brief(head) for head in layer.heads] if len(layer.heads) > 1 else []}
        for i, (layer, norms) in enumerate(zip(tally.layers(), weight_norms(model), strict=True))
    ]
    whole = tally.whole()
    return {**whole.to_dict(), "stability": _stability(whole, k), "layers": layers}


def _brief(head: Summary) -> dict[str, Any]:
    """What is kept of one head among several, of which a run may have hundreds."""
    return {name: spread for name, spread in head.to_dict().items() if name in (*PER_HEAD, "infinite")}


def _stability(summary: Summary, k: int) -> dict[str, dict[str, float | None]]:
    """The 1-norm constants of the softmax by percentile: what is the case (`jacobian`), and what the bounds say."""
    found: dict[str, dict[str, float | None]] = {}
    for percent in PERCENTS:
        full, heavy = summary.at("delta_full", percent), summary.at("delta_heavy", percent)
        gap = summary.at("separation", percent)
        if full is None or heavy is None or gap is None:
            continue
        keys = max(1, summary.keys)
        bounds = {
            f"{name}_{form}": stability(delta, kept, separation, norm=1, form=form)
            for form in ("paper", "certified")
            for name, delta, kept, separation in (("full", full, keys, None), ("heavy", heavy, k, gap))
        }
        exact = {"jacobian": summary.at("jacobian", percent)}
        found[percent] = exact | {name: finite(float(value)) for name, value in bounds.items()}
    return found
