"""The speed-up of a mechanism: the factor by which it needs fewer epochs than full attention.

    result = speed_up(full, other)
    result.ratio.text, result.interval      "5.2x", Interval(4.1, 6.6)

The speed-up is the ratio of restricted means, full / other, over the seeds that both arms have. Its interval is a
jackknife-t on the logarithm that leaves out both runs of a seed together. If one arm never reaches the threshold, only
a bound is known; if neither does, nothing is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from semfocus.analysis.intervals import (
    SPEEDUP_MARGIN,
    Equivalence,
    Interval,
    NonInferiority,
    equivalence,
    jackknife_t,
    leave_one_out_means,
    non_inferiority,
    too_few,
)
from semfocus.analysis.paired import same_horizon
from semfocus.analysis.pairing import Unpaired, paired_seeds
from semfocus.analysis.survival import ConvergenceTimes

Sign = Literal["=", ">=", "<=", "undefined"]


@dataclass(frozen=True)
class Ratio:
    """A ratio of epochs, or a bound on it if runs are censored."""

    value: float | None
    sign: Sign

    @property
    def inverse(self) -> Ratio:
        """The ratio the other way round: `>= 2x` becomes `<= 0.5x`."""
        turned: dict[Sign, Sign] = {">=": "<=", "<=": ">="}
        return Ratio(None if not self.value else 1 / self.value, turned.get(self.sign, self.sign))

    @property
    def text(self) -> str:
        """As people write it: `5.2x`, `>= 2.4x`, `undefined`."""
        if self.value is None:
            return "undefined"
        return f"{'' if self.sign == '=' else self.sign + ' '}{self.value:.3g}x"


@dataclass(frozen=True)
class SpeedUp:
    """The speed-up of one mechanism over full attention on one task."""

    ratio: Ratio  # of restricted means
    interval: Interval | None  # an end that is open because of censoring is 0 or infinity
    median_ratio: Ratio  # of Kaplan-Meier medians
    pairs: int
    reached_full: int
    reached_other: int
    left_out: tuple[Unpaired, ...]
    why: str = ""  # the reason if there is no interval or no ratio

    def equivalence(self) -> Equivalence:
        """Whether the speed-up is within 0.8 .. 1.25.

        Censored runs move both restricted means to the horizon and the ratio to 1, so that "equivalent" also requires
        that more than half of each arm reached the threshold.
        """
        decision = equivalence(self.interval, SPEEDUP_MARGIN)
        mostly_reached = 2 * min(self.reached_full, self.reached_other) > self.pairs
        return "undecided" if decision == "equivalent" and not mostly_reached else decision

    def non_inferiority(self) -> NonInferiority:
        """Whether the mechanism is at least 0.8 times as fast. "yes" also requires half of its runs to arrive."""
        decision = non_inferiority(self.interval, SPEEDUP_MARGIN)
        return "undecided" if decision == "yes" and 2 * self.reached_other <= self.pairs else decision


def speed_up(full: ConvergenceTimes, other: ConvergenceTimes) -> SpeedUp:
    """Compare the epochs of two arms on the seeds they share."""
    same_horizon(full, other)
    seeds, left_out = paired_seeds(full.seeds, other.seeds)
    full, other = full.only(seeds), other.only(seeds)
    sign = _sign(bool(full.reached.any()), bool(other.reached.any()))
    why = too_few(len(seeds))
    if seeds and sign == "undefined":
        why = "neither arm gets there by the horizon"
    return SpeedUp(
        ratio=_ratio(full.restricted_mean, other.restricted_mean, sign),
        interval=_interval(full, other, sign),
        median_ratio=_median_ratio(full, other),
        pairs=len(seeds),
        reached_full=int(full.reached.sum()),
        reached_other=int(other.reached.sum()),
        left_out=left_out,
        why=why,
    )


def _sign(full_known: bool, other_known: bool) -> Sign:
    if full_known and other_known:
        return "="
    if other_known:
        return ">="  # full attention would need the horizon or more
    return "<=" if full_known else "undefined"


def _ratio(full: float | None, other: float | None, sign: Sign) -> Ratio:
    if full is None or other is None or sign == "undefined":
        return Ratio(None, "undefined")
    return Ratio(full / other, sign)


def _median_ratio(full: ConvergenceTimes, other: ConvergenceTimes) -> Ratio:
    sign = _sign(full.median is not None, other.median is not None)
    return _ratio(full.median or full.horizon, other.median or other.horizon, sign)


def _interval(full: ConvergenceTimes, other: ConvergenceTimes, sign: Sign) -> Interval | None:
    if sign == "undefined" or too_few(len(full)):
        return None
    estimate = math.log(np.mean(full.epochs) / np.mean(other.epochs))
    interval = jackknife_t(estimate, np.log(leave_one_out_means(full.epochs) / leave_one_out_means(other.epochs)))
    if interval is None:
        return None
    low = 0.0 if sign == "<=" else math.exp(interval.low)
    high = math.inf if sign == ">=" else math.exp(interval.high)
    return Interval(low, high)
