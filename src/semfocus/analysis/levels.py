"""Epochs to other levels of training accuracy than 95 %: does who is first depend on where one looks?

    speed_at(group, "topk:5", 0.8).speed.ratio.text        "1.78x"
    wait_and_rise(group, "topk:5")                         epochs before and after half of the way to 95 %

No verdict uses these: 95 % is fixed in the rules, and the other levels are looked at when the runs are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from semfocus.analysis.comparison import BASE
from semfocus.analysis.groups import Group
from semfocus.analysis.pairing import paired_seeds
from semfocus.analysis.records import THRESHOLD, Record
from semfocus.analysis.speedup import SpeedUp, speed_up
from semfocus.analysis.survival import ConvergenceTimes


@dataclass(frozen=True)
class LevelSpeed:
    """How soon two arms get to a level, and the speed-up of the second over the first."""

    level: float
    full: ConvergenceTimes
    other: ConvergenceTimes
    speed: SpeedUp

    @property
    def is_known(self) -> bool:
        """Whether more than half of both arms get there, so that the ratio is more than one of horizons."""
        return 2 * min(self.speed.reached_full, self.speed.reached_other) > self.speed.pairs


@dataclass(frozen=True)
class WaitAndRise:
    """Mean epochs of two arms, over the seeds of both, up to a level and from there to 95 %."""

    level: float
    wait: tuple[float, float]  # full, other
    rise: tuple[float, float]


def epochs_to(records: Sequence[Record], level: float) -> ConvergenceTimes:
    """The first epoch of each ended run at a training accuracy; a diverged run never gets there."""
    epochs = {run.seed: run.first_at(level) if run.state == "done" else None for run in records if run.ended}
    return ConvergenceTimes.of(epochs, horizon=float(max(run.horizon for run in records)))


def speed_at(group: Group, mechanism: str, level: float) -> LevelSpeed:
    """The speed-up of a mechanism over full attention to a level."""
    full, other = (epochs_to(group.runs(name), level) for name in (BASE, mechanism))
    return LevelSpeed(level, full, other, speed_up(full, other))


def half_way(group: Group) -> float:
    """Half of the way from what needs no learning, or next to none, to 95 %."""
    return (max(group.baselines.values(), default=0.0) + THRESHOLD) / 2


def wait_and_rise(group: Group, mechanism: str) -> WaitAndRise:
    """Where the epochs to 95 % go: waiting for half of the way, or rising from there. The horizon counts for never."""
    level = half_way(group)
    half, whole = ([epochs_to(group.runs(name), at) for name in (BASE, mechanism)] for at in (level, THRESHOLD))
    seeds, _ = paired_seeds(half[0].seeds, half[1].seeds)
    wait = [float(np.mean(arm.only(seeds).epochs)) for arm in half]
    total = [float(np.mean(arm.only(seeds).epochs)) for arm in whole]
    return WaitAndRise(level, (wait[0], wait[1]), (total[0] - wait[0], total[1] - wait[1]))
