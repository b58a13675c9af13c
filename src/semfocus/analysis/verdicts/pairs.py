"""What two arms of one setting say: faster, as good, earlier. The parts that most claims are made of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from semfocus.analysis.accuracy import Accuracies
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
from semfocus.analysis.noninferiority import noninferiority_test
from semfocus.analysis.paired import PairedTest, paired_logrank
from semfocus.analysis.records import THRESHOLD, Record
from semfocus.analysis.speedup import SpeedUp, speed_up
from semfocus.analysis.verdicts.evidence import Decision, Part, missing
from semfocus.analysis.verdicts.settings import FULL, TOPK, Setting, choose, failed

FITTED = 0.995  # training accuracy that rounds to 100 %


def faster(name: str, setting: Setting, changes: Mapping[str, Any] = {}, base: str = FULL, other: str = TOPK) -> Part:
    """Does `other` reach 95 % training accuracy in fewer epochs than `base`?

    Yes: the exact paired log-rank test says so at 5 %, and the speed-up is above 1. No: it says the opposite, or the
    speed-up's interval leaves no gain beyond 1.25 while more than half of both arms got there. Else undecided.
    """
    test, gain = compared_epochs(setting, base, other), gained(setting, base, other)
    decision, why = _faster(test, gain)
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
    """The same for top-k on a task, from the setting with these changes that is nearest to the paper's."""
    setting = choose(settings, task, changes)
    if setting is None:
        return missing(name or task, f"no pair of {FULL} and {TOPK}")
    return faster(name or task, setting, changes)


def compared_epochs(setting: Setting, base: str = FULL, other: str = TOPK) -> PairedTest:
    """The exact test of the epochs to 95 %; several claims ask for the same one, and many seeds make it slow."""
    if (base, other) not in setting.tests:
        setting.tests[base, other] = paired_logrank(setting.times(base, THRESHOLD), setting.times(other, THRESHOLD))
    return setting.tests[base, other]


def gained(setting: Setting, base: str = FULL, other: str = TOPK) -> SpeedUp:
    """The speed-up of one arm over another."""
    return speed_up(setting.times(base, THRESHOLD), setting.times(other, THRESHOLD))


def _faster(test: PairedTest, gain: SpeedUp) -> tuple[Decision, str]:
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
    """Of the claim that the speed-up stays below 1.25; None without an interval.

    None also where full attention itself mostly fails: both restricted means are then the horizon, whatever the
    mechanism might do beyond it.
    """
    if gain.interval is None or gain.ratio.value is None or 2 * gain.reached_full <= gain.pairs:
        return None
    estimate = math.log(gain.ratio.value)
    return one_sided_p(estimate, log_interval(gain.interval), gain.pairs, math.log(SPEEDUP_MARGIN.high), below=True)


def about(gain: SpeedUp, target: float) -> tuple[Decision, float | None]:
    """Is the speed-up `target`, within the margin of 0.8 to 1.25 times it?"""
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
    found = noninferiority_test(last_accuracies(setting, FULL), last_accuracies(setting, TOPK))
    effect = "" if found.mean is None else points(found.mean)
    runs = setting.ids(setting.seeds(FULL, TOPK), FULL, TOPK)
    p = None if found.decision == "no" else found.p
    return Part(name, found.decision, p, effect, found.interval, runs, found.why, setting.note(changes))


def earlier(name: str, setting: Setting, changes: Mapping[str, Any] = {}, metric: str = "heldout_accuracy") -> Part:
    """Does top-k come sooner to what both runs of a seed attain in the end?

    The mark of a seed is the worse of its two last values (less two points, for an accuracy), so that it does not
    depend on which arm is which, and the swaps of the exact test stay exact.
    """
    marked: dict[str, dict[int, float | None]] = {FULL: {}, TOPK: {}}
    for seed in setting.seeds(FULL, TOPK, usable=lambda run: len(run.metrics) > 0):
        runs = {mechanism: setting.arms[mechanism][seed] for mechanism in marked}
        if metric.endswith("accuracy"):
            mark = min(last_accuracy(run) for run in runs.values()) + ACCURACY_MARGIN.low
            sign = 1.0
        else:
            mark, sign = max(float(run.column(metric)[-1]) for run in runs.values()), -1.0
        for mechanism, run in runs.items():
            marked[mechanism][seed] = None if failed(run) else _first(run, metric, sign, mark)
    arms = setting.as_times(marked[FULL]), setting.as_times(marked[TOPK])
    if metric not in setting.tests:
        setting.tests[metric] = paired_logrank(*arms)
    test, gain = setting.tests[metric], speed_up(*arms)
    decision, why = _faster(test, gain)
    runs = setting.ids(arms[0].seeds, FULL, TOPK)
    return Part(name, decision, test.p, gain.ratio.text, gain.interval, runs, why, setting.note(changes))


def _first(run: Record, metric: str, sign: float, mark: float) -> float | None:
    reached = (sign * run.column(metric) >= sign * mark).nonzero()[0]
    return float(run.column("epoch")[reached[0]]) if len(reached) else None


def last_accuracies(setting: Setting, mechanism: str, name: str = "heldout_accuracy") -> Accuracies:
    """The last accuracy by seed, of runs that have one or diverged."""
    runs = setting.arms.get(mechanism, {})
    return Accuracies.of(
        {seed: last_accuracy(run, name) for seed, run in runs.items() if len(run.metrics) or failed(run)}
    )


def last_accuracy(run: Record, name: str = "heldout_accuracy") -> float:
    """In the last epoch; a diverged model has lost what it knew and counts as guessing."""
    if failed(run):
        sizes = run.config.get("sizes")
        classes = sizes.get("num_classes") if isinstance(sizes, dict) else None
        return 1 / classes if isinstance(classes, int) and classes > 0 else 0.0
    return float(run.column(name)[-1])


def points(difference: float) -> str:
    """`+1.3 points`."""
    return f"{100 * difference:+.1f} points"


def interval_text(interval: Interval | None) -> str:
    """`95 % interval 1.1 to 1.6`."""
    return "no interval" if interval is None else f"95 % interval {interval.low:.3g} to {interval.high:.3g}"
