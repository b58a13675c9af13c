"""The paper's Table 6 for a group of runs, by percentile: from two models, from one model, and the paper's numbers.

Each pair of one seed is computed by itself. A table shows medians over pairs, and in how many of them a condition is
met or a bound is vacuous.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from semfocus.analysis.comparison import BASE
from semfocus.measurements import Dispersion
from semfocus.report.page.cross_task_panels import left_out_note

HEADS = ("", "from", "δ full", "δ heavy", "Δ", "in-degree", "W", "X", "sharper W", "sharper X", "")
NUMBERS = ("delta_full", "delta_heavy", "separation", "in_degree", "w", "x")
NOTE = (
    "The conditions of the theory (arXiv 2506.14095) at the end of training: below 1, its bound favours the k heaviest "
    "keys. Two models: δ full from the run with full attention, the rest from the top-k run of the same seed, as in "
    "the paper. One model: both dispersions from the same scores of the top-k run. Only the lines 100 % are the "
    "theorem. Sharper: the certified constant of heavy hitters over that of full attention. Vacuous (grey): "
    "e^δ / keys, a bound on a probability, exceeds 1. In-degree < k: outside the theory. Uneven rows: queries of a row "
    "see different keys, for which there is no sharper X."
)
Json = dict[str, Any]
Runs = Mapping[str, Mapping[int, Dispersion]]


def table_panels(task: str, runs: Runs, left_out: int) -> list[Json]:
    """A table for each top-k mechanism that was measured at the end of its training. It imports torch."""
    focused = [name for name in runs if name.startswith("topk:")]
    tables = [(name, _table(task, name, runs)) for name in focused]
    return [
        {"title": f"Table 6, {name}", "note": NOTE + left_out_note(left_out), "heads": HEADS, "rows": rows}
        for name, rows in tables
        if rows
    ]


def _table(task: str, mechanism: str, runs: Runs) -> list[Json]:
    from semfocus.analysis.table6 import COLUMNS, PAPER_K, one_model, published, two_models

    full, heavy = runs.get(BASE, {}), runs[mechanism]
    ended = [seed for seed, document in heavy.items() if "last" in document.checkpoints]
    paired = [seed for seed in ended if seed in full and "last" in full[seed].checkpoints]
    ways: list[tuple[str, list[Json]]] = [
        (f"two models, {_many(len(paired), 'pair')}", [two_models(full[seed], heavy[seed]) for seed in paired]),
        (f"one model, {_many(len(ended), 'seed')}", [one_model(heavy[seed]) for seed in ended]),
    ]
    paper = published(task) if all(document.k == PAPER_K for document in heavy.values()) else None
    ways += [("the paper", [paper])] if paper is not None else []
    lines = []
    for percent in COLUMNS:
        for words, rows in ways:
            cells = [row["cells"][percent] for row in rows if percent in row["cells"]]
            if cells:
                first = not lines or lines[-1]["percent"] != f"{percent} %"
                lines.append({"percent": f"{percent} %", "first": first, "from": words, **_line(cells)})
    return lines if ended else []


def _line(cells: Sequence[Json]) -> Json:
    numbers = [_text(statistics.median(_number(cell, name) for cell in cells)) for name in NUMBERS]
    uneven = [cell for cell in cells if cell["uneven"]]
    sharper = [[cell["sharper"][name] for cell in cells] for name in ("w", "x")]
    medians = [_text(statistics.median(math.inf if v is None else v for v in values)) for values in sharper]
    if uneven:
        medians[1] = ""
    vacuous = [cell for cell in cells if cell["vacuous"]]
    met = [cell for cell in cells if cell["w_holds"] and cell["x_holds"]]
    outside = [cell for cell in cells if cell["sinks_outside"]]
    said = [_share(some, cells, text) for some, text in (
        (met, "W and X < 1"), (vacuous, "vacuous"), (outside, "in-degree < k"), (uneven, "uneven rows"),
    )]  # fmt: skip
    return {
        "cells": [*numbers, *medians],
        "vacuous": 2 * len(vacuous) > len(cells),
        "remark": "; ".join(text for text in said if text),
    }


def _share(some: Sequence[Any], cells: Sequence[Any], text: str) -> str:
    """The remark, and for how many cells it holds if not for all."""
    if not some:
        return ""
    return text if len(some) == len(cells) else f"{text} in {len(some)} of {len(cells)}"


def _number(cell: Json, name: str) -> float:
    """The number of a cell; None stands for infinity."""
    return math.inf if cell[name] is None else cell[name]


def _text(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:.3g}"


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
