"""Panels across tasks: what was measured on the runs of each task, against how soon it learns.

One point a task, for the top-k mechanism that most tasks have. A picture needs at least two tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from semfocus.analysis.comparison import BASE
from semfocus.analysis.dispersion_vs_speedup import WHENS, dispersion_against_speed, dispersion_points, drawn_points
from semfocus.analysis.masks_vs_speedup import OUTCOMES, drawn_masks, mask_points
from semfocus.analysis.records import Record
from semfocus.measurements import Measurements
from semfocus.report.figures.speedup_scatter import draw_dispersion_vs_speedup, draw_masks_vs_speedup
from semfocus.report.page.pictures import digest, picture

AT = "95"  # the percentile that is drawn over training
Json = dict[str, Any]


def cross_task_panels(records: Sequence[Record], measurements: Measurements) -> list[Json]:
    """Dispersion against speed-up, and the stability of masks against how soon tasks are learned."""
    return [*_dispersion(records, measurements), *_masks(records, measurements)]


def _dispersion(records: Sequence[Record], measurements: Measurements) -> list[Json]:
    runs = [record for record in records if "dispersion" in measurements.get(record.id, {})]
    focused = _focused(runs)
    if not focused or not any(record.mechanism == BASE for record in runs):
        return []
    tasks = {name: dispersion_points(runs, measurements, name) for name in focused}
    mechanism, points = max(tasks.items(), key=lambda item: len(item[1]))
    panels = []
    for when in WHENS:
        known, correlation = drawn_points(points, when), dispersion_against_speed(points, when)
        if len(known) < 2:
            continue
        note = (
            f"One point a task: dispersion of the k heaviest keys of {mechanism} over that of all keys of full "
            f"attention, at the {when} of training (median over seeds, percentile {AT}), and the measured speed-up."
            + ("" if when == "start" else " At the end dispersion is an outcome of training, and predicts nothing.")
            + _left_out(points)
        )
        draw = partial(draw_dispersion_vs_speedup, known, correlation, when=when)
        title = f"Dispersion against speed-up, {when} of training"
        panels.append(picture(title, note, draw, key=digest("speed", [when, mechanism, known, str(correlation)])))
    return panels


def _masks(records: Sequence[Record], measurements: Measurements) -> list[Json]:
    focused = _focused([record for record in records if "mask_stability" in measurements.get(record.id, {})])
    tasks = {name: mask_points(records, measurements, name).points for name in focused}
    drawn = {name: [drawn_masks(points, outcome) for outcome in OUTCOMES] for name, points in tasks.items()}
    mechanism = max(drawn, key=lambda name: len(drawn[name][0]), default="")
    if not mechanism or len(drawn[mechanism][0]) < 2:
        return []
    points = tasks[mechanism]
    note = (
        f"One point a task: the share of kept keys of {mechanism} that stay when noise is added to the inputs (mean "
        "over the sizes of noise, median over seeds), against the epochs it needs and against its speed-up over full "
        f"attention.{_left_out(points)}"
    )
    draw = partial(draw_masks_vs_speedup, points, mechanism=mechanism)
    return [picture("Stability of masks against speed", note, draw, key=digest("masks", [mechanism, str(points)]))]


def _focused(runs: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(run.mechanism for run in runs if run.mechanism.startswith("topk:")))


def _left_out(points: Sequence[Any]) -> str:
    return left_out_note(sum(len(point.left_out) for point in points))


def left_out_note(count: int) -> str:
    """How many runs a panel does not show because they were measured with other settings."""
    return f" {count} measured in another way left out." if count else ""
