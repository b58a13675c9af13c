"""Do models with stable masks learn sooner? One point per task, and two rank correlations.

    points = mask_points(records, measurements).points
    correlation = masks_against(points, "epochs")        or "speed-up"
    correlation.rho, correlation.p, correlation.interval

Mask stability is the share of kept keys that are still kept when noise is added to the inputs, averaged over the noise
levels (median over seeds), of the runs of one mechanism. Epochs are those to 95 % training accuracy; a run that never
reaches it counts all its epochs. Masks are measured on trained models unless their checkpoint says otherwise, so that
the correlation is no prediction.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from semfocus.analysis.comparison import BASE
from semfocus.analysis.consistent_settings import ConsistentRuns, LeftOut, consistent_settings, measured_with
from semfocus.analysis.correlation import Correlation, spearman
from semfocus.analysis.dispersion_vs_speedup import chosen_settings, require_mechanism, why_none
from semfocus.analysis.records import THRESHOLD, Record
from semfocus.analysis.results import Results
from semfocus.analysis.speedup import SpeedUp
from semfocus.analysis.verdicts.pairs import arm_speed_up
from semfocus.analysis.verdicts.settings import Setting
from semfocus.errors import UsageError, unknown
from semfocus.measurements import MaskStability, Measurements

Outcome = Literal["epochs", "speed-up"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
NAME = MaskStability.NAME  # the measurement
EVERYWHERE = ("split", "k", "checkpoint", "noise")  # settings that measurements of all tasks have to share
WITHIN_TASK = ("rows",)  # settings that measurements of one task have to share


@dataclass(frozen=True)
class MaskPoint:
    """One task: the share of keys kept under noise, the epochs to the threshold, and the speed-up."""

    task: str
    kept: float | None  # None if it was not measured
    epochs: float
    all_reached: bool  # if False, `epochs` is a lower bound
    speed_up: SpeedUp
    seeds: int  # the number of runs behind `kept`
    left_out: tuple[LeftOut, ...] = ()  # runs with other measurement settings

    def outcome(self, name: Outcome) -> float | None:
        """`epochs`, or the value of the speed-up."""
        if name not in OUTCOMES:
            raise unknown("outcome", name, OUTCOMES)
        return self.epochs if name == "epochs" else self.speed_up.ratio.value


@dataclass(frozen=True)
class MaskPoints:
    """A point per task, and the measurement settings they share."""

    points: list[MaskPoint]
    settings: dict[str, Any]


def mask_points(records: Sequence[Record], measurements: Measurements, mechanism: str = "topk:5") -> MaskPoints:
    """A point for each task that has ended runs of full attention and of `mechanism`, in order of task."""
    chosen = chosen_settings(
        records, mechanism, lambda run: run.mechanism == BASE or _kept(run, measurements) is not None
    )
    runs = {
        task: [
            (measured_with(run, measurements, NAME, [*EVERYWHERE, *WITHIN_TASK]),) for run in _runs(setting, mechanism)
        ]
        for task, setting in chosen.items()
    }
    consistent = consistent_settings(runs, EVERYWHERE, WITHIN_TASK)
    points = [_point(setting, mechanism, measurements, consistent) for setting in chosen.values()]
    return MaskPoints(points, dict(consistent.shared))


def stored_mask_points(results: Results, mechanism: str = "topk:5") -> MaskPoints:
    """The points of all runs of a store; an error that says what to do if no task was measured."""
    require_mechanism(results, mechanism)
    measured = mask_points(results.records, results.measurements, mechanism)
    if all(point.kept is None for point in measured.points):
        raise UsageError(
            f"{results.root} has no task with runs of {BASE} and {mechanism} whose masks were measured"
            f"{why_none(measured.points)}; measure its runs first: semfocus diagnose RUN ... --mask-stability"
        )
    return measured


def masks_against(points: Sequence[MaskPoint], outcome: Outcome) -> Correlation:
    """Spearman's correlation over the tasks that have both numbers; a bound counts as its value."""
    drawn = {task: (kept, value) for task, kept, value in drawn_masks(points, outcome)}
    kept = {point.task: point.kept for point in points if point.kept is not None}
    return spearman(kept, {task: value for task, (_, value) in drawn.items()})


def drawn_masks(points: Sequence[MaskPoint], outcome: Outcome) -> list[tuple[str, float, float]]:
    """Task, share of kept keys and outcome, for the tasks that have both numbers."""
    values = [(point.task, point.kept, point.outcome(outcome)) for point in points]
    return [(task, kept, value) for task, kept, value in values if kept is not None and value is not None]


def _point(setting: Setting, mechanism: str, measurements: Measurements, consistent: ConsistentRuns) -> MaskPoint:
    runs = [run for run in _runs(setting, mechanism) if run.id in consistent.runs]
    known = [kept for kept in (_kept(run, measurements) for run in runs) if kept is not None]
    times = setting.times(mechanism, THRESHOLD).only(setting.seeds(BASE, mechanism))
    return MaskPoint(
        task=setting.task,
        kept=statistics.median(known) if known else None,
        epochs=float(times.epochs.mean()),
        all_reached=bool(times.reached.all()),
        speed_up=arm_speed_up(setting, BASE, mechanism),
        seeds=len(known),
        left_out=consistent.left_out[setting.task],
    )


def _runs(setting: Setting, mechanism: str) -> list[Record]:
    """The runs of the seeds that full attention has too: the speed-up uses the same ones."""
    return [setting.arms[mechanism][seed] for seed in setting.seeds(BASE, mechanism)]


def _kept(run: Record, measurements: Measurements) -> float | None:
    """The mean over the noise levels; None if one of them is missing."""
    measured = measurements.get(run.id, {}).get(NAME)
    return measured.mean_kept if isinstance(measured, MaskStability) else None
