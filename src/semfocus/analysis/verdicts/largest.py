"""By how much top-k is faster (C2), in the paper's unit: epochs counted from 0."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from semfocus.analysis.intervals import SPEEDUP_MARGIN, log_interval, one_sided_p
from semfocus.analysis.multiple import ALPHA, holm, not_enough
from semfocus.analysis.records import THRESHOLD, Measurements
from semfocus.analysis.speedup import SpeedUp, speed_up
from semfocus.analysis.verdicts.evidence import Claim, Decision, Part, missing
from semfocus.analysis.verdicts.pairs import arm_speed_up, interval_text, log_or_none, near_target, target_bounds
from semfocus.analysis.verdicts.power import seeds_to_decide
from semfocus.analysis.verdicts.settings import FULL, TASKS, TOPK, Setting, choose

LISTOPS, LISTOPS_RATIO, LARGEST_RATIO = "listops", 1.3, 8.83
ELSEWHERE = tuple(task for task in TASKS if task != LISTOPS)
ABOUT, UP_TO = f"about {LISTOPS_RATIO}x on {LISTOPS}", f"up to {LARGEST_RATIO}x elsewhere"  # the aspects


def c2(settings: Sequence[Setting], measurements: Measurements) -> list[Part]:
    return [_listops_ratio(settings), _largest_ratio(settings)]


def _listops_ratio(settings: Sequence[Setting]) -> Part:
    setting = choose(settings, LISTOPS, level=THRESHOLD)
    if setting is None:
        return missing(ABOUT, f"no pair of {FULL} and {TOPK} on {LISTOPS}", ABOUT)
    gain = _in_papers_unit(setting)
    decision, p = near_target(gain, LISTOPS_RATIO)
    effect = _both_units(setting, gain)
    why = "" if decision == "yes" else gain.why or f"{effect}; {interval_text(gain.interval)}"
    seeds = None
    if decision == "undecided":
        ends = None if gain.interval is None else log_interval(gain.interval)
        seeds = seeds_to_decide(log_or_none(gain.estimate), ends, gain.pairs, target_bounds(LISTOPS_RATIO))
    return Part(
        ABOUT, decision, p, effect, gain.interval, _ids(setting), why, setting.note(),
        aspect=ABOUT, seeds=seeds, precision=setting.precision,
    )  # fmt: skip


def _largest_ratio(settings: Sequence[Setting]) -> Part:
    """On some task other than ListOps the speed-up is at least 0.8 times the largest published one."""
    bound = SPEEDUP_MARGIN.low * LARGEST_RATIO
    nearest = {task: choose(settings, task, level=THRESHOLD) for task in ELSEWHERE}
    chosen = {task: setting for task, setting in nearest.items() if setting is not None}
    gains = {task: _in_papers_unit(setting) for task, setting in chosen.items()}
    known = {task: gain for task, gain in gains.items() if gain.estimate is not None}
    if not known:
        return missing(UP_TO, f"no speed-up on any task but {LISTOPS}", UP_TO)
    reaches = holm({task: _p(gains[task], bound) if task in gains else None for task in ELSEWHERE})
    sure = {task: p for task, p in reaches.items() if p is not None and p <= ALPHA}
    short_of_it = {task: _p(gain, bound, below=True) for task, gain in gains.items() if _is_below(gain, bound)}
    best = min(sure, key=lambda task: (sure[task], task)) if sure else ""
    best = best or max(known, key=lambda task: (known[task].estimate or 0.0, task))
    gain, setting = gains[best], chosen[best]
    decision: Decision = "yes" if sure else "no" if len(short_of_it) == len(ELSEWHERE) else "undecided"
    p = sure.get(best) if sure else max(p or 0.0 for p in short_of_it.values()) if decision == "no" else None
    effect = f"{_both_units(setting, gain)}, on {best}"
    why = "" if sure else f"at most {effect}; {interval_text(gain.interval)}"
    open_tasks = len(ELSEWHERE) - len(short_of_it)
    why += f"; not excluded on {open_tasks} of {len(ELSEWHERE)} tasks" if decision == "undecided" else ""
    seeds = None
    if decision == "undecided":
        ends = None if gain.interval is None else log_interval(gain.interval)
        seeds = seeds_to_decide(log_or_none(gain.estimate), ends, gain.pairs, [math.log(bound)])
    runs = frozenset[str]().union(*(_ids(one) for one in chosen.values()))
    return Part(
        UP_TO, decision, p, effect, gain.interval, runs, why, setting.note(),
        aspect=UP_TO, seeds=seeds, precision=setting.precision,
    )  # fmt: skip


def _in_papers_unit(setting: Setting) -> SpeedUp:
    return speed_up(setting.times(FULL, THRESHOLD), setting.times(TOPK, THRESHOLD), counted_from=0)


def _both_units(setting: Setting, gain: SpeedUp) -> str:
    """`8.84x counted from 0 (the paper would print 51/5 = 10.2x), 7.69x counted from 1`: it cuts means to integers."""
    seeds = setting.seeds(FULL, TOPK)
    means = [int(np.mean(np.ceil(setting.times(arm, THRESHOLD).only(seeds).epochs) - 1)) for arm in (FULL, TOPK)]
    cut = f" (the paper would print {means[0]}/{means[1]} = {means[0] / means[1]:.3g}x)" if means[1] else ""
    return f"{gain.ratio.text} counted from 0{cut}, {arm_speed_up(setting).ratio.text} counted from 1"


def _ids(setting: Setting) -> frozenset[str]:
    return setting.ids(setting.seeds(FULL, TOPK), FULL, TOPK)


def _p(gain: SpeedUp, bound: float, *, below: bool = False) -> float | None:
    """Of the claim that the speed-up lies above `bound`, or below it; None if censoring leaves that end open."""
    if gain.interval is None or gain.estimate is None:
        return None
    if (gain.interval.high == math.inf) if below else (gain.interval.low == 0):
        return None
    ends = log_interval(gain.interval)
    return one_sided_p(math.log(gain.estimate), ends, gain.pairs, math.log(bound), below=below)


def _is_below(gain: SpeedUp, bound: float) -> bool:
    mostly_there = 2 * gain.reached_full > gain.pairs  # else the ratio may be small because of the horizon
    return gain.interval is not None and gain.interval.high < bound and mostly_there and not not_enough(gain.pairs, 1)


CLAIMS = (
    Claim(
        "C2",
        "The speed-up is about 1.3x on ListOps and up to 8.83x elsewhere.",
        "Two aspects, on ratios of restricted means in the paper's unit: epochs counted from 0, that is, those "
        "completed before the one during which a run gets there. (The paper cuts mean epochs to whole numbers, 8.83 "
        "= 53/6; here they are not cut, and what it would print is said beside, as is the ratio counted from 1.) "
        "ListOps: the 95 % interval lies within 0.8 to 1.25 times 1.3 (refuted: wholly outside), more than half of "
        "both arms there. Elsewhere: on some other task the speed-up is at least 0.8 times 8.83, by the lower end of "
        "its interval, Holm over the seven tasks (refuted: every one of the seven has its interval below, more than "
        "half of full's runs there).",
        c2,
    ),
)
