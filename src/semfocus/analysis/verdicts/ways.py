"""Open questions about other ways to attend: C15 (is it top-k alone?) and C16 (does its gain need softmax?).

A way is a mechanism under a normaliser: arms of two settings that differ in `attention.normaliser` alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from semfocus.analysis.intervals import (
    SPEEDUP_MARGIN,
    Interval,
    Margin,
    equivalence,
    jackknife_t,
    leave_one_out_means,
    one_sided_p,
    tost_p,
)
from semfocus.analysis.multiple import not_enough
from semfocus.analysis.paired import paired_logrank
from semfocus.analysis.records import THRESHOLD
from semfocus.analysis.speedup import speed_up
from semfocus.analysis.survival import ConvergenceTimes
from semfocus.analysis.verdicts.evidence import SAMENESS, Claim, Decision, Part, missing
from semfocus.analysis.verdicts.pairs import faster, faster_decision, interval_text, log_or_none
from semfocus.analysis.verdicts.power import seeds_to_decide
from semfocus.analysis.verdicts.settings import FULL, TASKS, TOPK, Setting, choose, sibling
from semfocus.measurements import KeptKeys, Measurements

NORMALISER, SOFTMAX = "attention.normaliser", "softmax"
HITTERS = (("lsh:5", SOFTMAX), ("routing:5", SOFTMAX), (FULL, "entmax:1.5"), (FULL, "sparsemax"))
CONTROLS = ("bottomk:5", "randomk:5")  # as few keys, not the largest
SEVEN = tuple(task for task in TASKS if task != "listops")
OTHERS, NOT_FEW = "other ways faster than full", "not by fewness alone"  # the aspects of C15
GAIN_TASKS = ("even_pairs", "missing_duplicate", "modular_arithmetic", "solve_equation")
NORMALISERS = ("sigmoid", "lssar", "doubly", "fast:2")
LOG_MARGIN = Margin(*map(math.log, SPEEDUP_MARGIN))


class Way(NamedTuple):
    """One arm: the setting with its normaliser, and its mechanism."""

    setting: Setting
    mechanism: str

    @property
    def times(self) -> ConvergenceTimes:
        return self.setting.times(self.mechanism, THRESHOLD)

    def ids(self, seeds: Sequence[int]) -> frozenset[str]:
        return self.setting.ids(seeds, self.mechanism)


def c15(settings: Sequence[Setting], measurements: Measurements) -> list[Part]:
    """Where top-5 is faster than full: are the other ways, too, and the controls slower than top-5?"""
    return [part for task in SEVEN for part in _focusing(settings, task, measurements)]


def _focusing(settings: Sequence[Setting], task: str, measurements: Measurements) -> list[Part]:
    cases = [(mechanism, normaliser, OTHERS) for mechanism, normaliser in HITTERS]
    cases += [(mechanism, SOFTMAX, NOT_FEW) for mechanism in CONTROLS]
    setting = _with_softmax(settings, task)
    parts = []
    for mechanism, normaliser, aspect in cases:
        name = f"{task}, {mechanism if normaliser == SOFTMAX else normaliser}: {aspect}"
        way = None if setting is None else _way(settings, setting, mechanism, normaliser)
        if setting is None or way is None:
            parts.append(missing(name, f"no runs of it beside {FULL} and {TOPK}", aspect))
        elif (apart := _no_lead(name, setting, aspect)) is not None:
            parts.append(apart)
        elif aspect == OTHERS:
            parts.append(_race(name, Way(setting, FULL), way, aspect, measurements))
        else:
            parts.append(_turned(_race(name, Way(setting, TOPK), way, aspect, measurements)))
    return parts


def _with_softmax(settings: Sequence[Setting], task: str) -> Setting | None:
    return choose([one for one in settings if one.fields.get(NORMALISER) == SOFTMAX], task)


def _way(settings: Sequence[Setting], base: Setting, mechanism: str, normaliser: str) -> Way | None:
    found = base if normaliser == SOFTMAX else sibling(settings, base, {NORMALISER: normaliser})
    return None if found is None or not found.arms.get(mechanism) else Way(found, mechanism)


def _no_lead(name: str, setting: Setting, aspect: str) -> Part | None:
    """The part where no lead of top-5 is shown, as in C1: not applicable, undecided with too few runs."""
    lead = faster("", setting)
    if lead.decision == "yes":
        return None
    few = not_enough(len(setting.seeds(FULL, TOPK)), 1)
    decision: Decision = "undecided" if few else "not applicable"
    why = few or f"no lead of {TOPK} to explain: {lead.effect}"
    return Part(name, decision, runs=lead.runs, why=why, aspect=aspect)


def _race(name: str, base: Way, other: Way, aspect: str, measurements: Measurements) -> Part:
    """Does `other` reach 95 % training accuracy in fewer epochs than `base`? Decided as in C1."""
    seeds = sorted(set(base.times.seeds) & set(other.times.seeds))
    test, gain = paired_logrank(base.times, other.times), speed_up(base.times, other.times)
    decision, why = faster_decision(test, gain)
    would = None
    if decision == "undecided" and (gain.estimate is None or test.informative):
        ends = gain.interval
        logs = None if ends is None else Interval(_log(ends.low), _log(ends.high))
        would = seeds_to_decide(log_or_none(gain.estimate), logs, test.pairs, [0.0])
    effect = ", ".join(filter(None, (gain.ratio.text, _kept_text(other, base.setting, measurements))))
    return Part(
        name, decision, test.p, effect, gain.interval, base.ids(seeds) | other.ids(seeds), why, base.setting.note(),
        aspect=aspect, seeds=would, precision=base.setting.precision,
    )  # fmt: skip


def _turned(part: Part) -> Part:
    """The same where slower is what is claimed."""
    turned: dict[Decision, Decision] = {"yes": "no", "no": "yes"}
    decision = turned.get(part.decision, part.decision)
    why = "" if decision == "yes" else f"as fast as {TOPK} or faster, {part.effect}" if decision == "no" else part.why
    return replace(part, decision=decision, why=why)


def kept_keys(way: Way, measurements: Measurements) -> float | None:
    """The median over seeds of the mean number of keys with a weight."""
    records = way.setting.arms.get(way.mechanism, {}).values()
    stored = [measurements.get(record.id, {}).get(KeptKeys.NAME) for record in records]
    known = [one.mean for one in stored if isinstance(one, KeptKeys)]
    return statistics.median(known) if known else None


def _kept_text(way: Way, base: Setting, measurements: Measurements) -> str:
    """`11.2 keys, where topk:10 is 1.4x`: the top-k that keeps nearly as many."""
    kept = kept_keys(way, measurements)
    if kept is None or kept <= 0:
        return ""
    sizes = {name: int(name[5:]) for name in base.arms if name.startswith("topk:") and name[5:].isdigit()}
    nearest = min(sizes, key=lambda name: abs(math.log(sizes[name] / kept)), default=None)
    beside = ""
    if nearest is not None and nearest != way.mechanism:
        beside = (
            f", where {nearest} is {speed_up(base.times(FULL, THRESHOLD), base.times(nearest, THRESHOLD)).ratio.text}"
        )
    return f"{kept:.1f} keys{beside}"


def c16(settings: Sequence[Setting], measurements: Measurements) -> list[Part]:
    """On each task and for each normaliser: is top-5's gain over full the same as under softmax?"""
    return [_interaction(settings, task, normaliser) for task in GAIN_TASKS for normaliser in NORMALISERS]


def _interaction(settings: Sequence[Setting], task: str, normaliser: str) -> Part:
    name = f"{task}, {normaliser}"
    setting = _with_softmax(settings, task)
    other = None if setting is None else sibling(settings, setting, {NORMALISER: normaliser})
    if setting is None or other is None or not other.seeds(FULL, TOPK):
        return missing(name, f"no pair of {FULL} and {TOPK} under both normalisers")
    if (apart := _no_lead(name, setting, "")) is not None:
        return apart
    ways = [Way(one, arm) for one in (other, setting) for arm in (FULL, TOPK)]
    seeds = sorted(set.intersection(*(set(way.times.seeds) for way in ways)))
    arms = [way.times.only(seeds) for way in ways]
    runs = frozenset[str]().union(*(way.ids(seeds) for way in ways))
    shared = {"runs": runs, "setting": setting.note(), "precision": setting.precision}
    if not arms[0].reached.any() and not arms[1].reached.any():
        return Part(name, "not applicable", why=f"neither arm learns with {normaliser}", **shared)
    estimate, interval = _of_gains(arms)
    few, mostly = not_enough(len(seeds), 1), all(2 * int(arm.reached.sum()) > len(arm) for arm in arms)
    gains = [speed_up(*pair).ratio.text for pair in (arms[:2], arms[2:])]
    effect = f"{gains[0]} against {gains[1]} with {SOFTMAX}"
    ratio = None if interval is None else Interval(math.exp(interval.low), math.exp(interval.high))
    if interval is None or estimate is None or few or not mostly:
        why = few or f"{effect}: half of an arm or more never got there, which hides gains"
        return Part(name, "undecided", None, effect, ratio, why=why, **shared)
    decision = SAMENESS[equivalence(interval, LOG_MARGIN)]
    n = len(seeds)
    inside = tost_p(estimate, interval, n, LOG_MARGIN)
    below = one_sided_p(estimate, interval, n, LOG_MARGIN.low, below=True)
    p = min(below, one_sided_p(estimate, interval, n, LOG_MARGIN.high)) if decision == "no" else inside
    would = seeds_to_decide(estimate, interval, n, LOG_MARGIN) if decision == "undecided" else None
    why = "" if decision == "yes" else f"{effect}, ratio of gains {math.exp(estimate):.2f}, {interval_text(ratio)}"
    return Part(name, decision, p, effect, ratio, why=why, seeds=would, **shared)


def _of_gains(arms: Sequence[ConvergenceTimes]) -> tuple[float | None, Interval | None]:
    """The logarithm of the ratio of two gains, of restricted means, with its jackknife-t interval."""

    def ratio(means: Sequence[np.ndarray]) -> np.ndarray:
        full, topk, base_full, base_topk = (np.log(mean) for mean in means)
        return (full - topk) - (base_full - base_topk)

    epochs = [arm.epochs for arm in arms]
    if len(epochs[0]) < 2:
        return None, None
    estimate = float(ratio([np.asarray(own.mean()) for own in epochs]))
    return estimate, jackknife_t(estimate, ratio([leave_one_out_means(own) for own in epochs]))


def _log(value: float) -> float:
    return -math.inf if value <= 0 else math.log(value) if value < math.inf else math.inf


CLAIMS = (
    Claim(
        "C15",
        "What helps is to drop low scores, however that is done: LSH, routing, entmax and sparsemax are faster than "
        "full attention where top-5 is, and five keys that are not the best are not.",
        "Two aspects on each of the seven tasks of rows of 40 on which a lead of topk:5 over full is shown, as in C1 "
        "(elsewhere not applicable). Other ways faster than full: lsh:5, routing:5, and full attention with entmax:1.5 "
        "and with sparsemax, each against full with softmax, compared as in C1. Not by fewness alone: bottomk:5 and "
        "randomk:5 are slower than topk:5, compared as in C1. Runs of one way differ from full's in mechanism and "
        "normaliser alone. Beside each ratio stand the keys that have a weight (measurement `kept_keys`, median over "
        "seeds) and the speed-up of the top-k whose size is nearest to that; they decide nothing.",
        c15,
        "open",
    ),
    Claim(
        "C16",
        "The gain of top-k does not depend on how kept keys are weighed.",
        "A part for each of Even Pairs, Missing Duplicates, Modular Arithmetic and Solve Equation and each of the "
        "normalisers sigmoid, lssar, doubly and fast:2. The gain is full's restricted mean of epochs over topk:5's. "
        "Shown: the ratio of the gain under the normaliser to that under softmax, seeds paired over all four arms, has "
        "its jackknife-t interval within 0.8 to 1.25 (refuted: wholly outside), more than half of each arm there. Not "
        "applicable where no lead of topk:5 under softmax is shown, as in C1, or neither arm learns under the "
        "normaliser.",
        c16,
        "open",
    ),
)
