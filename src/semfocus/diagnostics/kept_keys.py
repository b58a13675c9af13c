"""How many keys the queries of a trained model give a weight other than zero: what a budget of keys comes to.

    measure_kept_keys(run).mean          4.2 of 40 keys; entmax and sparsemax keep as many as their scores say

Measured on examples of the run's own data, of the newest model, without dropout. Padding counts neither as a query nor
as a key.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch

from semfocus.attention.dense import dense
from semfocus.attention.inputs import AttentionInputs
from semfocus.attention.inspection import observing
from semfocus.diagnostics.checkpoint_stats import batches_of
from semfocus.diagnostics.lengths import newest_step
from semfocus.errors import check_int
from semfocus.measurements import KeptKeys, keep, read
from semfocus.model.encoder import Encoder
from semfocus.store import RunDirectory, RunStore
from semfocus.tasks.base import Batch
from semfocus.training import data
from semfocus.training.loading import config_of, load
from semfocus.training.runtime import Runtime, numerics

ROWS = 200


def measure_kept_keys(
    run: str | Path | RunDirectory,
    split: Literal["train", "heldout"] = "heldout",
    rows: int = ROWS,
    runtime: Runtime = Runtime(),
    *,
    out: Path | str | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> KeptKeys:
    """Count over the first `rows` examples of a split; what is stored already is read."""
    directory = run if isinstance(run, RunDirectory) else RunStore(out).find(str(run))
    check_int("rows", rows, at_least=1)
    settings = {"step": newest_step(directory), "split": split, "rows": rows}
    measured = read(directory, KeptKeys, settings)
    if measured is None:
        config, device = config_of(directory), runtime.torch_device()
        batch = data.head(data.opened(config, config.task.build(directory.path.parent))[split == "heldout"], rows)
        with numerics(config.precision, runtime.threads or runtime.num_threads()):
            counts = count_kept(load(directory).to(device), batch)
        measured = keep(directory, KeptKeys.from_payload(settings | counts))
    on_progress(1, 1)
    return measured


def count_kept(model: Encoder, batch: Batch) -> dict[str, float | list[float]]:
    """The mean over queries, as a measurement stores it: over all layers, of each layer, and of the keys in view."""
    kept: list[list[float]] = []  # of each call: sum over queries of keys kept, of keys seen, and the queries
    device = next(model.parameters()).device

    def observe(inputs: AttentionInputs, grouped: bool) -> None:
        kept.append(_counts(inputs))

    calls = 0
    with observing(observe), torch.no_grad():
        for part in batches_of(batch, device):
            model(part.tokens, part.lengths)
            calls += 1
    table = torch.tensor(kept, dtype=torch.float64).unflatten(0, (calls, -1)).sum(0)  # (layers, 3)
    layers, seen = table[:, 0] / table[:, 2], table[:, 1].sum() / table[:, 2].sum()
    return {"mean": (table[:, 0].sum() / table[:, 2].sum()).item(), "layers": layers.tolist(), "keys": seen.item()}


def _counts(inputs: AttentionInputs) -> list[float]:
    _, info = dense(inputs, want_info=True)
    assert info is not None
    weights = info.weights  # (*lead, Lq, n)
    scores = weights.new_zeros(*inputs.lead, inputs.num_queries, inputs.num_keys)
    positions = inputs.positions()
    allowed = positions.allowed(torch.ones_like(scores, dtype=torch.bool), inputs.valid(), inputs.causal)
    if inputs.bias is not None:
        allowed = allowed & (inputs.bias != float("-inf"))
    is_query = inputs.selection(scores, inputs.q, inputs.k, positions).valid_queries
    counted = allowed.any(-1) if is_query is None else allowed.any(-1) & is_query[..., 0]
    kept = ((weights != 0).sum(-1) * counted).sum()
    return [float(kept), float((allowed.sum(-1) * counted).sum()), float(counted.expand(weights.shape[:-1]).sum())]
