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
from semfocus.analysis.records import Record, load_records
from semfocus.analysis.speedup import SpeedUp
from semfocus.analysis.verdicts.measured import number
from semfocus.analysis.verdicts.pairs import gained
from semfocus.analysis.verdicts.settings import Setting, choose, gather
from semfocus.errors import UsageError, unknown
from semfocus.store import RunDirectory, RunStore
from semfocus.store.measurements import read_measurements

When = Literal["start", "end"]
WHENS: tuple[When, ...] = ("start", "end")
NAME = "dispersion"  # the measurement
START, LAST = "0", "last"  # its checkpoints
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
        if when not in WHENS:
            raise unknown("time", when, WHENS)
        return self.start if when == "start" else self.end


def dispersion_points(
    records: Sequence[Record], measurements: Measurements, mechanism: str = "topk:5", percent: str = "95"
) -> list[Point]:
    """A point for each task that has ended runs of full attention and of `mechanism`, in order of task.

    Of several settings of a task, the one nearest to the paper's that was measured, and if none was, the nearest.
    """
    settings = gather(records)

    def has(record: Record) -> bool:
        return any(_value(measurements, record, at, "delta_full", percent) is not None for at in (START, LAST))

    points = []
    for task in sorted({setting.task for setting in settings}):
        arms = (BASE, mechanism)
        setting = choose(settings, task, mechanisms=arms, usable=has) or choose(settings, task, mechanisms=arms)
        if setting is not None:
            points.append(_point(setting, mechanism, measurements, percent))
    return points


def stored_points(store: RunStore, mechanism: str = "topk:5", percent: str = "95") -> list[Point]:
    """The points of all runs of a store; an error that says what to do where not one task was measured."""
    records = load_records(store).records
    runs = [RunDirectory(store.root / record.id) for record in records]
    points = dispersion_points(records, {run.id: read_measurements(run) for run in runs}, mechanism, percent)
    if not any(point.start is not None or point.end is not None for point in points):
        raise UsageError(
            f"{store.root} has no task with a measured dispersion of both {BASE} and {mechanism}; "
            "measure its runs first: semfocus diagnose RUN ... --checkpoint all"
        )
    return points


def dispersion_against_speed(points: Sequence[Point], when: When = "start") -> Correlation:
    """Spearman's correlation over tasks, of the tasks that have both numbers; a bound on a speed-up has its value."""
    ratios = {point.task: ratio for point in points if (ratio := point.ratio(when)) is not None}
    speeds = {point.task: ratio for point in points if (ratio := point.speed_up.ratio.value) is not None}
    return spearman(ratios, speeds)


def drawn_points(points: Sequence[Point], when: When = "start") -> list[tuple[str, float, float]]:
    """Task, ratio of dispersions and speed-up, of the tasks that have both numbers."""
    found = [(point.task, point.ratio(when), point.speed_up.ratio.value) for point in points]
    return [(task, ratio, speed) for task, ratio, speed in found if ratio is not None and speed is not None]


def _point(setting: Setting, mechanism: str, measurements: Measurements, percent: str) -> Point:
    full, heavy, shared = setting.arms[BASE], setting.arms[mechanism], setting.seeds(BASE, mechanism)

    def median(checkpoint: str) -> float | None:
        ratios = [_ratio(measurements, full[seed], heavy[seed], checkpoint, percent) for seed in shared]
        known = [ratio for ratio in ratios if ratio is not None]
        return statistics.median(known) if known else None

    return Point(setting.task, median(START), median(LAST), gained(setting, BASE, mechanism), len(shared))


def _ratio(measurements: Measurements, full: Record, heavy: Record, checkpoint: str, percent: str) -> float | None:
    """delta_heavy / delta_full at this checkpoint, None where either was not measured or nothing is dispersed."""
    above = _value(measurements, heavy, checkpoint, "delta_heavy", percent)
    below = _value(measurements, full, checkpoint, "delta_full", percent)
    return None if above is None or not below else above / below


def _value(measurements: Measurements, run: Record, checkpoint: str, name: str, percent: str) -> float | None:
    return number(measurements.get(run.id, {}).get(NAME), "checkpoints", checkpoint, name, percent)
