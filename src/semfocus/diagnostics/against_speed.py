"""Does the ratio of dispersions predict how much faster top-k learns? One point a task, and a rank correlation.

    points = dispersion_points(records, measurements)
    found = dispersion_against_speed(points, when="start")
    found.rho, found.p, found.interval

The ratio is delta_heavy of the top-k run over delta_full of the full run of the same seed (median over the seeds that
both have), at initialisation ("start", epoch 0) or at the last checkpoint ("end"). At the end dispersion is itself an
outcome of training: what counts as a prediction is the start.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from semfocus.analysis.comparison import BASE
from semfocus.analysis.correlation import Correlation, spearman
from semfocus.analysis.records import Record
from semfocus.analysis.speedup import SpeedUp, speed_up
from semfocus.analysis.survival import Times
from semfocus.diagnostics.runs import LAST, NAME
from semfocus.errors import unknown

When = Literal["start", "end"]
START = "0"
Measurements = Mapping[str, Mapping[str, Mapping[str, Any]]]  # by run id and name


@dataclass(frozen=True)
class Point:
    """One task: the ratio of dispersions at the start and at the end of training, and the measured speed-up."""

    task: str
    start: float | None  # None: not measured
    end: float | None
    speed_up: SpeedUp
    seeds: int

    def ratio(self, when: When) -> float | None:
        """`start` or `end`."""
        if when not in ("start", "end"):
            raise unknown("time", when, ("start", "end"))
        return self.start if when == "start" else self.end


def dispersion_points(
    records: Sequence[Record], measurements: Measurements, mechanism: str = "topk:5", percent: str = "95"
) -> list[Point]:
    """A point for each task that has ended runs of full attention and of `mechanism`, in order of task."""
    by_task: dict[str, dict[str, dict[int, Record]]] = {}
    for record in records:
        if record.ended and record.mechanism in (BASE, mechanism):
            own = by_task.setdefault(record.config["task"]["name"], {})
            own.setdefault(record.mechanism, {})[record.seed] = record
    return [
        _point(task, arms[BASE], arms[mechanism], measurements, percent)
        for task, arms in sorted(by_task.items())
        if BASE in arms and mechanism in arms
    ]


def dispersion_against_speed(points: Sequence[Point], when: When = "start") -> Correlation:
    """Spearman's correlation over tasks, of the tasks that have both numbers; a bound on a speed-up has its value."""
    ratios = {point.task: ratio for point in points if (ratio := point.ratio(when)) is not None}
    speeds = {point.task: ratio for point in points if (ratio := point.speed_up.ratio.value) is not None}
    return spearman(ratios, speeds)


def _point(
    task: str, full: Mapping[int, Record], heavy: Mapping[int, Record], measurements: Measurements, percent: str
) -> Point:
    horizon = float(max(record.horizon for record in (*full.values(), *heavy.values())))
    times = [Times.of({seed: run.converged_at for seed, run in arm.items()}, horizon=horizon) for arm in (full, heavy)]
    shared = sorted(full.keys() & heavy.keys())

    def median(checkpoint: str) -> float | None:
        ratios = [_ratio(measurements, full[seed], heavy[seed], checkpoint, percent) for seed in shared]
        known = [ratio for ratio in ratios if ratio is not None]
        return statistics.median(known) if known else None

    return Point(task, median(START), median(LAST), speed_up(*times), len(shared))


def _ratio(measurements: Measurements, full: Record, heavy: Record, checkpoint: str, percent: str) -> float | None:
    """delta_heavy / delta_full at this checkpoint, None where either was not measured or nothing is dispersed."""
    above = _value(measurements, heavy, checkpoint, "delta_heavy", percent)
    below = _value(measurements, full, checkpoint, "delta_full", percent)
    return None if above is None or not below else above / below


def _value(measurements: Measurements, run: Record, checkpoint: str, name: str, percent: str) -> float | None:
    measured = measurements.get(run.id, {}).get(NAME, {}).get("checkpoints", {}).get(checkpoint)
    return None if measured is None else measured[name][percent]
