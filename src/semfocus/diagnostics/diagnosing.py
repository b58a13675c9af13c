"""The diagnosis of a model: how it attends, and what keeping only k keys would do to it.

    report = semfocus.diagnose(model, batches, k=8)
    print(report)                               one line for each layer, and conclusions
    report.save(Path("diagnosis.html"))

The model may be any module that calls `attend`, any transformers model, or any torch model that uses torch's attention.
It runs in the mode it is in, and its outputs do not change by a bit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from semfocus.analysis.table6 import Conditions, condition
from semfocus.diagnostics.aggregate import PERCENTS, Aggregate, Layer, Summary
from semfocus.diagnostics.capture import CapturedCall, watching
from semfocus.diagnostics.sentences import sentences
from semfocus.errors import UsageError
from semfocus.tasks.base import Batch
from semfocus.theory import condition_w, condition_x


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """How a model attends: layer by layer, head by head, and as a whole, for one k."""

    model: str
    k: int
    longest: int  # keys of the longest call
    error: float  # of quantiles that are not exact, relative
    layers: tuple[Layer, ...]
    whole: Summary
    unseen: tuple[str, ...]  # attention modules that ran without a captured call

    def rows(self) -> list[dict[str, Any]]:
        """One flat row for each layer and head, for a data frame."""
        return [
            {"layer": i, "name": layer.name, "head": h, "queries": head.queries}
            | {f"{name}_{p}": v for name, spread in {**head.spreads, **both}.items() for p, v in spread.items()}
            for i, layer in enumerate(self.layers)
            for h, (head, both) in enumerate(zip(layer.heads, w_and_x(layer.heads, self.k), strict=True))
        ]

    def conditions(self, layer: int | None = None) -> dict[str, Conditions]:
        """W and X of the paper by percentile, both dispersions from this one model."""
        return conditions(self.whole if layer is None else self.layers[layer].whole, self.k)

    def sentences(self) -> list[str]:
        """Where focusing would change little, where it would bite, and which k keeps the weight."""
        return sentences(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON; numbers that are not finite are None."""
        return {
            "model": self.model,
            "k": self.k,
            "longest": self.longest,
            "error": self.error,
            "unseen": list(self.unseen),
            "whole": _described(self.whole, self.k),
            "layers": [
                {"layer": i, "name": layer.name, **_described(layer.whole, self.k)}
                | {"heads": _described_heads(layer.heads, self.k)}
                for i, layer in enumerate(self.layers)
            ],
            "findings": self.sentences(),
        }

    def to_json(self) -> str:
        """The same as text."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)

    def save(self, path: Path | str) -> Path:
        """Write one HTML page that needs nothing else; its heat maps stand beside it as .svg, .pdf and .png."""
        from semfocus.report.page.diagnosis import write_model_page

        return write_model_page(self.to_dict(), Path(path))

    def __str__(self) -> str:
        from semfocus.report.terminal.tables import model_text

        return model_text(self.to_dict())


def diagnose(
    model: nn.Module, batches: Iterable[Any], k: int = 8, error: float = 0.01, *, partial: bool = False
) -> Diagnosis:
    """Run `model` on every batch and measure how it attends.

    batches   what the model is called with: a tensor, a tuple of arguments, a mapping of named ones, or rows of a task
    k         how many keys a focused query would keep
    error     relative error of quantiles once there are more than a few thousand values; below, they are exact
    partial   diagnose a model of which some attention cannot be observed; the report names it (`unseen`)
    """
    aggregate = Aggregate(k, error)
    unseen = observe(model, batches, aggregate.see, partial=partial)
    if not aggregate.longest:
        raise UsageError("batches hold rows of length 0: there is no key to look at; give rows of one token or more")
    if k > aggregate.longest:
        raise UsageError(
            f"k = {k} exceeds the longest sequence, {aggregate.longest} keys: nothing would be dropped; "
            f"choose k <= {aggregate.longest}, or longer text"
        )
    return Diagnosis(
        type(model).__name__,
        aggregate.k,
        aggregate.longest,
        error,
        aggregate.layers(),
        aggregate.whole(),
        tuple(unseen),
    )


def observe(
    model: nn.Module, batches: Iterable[Any], see: Callable[[CapturedCall], None], *, partial: bool = False
) -> list[str]:
    """Run the model on every batch and pass each captured call to `see`; the attention modules without a captured call.

    An error after the first batch where there are such modules, unless `partial`, and where no call was captured.
    """
    passes = 0
    with watching(model, see) as watch, torch.no_grad():
        for batch in batches:
            watch.begin_pass()
            with nullcontext() if passes else watch.handwritten():
                _call(model, batch)
            passes += 1
            if passes == 1 and watch.count and not partial:
                _refuse_partial(model, watch.unseen())
        unseen = watch.unseen()
    if not passes:
        raise UsageError("batches is empty: there is nothing to observe")
    if not watch.count:
        whose = f"; these computed it their own way: {', '.join(unseen[:8])}" if unseen else ""
        hint = " (nn.MultiheadAttention does with need_weights=True)" if "(MultiheadAttention)" in whose else ""
        raise UsageError(
            f"the attention of {type(model).__name__} cannot be observed: it called neither semfocus.attend nor "
            f"torch's scaled_dot_product_attention, nor took its attention from transformers' registry{whose}{hint}"
        )
    return unseen


def _refuse_partial(model: nn.Module, unseen: list[str]) -> None:
    if unseen:
        raise UsageError(
            f"only part of the attention of {type(model).__name__} can be observed; these compute it their own way: "
            f"{', '.join(unseen[:8])}; pass partial=True (--partial) to diagnose the rest"
        )


def _call(model: nn.Module, batch: Any) -> None:
    if isinstance(batch, Batch):
        model(batch.tokens, batch.lengths)
    elif isinstance(batch, Mapping):
        model(**batch)
    elif isinstance(batch, (tuple, list)):
        model(*batch)
    else:
        model(batch)


def _described_heads(heads: Sequence[Summary], k: int) -> list[dict[str, Any]]:
    """Each head with W and X beside its own quantiles."""
    return [
        replace(head, spreads={**head.spreads, **both}).to_dict()
        for head, both in zip(heads, w_and_x(heads, k), strict=True)
    ]


def _described(summary: Summary, k: int) -> dict[str, Any]:
    cells = {percent: cell.to_dict() for percent, cell in conditions(summary, k).items()}
    return summary.to_dict() | {"conditions": cells}


def conditions(summary: Summary, k: int) -> dict[str, Conditions]:
    """The conditions at each percentile, all numbers from one model; empty where no query was counted."""
    by_percent = {}
    for percent in PERCENTS:
        values = [summary.at(name, percent) for name in ("delta_full", "delta_heavy", "separation", "in_degree")]
        known = [value for value in values if value is not None]
        if len(known) == len(values):
            keys = {"length": summary.keys, "fewest": summary.fewest_keys, "uneven": bool(summary.uneven)}
            by_percent[percent] = condition(*known, k=k, **keys)
    return by_percent


def w_and_x(summaries: Sequence[Summary], k: int) -> list[dict[str, dict[str, float | None]]]:
    """W and X alone, {"w": {"75": ..., ...}, "x": ...} for many heads at once; None where no query was counted."""

    def column(name: str) -> torch.Tensor:
        values = [[summary.at(name, percent) for percent in PERCENTS] for summary in summaries]
        return torch.tensor([[math.nan if v is None else v for v in row] for row in values], dtype=torch.float64)

    full, heavy, gap = column("delta_full"), column("delta_heavy"), column("separation")
    boundless = full.isinf() | heavy.isinf()
    full, heavy = full.masked_fill(boundless, 0.0), heavy.masked_fill(boundless, 0.0)
    both = {
        "w": torch.as_tensor(condition_w(full, heavy, gap)).masked_fill(boundless, math.inf),
        "x": torch.as_tensor(condition_x(full, heavy, gap, column("in_degree") / k)).masked_fill(boundless, math.inf),
    }
    return [
        {
            name: {p: None if math.isnan(v) else v for p, v in zip(PERCENTS, values[i].tolist(), strict=True)}
            for name, values in both.items()
        }
        for i in range(len(summaries))
    ]
