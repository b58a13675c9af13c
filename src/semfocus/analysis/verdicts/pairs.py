"""Parts that most claims consist of: one arm of a setting is faster than another, earlier, or generalises as well."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from semfocus.analysis.accuracy import PAIRS, PAIRS_FOR_GROUPS, Accuracies, noninferiority_test
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
from semfocus.analysis.survival import ConvergenceTimes
from semfocus.analysis.verdicts.baselines import GUESSING, bar, does_not_beat
from semfocus.analysis.verdicts.evidence import Decision, Part, missing
from semfocus.analysis.verdicts.power import seeds_to_decide
from semfocus.analysis.verdicts.settings import FULL, TOPK, Setting, choose, has_diverged

FITTED = 0.995  # training accuracy that counts as 100 %
LEARNED_LOSS = -math.log(
    THRESHOLD
)  # of a model that gives the right class 95 %; lower levels of loss are not raced for
Arms = tuple[ConvergenceTimes, ConvergenceTimes]  # of the base, and of what is compared with it


def faster(
    name: str, setting: Setting, changes: Mapping[str, Any] = {}, base: str = FULL, other: str = TOPK, aspect: str = ""
) -> Part:
    """Does `other` reach 95 % training accuracy in fewer epochs than `base`? Decided by `faster_decision`."""
    arms = setting.times(base, THRESHOLD), setting.times(other, THRESHOLD)
    return _sooner(name, setting, arms, epochs_test(setting, base, other), changes, base, other, aspect)


def faster_on(
    settings: Sequence[Setting], task: str, changes: Mapping[str, Any] = {}, name: str = "", aspect: str = ""
) -> Part:
    """`faster` for top-k on a task, in the setting with these changes that is nearest to the paper's."""
    setting = choose(settings, task, changes, level=THRESHOLD)
    if setting is None:
        return missing(name or task, f"no pair of {FULL} and {TOPK}", aspect)
    return faster(name or task, setting, changes, aspect=aspect)


def _sooner(
    name: str,
    setting: Setting,
    arms: Arms,
    test: PairedTest,
    changes: Mapping[str, Any] = {},
    base: str = FULL,
    other: str = TOPK,
    aspect: str = "",
) -> Part:
    gain = speed_up(*arms)
    decision, why = faster_decision(test, gain)
    seeds = None
    if decision == "undecided" and (gain.estimate is None or test.informative):
        seeds = seeds_to_decide(log_or_none(gain.estimate), _log_or_none(gain.interval), test.pairs, [0.0])
    runs = setting.ids(sorted(set(arms[0].seeds) & set(arms[1].seeds)), base, other)
    return Part(
        name, decision, test.p, gain.ratio.text, gain.interval, runs, why, setting.note(changes),
        aspect=aspect, seeds=seeds, precision=setting.precision,
    )  # fmt: skip


def epochs_test(setting: Setting, base: str = FULL, other: str = TOPK) -> PairedTest:
    """The exact test of the epochs to 95 %; cached, since it is slow with many seeds and several claims use it."""
    if (base, other) not in setting.tests:
        setting.tests[base, other] = paired_logrank(setting.times(base, THRESHOLD), setting.times(other, THRESHOLD))
    return setting.tests[base, other]


def arm_speed_up(setting: Setting, base: str = FULL, other: str = TOPK) -> SpeedUp:
    """The speed-up of one arm over another."""
    return speed_up(setting.times(base, THRESHOLD), setting.times(other, THRESHOLD))


def faster_decision(test: PairedTest, gain: SpeedUp) -> tuple[Decision, str]:
    """Yes: the exact test is significant at 5 % for the other arm, and the ratio at least 1. No: the other way round.

    Arms that are alike are undecided. How large a gain can be at most is part of the reason.
    """
    short = not_enough(test.pairs, 1)
    if short:
        return "undecided", short
    if test.p is not None and test.p <= ALPHA and gain.estimate is not None:
        if test.favours == "other" and gain.estimate >= 1:
            return "yes", ""
        if test.favours == "full" and gain.estimate <= 1:
            return "no", f"slower, {gain.ratio.text}, {interval_text(gain.interval)}"
    size = f"{gain.ratio.text}, {interval_text(gain.interval)}"
    if gain.equivalence() == "equivalent":
        return "undecided", f"no gain beyond {SPEEDUP_MARGIN.high:g}x: {size}"
    return "undecided", test.why or gain.why or size


def near_target(gain: SpeedUp, target: float) -> tuple[Decision, float | None]:
    """Is the speed-up within 0.8 to 1.25 times `target`? The decision and its p-value.

    Undecided unless more than half of each arm got there: censoring pulls the ratio towards 1.
    """
    mostly_there = 2 * min(gain.reached_full, gain.reached_other) > gain.pairs
    if gain.interval is None or gain.estimate is None or not mostly_there or not_enough(gain.pairs, 1):
        return "undecided", None
    low, high = target_bounds(target)
    estimate, ends = math.log(gain.estimate), log_interval(gain.interval)
    if low <= ends.low and ends.high <= high:
        return "yes", tost_p(estimate, ends, gain.pairs, Margin(low, high))
    below = one_sided_p(estimate, ends, gain.pairs, low, below=True)
    outside = min(below, one_sided_p(estimate, ends, gain.pairs, high))
    return ("no" if ends.high < low or high < ends.low else "undecided"), outside


def target_bounds(target: float) -> tuple[float, float]:
    """0.8 and 1.25 times `target`, on the logarithm."""
    return math.log(target * SPEEDUP_MARGIN.low), math.log(target * SPEEDUP_MARGIN.high)


def generalises_as_well(name: str, setting: Setting, changes: Mapping[str, Any] = {}, aspect: str = "") -> Part:
    """Is top-k's held-out accuracy in the last epoch at most two points below full attention's?"""
    test = noninferiority_test(last_accuracies(setting, FULL), last_accuracies(setting, TOPK))
    effect = "" if test.mean is None else points_text(test.mean)
    p = test.p
    if test.decision == "no" and test.mean is not None and test.interval is not None:
        p = one_sided_p(test.mean, test.interval, test.pairs, ACCURACY_MARGIN.low, below=True)
    seeds, least = None, PAIRS_FOR_GROUPS if test.two_groups else PAIRS
    if test.decision == "undecided":
        seeds = seeds_to_decide(test.mean, test.interval, test.pairs, [ACCURACY_MARGIN.low], least)
    return Part(
        name, test.decision, p, effect, test.interval, setting.ids(setting.seeds(FULL, TOPK), FULL, TOPK), test.why,
        setting.note(changes), aspect=aspect, seeds=seeds, precision=setting.precision,
    )  # fmt: skip


def earlier(name: str, setting: Setting, changes: Mapping[str, Any] = {}, aspect: str = "") -> Part:
    """Does top-k reach the held-out accuracy that both runs of a seed end with sooner than full attention?

    The level of a seed is the worse of its two last accuracies, less two points. It is symmetric in the two arms, so
    that the swaps of the exact test stay exact. A run that diverged counts as guessing, and never gets there.
    """
    epochs: dict[str, dict[int, float | None]] = {FULL: {}, TOPK: {}}
    for seed in setting.seeds(FULL, TOPK, usable=lambda run: len(run.metrics) > 0):
        runs = {mechanism: setting.arms[mechanism][seed] for mechanism in epochs}
        level = min(last_accuracy(run) for run in runs.values()) + ACCURACY_MARGIN.low
        for mechanism, run in runs.items():
            epochs[mechanism][seed] = (
                None if has_diverged(run) else _first(run, run.column("heldout_accuracy") >= level)
            )
    return _raced(name, setting, epochs, "heldout_accuracy", changes, aspect)


def sooner_to_loss(name: str, setting: Setting, changes: Mapping[str, Any] = {}, aspect: str = "") -> Part:
    """Does top-k reach the training loss that both runs of a seed reach sooner than full attention?

    The level of a seed is the larger of the lowest losses of its two runs, and no lower than -ln 0.95: below, a model
    has learned, and what differs is noise. So both runs of a seed get there, however badly both learn, except one that
    diverged, which never does and has no say in the level. Symmetric in the two arms, as for `earlier`.
    """
    epochs: dict[str, dict[int, float | None]] = {FULL: {}, TOPK: {}}
    for seed in setting.seeds(FULL, TOPK, usable=lambda run: len(run.metrics) > 0):
        runs = {mechanism: setting.arms[mechanism][seed] for mechanism in epochs}
        lowest = [np.nanmin(run.column("train_loss")) for run in runs.values() if not has_diverged(run)]
        level = max([LEARNED_LOSS, *lowest])
        for mechanism, run in runs.items():
            epochs[mechanism][seed] = None if has_diverged(run) else _first(run, run.column("train_loss") <= level)
    return _raced(name, setting, epochs, "train_loss", changes, aspect)


def learns_nothing(setting: Setting, split: str) -> bool:
    """Whether it is shown of both arms that their last accuracy is not two points better than guessing."""
    level = bar(setting, GUESSING)
    return all(does_not_beat(level, last_accuracies(setting, arm, f"{split}_accuracy")) for arm in (FULL, TOPK))


def _raced(
    name: str,
    setting: Setting,
    epochs: Mapping[str, Mapping[int, float | None]],
    metric: str,
    changes: Mapping[str, Any],
    aspect: str,
) -> Part:
    arms = setting.as_times(epochs[FULL]), setting.as_times(epochs[TOPK])
    if metric not in setting.tests:
        setting.tests[metric] = paired_logrank(*arms)
    return _sooner(name, setting, arms, setting.tests[metric], changes, aspect=aspect)


def _first(run: Record, reached: np.ndarray) -> float | None:
    places = reached.nonzero()[0]
    return float(run.column("epoch")[places[0]]) if len(places) else None


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


def log_or_none(value: float | None) -> float | None:
    return math.log(value) if value is not None and value > 0 else None


def _log_or_none(interval: Interval | None) -> Interval | None:
    return None if interval is None else log_interval(interval)
