"""The speed-up of a mechanism: the factor by which it needs fewer epochs than full attention.

    result = speed_up(full, other)
    result.ratio.text, result.interval      "5.2x", Interval(4.1, 6.6)

The speed-up is the ratio of restricted means, full / other, over the seeds that both arms have. Its interval is a
jackknife-t on the logarithm that leaves out both runs of a seed together. If one arm never reaches the threshold, only
a bound is known: the interval's end, for the ratio of the sample (`estimate`) is no bound. If neither arm gets there,
nothing is known.

Epochs are counted from 1. The paper counts them from 0: `speed_up(full, other, counted_from=0)`.
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
from semfocus.analysis.pairing import Floats, Unpaired, paired_seeds
from semfocus.analysis.survival import ConvergenceTimes

Sign = Literal["=", ">=", "<=", "undefined"]


@dataclass(frozen=True)
class Ratio:
    """A ratio of epochs; or a bound on it, where one arm never gets there."""

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

    @property
    def words(self) -> str:
        """As it stands in a sentence: `5.2x`, `at least 2.4x`."""
        return self.text.replace(">=", "at least").replace("<=", "at most")


@dataclass(frozen=True)
class SpeedUp:
    """The speed-up of one mechanism over full attention on one task."""

    ratio: Ratio  # of restricted means; a bound is the interval's end, the sample's own ratio below three pairs
    interval: Interval | None  # an end that is open because of censoring is 0 or infinity
    median_ratio: Ratio  # of Kaplan-Meier medians
    pairs: int
    reached_full: int
    reached_other: int
    left_out: tuple[Unpaired, ...]
    why: str = ""  # the reason if there is no interval or no ratio
    estimate: float | None = None  # the sample's ratio of restricted means, also where only a bound is known

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


def speed_up(full: ConvergenceTimes, other: ConvergenceTimes, *, counted_from: Literal[0, 1] = 1) -> SpeedUp:
    """Compare the epochs of two arms on the seeds they share.

    Counted from 0, the epoch during which a run gets there is the number of whole epochs before it, as in the paper.
    """
    same_horizon(full, other)
    seeds, left_out = paired_seeds(full.seeds, other.seeds)
    full, other = full.only(seeds), other.only(seeds)
    sign = _sign(bool(full.reached.any()), bool(other.reached.any()))
    why = too_few(len(seeds))
    if seeds and sign == "undefined":
        why = "neither arm gets there by the horizon"
    base, own = (times.epochs if counted_from else np.ceil(times.epochs) - 1 for times in (full, other))
    if seeds and sign != "undefined" and min(np.mean(base), np.mean(own)) == 0:
        sign, why = "undefined", "counted from 0, every run of an arm gets there in epoch 0"
    interval = _interval(base, own, sign)
    estimate = None if not seeds or sign == "undefined" else float(np.mean(base) / np.mean(own))
    return SpeedUp(
        ratio=_ratio(estimate, interval, sign),
        interval=interval,
        median_ratio=_median_ratio(full, other),
        pairs=len(seeds),
        reached_full=int(full.reached.sum()),
        reached_other=int(other.reached.sum()),
        left_out=left_out,
        why=why,
        estimate=estimate,
    )


def _sign(full_known: bool, other_known: bool) -> Sign:
    if full_known and other_known:
        return "="
    if other_known:
        return ">="  # full attention would need the horizon or more
    return "<=" if full_known else "undefined"


def _ratio(estimate: float | None, interval: Interval | None, sign: Sign) -> Ratio:
    if estimate is None:
        return Ratio(None, "undefined")
    if interval is None or sign == "=":
        return Ratio(estimate, sign)
    return Ratio(interval.high if sign == "<=" else interval.low, sign)


def _median_ratio(full: ConvergenceTimes, other: ConvergenceTimes) -> Ratio:
    sign = _sign(full.median is not None, other.median is not None)
    if not len(full) or sign == "undefined":
        return Ratio(None, "undefined")
    return Ratio((full.median or full.horizon) / (other.median or other.horizon), sign)


def _interval(full: Floats, other: Floats, sign: Sign) -> Interval | None:
    if sign == "undefined" or too_few(len(full)):
        return None
    without_one = leave_one_out_means(full), leave_one_out_means(other)
    if min(np.min(means) for means in without_one) <= 0:
        return None
    interval = jackknife_t(math.log(np.mean(full) / np.mean(other)), np.log(without_one[0] / without_one[1]))
    if interval is None:
        return None
    low = 0.0 if sign == "<=" else math.exp(interval.low)
    high = math.inf if sign == ">=" else math.exp(interval.high)
    return Interval(low, high)
