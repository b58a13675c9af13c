"""Panels on measurements that need several runs at once: across tasks, loss surfaces of a group, and Table 6.

Across tasks: one point a task, for the top-k mechanism that most tasks have; a picture needs at least two tasks.
Surfaces: one seed, one colour scale, full attention first. Table 6: each pair of one seed is computed by itself; a
table shows medians over pairs, and in how many of them a condition is met or a bound is vacuous.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from semfocus.analysis.comparison import BASE
from semfocus.analysis.dispersion_vs_speedup import WHENS, dispersion_against_speed, dispersion_points, drawn_points
from semfocus.analysis.groups import Group, base_first
from semfocus.analysis.masks_vs_speedup import OUTCOMES, drawn_masks, mask_points
from semfocus.analysis.records import Record
from semfocus.errors import SemfocusError
from semfocus.measurements import Dispersion, Measurements, Surface, SurfaceMeta, read_surface
from semfocus.measurements.kinds import USUAL_PERCENT
from semfocus.report.figures.scatter import draw_dispersion_vs_speedup, draw_masks_vs_speedup
from semfocus.report.figures.surfaces import draw_surfaces
from semfocus.report.page.pictures import PictureSpec, digest
from semfocus.store import RunDirectory

PERCENTILE = USUAL_PERCENT
Json = dict[str, Any]
MAX_SURFACES = 4  # side by side
DIRECTION_TEXTS = {
    "random": "along two random directions",
    "path": "along the principal directions of training",
    "hessian": "along the top two eigenvectors of the Hessian",
}
Fault = tuple[str, str]
TABLE6_HEADS = ("", "from", "δ full", "δ heavy", "Δ", "in-degree", "W", "X", "sharper W", "sharper X", "")
TABLE6_NUMBERS = ("delta_full", "delta_heavy", "separation", "in_degree", "w", "x")
TABLE6_NOTE = (
    "The conditions of the theory (arXiv 2506.14095) at the end of training: below 1, its bound favours the k heaviest "
    "keys. Two models: δ full from the run with full attention, the rest from the top-k run of the same seed, as in "
    "the paper. One model: both dispersions from the same scores of the top-k run. Only the lines 100 % are the "
    "theorem. Sharper: the certified constant of heavy hitters over that of full attention. Vacuous (grey): "
    "e^δ / keys, a bound on a probability, exceeds 1. In-degree < k: outside the theory. Uneven rows: queries of a row "
    "see different keys, for which there is no sharper X."
)
Runs = Mapping[str, Mapping[int, Dispersion]]


def cross_task_panels(records: Sequence[Record], measurements: Measurements) -> list[PictureSpec]:
    """Dispersion against speed-up, and the stability of masks against how soon tasks are learned."""
    return [*_dispersion_vs_speedup(records, measurements), *_masks_vs_speedup(records, measurements)]


def _dispersion_vs_speedup(records: Sequence[Record], measurements: Measurements) -> list[PictureSpec]:
    runs = [record for record in records if "dispersion" in measurements.get(record.id, {})]
    mechanisms = _topk_names(runs)
    if not mechanisms or not any(record.mechanism == BASE for record in runs):
        return []
    tasks = {name: dispersion_points(runs, measurements, name) for name in mechanisms}
    mechanism, points = max(tasks.items(), key=lambda item: len(item[1]))
    panels = []
    for when in WHENS:
        drawn, correlation = drawn_points(points, when), dispersion_against_speed(points, when)
        if len(drawn) < 2:
            continue
        note = (
            f"One point a task: dispersion of the k heaviest keys of {mechanism} over that of all keys of full "
            f"attention, at the {when} of training (median over seeds, percentile {PERCENTILE}), and the measured "
            "speed-up."
            + ("" if when == "start" else " At the end dispersion is an outcome of training, and predicts nothing.")
            + _points_left_out(points)
        )
        draw = partial(draw_dispersion_vs_speedup, drawn, correlation, when=when)
        title = f"Dispersion against speed-up, {when} of training"
        panels.append(PictureSpec(title, note, draw, digest("speed", [when, mechanism, drawn, str(correlation)])))
    return panels


def _masks_vs_speedup(records: Sequence[Record], measurements: Measurements) -> list[PictureSpec]:
    mechanisms = _topk_names([record for record in records if "mask_stability" in measurements.get(record.id, {})])
    tasks = {name: mask_points(records, measurements, name).points for name in mechanisms}
    drawn = {name: [drawn_masks(points, outcome) for outcome in OUTCOMES] for name, points in tasks.items()}
    mechanism = max(drawn, key=lambda name: len(drawn[name][0]), default="")
    if not mechanism or len(drawn[mechanism][0]) < 2:
        return []
    points = tasks[mechanism]
    note = (
        f"One point a task: the share of kept keys of {mechanism} that stay when noise is added to the inputs (mean "
        "over the sizes of noise, median over seeds), against the epochs it needs and against its speed-up over full "
        f"attention.{_points_left_out(points)}"
    )
    draw = partial(draw_masks_vs_speedup, points, mechanism=mechanism)
    return [PictureSpec("Stability of masks against speed", note, draw, digest("masks", [mechanism, str(points)]))]


def _topk_names(runs: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(run.mechanism for run in runs if run.mechanism.startswith("topk:")))


def _points_left_out(points: Sequence[Any]) -> str:
    return left_out_note(sum(len(point.left_out) for point in points))


def left_out_note(count: int) -> str:
    """How many runs a panel does not show because they were measured with other settings."""
    return f" {count} measured in another way left out." if count else ""


def surfaces_panel(
    root: Path, group: Group, directions: str, runs: Mapping[str, Mapping[int, SurfaceMeta]], left_out: int
) -> tuple[PictureSpec | None, list[Fault]]:
    """A picture for the seed of which most mechanisms have a surface, and faults; None when no surface can be read."""
    seeds = sorted({seed for own in runs.values() for seed in own})
    seed = max(seeds, key=lambda seed: sum(seed in own for own in runs.values()))  # the first of equals
    ids = {record.mechanism: record.id for record in group.records if record.seed == seed}
    surfaces, faults = {}, []
    for mechanism in base_first(name for name, own in runs.items() if seed in own):
        if len(surfaces) == MAX_SURFACES:
            break
        try:
            surface = read_surface(RunDirectory(root / ids[mechanism]), directions)
        except SemfocusError as error:
            faults.append((ids[mechanism], f"its loss surface is not shown: {error}"))
            continue
        if surface is not None and surface.lowest is not None:
            surfaces[mechanism] = surface
    if not surfaces:
        return None, faults
    meta = next(iter(next(iter(runs.values())).values()))
    note = (
        f"Training loss around the trained models (+), {DIRECTION_TEXTS[directions]}, as long as the parameters "
        f"themselves at 1; seed {seed}, {meta.grid} x {meta.grid} points over {meta.rows} rows, one colour scale "
        f"for all.{left_out_note(left_out)}"
    )
    key = digest(
        "surface",
        {name: [directions, s.meta.extent] for name, s in surfaces.items()},
        *map(_array_bytes, surfaces.values()),
    )
    return PictureSpec("Loss surface", note, partial(draw_surfaces, surfaces), key, "webp"), faults


def _array_bytes(surface: Surface) -> bytes:
    path = b"" if surface.path is None else np.ascontiguousarray(surface.path).tobytes()
    return np.ascontiguousarray(surface.losses).tobytes() + path


def table6_panels(task: str, runs: Runs, left_out: int) -> list[Json]:
    """A table for each top-k mechanism that was measured at the end of its training."""
    mechanisms = [name for name in runs if name.startswith("topk:")]
    tables = [(name, _table6_rows(task, name, runs)) for name in mechanisms]
    return [
        {
            "title": f"Table 6, {name}",
            "note": TABLE6_NOTE + left_out_note(left_out),
            "heads": TABLE6_HEADS,
            "rows": rows,
        }
        for name, rows in tables
        if rows
    ]


def _table6_rows(task: str, mechanism: str, runs: Runs) -> list[Json]:
    from semfocus.analysis.table6 import COLUMNS, PAPER_K, one_model, published, two_models  # imports torch

    full, heavy = runs.get(BASE, {}), runs[mechanism]
    ended = [seed for seed, document in heavy.items() if "last" in document.checkpoints]
    paired = [seed for seed in ended if seed in full and "last" in full[seed].checkpoints]
    sources: list[tuple[str, list[Json]]] = [
        (f"two models, {_many(len(paired), 'pair')}", [two_models(full[seed], heavy[seed]) for seed in paired]),
        (f"one model, {_many(len(ended), 'seed')}", [one_model(heavy[seed]) for seed in ended]),
    ]
    paper = published(task) if all(document.k == PAPER_K for document in heavy.values()) else None
    sources += [("the paper", [paper])] if paper is not None else []
    lines = []
    for percent in COLUMNS:
        for source, rows in sources:
            cells = [row["cells"][percent] for row in rows if percent in row["cells"]]
            if cells:
                first = not lines or lines[-1]["percent"] != f"{percent} %"
                lines.append({"percent": f"{percent} %", "first": first, "from": source, **_table6_cells(cells)})
    return lines if ended else []


def _table6_cells(cells: Sequence[Json]) -> Json:
    numbers = [_text(statistics.median(_number(cell, name) for cell in cells)) for name in TABLE6_NUMBERS]
    uneven = [cell for cell in cells if cell["uneven"]]
    sharper = [[cell["sharper"][name] for cell in cells] for name in ("w", "x")]
    medians = [_text(statistics.median(math.inf if v is None else v for v in values)) for values in sharper]
    if uneven:
        medians[1] = ""
    vacuous = [cell for cell in cells if cell["vacuous"]]
    met = [cell for cell in cells if cell["w_holds"] and cell["x_holds"]]
    outside = [cell for cell in cells if cell["sinks_outside"]]
    remarks = [_share(some, cells, text) for some, text in (
        (met, "W and X < 1"), (vacuous, "vacuous"), (outside, "in-degree < k"), (uneven, "uneven rows"),
    )]  # fmt: skip
    return {
        "cells": [*numbers, *medians],
        "vacuous": 2 * len(vacuous) > len(cells),
        "remark": "; ".join(text for text in remarks if text),
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
