"""Measurements of how trained models attend: C9 (dispersion), C12 (masks under noise), C13 (prediction).

Measurements are stored with their runs, by name. They may come from someone else: a value that is not a finite number
counts as not measured.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from semfocus.analysis.accuracy import sign_p
from semfocus.analysis.consistent_settings import consistent_settings, measured_with
from semfocus.analysis.correlation import spearman
from semfocus.analysis.intervals import Interval, mean_interval
from semfocus.analysis.multiple import ALPHA, not_enough
from semfocus.analysis.paired import EXACT_PAIRS, exact_swap_p, sampled_swap_p
from semfocus.analysis.records import Record
from semfocus.analysis.verdicts.evidence import Claim, Decision, Part, missing
from semfocus.analysis.verdicts.pairs import arm_speed_up, interval_text
from semfocus.analysis.verdicts.settings import FULL, TASKS, TOPK, Setting, choose
from semfocus.measurements import Dispersion, MaskStability, Measurements

K = 5
TABLE_TASKS = ("listops", "parity", "even_pairs", "missing_duplicate")  # of table 6 and figure 27
PERCENTILES = ("75", "90", "95", "100")
WORST_CASE = "100"  # the percentile that the theorem is about
FLOOR = 1e-9  # smaller positive numbers count as this
STRONG_RHO = 0.5  # the strength of a rank correlation that predicts
EVERYWHERE = ("split", "checkpoint")  # settings that measurements of all tasks have to share
WITHIN_TASK = ("rows",)  # settings that measurements of one task have to share
Usable = Callable[[Record], bool]  # whether a run counts


def _dispersion(record: Record, measurements: Measurements) -> Dispersion | None:
    """The measurement of the run, if it was made with the paper's k."""
    measured = measurements.get(record.id, {}).get(Dispersion.NAME)
    return measured if isinstance(measured, Dispersion) and measured.k == K else None


def c9(settings: Sequence[Setting], measurements: Measurements) -> list[Part]:
    """For each task of the paper's table: a lower dispersion, and the theory's two conditions."""

    def last(record: Record, name: str, percentile: str) -> float | None:
        measured = _dispersion(record, measurements)
        at = measured.checkpoints.get("last") if measured is not None else None
        return None if at is None else at.at(name, percentile)

    def has(record: Record) -> bool:
        names = ("delta", "separation", "in_degree") if record.mechanism == TOPK else ("delta",)
        return all(last(record, name, percentile) is not None for name in names for percentile in PERCENTILES)

    parts = []
    for task in TABLE_TASKS:
        names = f"{task}: lower dispersion", f"{task}: conditions"
        setting = choose(settings, task, usable=has)
        if setting is None:
            parts += [missing(name, f"no pair of {FULL} and {TOPK} with a measured dispersion") for name in names]
            continue
        usable = _measured_consistently({task: setting}, measurements, "dispersion", (FULL, TOPK), has)
        if not setting.seeds(FULL, TOPK, usable=usable):
            parts += [missing(name, f"no pair of {FULL} and {TOPK} measured in the same way") for name in names]
            continue
        parts.append(smaller(names[0], setting, usable, last, "delta", PERCENTILES))
        parts.append(_conditions(names[1], setting, usable, last))
    return parts


def _conditions(name: str, setting: Setting, has: Usable, last: Callable[..., float | None]) -> Part:
    """W < 1 and X < 1 in significantly more than half of the pairs of models, by the exact sign test."""
    from semfocus.theory.lipschitz import condition_w, condition_x  # imports torch

    seeds = setting.seeds(FULL, TOPK, usable=has)
    conditions = []
    for seed in seeds:
        full, topk = setting.arms[FULL][seed], setting.arms[TOPK][seed]
        whole, heavy = last(full, "delta", WORST_CASE), last(topk, "delta", WORST_CASE)
        gap, degree = last(topk, "separation", WORST_CASE), last(topk, "in_degree", WORST_CASE)
        deltas = max(whole or 0.0, 0.0), max(heavy or 0.0, 0.0), max(gap or 0.0, FLOOR)
        conditions.append((float(condition_w(*deltas)), float(condition_x(*deltas, max(degree or 0.0, 0.0) / K))))
    met, n = sum(w < 1 and x < 1 for w, x in conditions), len(seeds)
    p = sign_p(met, n)
    decision: Decision = "undecided" if p > ALPHA else "yes" if 2 * met > n else "no"
    medians = [statistics.median(values) for values in zip(*conditions, strict=True)]
    effect = f"W = {medians[0]:.3g}, X = {medians[1]:.3g}, both below 1 in {met} of {n} pairs"
    why = "" if decision == "yes" else not_enough(n, 1) or effect
    return Part(name, decision, p, effect, None, setting.ids(seeds, FULL, TOPK), why, setting.note())


def smaller(
    name: str,
    setting: Setting,
    has: Usable,
    value: Callable[..., float | None],
    what: str,
    percentiles: Sequence[str],
) -> Part:
    """Is a positive quantity smaller with top-k than with full attention, at each percentile, within pairs?

    Shown: the exact swap test of the log ratios is significant in that direction at every percentile. Refuted: at the
    last and most extreme percentile it is significant in the other direction.
    """
    seeds = setting.seeds(FULL, TOPK, usable=has)
    p_values, ratios = [], np.empty(0)
    for percentile in percentiles:
        arms = [[value(setting.arms[m][seed], what, percentile) for seed in seeds] for m in (FULL, TOPK)]
        full, topk = (np.log(np.maximum(np.array(arm, dtype=float), FLOOR)) for arm in arms)
        ratios = full - topk
        p = exact_swap_p(ratios) if len(seeds) <= EXACT_PAIRS else sampled_swap_p(ratios)
        p_values.append((p, float(np.mean(ratios))))
    decision: Decision = "undecided"
    if all(p <= ALPHA and mean > 0 for p, mean in p_values):
        decision = "yes"
    elif p_values[-1][0] <= ALPHA and p_values[-1][1] < 0:
        decision = "no"
    spread = mean_interval(ratios)
    interval = None if spread is None else Interval(math.exp(spread.low), math.exp(spread.high))
    effect = f"full / top-k = {math.exp(p_values[-1][1]):.3g} at percentile {percentiles[-1]}"
    why = "" if decision == "yes" else not_enough(len(seeds), 1) or f"{effect}, {interval_text(interval)}"
    p = max(p for p, _ in p_values) if decision == "yes" else p_values[-1][0]
    return Part(name, decision, p, effect, interval, setting.ids(seeds, FULL, TOPK), why, setting.note())


def measured_runs(setting: Setting, has: Usable) -> list[Record]:
    """The runs of both arms, of the seeds that both have."""
    seeds = setting.seeds(FULL, TOPK, usable=has)
    return [setting.arms[mechanism][seed] for mechanism in (FULL, TOPK) for seed in seeds]


def c12(settings: Sequence[Setting], measurements: Measurements) -> list[Part]:
    """Over tasks: correlation of separation with the share of keys kept under noise, and with the speed-up."""

    def masks(record: Record) -> MaskStability | None:
        measured = measurements.get(record.id, {}).get(MaskStability.NAME)
        return measured if isinstance(measured, MaskStability) and measured.k == K else None

    def kept_share(record: Record) -> float | None:
        measured = masks(record)
        return None if measured is None else measured.mean_kept

    def gap(record: Record) -> float | None:
        measured = masks(record)
        return None if measured is None else measured.separation["50"]

    def known(record: Record) -> bool:
        return record.mechanism == FULL or (kept_share(record) is not None and gap(record) is not None)

    chosen, has = _choose_consistent(settings, measurements, "mask_stability", (TOPK,), known)
    counted = [masks(run) for setting in chosen.values() for run in setting.arms[TOPK].values() if has(run)]
    levels = {str(measured.noise) for measured in counted if measured is not None}
    names = "small separation: unstable masks", "small separation: slower"
    if len(levels) > 1:
        return [missing(name, "masks were tried with different levels of noise") for name in names]
    gaps = {task: _median(setting, has, gap) for task, setting in chosen.items()}
    kept = {task: _median(setting, has, kept_share) for task, setting in chosen.items()}
    return [
        _correlated(names[0], gaps, kept, 1, chosen, has),
        _correlated(names[1], gaps, _speed_ups(chosen), 1, chosen, has),
    ]


def c13(settings: Sequence[Setting], measurements: Measurements) -> list[Part]:
    """Over tasks: correlation of the ratio of dispersions before training with the speed-up."""

    def delta(record: Record) -> float | None:
        measured = _dispersion(record, measurements)
        at = measured.checkpoints.get("0") if measured is not None else None
        return None if at is None else at.delta[WORST_CASE]

    def known(record: Record) -> bool:
        return (delta(record) or 0.0) > 0

    chosen, has = _choose_consistent(settings, measurements, "dispersion", (FULL, TOPK), known)
    ratios = {}
    for task, setting in chosen.items():
        seeds = setting.seeds(FULL, TOPK, usable=has)
        pairs = [(delta(setting.arms[TOPK][seed]), delta(setting.arms[FULL][seed])) for seed in seeds]
        ratios[task] = statistics.median((topk or 0.0) / (full or 1.0) for topk, full in pairs)
    name = "smaller ratio, larger speed-up"
    return [_correlated(name, ratios, _speed_ups(chosen), -1, chosen, has)]


def _choose_consistent(
    settings: Sequence[Setting], measurements: Measurements, name: str, arms: Sequence[str], has: Usable
) -> tuple[dict[str, Setting], Usable]:
    """The setting of each task, and which of its runs count; a task without such runs is left out."""
    nearest = {task: choose(settings, task, usable=has) for task in TASKS}
    chosen = {task: setting for task, setting in nearest.items() if setting is not None}
    usable = _measured_consistently(chosen, measurements, name, arms, has)
    return {task: setting for task, setting in chosen.items() if setting.seeds(FULL, TOPK, usable=usable)}, usable


def _measured_consistently(
    chosen: Mapping[str, Setting], measurements: Measurements, name: str, arms: Sequence[str], has: Usable
) -> Usable:
    """`has`, without the runs of these arms whose measurement settings differ from most runs or within the pair."""
    units = {
        task: [
            [measured_with(setting.arms[arm][seed], measurements, name, [*EVERYWHERE, *WITHIN_TASK]) for arm in arms]
            for seed in setting.seeds(FULL, TOPK, usable=has)
        ]
        for task, setting in chosen.items()
    }
    counted = consistent_settings(units, EVERYWHERE, WITHIN_TASK).runs
    return lambda record: has(record) and (record.mechanism not in arms or record.id in counted)


def _median(setting: Setting, has: Usable, value: Callable[[Record], float | None]) -> float:
    runs = [setting.arms[TOPK][seed] for seed in setting.seeds(FULL, TOPK, usable=has)]
    return statistics.median(known for run in runs if (known := value(run)) is not None)


def _speed_ups(chosen: Mapping[str, Setting]) -> dict[str, float]:
    """The speed-up of each task that has one; a bound counts as its value."""
    gains = {task: arm_speed_up(setting) for task, setting in chosen.items()}
    return {task: gain.ratio.value for task, gain in gains.items() if gain.ratio.value is not None}


def _correlated(
    name: str,
    x: Mapping[str, float],
    y: Mapping[str, float],
    sign: int,
    chosen: Mapping[str, Setting],
    has: Usable,
) -> Part:
    """Shown: rho has this sign at 5 %. Refuted: it has the other sign, or its interval excludes a strength of 0.5."""
    correlation = spearman(x, y)
    runs = frozenset(record.id for setting in chosen.values() for record in measured_runs(setting, has))
    notes = "; ".join(sorted({setting.note() for setting in chosen.values()} - {""}))
    if correlation.rho is None or correlation.p is None or correlation.interval is None:
        return Part(name, "undecided", runs=runs, why=correlation.why, setting=notes)
    strongest = max(sign * correlation.interval.low, sign * correlation.interval.high)
    decision: Decision = "undecided"
    if correlation.p <= ALPHA:
        decision = "yes" if sign * correlation.rho > 0 else "no"
    elif strongest < STRONG_RHO:
        decision = "no"
    effect = f"rho = {correlation.rho:.2f} over {correlation.items} tasks"
    why = "" if decision == "yes" else f"{effect}, {interval_text(correlation.interval)}"
    return Part(name, decision, correlation.p, effect, correlation.interval, runs, why, notes)


CLAIMS = (
    Claim(
        "C9",
        "Trained top-k models have a lower semantic dispersion than trained full models, and the conditions of "
        "the theory are met.",
        "Two parts for each of ListOps, Parity, Even Pairs and Missing Duplicates, from the measurement "
        "`dispersion` (k = 5) at the last checkpoint, pairs of one seed. Lower: the exact swap test of the log "
        "ratios full / top-k is significant at 5 % at each of the percentiles 75, 90, 95 and 100 (refuted: at 100"
        " the other way). Conditions: W < 1 and X < 1 at percentile 100, the only one that the theorem is about, "
        "in more than half of the pairs by the exact sign test (refuted: in fewer than half).",
        c9,
    ),
    Claim(
        "C12",
        "A small semantic separation makes the mask unstable under input noise, and hurts convergence.",
        "Two parts, each a Spearman correlation over the eight tasks with an exact permutation p-value, of the "
        "median over seeds from the measurement `mask_stability` (k = 5): the median separation against the share"
        " of kept keys that stay, averaged over the levels of noise; and against the speed-up of topk:5 over "
        "full. Shown: positive at 5 %. Refuted: negative at 5 %, or the 95 % interval lies below 0.5.",
        c12,
    ),
    Claim(
        "C13",
        "The ratio of dispersions (top-k / full) predicts the speed-up across tasks.",
        "One part: the Spearman correlation over the eight tasks, with an exact permutation p-value, of the "
        "median ratio over seeds at percentile 100 before training (at the end it is an outcome), from the "
        "measurement `dispersion` (k = 5), with the speed-up of topk:5 over full. Shown: negative at 5 %. "
        "Refuted: positive at 5 %, or the 95 % interval lies above -0.5.",
        c13,
    ),
)
