"""A diagnosis as text for a terminal and as one HTML page that needs nothing else.

    write_model_page(diagnosis.to_dict(), Path("diagnosis.html"))
    write_runs_page(runs, tables, stabilities, Path("diagnosis.html"))

Documents are plain, as `Diagnosis.to_dict` and the measurements of a run give them; what they say of themselves is
escaped, and the page's own policy lets nothing run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semfocus.report.figures.diagnosis import (
    COLUMNS,
    draw_conditions,
    draw_dispersion_along_training,
    draw_heat_maps,
    draw_mask_stability,
    row_label,
)
from semfocus.report.page.markup import policy, style_sheet, template
from semfocus.report.page.pictures import picture
from semfocus.store.atomic import write_text

if TYPE_CHECKING:
    from rich.table import Table

Json = Mapping[str, Any]
LAYER_HEADS = (
    "layer", "all keys p95", "k heaviest p95", "separation p50", "top-k weight p50", "k for 95 % p95",
    "k for 99 % p95", "W p100", "X p100",
)  # fmt: skip
TABLE_HEADS = ("", "delta_s", "delta_h", "Delta_h", "in-degree", "W", "X", "sharper W", "sharper X", "")
_LAYER_CELLS = (
    ("delta_full", "95"), ("delta_heavy", "95"), ("separation", "50"), ("top_share", "50"),
    ("k95", "95"), ("k99", "95"),
)  # fmt: skip
VACUOUS = "vacuous"
MAPS_NOTE = (
    "One square a head. Weight, entropy, separation and the largest share of one key are those of the median query (or "
    "row; p50); dispersion and the number of keys are exceeded by one query in twenty (p95)."
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
SPREAD_PERCENTS = ("50", "75", "90", "95", "100")
SPREADS_NOTE = (
    f"Percentiles {', '.join(SPREAD_PERCENTS)} over the queries of a block (in-degree: over its keys), towards the "
    "worse end: of Delta_h the smallest are last. Entropy of the weights; softmax slope: the 1-norm of its Jacobian."
)


def write_model_page(document: Json, path: Path) -> Path:
    """The page of `semfocus.diagnose`, and its heat maps beside it as .svg, .pdf and .png."""
    seen = any(layer["queries"] for layer in document["layers"])
    draw = partial(draw_heat_maps, document)
    pictures = [picture("Layers and heads", MAPS_NOTE, draw, beside=_beside(path, "heads"))] if seen else []
    rows = [_layer_row(layer) for layer in document["layers"]]
    note = (
        "Dispersion (largest minus smallest score) at the 95th percentile of the queries (p95), over all keys and over "
        f"the {document['k']} heaviest; separation and weight of these at the median (p50); W and X in the worst case "
        "(p100)."
    )
    table = {"title": "By layer", "note": note, "heads": LAYER_HEADS, "rows": rows}
    over = f"How {document['model']} attends, and what keeping {document['k']} keys would do"
    return _write(path, f"{document['model']}, k = {document['k']}", over, document["findings"], pictures, [table])


def write_runs_page(runs: Sequence[Json], tables: Sequence[Json], stabilities: Sequence[Json], path: Path) -> Path:
    """The page of `semfocus diagnose RUN ...`: Table 6, dispersion along training, stability of masks, weight norms,
    and of each run how it attends, by block.

    runs          {"label", "mechanism", "checkpoints"} of each
    stabilities   {"label", "mechanism", "measured"} of each that was shaken
    """
    newest = newest_rows(tables)
    about = (
        "The paper's two conditions at the newest of these checkpoints, by percentile over queries, layers and rows; "
        "Delta_h is taken at the mirrored one. In the tables, sharper: the certified constant of heavy hitters over "
        "that of full attention, below 1 where they win. Vacuous: e^delta / keys, a bound on a probability, exceeds 1. "
        "In-degree < k: outside the theory, where its mean is k. Uneven rows: queries see different keys, or it is not "
        "known that they do not, and no constant in the tokens is certified."
    )
    pictures = [picture("W and X", about, partial(draw_conditions, newest), beside=_beside(path, "conditions"))]
    along = [run for run in runs if len({c["epoch"] for c in run["checkpoints"].values()}) > 1]
    if along:
        note = "At the kept checkpoints, epoch 0 being the initialisation."
        draw = partial(draw_dispersion_along_training, along)
        pictures.append(picture("Dispersion along training", note, draw, beside=_beside(path, "training")))
    if stabilities:
        note = "The share of the k heaviest keys that stay when noise is added to the input embeddings."
        draw = partial(draw_mask_stability, stabilities)
        pictures.append(picture("Stability of the masks", note, draw, beside=_beside(path, "masks")))
    shown = [
        {"title": _title(row), "note": _about(row), "heads": TABLE_HEADS, "rows": condition_rows(row)} for row in newest
    ]
    norms = {"title": "Weights and softmax", "note": NORMS_NOTE, "heads": NORM_HEADS, "rows": norm_rows(runs)}
    labels = ", ".join(run["label"] for run in runs)
    spreads = [
        {"title": f"{run['label']}: by block", "note": SPREADS_NOTE, "heads": SPREAD_HEADS, "rows": spread_rows(run)}
        for run in runs
    ]
    return _write(path, "How trained runs attend", labels, [], pictures, [*shown, norms, *spreads])


def model_text(document: Json) -> str:
    """A diagnosis for a terminal: a line a layer, then the sentences."""
    rows = [LAYER_HEADS, *(_layer_row(layer) for layer in document["layers"])]
    widths = [max(len(row[i]) for row in rows) for i in range(len(LAYER_HEADS))]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]))
    return "\n".join([f"{document['model']}, k = {document['k']}", "", *lines, "", *document["findings"]])


def table6_table(row: Json) -> Table:
    """One row of Table 6 for a terminal, percentile by percentile."""
    return rich_table(_title(row), TABLE_HEADS, condition_rows(row))


def newest_rows(tables: Sequence[Json]) -> list[Json]:
    """Of every run or pair the row of its newest checkpoint; the paper's own rows as they are."""
    found: dict[tuple[Any, ...], Json] = {}
    for row in tables:
        key = (row["way"], row["task"], row.get("run"), row.get("full"))
        if key not in found or _age(row) > _age(found[key]):
            found[key] = row
    return list(found.values())


def _age(row: Json) -> float:
    return max(row.get("epochs", [0.0]))


def _title(row: Json) -> str:
    """What a row is about, with the epoch that was measured, also where it is the last."""
    if row["way"] == "published":
        return row_label(row)
    return row_label({**row, "checkpoint": " and ".join(f"{epoch:g}" for epoch in row["epochs"])})


def condition_rows(row: Json) -> list[list[str]]:
    """A line a percentile: what goes in, W and X, the ratios of the sharper bounds, and what to think of it."""
    found = []
    for percent in COLUMNS:
        cell = row["cells"].get(percent)
        if cell is None:
            why = "no finite score" if row.get("diverged") else "not measured"
            found.append([f"{percent} %", *[""] * 8, why])
            continue
        numbers = [_cell(cell, name) for name in ("delta_full", "delta_heavy", "separation", "in_degree", "w", "x")]
        unknown = {"x": ""} if cell["uneven"] else {}
        sharper = [_number(cell["sharper"][name], unknown.get(name, "inf")) for name in ("w", "x")]
        found.append([f"{percent} %", *numbers, *sharper, "; ".join(_remarks(cell))])
    return found


NORM_HEADS = (
    "run, epoch and block", "gamma", "upsilon", "MLP", "softmax slope", "bound, all keys", "bound, k heaviest",
)  # fmt: skip
NORMS_NOTE = (
    "At the newest of these checkpoints. Spectral norms: gamma of the scores, upsilon of the values, largest head. "
    "Softmax slope: the largest 1-norm of its Jacobian over the queries, and the certified bounds of docs/theory.md "
    "(none where an earlier version measured: measure again)."
)


def norm_rows(runs: Sequence[Json]) -> list[list[str]]:
    """Weights and softmax of each run's newest measured checkpoint, a line a block."""
    found = []
    for run in runs:
        newest = max(run["checkpoints"].values(), key=lambda checkpoint: checkpoint["epoch"])
        for layer in newest["layers"]:
            largest = (_largest(layer["gamma"]), _largest(layer["upsilon"]), layer["mlp"])
            sizes = [_number(value, "not finite") for value in largest]
            worst = layer["stability"].get("100", {})
            slope = _number(worst.get("jacobian"), "inf") if worst else ""
            # Measurements that do not know the fewest keys have bounds for the most, which do not hold for all queries.
            bounds = ["", ""]
            if worst and "fewest_keys" in layer:
                bounds = [_number(worst.get(name), "inf") for name in ("full_certified", "heavy_certified")]
            where = f"{run['label']}, epoch {newest['epoch']:g}, block {layer['layer']}"
            found.append([where, *sizes, slope, *bounds])
    return found


def _largest(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


def norm_table(runs: Sequence[Json]) -> Table:
    """The same for a terminal."""
    return rich_table("weights and softmax", NORM_HEADS, norm_rows(runs))


SPREAD_HEADS = ("checkpoint and block", *SPREADS.values())


def spread_rows(run: Json) -> list[list[str]]:
    """How a run attends, a line a block of each measured checkpoint: five percentiles in every cell."""
    by_epoch = {checkpoint["epoch"]: checkpoint for checkpoint in run["checkpoints"].values()}
    return [
        [f"epoch {epoch:g}, block {layer['layer']}", *(_spread(layer, name) for name in SPREADS)]
        for epoch, checkpoint in sorted(by_epoch.items())
        for layer in checkpoint["layers"]
    ]


def _spread(layer: Json, name: str) -> str:
    """`0.51 / 0.7 / 0.89 / 0.95 / 1.15`; nothing where nothing was seen."""
    spread, infinite = layer.get(name, {}), layer["infinite"].get(name, ())
    cells = [_number(spread.get(at), "inf" if at in infinite else "") for at in SPREAD_PERCENTS]
    return " / ".join(cells) if any(cells) else ""


def rich_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Where it is narrow, columns fold between words, the longest first; no word, and so no number, is cut."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left")
    for head, *cells in zip(heads, *rows, strict=True):
        longest = max((len(word) for text in (head, *cells) for word in text.split()), default=0)
        table.add_column(head, justify="right" if head and head != heads[0] else "left", min_width=longest)
    for cells in rows:
        table.add_row(*cells)
    return table


def _about(row: Json) -> str:
    ways = {
        "two models": "As the paper does it: delta_s from the run with full attention, the rest from the top-k run.",
        "one model": "Both dispersions from the same scores of one model.",
        "published": "The paper's own numbers (k = 5); W and X worked out from them.",
    }
    return ways[row["way"]]


def _remarks(cell: Json) -> list[str]:
    holds = [name.upper() for name in ("w", "x") if cell[f"{name}_holds"]]
    said = [f"{' and '.join(holds)} < 1"] if holds else []
    said += [VACUOUS] if cell["vacuous"] else []
    said += ["in-degree < k"] if cell["sinks_outside"] else []
    return [*said, *(["uneven rows"] if cell["uneven"] else [])]


def _layer_row(layer: Json) -> list[str]:
    worst = layer["conditions"].get("100")
    ends = ["", ""] if worst is None else [_cell(worst, "w"), _cell(worst, "x")]
    cells = []
    for name, at in _LAYER_CELLS:
        infinite = "inf" if at in layer["infinite"].get(name, ()) else ""
        value = layer[name][at]
        if name == "top_share" and value is not None:
            cells.append(f"{value:.0%}")
        else:  # between two queries, the larger number of keys is the one that suffices
            cells.append(_number(math.ceil(value) if name in ("k95", "k99") and value is not None else value, infinite))
    return [f"{layer['layer']} {layer['name']}", *cells, *ends]


def _cell(cell: Json, name: str) -> str:
    return _number(cell[name], "inf" if name in cell["infinite"] else "")


def _number(value: float | None, otherwise: str = "") -> str:
    return otherwise if value is None else f"{value:.3g}"


def _beside(page: Path, name: str) -> Path:
    return page.with_name(f"{page.stem}-{name}")


def _write(
    path: Path, title: str, over: str, findings: Sequence[str], pictures: list[dict[str, str]], tables: list[Json]
) -> Path:
    from markupsafe import Markup

    from semfocus import __version__

    css = style_sheet()
    text = template("diagnosis.html.j2").render(
        title=title, over=over, policy=policy("", css), css=Markup(css), findings=findings, pictures=pictures,
        tables=tables, made=f"semfocus {__version__}",
    )  # fmt: skip
    write_text(path, text)
    return path
