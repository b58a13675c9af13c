"""The numbers of the page's charts as plain JSON, thinned and rounded so that a thousand runs stay small."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from semfocus.analysis.comparison import Arm, best_baselines
from semfocus.analysis.groups import Group
from semfocus.report.figures.lines import Floats, columns_of, held, series
from semfocus.report.figures.style import mechanism_style
from semfocus.training.objective import is_share

CURVE_NUMBERS = 400_000  # of medians and quartiles in the whole page
SEED_NUMBERS = 250_000  # of single runs
MOST_POINTS, FEWEST_POINTS = 240, 40
MOST_SEED_POINTS, FEWEST_SEED_POINTS = 120, 16
Json = dict[str, Any]


def metric_texts(groups: Sequence[Group]) -> dict[str, str]:
    """The columns that the objectives of these groups record, with the words for people."""
    objectives = {group.records[0].objective.name: group.records[0].objective for group in groups}
    return {name: text for objective in objectives.values() for name, text in objective.column_texts.items()}


def charts(
    groups: Sequence[Group],
    mechanisms: Sequence[str],
    *,
    curve_numbers: int = CURVE_NUMBERS,
    seed_numbers: int = SEED_NUMBERS,
) -> list[Json]:
    """One entry for each group: epochs, and for each mechanism curves, single seeds and Kaplan-Meier shares."""
    arms = sum(len(group.comparison.arms) for group in groups)
    runs = sum(len(group.records) for group in groups)
    points = _within(curve_numbers // max(1, 3 * len(metric_texts(groups)) * arms), FEWEST_POINTS, MOST_POINTS)
    few = _within(seed_numbers // max(1, len(metric_texts(groups)) * runs), FEWEST_SEED_POINTS, MOST_SEED_POINTS)
    return [_chart(group, mechanisms, points, few) for group in groups]


def shapes(mechanisms: Sequence[str]) -> list[Json]:
    """Names and dashes of mechanisms; the style sheet has the colours."""
    return [{"name": name, "dash": list(mechanism_style(name).dash)} for name in mechanisms]


def _chart(group: Group, mechanisms: Sequence[str], points: int, few: int) -> Json:
    columns = [columns_of(record, "epoch")[0] for record in group.records if record.metrics]
    epochs = np.unique(np.concatenate(columns)) if columns else np.empty(0)
    return {
        "name": group.name,
        "horizon": group.comparison.horizon,
        "baselines": {kind: round(level, 4) for kind, level in best_baselines(group.baselines).items()},
        "epochs": _plain(thinned(epochs, points)),
        "seedEpochs": _plain(thinned(epochs, few)),
        "arms": [
            _arm(group, arm, mechanisms.index(arm.mechanism), epochs, points, few) for arm in group.comparison.arms
        ],
    }


def _arm(group: Group, arm: Arm, place: int, epochs: Floats, points: int, few: int) -> Json:
    runs = group.runs(arm.mechanism)
    grid = thinned(epochs, points)
    entry: Json = {"m": place, "median": arm.times.median, "curves": {}, "waiting": None, "seeds": []}
    for metric in metric_texts([group]):
        curve = series(runs, metric)
        if curve is None:
            continue
        entry |= {"runs": curve.runs, "inProgress": curve.in_progress}
        if not curve.in_progress and curve.epochs[-1] < grid[-1]:
            entry["heldFrom"] = _plain(curve.epochs[-1:])[0]  # all of its runs stopped here; drawn thin from here on
        # A value is held until the next measurement; past the last epoch of runs in progress there is none.
        known = grid <= curve.epochs[-1] if curve.in_progress else np.ones(len(grid), dtype=bool)
        lines = [curve.middle] if curve.runs == 1 else [curve.middle, curve.low, curve.high]
        entry["curves"][metric] = [
            _numbers(np.where(known, held(curve.epochs, line, grid), np.nan), metric) for line in lines
        ]
    if len(arm.times):
        steps = arm.times.curve()
        entry["waiting"] = [_plain(steps.epochs), [round(float(share), 4) for share in steps.waiting]]
    for run in runs:
        if run.metrics:
            entry["seeds"].append({"seed": run.seed, "id": run.id, "values": _seed(run, thinned(epochs, few))})
    return entry


def _seed(run: Any, grid: Floats) -> Json:
    """The values of one run, up to its last epoch."""
    values = {}
    for metric in (metric for metric in run.objective.columns if run.final(metric) is not None):
        own, line = columns_of(run, metric)
        values[metric] = _numbers(held(own, line, grid)[grid <= own[-1]], metric)
    return values


def thinned(epochs: Floats, points: int) -> Floats:
    """At most `points` of these epochs: half evenly spaced, half denser towards the start, where some learn at once."""
    count = len(epochs)
    if count <= points:
        return epochs
    even = np.linspace(0, count - 1, points // 2)
    early = np.geomspace(1, count, points - points // 2) - 1
    return epochs[np.unique(np.concatenate([even, early]).round().astype(int))]


def _numbers(values: Floats, metric: str) -> list[float | None]:
    """Values rounded to what can be seen; None where not finite."""
    rounded: list[float] = (
        np.round(values, 4).tolist() if is_share(metric) else [float(f"{v:.4g}") for v in values.tolist()]
    )
    return [value if math.isfinite(value) else None for value in rounded]


def _plain(epochs: Floats) -> list[float | int]:
    return [int(epoch) if epoch == int(epoch) else round(epoch, 4) for epoch in epochs.tolist()]


def _within(value: int, low: int, high: int) -> int:
    return max(low, min(value, high))
