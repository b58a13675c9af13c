"""Who learns faster: C1 (top-k), C2 (by how much) and C11 (as k grows)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from semfocus.analysis.intervals import SPEEDUP_MARGIN
from semfocus.analysis.margins import logs, one_sided_p
from semfocus.analysis.multiple import ALPHA, holm, not_enough
from semfocus.analysis.records import Measurements
from semfocus.analysis.speedup import SpeedUp
from semfocus.analysis.verdicts.evidence import Claim, Decision, Part, missing
from semfocus.analysis.verdicts.pairs import about, faster, faster_on, gained, interval_text
from semfocus.analysis.verdicts.settings import FULL, TASKS, TOPK, Setting, choose

LISTOPS, LISTOPS_RATIO, LARGEST_RATIO = "listops", 1.3, 8.83


def c1(settings: Sequence[Setting], measurements: Measurements) -> list[Part]:
    return [faster_on(settings, task) for task in TASKS]


def c2(settings: Sequence[Setting], measurements: Measurements) -> list[Part]:
    return [_listops_ratio(settings), _largest_ratio(settings)]


def _listops_ratio(settings: Sequence[Setting]) -> Part:
    name = f"about {LISTOPS_RATIO}x on {LISTOPS}"
    setting = choose(settings, LISTOPS)
    if setting is None:
        return missing(name, f"no pair of {FULL} and {TOPK} on {LISTOPS}")
    gain = gained(setting)
    decision, p = about(gain, LISTOPS_RATIO)
    why = "" if decision == "yes" else gain.why or f"{gain.ratio.text}, {interval_text(gain.interval)}"
    runs = setting.ids(setting.seeds(FULL, TOPK), FULL, TOPK)
    return Part(name, decision, p, gain.ratio.text, gain.interval, runs, why, setting.note())


def _largest_ratio(settings: Sequence[Setting]) -> Part:
    """On some other task the speed-up is at least 0.8 times the largest one published."""
    name, bound = f"up to {LARGEST_RATIO}x elsewhere", SPEEDUP_MARGIN.low * LARGEST_RATIO
    chosen = {task: choose(settings, task) for task in TASKS if task != LISTOPS}
    found = {task: gained(setting) for task, setting in chosen.items() if setting is not None}
    runs = frozenset[str]().union(*(s.ids(s.seeds(FULL, TOPK), FULL, TOPK) for s in chosen.values() if s is not None))
    p_values = {task: _at_least_p(found[task], bound) if task in found else None for task in chosen}
    sure = {task: p for task, p in holm(p_values).items() if p is not None and p <= ALPHA}
    open_tasks = [task for task in chosen if task not in found or _may_reach(found[task], bound)]
    ratios = {task: gain.ratio.value for task, gain in found.items() if gain.ratio.value is not None}
    if not ratios:
        return missing(name, f"no speed-up on any task but {LISTOPS}")
    largest = (
        min(sure, key=lambda task: (sure[task], task)) if sure else max(ratios, key=lambda task: (ratios[task], task))
    )
    gain, setting = found[largest], chosen[largest]
    decision: Decision = "yes" if sure else "undecided" if open_tasks else "no"
    effect = f"{gain.ratio.text} on {largest}"
    why = "" if sure else f"at most {effect}, {interval_text(gain.interval)}"
    why += f"; not excluded on {len(open_tasks)} of {len(chosen)} tasks" if decision == "undecided" else ""
    note = "" if setting is None else setting.note()
    return Part(name, decision, sure.get(largest), effect, gain.interval, runs, why, note)


def _at_least_p(gain: SpeedUp, bound: float) -> float | None:
    if gain.interval is None or gain.ratio.value is None or gain.interval.low == 0:
        return None
    return one_sided_p(math.log(gain.ratio.value), logs(gain.interval), gain.pairs, math.log(bound))


def _may_reach(gain: SpeedUp, bound: float) -> bool:
    return gain.interval is None or gain.interval.high >= bound or bool(not_enough(gain.pairs, 1))


def c11(settings: Sequence[Setting], measurements: Measurements) -> list[Part]:
    """Two parts a task: at k = L the speed-up is 1 within the margin, and k = 5 is faster than k = L."""
    parts = []
    for task in TASKS:
        setting = choose(settings, task, mechanisms=lambda setting: (FULL, TOPK, _widest(setting)))
        names = f"{task}: k = L equals full", f"{task}: k = 5 faster than k = L"
        if setting is None:
            parts += [missing(name, f"no runs of {FULL}, {TOPK} and topk:L") for name in names]
            continue
        parts += [_equal_at_last(names[0], setting), faster(names[1], setting, base=_widest(setting))]
    return parts


def _equal_at_last(name: str, setting: Setting) -> Part:
    widest = _widest(setting)
    gain = gained(setting, other=widest)
    decision, p = about(gain, 1.0)
    if decision == "yes" and gain.equivalence() != "equivalent":
        decision, p = "undecided", None  # hardly any run got there: alike by construction
    why = "" if decision == "yes" else gain.why or f"{gain.ratio.text}, {interval_text(gain.interval)}"
    runs = setting.ids(setting.seeds(FULL, widest), FULL, widest)
    return Part(name, decision, p, gain.ratio.text, gain.interval, runs, why, setting.note())


def _widest(setting: Setting) -> str:
    """Top-k that keeps every key of the setting's rows."""
    return f"topk:{setting.seq_len}"


CLAIMS = (
    Claim(
        "C1",
        "Top-k attention (k = 5) reaches 95 % training accuracy in fewer epochs than full attention.",
        "A part for each of the paper's eight tasks. Shown: the exact paired log-rank test of topk:5 against full"
        " is significant at 5 % in favour of topk:5 and the ratio of restricted means is above 1. Refuted: "
        "significant the other way, or the speed-up's 95 % interval lies below 1.25 with more than half of both "
        "arms there.",
        c1,
    ),
    Claim(
        "C2",
        "The speed-up is about 1.3x on ListOps and up to 8.83x elsewhere.",
        "Two parts, on ratios of restricted means. ListOps: the 95 % interval lies within 0.8 to 1.25 times 1.3 "
        "(refuted: wholly outside). Elsewhere: on some other task the speed-up is at least 0.8 times 8.83, by the"
        " lower end of its interval, Holm over the seven tasks (refuted: every task's interval lies below).",
        c2,
    ),
    Claim(
        "C11",
        "As k grows to the length L, top-k becomes full attention and the benefit vanishes.",
        "Two parts for each of the eight tasks. The speed-up of topk:L over full has its 95 % interval within 0.8"
        " to 1.25, more than half of both arms there (refuted: wholly outside). And topk:5 is faster than topk:L "
        "by the exact paired log-rank test at 5 %.",
        c11,
    ),
)
