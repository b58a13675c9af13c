"""Measurements of the loss around trained models: C10. As in `measured`, stored values are checked before use."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from semfocus.analysis.records import THRESHOLD, Record
from semfocus.analysis.verdicts.evidence import Claim, Part, missing
from semfocus.analysis.verdicts.measured import FLOOR, TABLE_TASKS, measured_runs, smaller
from semfocus.analysis.verdicts.settings import FULL, TOPK, Setting, choose, has_diverged
from semfocus.measurements import Measurement, Measurements, SurfaceMeta, grid_axis

STEEPNESS = ("50", "75", "95", "99")


def c10(settings: Sequence[Setting], measurements: Measurements) -> list[Part]:
    """For each task: the loss around trained models that learned has smaller slopes per distance in parameter space."""

    def slope(record: Record, what: str, percentile: str) -> float | None:
        measured = measurements.get(record.id, {}).get(SurfaceMeta.NAME)
        return _slope(measured, what, percentile) if isinstance(measured, SurfaceMeta) else None

    def has(record: Record) -> bool:
        return all(slope(record, "per_distance", percentile) is not None for percentile in STEEPNESS)

    def learned(record: Record) -> bool:
        return has(record) and _has_learned(record)

    parts = []
    for task in TABLE_TASKS:
        measured = choose(settings, task, usable=has)
        if measured is None:
            parts.append(missing(task, f"no pair of {FULL} and {TOPK} with a measured loss surface"))
            continue
        setting = choose(settings, task, usable=learned)
        if setting is None:
            why = f"no pair of which both have learned: {THRESHOLD:.0%} training accuracy in the last epoch"
            parts.append(missing(task, why))
            continue
        settings_used = {
            _measured_how(measurements[record.id][SurfaceMeta.NAME]) for record in measured_runs(setting, learned)
        }
        if len(settings_used) > 1:
            parts.append(missing(task, "surfaces were measured with different grids, squares or rows"))
            continue
        part = smaller(task, setting, learned, slope, "per_distance", STEEPNESS)
        without = len(setting.seeds(FULL, TOPK, usable=has)) - len(setting.seeds(FULL, TOPK, usable=learned))
        left = f"{without} pairs of which not both have learned left out" if without else ""
        parts.append(replace(part, setting=", ".join(filter(None, (part.setting, left)))))
    return parts


def _has_learned(record: Record) -> bool:
    """Whether the final model has learned: a loss near zero cannot slope much, whatever the mechanism."""
    last = record.final("train_accuracy")
    return not has_diverged(record) and last is not None and last >= THRESHOLD


def _slope(surface: SurfaceMeta, what: str, percentile: str) -> float | None:
    """The geometric mean over the squares; None if a square with two or more grid points has no slope."""
    axis = np.abs(grid_axis(surface.grid, surface.extent))
    values = [
        value
        for value, size in zip(getattr(surface, what)[percentile], surface.squares, strict=True)
        if int((axis <= size + FLOOR).sum()) > 1
    ]
    if not values or any(value is None for value in values):
        return None
    return math.exp(statistics.fmean(math.log(max(value or 0.0, FLOOR)) for value in values))


def _measured_how(surface: Measurement) -> str:
    return str([getattr(surface, name) for name in ("grid", "extent", "squares", "rows", "directions")])


CLAIMS = (
    Claim(
        "C10",
        "The loss surface around a trained top-k model has smaller estimated Lipschitz constants than around a "
        "full one.",
        "A part for each of ListOps, Parity, Even Pairs and Missing Duplicates, from the measurement `surface`, "
        "pairs of one seed of which both have learned (95 % training accuracy in the last epoch: a loss near zero "
        "cannot slope much, so that unequal models say nothing about mechanisms): slopes per true distance in "
        "parameter space, their geometric mean over all squares that hold two grid points. The exact swap test of "
        "the log ratios full / top-k is significant at 5 % at each of the percentiles 50, 75, 95 and 99 (refuted: at "
        "99 the other way).",
        c10,
    ),
)
