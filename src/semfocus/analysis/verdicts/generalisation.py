"""What carries over to held-out rows: C4 (full attention) and C5 (top-k beside it)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from semfocus.analysis.intervals import ACCURACY_MARGIN, Margin, equivalence
from semfocus.analysis.margins import one_sided_p, tost_p
from semfocus.analysis.multiple import ALPHA, not_enough
from semfocus.analysis.noninferiority import PAIRS_FOR_GROUPS, sign_p, two_groups
from semfocus.analysis.records import Measurements
from semfocus.analysis.verdicts.evidence import Claim, Decision, Part, missing
from semfocus.analysis.verdicts.pairs import FITTED, earlier, generalises_as_well, last_accuracies
from semfocus.analysis.verdicts.settings import FULL, TASKS, TOPK, Setting, choose, failed
from semfocus.errors import SemfocusError
from semfocus.tasks import get_task

GENERALISING = ("listops", "even_pairs", "missing_duplicate", "stack_manipulation")


def c4(settings: Sequence[Setting], measurements: Measurements) -> list[Part]:
    """For each task: full attention fits its training rows, and generalises or stays near what needs no learning."""
    parts = []
    for task in TASKS:
        setting = choose(settings, task, mechanisms=(FULL,), to_the_end=True)
        claimed = "generalises" if task in GENERALISING else "stays near its baseline"
        names = f"{task}: fits", f"{task}: {claimed}"
        if setting is None:
            parts += [missing(name, f"no run of {FULL} that trained to the last epoch") for name in names]
            continue
        parts += [_fits(names[0], setting), _generalises(names[1], setting, task in GENERALISING)]
    return parts


def _fits(name: str, setting: Setting) -> Part:
    """Significantly more than half of the runs reach 99.5 % training accuracy, by the exact sign test."""
    runs = setting.arms[FULL]
    there = sum(not failed(run) and run.first_at(FITTED) is not None for run in runs.values())
    p, n = sign_p(there, len(runs)), len(runs)
    decision: Decision = "undecided" if p > ALPHA else "yes" if 2 * there > n else "no"
    effect = f"{there} of {n} runs"
    why = "" if decision == "yes" else not_enough(n, 1) or f"{effect} reach {FITTED:.1%}"
    return Part(name, decision, p, effect, None, setting.ids(list(runs), FULL), why, setting.note())


def _generalises(name: str, setting: Setting, claimed: bool) -> Part:
    """The mean held-out accuracy against the best that needs no learning: above it by two points, or within two."""
    found, level = last_accuracies(setting, FULL), baseline(setting)
    runs, n, interval, mean = setting.ids(found.seeds, FULL), len(found), found.interval, found.mean
    short = not_enough(n, 1)
    if not short and two_groups(found.values) and n < PAIRS_FOR_GROUPS:
        short = f"runs fall in two groups, which takes {PAIRS_FOR_GROUPS} seeds; there are {n}"
    if short or interval is None or mean is None:
        return Part(name, "undecided", interval=interval, runs=runs, why=short, setting=setting.note())
    margin = Margin(level + ACCURACY_MARGIN.low, level + ACCURACY_MARGIN.high)
    if claimed:
        shown, denied = interval.low > margin.high, interval.high < margin.high
        p = one_sided_p(mean, interval, n, margin.high)
    else:
        near = equivalence(interval, margin)
        shown, denied = near == "equivalent", near == "different"
        p = tost_p(mean, interval, n, margin)
    decision: Decision = "yes" if shown else "no" if denied else "undecided"
    effect = f"{mean:.1%} against {level:.1%}"
    return Part(
        name, decision, p if shown else None, effect, interval, runs, "" if shown else effect, setting.note()
    )  # fmt: skip


def baseline(setting: Setting) -> float:
    """The best accuracy that needs no learning: chance, or always the commonest class where that is known."""
    prefix = "task.options."
    options = {name.removeprefix(prefix): value for name, value in setting.fields.items() if name.startswith(prefix)}
    return _baseline(setting.task, json.dumps(options, sort_keys=True))


@cache
def _baseline(task: str, options: str) -> float:
    try:
        known = get_task(task, **json.loads(options)).baselines
    except (SemfocusError, TypeError):  # options that this version does not know
        known = get_task(task).baselines
    return max(known["chance"], known.get("majority", 0.0))


def c5(settings: Sequence[Setting], measurements: Measurements) -> list[Part]:
    return [part for task in TASKS for part in as_well_and_earlier(settings, task, before=f"{task}: ")]


def as_well_and_earlier(
    settings: Sequence[Setting], task: str, changes: Mapping[str, Any] = {}, before: str = ""
) -> list[Part]:
    """Two parts, or one where full attention itself learns nothing that carries over and there is no "earlier"."""
    setting = choose(settings, task, changes, to_the_end=True)
    names = f"{before}as well", f"{before}earlier"
    if setting is None:
        return [missing(name, f"no pair of {FULL} and {TOPK} that trained to the last epoch") for name in names]
    parts = [generalises_as_well(names[0], setting, changes)]
    if _generalises("", setting, claimed=False).decision == "yes":
        return parts
    return [*parts, earlier(names[1], setting, changes)]


CLAIMS = (
    Claim(
        "C4",
        "Full attention reaches 100 % training accuracy on all eight tasks, but generalises on only four "
        "(ListOps, Even Pairs, Missing Duplicates, Stack Manipulation); Parity stays near chance.",
        "Two parts for each of the eight tasks, from full attention's runs that trained to the last epoch. Fits: "
        "more than half of the runs reach 99.5 % training accuracy, by the exact sign test at 5 % (refuted: fewer"
        " than half). Then, on the four tasks named: the mean held-out accuracy of the last epoch lies more than "
        "2 points above the accuracy that needs no learning (the larger of chance and majority), by its 95 % "
        "interval (refuted: wholly below that); on the other four: within 2 points of it (refuted: wholly "
        "outside). Fewer than 6 runs, or fewer than 30 where runs fall in two groups more than 10 points apart, "
        "decide nothing.",
        c4,
    ),
    Claim(
        "C5",
        "Top-k generalises as well as full attention or better, and earlier in training.",
        "Two parts for each of the eight tasks, on held-out accuracy. As well: in the last epoch the paired 95 % "
        "interval of topk:5 - full lies above -2 points, and significantly more than half of the pairs do (exact "
        "sign test at 5 %), and there are at least 10 pairs, 30 where runs fall in two groups more than 10 points "
        "apart (refuted: the interval lies wholly below -2 points). Earlier: epochs to the worse of the two last "
        "accuracies of a seed, less 2 points, compared as in C1; left out where full attention stays within 2 "
        "points of what needs no learning.",
        c5,
    ),
)
