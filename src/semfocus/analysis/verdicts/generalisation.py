"""Generalisation to held-out examples: C4 (full attention) and C5 (top-k beside it)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from semfocus.analysis.accuracy import sign_p
from semfocus.analysis.multiple import ALPHA, not_enough
from semfocus.analysis.records import Measurements
from semfocus.analysis.verdicts.baselines import GUESSING, bar, beats, does_not_beat
from semfocus.analysis.verdicts.evidence import Claim, Decision, Part, missing
from semfocus.analysis.verdicts.pairs import FITTED, earlier, generalises_as_well, last_accuracies, learns_nothing
from semfocus.analysis.verdicts.power import seeds_for_share
from semfocus.analysis.verdicts.settings import FULL, TASKS, TOPK, Setting, choose, has_diverged

GENERALISING = ("listops", "even_pairs", "missing_duplicate", "stack_manipulation")
FITS, GENERALISES, DOES_NOT = "fits", "generalises", "does not generalise"  # the aspects of C4
AS_WELL, EARLIER = "as well", "earlier"  # of C5
NOTHING = "neither arm does better than guessing"


def c4(settings: Sequence[Setting], measurements: Measurements) -> list[Part]:
    """For each task: full attention fits its training set, and generalises or does not."""
    parts = []
    for task in TASKS:
        setting = choose(settings, task, mechanisms=(FULL,), to_the_end=True)
        claimed = task in GENERALISING
        aspects = FITS, GENERALISES if claimed else DOES_NOT
        if setting is None:
            why = f"no run of {FULL} that trained to the last epoch"
            parts += [missing(f"{task}: {aspect}", why, aspect) for aspect in aspects]
            continue
        accuracies = last_accuracies(setting, FULL)
        part = beats(bar(setting), accuracies, claimed=claimed)
        parts.append(_fits(task, setting))
        parts.append(
            replace(
                part, name=f"{task}: {aspects[1]}", aspect=aspects[1], runs=setting.ids(accuracies.seeds, FULL),
                setting=setting.note(), precision=setting.precision,
            )
        )  # fmt: skip
    return parts


def _fits(task: str, setting: Setting) -> Part:
    """Significantly more than half of the runs reach 99.5 % training accuracy, by the exact sign test."""
    runs = setting.arms[FULL]
    fitted = sum(not has_diverged(run) and run.first_at(FITTED) is not None for run in runs.values())
    p, n = sign_p(fitted, len(runs)), len(runs)
    decision: Decision = "undecided" if p > ALPHA else "yes" if 2 * fitted > n else "no"
    effect = f"{fitted} of {n} runs"
    why = "" if decision == "yes" else not_enough(n, 1) or f"{effect} reach {FITTED:.1%}"
    seeds = seeds_for_share(fitted, n) if decision == "undecided" else None
    return Part(
        f"{task}: {FITS}", decision, p, effect, None, setting.ids(list(runs), FULL), why, setting.note(),
        aspect=FITS, seeds=seeds, precision=setting.precision,
    )  # fmt: skip


def c5(settings: Sequence[Setting], measurements: Measurements) -> list[Part]:
    return [part for task in TASKS for part in as_well_and_earlier(settings, task, before=f"{task}: ")]


def as_well_and_earlier(
    settings: Sequence[Setting], task: str, changes: Mapping[str, Any] = {}, before: str = ""
) -> list[Part]:
    """Two parts. Neither applies where neither arm generalises, "earlier" only where full attention does."""
    setting = choose(settings, task, changes, to_the_end=True)
    names = f"{before}{AS_WELL}", f"{before}{EARLIER}"
    if setting is None:
        why = f"no pair of {FULL} and {TOPK} that trained to the last epoch"
        return [missing(names[0], why, AS_WELL), missing(names[1], why, EARLIER)]
    runs = setting.ids(setting.seeds(FULL, TOPK), FULL, TOPK)

    def apart(name: str, aspect: str, why: str) -> Part:
        return Part(name, "not applicable", runs=runs, why=why, aspect=aspect)

    if learns_nothing(setting, "heldout"):
        return [apart(names[0], AS_WELL, NOTHING), apart(names[1], EARLIER, NOTHING)]
    as_well = generalises_as_well(names[0], setting, changes, AS_WELL)
    if does_not_beat(bar(setting, GUESSING), last_accuracies(setting, FULL)):
        return [as_well, apart(names[1], EARLIER, f"{FULL} does no better than guessing")]
    return [as_well, earlier(names[1], setting, changes, EARLIER)]


CLAIMS = (
    Claim(
        "C4",
        "Full attention reaches 100 % training accuracy on all eight tasks, but generalises on only four "
        "(ListOps, Even Pairs, Missing Duplicates, Stack Manipulation); Parity stays near chance.",
        "Three aspects, from full attention's runs that trained to the last epoch. Fits, on each of the eight tasks: "
        "more than half of the runs reach 99.5 % training accuracy, by the exact sign test at 5 % (refuted: fewer "
        "than half). Generalises, on the four tasks named: the mean held-out accuracy of the last epoch lies more "
        "than 2 points above the best shortcut, the largest of the task's baselines (chance, majority, shortcut), by "
        "its 95 % interval (refuted: wholly at or below that). Does not generalise, on the other four: the same the "
        "other way round. Fewer than 6 runs, or fewer than 30 where runs fall in two groups more than 10 points "
        "apart, decide nothing.",
        c4,
    ),
    Claim(
        "C5",
        "Top-k generalises as well as full attention or better, and earlier in training.",
        "Two aspects on each of the eight tasks, from held-out accuracy. As well: in the last epoch the paired 95 % "
        "interval of topk:5 - full lies above -2 points, and significantly more than half of the pairs do (exact "
        "sign test at 5 %), and there are at least 10 pairs, 30 where runs fall in two groups more than 10 points "
        "apart (refuted: the interval lies wholly below -2 points). Earlier: epochs to the worse of the two last "
        "accuracies of a seed, less 2 points, compared as in C1. Not applicable: both where neither arm does better "
        "than guessing (each arm's 95 % interval ends at most 2 points above the larger of chance and majority), and "
        "earlier where full attention does not.",
        c5,
    ),
)
