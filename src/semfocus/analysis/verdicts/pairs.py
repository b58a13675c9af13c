"""Parts that most claims consist of: one arm of a setting is faster than another, as good, or earlier."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from semfocus.analysis.accuracy import Accuracies, noninferiority_test
from semfocus.analysis.intervals import (
    ACCURACY_MARGIN,
    SPEEDUP_MARGIN,
    Interval,
    Margin,
    log_interval,
    one_sided_p,
    tost_p,
)
from semfocus.analysis.multiple import ALPHA, not_enough
from semfocus.analysis.paired import PairedTest, paired_logrank
from semfocus.analysis.records import THRESHOLD, Record
from semfocus.analysis.speedup import SpeedUp, speed_up
from semfocus.analysis.verdicts.evidence import Decision, Part, missing
from semfocus.analysis.verdicts.settings import FULL, TOPK, Setting, choose, has_diverged

FITTED = 0.995  # training accuracy that counts as 100 %


def faster(name: str, setting: Setting, changes: Mapping[str, Any] = {}, base: str = FULL, other: str = TOPK) -> Part:
    """Does `other` reach 95 % training accuracy in fewer epochs than `base`?

    Yes: the exact paired log-rank test is significant at 5 % in its favour, and the speed-up is above 1. No: the test
    is significant the other way, or the speed-up's interval excludes a gain beyond 1.25 and more than half of both arms
    reached 95 %. Otherwise undecided.
    """
    test, gain = epochs_test(setting, base, other), arm_speed_up(setting, base, other)
    decision, why = faster_decision(test, gain)
    return Part(
        name,
        decision,
        test.p,
        gain.ratio.text,
        gain.interval,
        setting.ids(setting.seeds(base, other), base, other),
        why,
        setting.note(changes),
    )


def faster_on(settings: Sequence[Setting], task: str, changes: Mapping[str, Any] = {}, name: str = "") -> Part:
    """`faster` for top-k on a task, in the setting with these changes that is nearest to the paper's."""
    setting = choose(settings, task, changes)
    if setting is None:
        return missing(name or task, f"no pair of {FULL} and {TOPK}")
    return faster(name or task, setting, changes)


def epochs_test(setting: Setting, base: str = FULL, other: str = TOPK) -> PairedTest:
    """The exact test of the epochs to 95 %; cached, since it is slow with many seeds and several claims use it."""
    if (base, other) not in setting.tests:
        setting.tests[base, other] = paired_logrank(setting.times(base, THRESHOLD), setting.times(other, THRESHOLD))
    return setting.tests[base, other]


def arm_speed_up(setting: Setting, base: str = FULL, other: str = TOPK) -> SpeedUp:
    """The speed-up of one arm over another."""
    return speed_up(setting.times(base, THRESHOLD), setting.times(other, THRESHOLD))


def faster_decision(test: PairedTest, gain: SpeedUp) -> tuple[Decision, str]:
    """The decision of `faster` and `earlier`, and the reason unless it is "yes"."""
    short = not_enough(test.pairs, 1)
    if short:
        return "undecided", short
    significant = test.p is not None and test.p <= ALPHA
    if significant and test.favours == "other" and gain.ratio.value is not None and gain.ratio.value > 1:
        return "yes", ""
    if significant and test.favours == "full":
        return "no", f"slower, {gain.ratio.text}"
    if gain.equivalence() == "equivalent" or (gain.interval is not None and gain.interval.high < SPEEDUP_MARGIN.low):
        return "no", f"no gain beyond {SPEEDUP_MARGIN.high:g}x: {gain.ratio.text}, {interval_text(gain.interval)}"
    return "undecided", test.why or gain.why or f"{gain.ratio.text}, {interval_text(gain.interval)}"


def no_gain_p(gain: SpeedUp) -> float | None:
    """The p-value of the claim that the speed-up is below 1.25; None without an interval.

    Also None if at most half of full attention's runs reach the threshold: censoring then moves the ratio to 1.
    """
    if gain.interval is None or gain.ratio.value is None or 2 * gain.reached_full <= gain.pairs:
        return None
    estimate = math.log(gain.ratio.value)
    return one_sided_p(estimate, log_interval(gain.interval), gain.pairs, math.log(SPEEDUP_MARGIN.high), below=True)


def near_target(gain: SpeedUp, target: float) -> tuple[Decision, float | None]:
    """Is the speed-up within 0.8 to 1.25 times `target`? The decision and its p-value."""
    if gain.interval is None or gain.ratio.value is None or gain.ratio.sign != "=" or not_enough(gain.pairs, 1):
        return "undecided", None
    low, high = (math.log(target * bound) for bound in SPEEDUP_MARGIN)
    p = tost_p(math.log(gain.ratio.value), log_interval(gain.interval), gain.pairs, Margin(low, high))
    ends = log_interval(gain.interval)
    if low <= ends.low and ends.high <= high:
        return "yes", p
    return ("no", None) if ends.high < low or high < ends.low else ("undecided", None)


def generalises_as_well(name: str, setting: Setting, changes: Mapping[str, Any] = {}) -> Part:
    """Is top-k's held-out accuracy in the last epoch at most two points below full attention's?"""
    test = noninferiority_test(last_accuracies(setting, FULL), last_accuracies(setting, TOPK))
    effect = "" if test.mean is None else points_text(test.mean)
    runs = setting.ids(setting.seeds(FULL, TOPK), FULL, TOPK)
    p = None if test.decision == "no" else test.p
    return Part(name, test.decision, p, effect, test.interval, runs, test.why, setting.note(changes))


def earlier(name: str, setting: Setting, changes: Mapping[str, Any] = {}, metric: str = "heldout_accuracy") -> Part:
    """Does top-k reach the level that both runs of a seed attain in the end sooner than full attention?

    The level of a seed is the worse of its two last values (less two points for an accuracy). It is symmetric in the
    two arms, so that the swaps of the exact test stay exact.
    """
    epochs: dict[str, dict[int, float | None]] = {FULL: {}, TOPK: {}}
    for seed in setting.seeds(FULL, TOPK, usable=lambda run: len(run.metrics) > 0):
        runs = {mechanism: setting.arms[mechanism][seed] for mechanism in epochs}
        if metric.endswith("accuracy"):
            level = min(last_accuracy(run) for run in runs.values()) + ACCURACY_MARGIN.low
            sign = 1.0
        else:
            level, sign = max(float(run.column(metric)[-1]) for run in runs.values()), -1.0
        for mechanism, run in runs.items():
            epochs[mechanism][seed] = None if has_diverged(run) else _first_at(run, metric, sign, level)
    arms = setting.as_times(epochs[FULL]), setting.as_times(epochs[TOPK])
    if metric not in setting.tests:
        setting.tests[metric] = paired_logrank(*arms)
    test, gain = setting.tests[metric], speed_up(*arms)
    decision, why = faster_decision(test, gain)
    runs = setting.ids(arms[0].seeds, FULL, TOPK)
    return Part(name, decision, test.p, gain.ratio.text, gain.interval, runs, why, setting.note(changes))


def _first_at(run: Record, metric: str, sign: float, level: float) -> float | None:
    reached = (sign * run.column(metric) >= sign * level).nonzero()[0]
    return float(run.column("epoch")[reached[0]]) if len(reached) else None


def last_accuracies(setting: Setting, mechanism: str, name: str = "heldout_accuracy") -> Accuracies:
    """The last accuracy by seed, of runs that have metrics or diverged."""
    runs = setting.arms.get(mechanism, {})
    return Accuracies.of(
        {seed: last_accuracy(run, name) for seed, run in runs.items() if len(run.metrics) or has_diverged(run)}
    )


def last_accuracy(run: Record, name: str = "heldout_accuracy") -> float:
    """The accuracy in the last epoch; a diverged run counts as guessing."""
    if has_diverged(run):
        sizes = run.config.get("sizes")
        classes = sizes.get("num_classes") if isinstance(sizes, dict) else None
        return 1 / classes if isinstance(classes, int) and classes > 0 else 0.0
    return float(run.column(name)[-1])


def points_text(difference: float) -> str:
    """`+1.3 points`."""
    return f"{100 * difference:+.1f} points"


def interval_text(interval: Interval | None) -> str:
    """`95 % interval 1.1 to 1.6`."""
    return "no interval" if interval is None else f"95 % interval {interval.low:.3g} to {interval.high:.3g}"
