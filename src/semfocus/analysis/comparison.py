"""Mechanisms side by side on one task: who learns faster, by how much, and what the data support."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from semfocus.analysis.accuracy import Accuracies
from semfocus.analysis.multiple import ALPHA, holm, not_enough
from semfocus.analysis.paired import paired_logrank
from semfocus.analysis.records import THRESHOLD, Record
from semfocus.analysis.speedup import SpeedUp, speed_up
from semfocus.analysis.survival import ConvergenceTimes

BASE = "full"


@dataclass(frozen=True)
class Arm:
    """One mechanism's runs."""

    mechanism: str
    times: ConvergenceTimes
    final_heldout: Accuracies
    best_heldout: Accuracies
    final_train: Accuracies
    speed_up: SpeedUp | None  # over full attention; None for full attention itself
    p: float | None  # of the paired test against full attention, after Holm
    diverged: int
    seconds: float

    @property
    def reached(self) -> int:
        return int(self.times.reached.sum())


@dataclass(frozen=True)
class Comparison:
    """All mechanisms on one task."""

    task: str
    horizon: float
    seeds: int
    arms: tuple[Arm, ...]
    baselines: Mapping[str, float]
    unfinished: tuple[str, ...]  # ids of runs that are left out

    def arm(self, mechanism: str) -> Arm:
        return next(arm for arm in self.arms if arm.mechanism == mechanism)

    def sentences(self) -> list[str]:
        """What the data support, and what they do not."""
        return _sentences(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for machines."""
        return {
            "task": self.task,
            "horizon": self.horizon,
            "seeds": self.seeds,
            "threshold": THRESHOLD,
            "baselines": dict(self.baselines),
            "unfinished": list(self.unfinished),
            "mechanisms": [_arm_dict(arm) for arm in self.arms],
            "findings": self.sentences(),
        }


def compare_records(task: str, records: Sequence[Record], baselines: Mapping[str, float]) -> Comparison:
    """Compare the runs that have ended; the others are listed, not counted."""
    ended = [record for record in records if record.ended]
    horizon = float(max((record.horizon for record in records), default=1))
    by_mechanism: dict[str, list[Record]] = {}
    for record in records:
        by_mechanism.setdefault(record.mechanism, [])
    for record in ended:
        by_mechanism[record.mechanism].append(record)
    times = {
        mechanism: ConvergenceTimes.of({run.seed: run.converged_at for run in runs}, horizon=horizon)
        for mechanism, runs in by_mechanism.items()
    }
    others = [mechanism for mechanism in times if mechanism != BASE]
    base = times.get(BASE)
    tests = {m: paired_logrank(base, times[m]).p for m in others} if base is not None else {}
    adjusted = holm(tests)
    arms = [
        _arm(mechanism, runs, times[mechanism], base if mechanism != BASE else None, adjusted.get(mechanism))
        for mechanism, runs in by_mechanism.items()
    ]
    seeds = len({record.seed for record in records})
    unfinished = tuple(record.id for record in records if not record.ended)
    return Comparison(task, horizon, seeds, tuple(arms), baselines, unfinished)


def _arm(
    mechanism: str, runs: list[Record], times: ConvergenceTimes, base: ConvergenceTimes | None, p: float | None
) -> Arm:
    measured = [run for run in runs if run.metrics]

    def accuracies(pick: str, name: str) -> Accuracies:
        return Accuracies.of(
            {run.seed: float(getattr(run, pick)(name)) for run in measured if run.final(name) is not None}
        )

    return Arm(
        mechanism,
        times,
        accuracies("final", "heldout_accuracy"),
        accuracies("best", "heldout_accuracy"),
        accuracies("final", "train_accuracy"),
        None if base is None else speed_up(base, times),
        p,
        sum(run.state == "diverged" for run in runs),
        sum(run.seconds for run in runs) / max(len(runs), 1),
    )


def _sentences(found: Comparison) -> list[str]:
    if not any(arm.mechanism == BASE for arm in found.arms):
        return ["Without full attention among the mechanisms there is nothing to compare with."]
    base = found.arm(BASE)
    others = [arm for arm in found.arms if arm.mechanism != BASE]
    lines = [_about(arm, base, found.horizon) for arm in others]
    decided = [arm for arm in others if arm.p is not None and arm.p <= ALPHA]
    if not others:
        return ["Full attention alone: nothing to compare with."]
    doubt = not_enough(len(base.times.seeds), len(others))
    if doubt:
        lines.append(f"A hint, not a proof: {doubt}.")
    elif decided:
        names = ", ".join(f"{arm.mechanism} (p = {arm.p:.2g})" for arm in decided)
        lines.append(f"Beyond chance, after Holm over {len(others)} comparisons: {names}.")
    else:
        lines.append(f"None of the differences is beyond chance after Holm over {len(others)} comparisons.")
    return lines


def _about(arm: Arm, base: Arm, horizon: float) -> str:
    total, there = len(arm.times.seeds), arm.reached
    share = f"{there} of {total} seeds"
    if not total:
        return f"{arm.mechanism}: no finished run."
    if not there:
        return f"{arm.mechanism} never reached {THRESHOLD:.0%} training accuracy within {horizon:g} epochs ({share})."
    ratio = arm.speed_up.ratio if arm.speed_up else None
    if ratio is None or ratio.value is None:
        return f"{arm.mechanism} got there ({share}); the speed-up is undefined."
    got = f"{base.reached} of {len(base.times.seeds)}"
    return f"{arm.mechanism} got to {THRESHOLD:.0%} ({share}) {ratio.text} as fast as full attention ({got} seeds)."


def _arm_dict(arm: Arm) -> dict[str, Any]:
    speed = arm.speed_up
    return {
        "mechanism": arm.mechanism,
        "seeds": list(arm.times.seeds),
        "epochs": [float(e) if r else None for e, r in zip(arm.times.epochs, arm.times.reached, strict=True)],
        "median_epochs": arm.times.median,
        "reached": arm.reached,
        "diverged": arm.diverged,
        "speed_up": None if speed is None else {"value": speed.ratio.value, "sign": speed.ratio.sign},
        "speed_up_interval": None
        if speed is None or speed.interval is None
        else [speed.interval.low, speed.interval.high if speed.interval.high < float("inf") else None],
        "p": arm.p,
        "final_heldout": arm.final_heldout.values.tolist(),
        "best_heldout": arm.best_heldout.values.tolist(),
        "final_train": arm.final_train.values.tolist(),
        "seconds_per_run": arm.seconds,
    }
