"""Open questions about longer sequences: C17 (accuracy beyond the lengths of training) and C18 (growth of slopes)."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from semfocus.analysis.accuracy import PAIRS, PAIRS_FOR_GROUPS, Accuracies, noninferiority_test
from semfocus.analysis.intervals import ACCURACY_MARGIN, Margin, equivalence, mean_interval, one_sided_p, tost_p
from semfocus.analysis.multiple import ALPHA, not_enough
from semfocus.analysis.paired import EXACT_PAIRS, exact_swap_p, sampled_swap_p
from semfocus.analysis.records import Record
from semfocus.analysis.verdicts.baselines import GUESSING, bar, does_not_beat
from semfocus.analysis.verdicts.evidence import SAMENESS, Claim, Decision, Part, merged, missing
from semfocus.analysis.verdicts.pairs import interval_text, points_text
from semfocus.analysis.verdicts.power import seeds_to_decide
from semfocus.analysis.verdicts.settings import FULL, TOPK, Setting, choose, sibling
from semfocus.measurements import LengthCurve, Measurements, Smoothness

NORMALISER, SOFTMAX, POSITIONS, LENGTHS = "attention.normaliser", "softmax", "model.positions", "task.lengths"
LONGER_TASKS = ("copy", "reverse", "sort", "flip_flop", "two_back")
PLACES = ("sine", "none", "alibi", "rope", "randomized")
RIVALS = ("entmax:1.5", "ssmax", "asentmax")  # of full attention, made for longer sequences
FURTHER, AS_FAR = "further than full", "as far as the others"  # the aspects of C17
SMOOTH_TASKS = ("even_pairs", "missing_duplicate")
# From 10 to 600 tokens, a power that differs by 0.05 changes the constant by 60^0.05 = 1.23.
EXPONENT_MARGIN = Margin(-0.05, 0.05)


def c17(settings: Sequence[Setting], measurements: Measurements) -> list[Part]:
    """On each task, with each kind of position."""
    return [
        part for task in LONGER_TASKS for place in PLACES for part in _at_length(settings, task, place, measurements)
    ]


def _at_length(settings: Sequence[Setting], task: str, place: str, measurements: Measurements) -> list[Part]:
    names = f"{task}, {place}: {FURTHER}", f"{task}, {place}: {AS_FAR}"
    own = [
        one
        for one in settings
        if one.fields.get(POSITIONS, "sine") == place
        and one.fields.get(NORMALISER) == SOFTMAX
        and one.fields.get(LENGTHS)
    ]

    def curve(record: Record) -> LengthCurve | None:
        stored = measurements.get(record.id, {}).get(LengthCurve.NAME)
        return stored if isinstance(stored, LengthCurve) and stored.area is not None else None

    setting = choose(own, task, usable=lambda record: curve(record) is not None)
    if setting is None:
        why = f"no pair of {FULL} and {TOPK} that was trained on several lengths and measured on longer ones"
        return [missing(names[0], why, FURTHER), missing(names[1], why, AS_FAR)]
    others = {name: sibling(settings, setting, {NORMALISER: name}) for name in RIVALS}
    arms: dict[str, Mapping[int, Record]] = {FULL: setting.arms[FULL], TOPK: setting.arms[TOPK]}
    arms |= {name: one.arms.get(FULL, {}) for name, one in others.items() if one is not None}
    areas = _alike(arms, curve)
    runs = setting.ids(sorted(areas[FULL].keys() & areas[TOPK].keys()), FULL, TOPK)
    if all(does_not_beat(bar(setting, GUESSING), Accuracies.of(areas[arm])) for arm in (FULL, TOPK)):
        why = "neither arm does better than guessing on longer sequences"
        return [
            Part(name, "not applicable", runs=runs, why=why, aspect=a)
            for name, a in zip(names, (FURTHER, AS_FAR), strict=True)
        ]
    return [_further(names[0], setting, areas, runs), _as_far(names[1], setting, arms, areas)]


def _alike(
    arms: Mapping[str, Mapping[int, Record]], curve: Callable[[Record], LengthCurve | None]
) -> dict[str, dict[int, float]]:
    """The areas by arm and seed, of the curves with the lengths and rows that most have."""
    known = {arm: {seed: own for seed, record in runs.items() if (own := curve(record))} for arm, runs in arms.items()}
    ways = Counter(_way(own) for runs in known.values() for own in runs.values())
    usual = min(ways, key=lambda way: (-ways[way], way), default="")
    return {
        arm: {seed: own.area for seed, own in runs.items() if _way(own) == usual and own.area is not None}
        for arm, runs in known.items()
    }


def _way(curve: LengthCurve) -> str:
    return json.dumps([sorted(curve.points), curve.rows])


def _further(name: str, setting: Setting, areas: Mapping[str, Mapping[int, float]], runs: frozenset[str]) -> Part:
    """Is top-5's area larger than full's? Decided by the exact swap test of the differences, at 5 %."""
    seeds = sorted(areas[FULL].keys() & areas[TOPK].keys())
    differences = np.array([areas[TOPK][seed] - areas[FULL][seed] for seed in seeds])
    shared = {"runs": runs, "setting": setting.note(), "aspect": FURTHER, "precision": setting.precision}
    if not len(seeds):
        return missing(name, f"no pair of {FULL} and {TOPK} measured at the same lengths", FURTHER)
    p = exact_swap_p(differences) if len(seeds) <= EXACT_PAIRS else sampled_swap_p(differences)
    mean, interval = float(differences.mean()), mean_interval(differences)
    decision: Decision = "undecided" if p > ALPHA else "yes" if mean > 0 else "no"
    medians = [f"{statistics.median(areas[arm].values()):.0%}" for arm in (TOPK, FULL)]
    effect = f"{points_text(mean)}, {medians[0]} against {medians[1]}"
    why = "" if decision == "yes" else not_enough(len(seeds), 1) or f"{effect}, {interval_text(interval)}"
    would = seeds_to_decide(mean, interval, len(seeds), [0.0]) if decision == "undecided" else None
    return Part(name, decision, p, effect, interval, why=why, seeds=would, **shared)


def _as_far(
    name: str,
    setting: Setting,
    arms: Mapping[str, Mapping[int, Record]],
    areas: Mapping[str, Mapping[int, float]],
) -> Part:
    """Is top-5's area at most two points below that of each rival? As C5's "as well"."""
    parts = []
    for rival in RIVALS:
        seeds = sorted(areas.get(rival, {}).keys() & areas[TOPK].keys())
        if not seeds:
            parts.append(missing(rival, f"no pair of {TOPK} and one of {', '.join(RIVALS)}", AS_FAR))
            continue
        test = noninferiority_test(Accuracies.of(areas[rival]), Accuracies.of(areas[TOPK]))
        p = test.p
        if test.decision == "no" and test.mean is not None and test.interval is not None:
            p = one_sided_p(test.mean, test.interval, test.pairs, ACCURACY_MARGIN.low, below=True)
        least = PAIRS_FOR_GROUPS if test.two_groups else PAIRS
        would = seeds_to_decide(test.mean, test.interval, test.pairs, [ACCURACY_MARGIN.low], least)
        effect = "" if test.mean is None else points_text(test.mean)
        runs = frozenset(arms[arm][seed].id for arm in (rival, TOPK) for seed in seeds)
        parts.append(
            Part(rival, test.decision, p, effect, test.interval, runs, test.why, setting.note(), aspect=AS_FAR,
                 seeds=would if test.decision == "undecided" else None, precision=setting.precision)
        )  # fmt: skip
    return merged(name, parts)


def c18(settings: Sequence[Setting], measurements: Measurements) -> list[Part]:
    """On each task: the exponents of trained models of both arms, seed by seed."""
    return [_exponents(settings, task, measurements) for task in SMOOTH_TASKS]


def _exponents(settings: Sequence[Setting], task: str, measurements: Measurements) -> Part:
    def growth(record: Record) -> Smoothness | None:
        stored = measurements.get(record.id, {}).get(Smoothness.NAME)
        return stored if isinstance(stored, Smoothness) and stored.exponent is not None else None

    setting = choose(settings, task, usable=lambda record: growth(record) is not None)
    if setting is None:
        return missing(task, f"no pair of {FULL} and {TOPK} whose smoothness was measured at three lengths or more")
    known = {
        arm: {seed: own for seed, record in setting.arms[arm].items() if (own := growth(record))}
        for arm in (FULL, TOPK)
    }
    ways = Counter(json.dumps([own.lengths, own.rows]) for runs in known.values() for own in runs.values())
    usual = min(ways, key=lambda way: (-ways[way], way))
    exponents = {
        arm: {seed: own.exponent for seed, own in runs.items() if json.dumps([own.lengths, own.rows]) == usual}
        for arm, runs in known.items()
    }
    seeds = sorted(exponents[FULL].keys() & exponents[TOPK].keys())
    if not seeds:  # measured in part
        return missing(task, f"no seed of which the smoothness of both {FULL} and {TOPK} was measured")
    differences = np.array([(exponents[TOPK][s] or 0.0) - (exponents[FULL][s] or 0.0) for s in seeds])
    interval, few = mean_interval(differences), not_enough(len(seeds), 1)
    runs = setting.ids(seeds, FULL, TOPK)
    shared = {"runs": runs, "setting": setting.note(), "precision": setting.precision}
    middle = [statistics.median(value or 0.0 for value in exponents[arm].values()) for arm in (TOPK, FULL)]
    effect = f"n^{middle[0]:.2f} with {TOPK}, n^{middle[1]:.2f} with {FULL}"
    if interval is None or few:
        return Part(task, "undecided", None, effect, interval, why=few or "too few pairs", **shared,
                    seeds=seeds_to_decide(None, None, len(seeds), []))  # fmt: skip
    mean, n = float(differences.mean()), len(seeds)
    decision = SAMENESS[equivalence(interval, EXPONENT_MARGIN)]
    below = one_sided_p(mean, interval, n, EXPONENT_MARGIN.low, below=True)
    outside = min(below, one_sided_p(mean, interval, n, EXPONENT_MARGIN.high))
    p = outside if decision == "no" else tost_p(mean, interval, n, EXPONENT_MARGIN)
    would = seeds_to_decide(mean, interval, n, EXPONENT_MARGIN) if decision == "undecided" else None
    why = "" if decision == "yes" else f"{effect}; difference {mean:+.3f}, {interval_text(interval)}"
    return Part(task, decision, p, effect, interval, why=why, seeds=would, **shared)


CLAIMS = (
    Claim(
        "C17",
        "Exact top-k is right on longer sequences than full attention, and as far as the ways made for them.",
        "Two aspects on each of copy, reverse, sort, flip-flop and 2-back with each of the positions sine, none, "
        "alibi, rope and randomized, from runs that drew their lengths (`task.lengths`) and were measured on longer "
        "ones (measurement `lengths`; curves of other lengths or rows than most do not count). The area of a run is "
        "its accuracy averaged over the logarithm of the length, from the longest of training to the longest "
        "measured. Further than full: the exact swap test of topk:5 - full, seeds paired, is significant at 5 % in "
        "favour of topk:5 (refuted: of full). As far as the others: the area of topk:5 is no more than 2 points below "
        "that of full attention with entmax:1.5, with ssmax and with asentmax, each decided as well as in C5, "
        "Bonferroni over those that were run. Not applicable where neither topk:5 nor full is better than guessing, "
        "by areas, as in C5.",
        c17,
        "open",
    ),
    Claim(
        "C18",
        "Focus does not change the power of the length with which attention's local Lipschitz constant grows.",
        "A part for each of Even Pairs and Missing Duplicates, from the measurement `smoothness` of trained models "
        "(the exact spectral norm of the Jacobian of each attention layer, chosen keys held fixed; lengths or rows "
        "other than most do not count). The exponent of a run is the least-squares slope of the logarithm of the "
        "constant, geometric mean over layers and examples, in the logarithm of the number of tokens. Shown: the 95 % "
        "interval of topk:5 - full, seeds paired, lies within -0.05 to 0.05 (refuted: wholly outside).",
        c18,
        "open",
    ),
)
