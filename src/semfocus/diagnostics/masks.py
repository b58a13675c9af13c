"""The stability of masks: the share of the k heaviest keys that stay when noise is added to the input.

    measure_mask_stability(run, noise=(0.01, 0.1)).kept      stored with the run as "mask_stability"

Gaussian noise is added to the input embeddings (token vectors plus positions). Its size is relative to their standard
deviation; all sizes use the same draw. For every query that drops a key the k heaviest keys with and without noise are
compared, whatever the mechanism keeps: `kept` is the mean share that stays, `kept_low` its 5th percentile over the
queries, `by_separation` the mean for queries of similar separation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from semfocus.analysis.table6 import finite
from semfocus.attention.inputs import AttentionInputs
from semfocus.attention.inspection import observing
from semfocus.attention.positions import Positions
from semfocus.attention.selection import best_indices
from semfocus.diagnostics.aggregate import spread
from semfocus.diagnostics.checkpoint_stats import K, RunExamples, Split, batches_of
from semfocus.diagnostics.scores import chunks, counting_queries, scores_of, visible_keys
from semfocus.diagnostics.sketch import Sketch
from semfocus.errors import UsageError
from semfocus.measurements import MaskStability, keep
from semfocus.measurements.kinds import LAST
from semfocus.model.encoder import Encoder
from semfocus.model.forward import forward
from semfocus.model.forward_fns import EAGER
from semfocus.model.inputs import build_inputs
from semfocus.randomness import stream
from semfocus.store import RunDirectory
from semfocus.tasks.base import Batch
from semfocus.training.loading import load

NOISE = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
BORDERS = (1e-3, 1e-2, 1e-1, 1.0)  # between the groups of separations
LOW = 0.05
ERROR = 0.001
ROWS = 200  # by default


def measure_mask_stability(
    run: RunDirectory,
    *,
    k: int = K,
    noise: Sequence[float] = NOISE,
    split: Split = "train",
    rows: int = ROWS,
    checkpoint: str = LAST,
    device: str | torch.device = "cpu",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> MaskStability:
    """Measure the last, or one kept, checkpoint of a run; `rows` 0 are all rows.

    Measurements with other settings stay beside it.
    """
    sizes, examples = _sizes(noise), RunExamples.of(run, k, split, rows, ROWS)
    k = examples.k
    model = load(run, checkpoint=checkpoint).to(device)
    if k > model.spec.length:
        raise UsageError(f"k = {k} exceeds the length of the rows, {model.spec.length}; choose k <= that")
    layers = [_Layer(len(sizes)) for _ in range(model.spec.model.blocks)]
    parts = list(batches_of(examples.batch, device))
    for number, part in enumerate(parts):
        progress(number, len(parts))
        _compare(model, part, k, sizes, stream(examples.config.seed, f"diagnose/noise/{number}"), layers)
    progress(len(parts), len(parts))
    settings = examples.settings | {"checkpoint": checkpoint, "noise": sizes}
    usual = examples.usual | {"checkpoint": LAST, "noise": list(NOISE)}
    return keep(run, MaskStability.from_payload(settings | _summary(layers), math.inf), usual)


class _Layer:
    """Sums over the queries of one layer."""

    def __init__(self, sizes: int) -> None:
        self.separation = Sketch(1, ERROR)
        self.shares = [Sketch(1, ERROR) for _ in range(sizes)]
        self.sums = torch.zeros(sizes, len(BORDERS) + 1, dtype=torch.float64)
        self.counts = torch.zeros(len(BORDERS) + 1, dtype=torch.int64)

    def add(self, gaps: Tensor, stays: list[Tensor]) -> None:
        """Add queries: their separations (n,), and for each size of noise the share (n,) of their keys that stay."""
        gaps = gaps.double().cpu()
        alone = torch.zeros(len(gaps), dtype=torch.int64)
        group = torch.bucketize(gaps, torch.tensor(BORDERS, dtype=torch.float64))
        self.counts += torch.bincount(group, minlength=len(self.counts))
        self.separation.add(alone, gaps)
        for i, share in enumerate(stays):
            share = share.double().cpu()
            self.sums[i] += torch.bincount(group, weights=share, minlength=len(self.counts))
            self.shares[i].add(alone, share)


def _summary(layers: list[_Layer]) -> dict[str, Any]:
    counts, sums = (torch.stack([getattr(layer, name) for layer in layers]).sum(0) for name in ("counts", "sums"))
    pooled = [Sketch.pooled(layer.shares[i] for layer in layers) for i in range(len(layers[0].shares))]
    separation = spread(Sketch.pooled(layer.separation for layer in layers), mirrored=True)
    return {
        "kept": [_mean(row, counts) for row in sums],
        "kept_low": [share.quantiles([LOW])[0] for share in pooled],
        "separation": {percent: finite(value) for percent, value in separation.items()},
        "by_separation": {
            "borders": list(BORDERS),
            "queries": counts.tolist(),
            "kept": [[_mean(total, count) for total, count in zip(row, counts, strict=True)] for row in sums],
        },
        "layers": [
            {"layer": i, "kept": [_mean(row, layer.counts) for row in layer.sums]} for i, layer in enumerate(layers)
        ],
    }


def _mean(total: Tensor, count: Tensor) -> float | None:
    return float(total.sum()) / int(count.sum()) if int(count.sum()) else None


def _sizes(noise: Sequence[float]) -> list[float]:
    sizes = [float(size) for size in noise]
    if not sizes or not all(0 <= size < math.inf for size in sizes):
        raise UsageError(f"noise = {list(noise)!r} must be sizes of zero or more, relative to the embeddings")
    return sizes


def _compare(model: Encoder, batch: Batch, k: int, sizes: list[float], draws: Any, layers: list[_Layer]) -> None:
    """Compare the heaviest keys of one batch without noise with those for each size of noise."""
    shape = (*batch.tokens.shape[:1], model.spec.length, model.spec.model.d_model)
    uniform = torch.from_numpy(draws.uniform(shape)).clamp(1e-12, 1 - 1e-12)
    normal = torch.special.ndtri(uniform).float().to(batch.tokens.device)
    without_noise, gaps = _heaviest(model, batch, k, 0.0 * normal)
    stays: list[list[Tensor]] = [[] for _ in layers]
    for size in sizes:
        noisy, _ = _heaviest(model, batch, k, size * normal)
        for own, before, after in zip(stays, without_noise, noisy, strict=True):
            same = (before.unsqueeze(-1) == after.unsqueeze(-2)) & (before >= 0).unsqueeze(-1)
            own.append(same.any(-1).sum(-1) / k)
    for layer, gap, own in zip(layers, gaps, stays, strict=True):
        layer.add(gap[gap.isfinite()], [share[gap.isfinite()] for share in own])


def _heaviest(model: Encoder, batch: Batch, k: int, noise: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """The k heaviest keys of every query and its separation, for each layer. The separation is infinite where no key is
    dropped, the query is padding, or a score is not finite."""
    kept: list[Tensor] = []
    gaps: list[Tensor] = []

    def observe(inputs: AttentionInputs, grouped: bool) -> None:
        visible = visible_keys(inputs, (inputs.lead.numel(), 1))
        parts = [_choose(inputs, positions, k, visible) for positions in chunks(inputs)]
        kept.append(torch.cat([indices for indices, _ in parts], dim=-2))
        gaps.append(torch.cat([gap for _, gap in parts], dim=-1))

    def embed_with_noise(*args: Any) -> Tensor:
        clean = EAGER.embed(*args)
        return clean + noise * clean.std(correction=0)

    ids, lengths = build_inputs(batch.tokens, batch.lengths, model.spec)
    parameters = {name.replace("__", "."): value.unsqueeze(0) for name, value in model.named_parameters()}
    with observing(observe), torch.no_grad():
        forward(
            parameters, ids.unsqueeze(0), lengths.unsqueeze(0), model.spec, None, replace(EAGER, embed=embed_with_noise)
        )
    return kept, gaps


def _choose(inputs: AttentionInputs, positions: Positions, k: int, visible: Tensor) -> tuple[Tensor, Tensor]:
    scores, allowed = scores_of(inputs, positions)
    counts = counting_queries(inputs, positions, visible).reshape(*inputs.lead, positions.queries, 1).expand_as(scores)
    allowed = counts if allowed is None else allowed & counts
    indices = best_indices(scores, allowed, k)
    ordered = torch.where(allowed, scores, -torch.inf).topk(min(k + 1, scores.shape[-1]), dim=-1).values
    gap = torch.full(ordered.shape[:-1], torch.inf, device=ordered.device, dtype=ordered.dtype)
    if ordered.shape[-1] > k:
        usable = ordered[..., 0].isfinite() & (ordered[..., k] != -torch.inf)
        gap = torch.where(usable, ordered[..., k - 1] - ordered[..., k], torch.inf)
    return indices, gap
