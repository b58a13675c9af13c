"""The paper's conditions W and X for what was seen of a model: both dispersions from its own scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from semfocus.analysis.conditions import Conditions, condition
from semfocus.diagnostics.aggregate import PERCENTS, Summary
from semfocus.theory import condition_w, condition_x


def conditions(summary: Summary, k: int) -> dict[str, Conditions]:
    """A column for each percentile, all numbers from one model; empty where no query was seen."""
    found = {}
    for percent in PERCENTS:
        values = [summary.at(name, percent) for name in ("delta_full", "delta_heavy", "separation", "in_degree")]
        known = [value for value in values if value is not None]
        if len(known) == len(values):
            keys = {"length": summary.keys, "fewest": summary.fewest_keys, "uneven": bool(summary.uneven)}
            found[percent] = condition(*known, k=k, **keys)
    return found


def w_and_x(summaries: Sequence[Summary], k: int) -> list[dict[str, dict[str, float | None]]]:
    """W and X alone, {"w": {"75": ..., ...}, "x": ...} for each of many heads at once; None where nothing was seen."""

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
