"""The tables and sentences of a diagnosis: Table 6, layers, weights, blocks.

Documents are plain, as `Diagnosis.to_dict` and the measurements of a run give them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from semfocus.report.text import TextTable, run_label

Json = Mapping[str, Any]
TABLE6_PERCENTILES = ("75", "90", "95", "100")
LAYER_HEADS = (
    "layer", "all keys p95", "k heaviest p95", "separation p50", "top-k weight p50", "k for 95 % p95",
    "k for 99 % p95", "W p100", "X p100",
)  # fmt: skip
_LAYER_CELLS = (
    ("delta_full", "95"), ("delta_heavy", "95"), ("separation", "50"), ("top_share", "50"),
    ("k95", "95"), ("k99", "95"),
)  # fmt: skip
CONDITION_HEADS = ("", "delta_s", "delta_h", "Delta_h", "in-degree", "W", "X", "sharper W", "sharper X", "")
CONDITION_NOTES = {
    "two models": "As the paper does it: delta_s from the run with full attention, the rest from the top-k run.",
    "one model": "Both dispersions from the same scores of one model.",
    "published": "The paper's own numbers (k = 5); W and X worked out from them.",
}
VACUOUS = "vacuous"
TYPICAL = "95"  # the percentile of the queries that sentences speak of
MOST_FINDINGS = 8  # sentences at the top of a page
NORM_HEADS = (
    "run, epoch and block", "gamma", "upsilon", "MLP", "softmax slope", "bound, all keys", "bound, k heaviest",
)  # fmt: skip
NORMS_NOTE = (
    "At the newest of these checkpoints. Spectral norms: gamma of the scores (with rotary positions, a bound for all "
    "distances), upsilon of the values, largest head; an MLP with a squared ReLU or a gate has none. "
    "Softmax slope: the largest 1-norm of its Jacobian over the queries, and the certified bounds of docs/theory.md "
    "(none where an earlier version measured: measure again)."
)
SPREADS = {
    "delta": "delta, kept keys",
    "delta_full": "delta_s, all keys",
    "delta_heavy": "delta_h, k heaviest",
    "separation": "Delta_h",
    "in_degree": "in-degree",
    "entropy": "entropy (nats)",
    "jacobian": "softmax slope",
}
SPREAD_HEADS = ("checkpoint and block", *SPREADS.values())
SPREAD_PERCENTS = ("50", "75", "90", "95", "100")
SPREADS_NOTE = (
    f"Percentiles {', '.join(SPREAD_PERCENTS)} over the queries of a block (in-degree: over its keys), towards the "
    "worse end: of Delta_h the smallest are last. Entropy of the weights; softmax slope: the 1-norm of its Jacobian."
)


def row_label(row: Json, seeds: int = 1) -> str:
    """What a row of Table 6 is about: `even_pairs, seed 3, full and top-k run, epoch 20`, or `..., 3 seeds, ...`."""
    if row["way"] == "published":
        return f"{row['task']}, the paper's numbers"
    place = "" if row["checkpoint"] == "last" else f", epoch {row['checkpoint']}"
    who = "full and top-k run" if row["way"] == "two models" else f"{row['mechanism']} alone"
    whose = f"seed {row['seed']}" if seeds == 1 else f"{seeds} seeds"
    return f"{row['task']}, {whose}, {who}{place}"


def layer_table(document: Json) -> TextTable:
    """One row for each layer of a diagnosed model."""
    note = (
        "Dispersion (largest minus smallest score) at the 95th percentile of the queries (p95), over all keys and over "
        f"the {document['k']} heaviest; separation and weight of these at the median (p50); W and X in the worst case "
        "(p100)."
    )
    return TextTable("By layer", LAYER_HEADS, [_layer_row(layer) for layer in document["layers"]], note)


def newest_rows(rows: Sequence[Json]) -> list[Json]:
    """The row of the newest checkpoint of each run or pair, and all of the paper's rows."""
    newest: dict[tuple[Any, ...], Json] = {}
    for row in rows:
        key = (row["way"], row["task"], row.get("run"), row.get("full"))
        if key not in newest or _last_epoch(row) > _last_epoch(newest[key]):
            newest[key] = row
    return list(newest.values())


def spread_headline(rows: Sequence[Json]) -> str:
    """How far the scores of the kept keys spread against those of all keys, as one plain sentence."""
    for way, where in (("two models", "in the top\u2011k run"), ("one model", "of the same model")):
        ratios = [ratio for row in rows if row["way"] == way and (ratio := _spread_ratio(row)) is not None]
        if ratios:
            middle = statistics.median(ratios)
            size = f"{1 / middle:.2g} times less" if middle < 1 else f"{middle:.2g} times more"
            full = " under full attention" if way == "two models" else ""
            return f"Scores of the kept keys {where} spread {size} than those of all keys{full}"
    return "How trained runs attend"


def spread_findings(rows: Sequence[Json]) -> list[str]:
    """For each measured row of Table 6 a sentence: how far scores spread, and whether the paper's conditions hold."""
    lines = []
    for row in rows:
        cell = row.get("cells", {}).get(TYPICAL)
        if row["way"] == "published" or cell is None:
            continue
        holds = [name.upper() for name in ("w", "x") if cell[f"{name}_holds"]]
        said = f"{' and '.join(holds)} below 1" if holds else "neither W nor X below 1"
        lines.append(
            f"{row_label(row)}: for {TYPICAL} % of the queries the scores of all keys differ by at most "
            f"{_cell(cell, 'delta_full')}, those of the heaviest keys by at most {_cell(cell, 'delta_heavy')}; of the "
            f"paper's conditions {said}."
        )
    more = len(lines) - MOST_FINDINGS
    return lines if more <= 0 else [*lines[:MOST_FINDINGS], f"And {more} more, in the tables below."]


def _spread_ratio(row: Json) -> float | None:
    """The dispersion of the heaviest keys over that of all keys, for nearly all queries."""
    cell = row["cells"].get(TYPICAL)
    full, heavy = (None, None) if cell is None else (cell["delta_full"], cell["delta_heavy"])
    return None if not full or not heavy else heavy / full


def condition_table(row: Json) -> TextTable:
    """One entry of Table 6, with a row for each percentile. The title names the measured epochs, even the last."""
    title = row_label(row)
    if row["way"] != "published":
        title = row_label({**row, "checkpoint": " and ".join(f"{epoch:g}" for epoch in row["epochs"])})
    return TextTable(title, CONDITION_HEADS, condition_rows(row), CONDITION_NOTES[row["way"]])


def condition_rows(row: Json) -> list[list[str]]:
    """One row for each percentile: the inputs, W and X, the ratios of the sharper bounds, and remarks."""
    lines = []
    for percent in TABLE6_PERCENTILES:
        cell = row["cells"].get(percent)
        if cell is None:
            why = "no finite score" if row.get("diverged") else "not measured"
            lines.append([f"{percent} %", *[""] * 8, why])
            continue
        numbers = [_cell(cell, name) for name in ("delta_full", "delta_heavy", "separation", "in_degree", "w", "x")]
        unknown = {"x": ""} if cell["uneven"] else {}
        sharper = [_number(cell["sharper"][name], unknown.get(name, "inf")) for name in ("w", "x")]
        lines.append([f"{percent} %", *numbers, *sharper, "; ".join(_remarks(cell))])
    return lines


def norm_table(runs: Sequence[Json]) -> TextTable:
    """Weights and softmax of each run's newest measured checkpoint, with a row for each block."""
    lines = []
    for run in runs:
        newest = max(run["checkpoints"].values(), key=lambda checkpoint: checkpoint["epoch"])
        for layer in newest["layers"]:
            largest = (_largest(layer["gamma"]), _largest(layer["upsilon"]))
            sizes = [*(_number(value, "not finite") for value in largest), _number(layer["mlp"], "none")]
            worst = layer["stability"].get("100", {})
            slope = _number(worst.get("jacobian"), "inf") if worst else ""
            # Older measurements lack `fewest_keys`. Their bounds are for the most keys and do not hold for all queries.
            bounds = ["", ""]
            if worst and "fewest_keys" in layer:
                bounds = [_number(worst.get(name), "inf") for name in ("full_certified", "heavy_certified")]
            where = f"{run_label(run)}, epoch {newest['epoch']:g}, block {layer['layer']}"
            lines.append([where, *sizes, slope, *bounds])
    return TextTable("Weights and softmax", NORM_HEADS, lines, NORMS_NOTE)


def spread_table(run: Json) -> TextTable:
    """How a run attends, with a row for each block of each checkpoint and five percentiles in each cell."""
    by_epoch = {checkpoint["epoch"]: checkpoint for checkpoint in run["checkpoints"].values()}
    lines = [
        [f"epoch {epoch:g}, block {layer['layer']}", *(_spread(layer, name) for name in SPREADS)]
        for epoch, checkpoint in sorted(by_epoch.items())
        for layer in checkpoint["layers"]
    ]
    return TextTable(f"{run_label(run)}: by block", SPREAD_HEADS, lines, SPREADS_NOTE)


def _last_epoch(row: Json) -> float:
    return max(row.get("epochs", [0.0]))


def _largest(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


def _spread(layer: Json, name: str) -> str:
    """`0.51 / 0.7 / 0.89 / 0.95 / 1.15`; empty where nothing was measured."""
    spread, infinite = layer.get(name, {}), layer["infinite"].get(name, ())
    cells = [_number(spread.get(at), "inf" if at in infinite else "") for at in SPREAD_PERCENTS]
    return " / ".join(cells) if any(cells) else ""


def _remarks(cell: Json) -> list[str]:
    holds = [name.upper() for name in ("w", "x") if cell[f"{name}_holds"]]
    remarks = [f"{' and '.join(holds)} < 1"] if holds else []
    remarks += [VACUOUS] if cell["vacuous"] else []
    remarks += ["in-degree < k"] if cell["sinks_outside"] else []
    return [*remarks, *(["uneven rows"] if cell["uneven"] else [])]


def _layer_row(layer: Json) -> list[str]:
    worst = layer["conditions"].get("100")
    ends = ["", ""] if worst is None else [_cell(worst, "w"), _cell(worst, "x")]
    cells = []
    for name, at in _LAYER_CELLS:
        infinite = "inf" if at in layer["infinite"].get(name, ()) else ""
        value = layer[name][at]
        if name == "top_share" and value is not None:
            cells.append(f"{value:.0%}")
        else:  # a quantile may lie between two numbers of keys: the larger one suffices
            cells.append(_number(math.ceil(value) if name in ("k95", "k99") and value is not None else value, infinite))
    return [f"{layer['layer']} {layer['name']}", *cells, *ends]


def _cell(cell: Json, name: str) -> str:
    return _number(cell[name], "inf" if name in cell["infinite"] else "")


def _number(value: float | None, otherwise: str = "") -> str:
    return otherwise if value is None else f"{value:.3g}"
