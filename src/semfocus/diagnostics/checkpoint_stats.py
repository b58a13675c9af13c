"""How a model attends at one checkpoint: quantiles by layer and head, norms of its weights, and stability constants.

    examples = RunExamples.of(run, k=5, split="train", rows=1000, usual_rows=1000)
    checkpoint_stats(model, examples.batch, examples.k, device="cpu")      JSON, as a dispersion measurement stores it

Every block has three norms:

gamma     |W| of each head, W = scale * W_q W_k': no score of two tokens of norm xi exceeds gamma xi^2 (biases aside)
upsilon   |W_v W_o| of each head: how much a mixture of tokens can grow on its way out
mlp       how far the MLP's output can move for a unit move of its input
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from semfocus.analysis.table6 import finite
from semfocus.config import RunConfig
from semfocus.diagnostics.aggregate import PERCENTS, Aggregate, Summary
from semfocus.diagnostics.diagnosing import observe
from semfocus.errors import UsageError, check_int, unknown
from semfocus.model.encoder import Encoder
from semfocus.store import RunDirectory
from semfocus.tasks.base import Batch
from semfocus.theory import mlp_constant, spectral_norm, stability
from semfocus.theory.layers import ACTIVATION_SLOPE
from semfocus.training import data
from semfocus.training.loading import config_of

ERROR = 0.001  # of quantiles over more than a few thousand queries, relative
PER_HEAD = ("delta", "delta_full", "delta_heavy", "separation", "in_degree", "entropy", "top_share", "jacobian")
TOKENS_AT_ONCE = 2**13  # in one forward pass
K = 5  # by default
Split = Literal["train", "heldout"]


@dataclass(frozen=True, eq=False)
class RunExamples:
    """The examples of a run on which its models are measured, and the k to measure with."""

    config: RunConfig
    k: int  # the own k of a top-k run, else the one asked for
    split: Split
    batch: Batch
    usual: dict[str, Any]  # `settings` where nothing is asked for

    @property
    def settings(self) -> dict[str, Any]:
        return {"k": self.k, "split": self.split, "rows": len(self.batch)}

    @staticmethod
    def of(run: RunDirectory, k: int, split: Split, rows: int, usual_rows: int) -> RunExamples:
        """The first `rows` examples of a split, or all it has; 0: all of them."""
        config = config_of(run)
        splits = _splits(run, config)
        if split not in splits:
            raise unknown("split", split, splits)
        whole, count = splits[split], check_int("rows", rows, at_least=0) or None
        batch = data.head(whole, count)
        usual = {"k": _own_k(config, K), "split": "train", "rows": min(usual_rows, len(splits["train"]))}
        return RunExamples(config, _own_k(config, k), split, batch, usual)


def _splits(run: RunDirectory, config: RunConfig) -> dict[str, data.Unread]:
    """The training data ("train") and the held-out data ("heldout") of the run."""
    task = config.task.build(run.path.parent)
    known = run.config().get("data")
    if known is not None and known != task.fingerprint():
        raise UsageError(
            f"run {run.id} was trained on other data than {config.task.name} gives now; put the file back as it was"
        )
    return dict(zip(("train", "heldout"), data.opened(config, task), strict=True))


def _own_k(config: RunConfig, k: int) -> int:
    mechanism, asked = config.attention.plan.sole, check_int("k", k, at_least=1)
    return mechanism.size or asked if mechanism is not None and mechanism.score_order == "largest" else asked


def checkpoint_stats(model: Encoder, batch: Batch, k: int, device: str | torch.device) -> dict[str, Any]:
    """Run the model on the batch and measure how it attends, with the k heaviest keys of each query."""
    aggregate = Aggregate(k, ERROR)
    observe(model, batches_of(batch, device), aggregate.see)
    if k > aggregate.longest:
        raise UsageError(
            f"k = {k} exceeds the length of the rows, {aggregate.longest}; choose k <= {aggregate.longest}"
        )
    layers = [
        {"layer": i, **layer.whole.to_dict(), **norms, "stability": _stability(layer.whole, k)}
        | {"heads": [_brief(head, k) for head in layer.heads] if len(layer.heads) > 1 else []}
        for i, (layer, norms) in enumerate(zip(aggregate.layers(), weight_norms(model), strict=True))
    ]
    whole = aggregate.whole()
    return {**whole.to_dict(), "stability": _stability(whole, k), "layers": layers}


def _brief(head: Summary, k: int) -> dict[str, Any]:
    """The part that is stored of one head among several: a run may have hundreds of heads."""
    kept = {name: spread for name, spread in head.to_dict().items() if name in (*PER_HEAD, "infinite")}
    return kept | {"stability": _stability(head, k, percents=("100",))}


def _stability(summary: Summary, k: int, percents: Sequence[str] = PERCENTS) -> dict[str, dict[str, float | None]]:
    """The 1-norm constants of the softmax by percentile: the measured one (`jacobian`) and the bounds."""
    if not summary.queries:
        return {}

    def column(name: str) -> Tensor:
        return torch.tensor([summary.at(name, percent) for percent in percents], dtype=torch.float64)

    # Bounds shrink with the number of keys, so the bound for the fewest keys holds for every query. A query that sees
    # at most k keys keeps them all.
    fewest = max(1, summary.fewest_keys)
    full, heavy = (column("delta_full"), fewest, None), (column("delta_heavy"), min(k, fewest), column("separation"))
    bounds = {
        f"{name}_{form}": torch.as_tensor(stability(*given, norm=1, form=form)).tolist()
        for form in ("paper", "certified")
        for name, given in (("full", full), ("heavy", heavy))
    }
    return {
        percent: {"jacobian": summary.at("jacobian", percent)} | {name: finite(row[i]) for name, row in bounds.items()}
        for i, percent in enumerate(percents)
    }


def batches_of(batch: Batch, device: str | torch.device) -> Iterator[Batch]:
    """The batch in parts that fit into one forward pass, on the device."""
    size = max(1, TOKENS_AT_ONCE // max(1, batch.tokens.shape[1]))
    for first in range(0, len(batch), size):
        rows = slice(first, first + size)
        yield Batch(*(part[rows].to(device) for part in (batch.tokens, batch.labels, batch.lengths)))


def weight_norms(model: Encoder) -> list[dict[str, Any]]:
    """gamma and upsilon (a number a head) and mlp of every block, spectral norms in float64.

    None: not finite. The slope of a squared ReLU or of a gate grows without end, and such an MLP has no constant.
    """
    parameters = {name.replace("__", "."): value.detach() for name, value in model.named_parameters()}
    return [_block(model, {name: parameters[f"blocks.{i}.{name}.weight"] for name in ("qkv", "o", "mlp_in", "mlp_out")})
            for i in range(model.spec.model.blocks)]  # fmt: skip


def _block(model: Encoder, weights: dict[str, Tensor]) -> dict[str, Any]:
    shape, width = model.spec.model, model.spec.model.head_dim
    scale = model.spec.attention.inverse_temperature / math.sqrt(width)
    queries, keys, values = (part.double().split(width, dim=1) for part in weights["qkv"].chunk(3, dim=1))
    outputs = weights["o"].double().split(width, dim=0)
    first, second = _norm(weights["mlp_in"]), _norm(weights["mlp_out"])
    has_bound = first is not None and second is not None and shape.activation in ACTIVATION_SLOPE
    return {
        "gamma": [_gamma(scale * q, k, shape.position_kind) for q, k in zip(queries, keys, strict=True)],
        "upsilon": [_norm(v @ o) for v, o in zip(values, outputs, strict=True)],
        "mlp": mlp_constant(first, second, shape.activation) if has_bound else None,
    }


def _gamma(queries: Tensor, keys: Tensor, positions: str) -> float | None:
    """The largest score of unit tokens; where rotary positions turn them, a bound for every distance."""
    if positions != "rope":
        return _norm(queries @ keys.mT)
    first, second = _norm(queries), _norm(keys)
    return None if first is None or second is None else first * second


def _norm(matrix: Tensor) -> float | None:
    return spectral_norm(matrix) if bool(matrix.isfinite().all()) else None
