"""Measurements of how trained models attend: C9 (dispersion), and what other claims need of measurements.

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
from semfocus.analysis.intervals import Interval, mean_interval
from semfocus.analysis.multiple import ALPHA, not_enough
from semfocus.analysis.paired import EXACT_PAIRS, exact_swap_p, sampled_swap_p
from semfocus.analysis.records import Record
from semfocus.analysis.verdicts.evidence import Claim, Decision, Part, missing
from semfocus.analysis.verdicts.pairs import interval_text
from semfocus.analysis.verdicts.power import seeds_for_share, seeds_to_decide
from semfocus.analysis.verdicts.settings import FULL, TASKS, TOPK, Setting, choose
from semfocus.measurements import Dispersion, Measurements

K = 5
TABLE_TASKS = ("listops", "parity", "even_pairs", "missing_duplicate")  # of table 6 and figure 27
PERCENTILES = ("75", "90", "95", "100")
WORST_CASE = "100"  # the percentile that the theorem is about
FLOOR = 1e-9  # smaller positive numbers count as this
LOWER, CONDITIONS = "lower dispersion", "conditions"  # the aspects of C9
EVERYWHERE = ("split", "checkpoint")  # settings that measurements of all tasks have to share
WITHIN_TASK = ("rows",)  # settings that measurements of one task have to share
Usable = Callable[[Record], bool]  # whether a run counts


def dispersion_of(record: Record, measurements: Measurements) -> Dispersion | None:
    """The measurement of the run, if it was made with the paper's k."""
    measured = measurements.get(record.id, {}).get(Dispersion.NAME)
    return measured if isinstance(measured, Dispersion) and measured.k == K else None


def c9(settings: Sequence[Setting], measurements: Measurements) -> list[Part]:
    """For each task of the paper's table: a lower dispersion, and the theory's two conditions."""

    def last(record: Record, name: str, percentile: str) -> float | None:
        measured = dispersion_of(record, measurements)
        at = measured.checkpoints.get("last") if measured is not None else None
        return None if at is None else at.at(name, percentile)

    def has(record: Record) -> bool:
        names = ("delta", "separation", "in_degree") if record.mechanism == TOPK else ("delta",)
        return all(last(record, name, percentile) is not None for name in names for percentile in PERCENTILES)

    parts = []
    for task in TABLE_TASKS:
        setting = choose(settings, task, usable=has)
        if setting is None:
            parts += _unmeasured(task, f"no pair of {FULL} and {TOPK} with a measured dispersion")
            continue
        usable = measured_consistently({task: setting}, measurements, "dispersion", (FULL, TOPK), has)
        if not setting.seeds(FULL, TOPK, usable=usable):
            parts += _unmeasured(task, f"no pair of {FULL} and {TOPK} measured in the same way")
            continue
        parts.append(smaller(f"{task}: {LOWER}", setting, usable, last, "delta", PERCENTILES, LOWER))
        parts.append(_conditions(f"{task}: {CONDITIONS}", setting, usable, last))
    return parts


def _unmeasured(task: str, why: str) -> list[Part]:
    return [missing(f"{task}: {aspect}", why, aspect) for aspect in (LOWER, CONDITIONS)]


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
    return Part(
        name, decision, p, effect, None, setting.ids(seeds, FULL, TOPK), why, setting.note(), aspect=CONDITIONS,
        seeds=seeds_for_share(met, n) if decision == "undecided" else None, precision=setting.precision,
    )  # fmt: skip


def smaller(
    name: str,
    setting: Setting,
    has: Usable,
    value: Callable[..., float | None],
    what: str,
    percentiles: Sequence[str],
    aspect: str = "",
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
    would = seeds_to_decide(p_values[-1][1], spread, len(seeds), [0.0]) if decision == "undecided" else None
    return Part(
        name, decision, p, effect, interval, setting.ids(seeds, FULL, TOPK), why, setting.note(),
        aspect=aspect, seeds=would, precision=setting.precision,
    )  # fmt: skip


def measured_runs(setting: Setting, has: Usable) -> list[Record]:
    """The runs of both arms, of the seeds that both have."""
    seeds = setting.seeds(FULL, TOPK, usable=has)
    return [setting.arms[mechanism][seed] for mechanism in (FULL, TOPK) for seed in seeds]


def choose_consistent(
    settings: Sequence[Setting], measurements: Measurements, name: str, arms: Sequence[str], has: Usable
) -> tuple[dict[str, Setting], Usable]:
    """The setting of each task, and which of its runs count; a task without such runs is left out."""
    nearest = {task: choose(settings, task, usable=has) for task in TASKS}
    chosen = {task: setting for task, setting in nearest.items() if setting is not None}
    usable = measured_consistently(chosen, measurements, name, arms, has)
    return {task: setting for task, setting in chosen.items() if setting.seeds(FULL, TOPK, usable=usable)}, usable


def measured_consistently(
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


CLAIMS = (
    Claim(
        "C9",
        "Trained top-k models have a lower semantic dispersion than trained full models, and the conditions of "
        "the theory are met.",
        "Two aspects on each of ListOps, Parity, Even Pairs and Missing Duplicates, from the measurement "
        "`dispersion` (k = 5) at the last checkpoint, pairs of one seed. Lower: the exact swap test of the log "
        "ratios full / top-k is significant at 5 % at each of the percentiles 75, 90, 95 and 100 (refuted: at 100"
        " the other way). Conditions: W < 1 and X < 1 at percentile 100, the only one that the theorem is about, "
        "in more than half of the pairs by the exact sign test (refuted: in fewer than half).",
        c9,
    ),
)
