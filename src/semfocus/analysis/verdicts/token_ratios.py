"""Parts that compare language models: sooner in tokens, and ends as well."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from semfocus.analysis.head_start import log_ratio
from semfocus.analysis.intervals import Interval, mean_interval, one_sided_p
from semfocus.analysis.multiple import ALPHA, holm, not_enough
from semfocus.analysis.pairing import Floats
from semfocus.analysis.records import Record
from semfocus.analysis.verdicts.evidence import Decision, Part
from semfocus.analysis.verdicts.pairs import interval_text
from semfocus.analysis.verdicts.power import seeds_to_decide
from semfocus.analysis.verdicts.settings import FULL, Setting, has_diverged

LOSS_MARGIN = 0.005  # of the last held-out loss, relative
Pairs = dict[int, float]  # a number for each seed that both arms have


def sooner(name: str, setting: Setting, share: float, other: str, base: str = FULL, aspect: str = "") -> Part:
    """Does `other` reach the common loss at a share of training in fewer tokens than `base`?"""
    ratios = _of_pairs(setting, base, other, lambda a, b: log_ratio(a, b, share))
    clock = _seconds(setting, base) / _seconds(setting, other)
    part = signed_part(name, setting, ratios, base, other, aspect)
    if part.interval is None or not math.isfinite(clock):
        return part
    ratio = math.exp(statistics.fmean(ratios.values()))
    return _named(part, f"{ratio:.3g}x, {ratio * clock:.3g}x in seconds", part.interval)


def signed_part(name: str, setting: Setting, ratios: Pairs, base: str, other: str, aspect: str) -> Part:
    """Logarithms of ratios, seed by seed: shown if their mean is above 0 at 5 % by the t interval, refuted if below."""
    seeds, values = sorted(ratios), np.array([ratios[seed] for seed in sorted(ratios)])
    runs = setting.ids(seeds, base, other)
    part = Part(name, "undecided", runs=runs, setting=setting.note(), aspect=aspect, precision=setting.precision)
    interval, few = mean_interval(values), not_enough(len(values), 1)
    if interval is None or few:
        why = few or "too few pairs"
        return replace(part, why=why, seeds=seeds_to_decide(None, None, len(values), []))
    mean, n = float(values.mean()), len(values)
    p = two_sided_p(mean, interval, n)
    decision: Decision = "undecided" if p > ALPHA else "yes" if mean > 0 else "no"
    would = seeds_to_decide(mean, interval, n, [0.0]) if decision == "undecided" else None
    ends = Interval(math.exp(interval.low), math.exp(interval.high))
    return _named(replace(part, decision=decision, p=p, seeds=would), f"{math.exp(mean):.3g}x", ends)


def two_sided_p(mean: float, interval: Interval, n: int) -> float:
    """The p-value of "the true value is not 0"."""
    return min(one_sided_p(mean, interval, n, 0.0), one_sided_p(mean, interval, n, 0.0, below=True))


def after_holm(parts: Mapping[str, Part]) -> list[Part]:
    """Those shown only that are so after Holm over all of these; what is refuted is adjusted over the whole claim."""
    adjusted = holm({arm: part.p for arm, part in parts.items()})
    made = []
    for arm, part in parts.items():
        p = adjusted[arm]
        if part.decision != "yes" or p is None:
            made.append(part)
        elif p <= ALPHA:
            made.append(replace(part, p=p))
        else:
            why = f"{part.effect}, {interval_text(part.interval)}; not after Holm over the arms"
            made.append(replace(part, decision="undecided", p=p, why=why))
    return made


def ends_as_well(name: str, setting: Setting, other: str, aspect: str = "") -> Part:
    """Is the last held-out loss of `other` no more than 0.5 % above full attention's? By the t interval at 5 %."""
    gaps = _of_pairs(setting, FULL, other, lambda a, b: math.log(last_loss(b) / last_loss(a)))
    seeds, values = sorted(gaps), np.array([gaps[seed] for seed in sorted(gaps)])
    part = Part(
        name, "undecided", runs=setting.ids(seeds, FULL, other), setting=setting.note(), aspect=aspect,
        precision=setting.precision,
    )  # fmt: skip
    interval, few, bound = mean_interval(values), not_enough(len(values), 1), math.log1p(LOSS_MARGIN)
    if interval is None or few:
        return replace(part, why=few or "too few pairs", seeds=seeds_to_decide(None, None, len(values), []))
    mean, n = float(values.mean()), len(values)
    decision: Decision = "yes" if interval.high <= bound else "no" if interval.low > bound else "undecided"
    p = one_sided_p(mean, interval, n, bound, below=decision != "no")
    effect = f"{100 * math.expm1(mean):+.2f} % of the loss"
    ends = Interval(math.expm1(interval.low), math.expm1(interval.high))
    would = seeds_to_decide(mean, interval, n, [bound]) if decision == "undecided" else None
    why = "" if decision == "yes" else f"{effect}, {interval_text(ends)}"
    return replace(part, decision=decision, p=p, effect=effect, interval=ends, why=why, seeds=would)


def last_loss(record: Record) -> float:
    """The held-out loss of the last evaluation; a run that diverged counts as guessing among all tokens."""
    loss = None if has_diverged(record) else record.final("heldout_loss")
    if loss is not None and math.isfinite(loss) and loss > 0:
        return float(loss)
    sizes = record.config.get("sizes")
    classes = sizes.get("num_classes") if isinstance(sizes, dict) else None
    return math.log(classes) if isinstance(classes, int) and classes > 1 else 1.0


def _of_pairs(setting: Setting, base: str, other: str, of) -> Pairs:
    """What `of` gives for the two runs of each seed, where it gives anything."""
    usable = setting.seeds(base, other, usable=lambda run: len(run.metrics) > 0 or has_diverged(run))
    values = {seed: of(setting.arms[base][seed], setting.arms[other][seed]) for seed in usable}
    return {seed: value for seed, value in values.items() if value is not None}


def _seconds(setting: Setting, arm: str) -> float:
    """The median seconds of a run, by its own clock; NaN where it has none."""
    values: Sequence[float] = [run.seconds for run in setting.arms.get(arm, {}).values() if run.seconds > 0]
    return statistics.median(values) if values else math.nan


def _named(part: Part, effect: str, interval: Interval) -> Part:
    why = "" if part.decision == "yes" else f"{effect}, {interval_text(interval)}"
    return replace(part, effect=effect, interval=interval, why=why)


def least_squares(x: Floats, y: Floats) -> float:
    """The slope of y in x."""
    middle = x - x.mean()
    return float((middle * y).sum() / (middle * middle).sum())
