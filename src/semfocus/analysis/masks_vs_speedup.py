"""Do models whose kept keys stay under noise learn sooner? One point a task, and two rank correlations.

    points = mask_points(records, measurements)
    found = masks_against(points, "epochs")        or "speed-up"
    found.rho, found.p, found.interval

Mask stability is the share of kept keys that stay when noise is added to the inputs, averaged over the sizes of noise
(median over seeds), of the runs of one mechanism; epochs are those it needs to 95 % training accuracy, a run that never
gets there counting all it had. Masks are measured on trained models unless their checkpoint says otherwise: what they
are related to then came before, and nothing is predicted.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from semfocus.analysis.comparison import BASE
from semfocus.analysis.consistent_settings import Alike, LeftOut, alike, seen
from semfocus.analysis.correlation import Correlation, spearman
from semfocus.analysis.dispersion_vs_speedup import chosen_settings, require_mechanism, why_none
from semfocus.analysis.records import THRESHOLD, Record
from semfocus.analysis.results import Results
from semfocus.analysis.speedup import SpeedUp
from semfocus.analysis.verdicts.pairs import gained
from semfocus.analysis.verdicts.settings import Setting
from semfocus.errors import UsageError, unknown
from semfocus.measurements import MaskStability, Measurements

Outcome = Literal["epochs", "speed-up"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
NAME = MaskStability.NAME  # the measurement
EVERYWHERE, HERE = ("split", "k", "checkpoint", "noise"), ("rows",)


@dataclass(frozen=True)
class MaskPoint:
    """One task: the share of kept keys that stay under noise, how long training took, and the measured speed-up."""

    task: str
    kept: float | None  # None: not measured
    epochs: float
    all_reached: bool  # else `epochs` is a lower bound
    speed_up: SpeedUp
    seeds: int  # that `kept` is the median of
    left_out: tuple[LeftOut, ...] = ()  # runs that were measured in another way

    def outcome(self, name: Outcome) -> float | None:
        """`epochs`, or the value of the speed-up."""
        if name not in OUTCOMES:
            raise unknown("outcome", name, OUTCOMES)
        return self.epochs if name == "epochs" else self.speed_up.ratio.value


@dataclass(frozen=True)
class MaskPoints:
    """A point a task, and the settings with which all of them were measured."""

    points: list[MaskPoint]
    settings: dict[str, Any]


def mask_points(records: Sequence[Record], measurements: Measurements, mechanism: str = "topk:5") -> MaskPoints:
    """A point for each task that has ended runs of full attention and of `mechanism`, in order of task."""
    chosen = chosen_settings(
        records, mechanism, lambda run: run.mechanism == BASE or _kept(run, measurements) is not None
    )
    runs = {
        task: [(seen(run, measurements, NAME, [*EVERYWHERE, *HERE]),) for run in _runs(setting, mechanism)]
        for task, setting in chosen.items()
    }
    found = alike(runs, EVERYWHERE, HERE)
    points = [_point(setting, mechanism, measurements, found) for setting in chosen.values()]
    return MaskPoints(points, dict(found.shared))


def stored_mask_points(results: Results, mechanism: str = "topk:5") -> MaskPoints:
    """The points of all runs of a store; an error that says what to do if no task was measured."""
    require_mechanism(results, mechanism)
    found = mask_points(results.records, results.measurements, mechanism)
    if all(point.kept is None for point in found.points):
        raise UsageError(
            f"{results.root} has no task with runs of {BASE} and {mechanism} whose masks were measured"
            f"{why_none(found.points)}; measure its runs first: semfocus diagnose RUN ... --mask-stability"
        )
    return found


def masks_against(points: Sequence[MaskPoint], outcome: Outcome) -> Correlation:
    """Spearman's correlation over tasks, of the tasks that have both numbers; a bound has its value."""
    drawn = {task: (kept, value) for task, kept, value in drawn_masks(points, outcome)}
    kept = {point.task: point.kept for point in points if point.kept is not None}
    return spearman(kept, {task: value for task, (_, value) in drawn.items()})


def drawn_masks(points: Sequence[MaskPoint], outcome: Outcome) -> list[tuple[str, float, float]]:
    """Task, share of keys that stay and outcome, of the tasks that have both numbers."""
    found = [(point.task, point.kept, point.outcome(outcome)) for point in points]
    return [(task, kept, value) for task, kept, value in found if kept is not None and value is not None]


def _point(setting: Setting, mechanism: str, measurements: Measurements, found: Alike) -> MaskPoint:
    runs = [run for run in _runs(setting, mechanism) if run.id in found.runs]
    known = [kept for kept in (_kept(run, measurements) for run in runs) if kept is not None]
    times = setting.times(mechanism, THRESHOLD).only(setting.seeds(BASE, mechanism))
    return MaskPoint(
        task=setting.task,
        kept=statistics.median(known) if known else None,
        epochs=float(times.epochs.mean()),
        all_reached=bool(times.reached.all()),
        speed_up=gained(setting, BASE, mechanism),
        seeds=len(known),
        left_out=found.left_out[setting.task],
    )


def _runs(setting: Setting, mechanism: str) -> list[Record]:
    """Those of the seeds that full attention has too, since the speed-up rests on them."""
    return [setting.arms[mechanism][seed] for seed in setting.seeds(BASE, mechanism)]


def _kept(run: Record, measurements: Measurements) -> float | None:
    """The mean over the sizes of noise; None where one of them is missing."""
    measured = measurements.get(run.id, {}).get(NAME)
    return measured.mean_kept if isinstance(measured, MaskStability) else None
