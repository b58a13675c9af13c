"""Does the ratio of dispersions predict how much faster top-k learns? One point per task, and a rank correlation.

    points = dispersion_points(records, measurements)
    correlation = dispersion_against_speed(points, when="start")
    correlation.rho, correlation.p, correlation.interval

The ratio is delta_heavy of the top-k run over delta_full of the full run of the same seed (median over the seeds that
both have), at initialisation ("start", epoch 0) or at the last checkpoint ("end"). Only the ratio at the start is a
prediction: at the end, dispersion is itself an outcome of training. Runs with other measurement settings than most are
left out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from semfocus.analysis.comparison import BASE
from semfocus.analysis.consistent_settings import (
    ConsistentRuns,
    LeftOut,
    MeasuredWith,
    consistent_settings,
    measured_with,
)
from semfocus.analysis.correlation import Correlation, spearman
from semfocus.analysis.records import Record
from semfocus.analysis.results import Results
from semfocus.analysis.speedup import SpeedUp
from semfocus.analysis.verdicts.pairs import arm_speed_up
from semfocus.analysis.verdicts.settings import Setting, choose, settings_from
from semfocus.errors import UsageError, unknown
from semfocus.measurements import Dispersion, Measurements
from semfocus.measurements.kinds import USUAL_PERCENT

When = Literal["start", "end"]
WHENS: tuple[When, ...] = ("start", "end")
NAME = Dispersion.NAME  # the measurement
START, LAST = "0", "last"  # its checkpoints
EVERYWHERE = ("split", "k")  # settings that measurements of all tasks have to share
WITHIN_TASK = ("rows",)  # settings that measurements of one task have to share


@dataclass(frozen=True)
class Point:
    """One task: the ratio of dispersions at the start and at the end of training, and the measured speed-up."""

    task: str
    start: float | None  # None if it was not measured
    end: float | None
    speed_up: SpeedUp
    start_seeds: int = 0  # the number of pairs of runs behind each ratio
    end_seeds: int = 0
    left_out: tuple[LeftOut, ...] = ()  # runs with other measurement settings

    def ratio(self, when: When) -> float | None:
        """`start` or `end`."""
        if when not in WHENS:
            raise unknown("time", when, WHENS)
        return self.start if when == "start" else self.end


def dispersion_points(
    records: Sequence[Record], measurements: Measurements, mechanism: str = "topk:5", percent: str = USUAL_PERCENT
) -> list[Point]:
    """A point for each task that has ended runs of full attention and of `mechanism`, in order of task.

    Of several settings of a task, use the nearest to the paper's that was measured; if none was, the nearest.
    """

    def has(record: Record) -> bool:
        return any(_value(measurements, record, at, "delta_full", percent) is not None for at in (START, LAST))

    chosen = chosen_settings(records, mechanism, has)
    consistent = consistent_settings(
        {task: _pairs(setting, mechanism, measurements) for task, setting in chosen.items()}, EVERYWHERE, WITHIN_TASK
    )
    return [_point(setting, mechanism, measurements, percent, consistent) for setting in chosen.values()]


def chosen_settings(
    records: Sequence[Record], mechanism: str, has: Callable[[Record], bool] = lambda record: True
) -> dict[str, Setting]:
    """One setting with both arms per task, in order of task; a measured one (`has`) if there is any."""
    settings, arms = settings_from(records), (BASE, mechanism)
    chosen = {}
    for task in sorted({setting.task for setting in settings}):
        setting = choose(settings, task, mechanisms=arms, usable=has) or choose(settings, task, mechanisms=arms)
        if setting is not None:
            chosen[task] = setting
    return chosen


def stored_points(results: Results, mechanism: str = "topk:5", percent: str = USUAL_PERCENT) -> list[Point]:
    """The points of all runs of a store; an error that says what to do if no task was measured."""
    require_mechanism(results, mechanism)
    points = dispersion_points(results.records, results.measurements, mechanism, percent)
    if not any(point.start is not None or point.end is not None for point in points):
        raise UsageError(
            f"{results.root} has no task with a measured dispersion of both {BASE} and {mechanism}"
            f"{why_none(points)}; measure its runs first: semfocus diagnose RUN ... --checkpoint all"
        )
    return points


def why_none(points: Sequence[Any]) -> str:
    """The end of an error message: a measurement exists, but with other settings."""
    left_out = [one for point in points for one in point.left_out]
    return f" in the same way (run {left_out[0].record.id} has {left_out[0].why})" if left_out else ""


def require_mechanism(results: Results, mechanism: str) -> None:
    """Raise an error if the store has no run of this mechanism, or if it is full attention."""
    present = {record.mechanism for record in results.records} - {BASE}
    if mechanism not in present:
        raise unknown("mechanism", mechanism, present, f" (those with runs in {results.root}, {BASE} aside)")


def dispersion_against_speed(points: Sequence[Point], when: When = "start") -> Correlation:
    """Spearman's correlation over the tasks that have both numbers; a bound on a speed-up counts as its value."""
    ratios = {point.task: ratio for point in points if (ratio := point.ratio(when)) is not None}
    speeds = {point.task: ratio for point in points if (ratio := point.speed_up.ratio.value) is not None}
    return spearman(ratios, speeds)


def smallest_p(tasks: int) -> float:
    """The smallest possible p-value with this many tasks: 2 of the n! orders are perfect."""
    return 2 / math.factorial(tasks)


def drawn_points(points: Sequence[Point], when: When = "start") -> list[tuple[str, float, float]]:
    """Task, ratio of dispersions and speed-up, for the tasks that have both numbers."""
    values = [(point.task, point.ratio(when), point.speed_up.ratio.value) for point in points]
    return [(task, ratio, speed) for task, ratio, speed in values if ratio is not None and speed is not None]


def _pairs(setting: Setting, mechanism: str, measurements: Measurements) -> list[tuple[MeasuredWith, MeasuredWith]]:
    """The runs of both arms by seed. The k of full attention is not compared: delta_full covers all keys."""
    full, heavy = setting.arms[BASE], setting.arms[mechanism]
    seeds = setting.seeds(BASE, mechanism)
    return [
        (
            measured_with(full[seed], measurements, NAME, ("split", "rows")),
            measured_with(heavy[seed], measurements, NAME, ("split", "k", "rows")),
        )
        for seed in seeds
    ]


def _point(
    setting: Setting, mechanism: str, measurements: Measurements, percent: str, consistent: ConsistentRuns
) -> Point:
    full, heavy = setting.arms[BASE], setting.arms[mechanism]
    seeds = setting.seeds(BASE, mechanism, usable=lambda record: record.id in consistent.runs)

    def ratios(checkpoint: str) -> list[float]:
        every = [_ratio(measurements, full[seed], heavy[seed], checkpoint, percent) for seed in seeds]
        return [ratio for ratio in every if ratio is not None]

    start, end = ratios(START), ratios(LAST)
    return Point(
        task=setting.task,
        start=statistics.median(start) if start else None,
        end=statistics.median(end) if end else None,
        speed_up=arm_speed_up(setting, BASE, mechanism),
        start_seeds=len(start),
        end_seeds=len(end),
        left_out=consistent.left_out[setting.task],
    )


def _ratio(measurements: Measurements, full: Record, heavy: Record, checkpoint: str, percent: str) -> float | None:
    """delta_heavy / delta_full at this checkpoint; None if either was not measured or delta_full is 0."""
    heavy_delta = _value(measurements, heavy, checkpoint, "delta_heavy", percent)
    full_delta = _value(measurements, full, checkpoint, "delta_full", percent)
    return None if heavy_delta is None or not full_delta else heavy_delta / full_delta


def _value(measurements: Measurements, run: Record, checkpoint: str, name: str, percent: str) -> float | None:
    measured = measurements.get(run.id, {}).get(NAME)
    at = measured.checkpoints.get(checkpoint) if isinstance(measured, Dispersion) else None
    return None if at is None else at.at(name, percent)
