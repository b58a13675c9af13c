"""Open questions on what focus finds sooner: associations (C21) and induction heads (C22)."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from semfocus.analysis.head_start import first_at
from semfocus.analysis.records import THRESHOLD, Record
from semfocus.analysis.verdicts.evidence import Claim, Part, missing
from semfocus.analysis.verdicts.pairs import faster
from semfocus.analysis.verdicts.settings import FULL, Setting, choose
from semfocus.analysis.verdicts.text import HEAVY, SIZES, TEXT, TUNED
from semfocus.analysis.verdicts.token_ratios import signed_part
from semfocus.measurements import Induction, Measurements

MQAR, PAIRS, WIDTH = "mqar", "task.options.pairs", "model.d_model"
WIDTHS, NUMBERS = (32, 64, 128), (8, 16, 32)
HEADS, COPYING = "heads sooner", "copying sooner"  # the aspects of C22
LEAST = 0.1  # of a head's weight, and of the accuracy of copying: below, there is nothing yet


def c21(settings: Sequence[Setting], measurements: Measurements) -> list[Part]:
    """For each width and number of pairs: topk:8 against full, as in C1."""
    return [_recalled(settings, width, pairs) for width in WIDTHS for pairs in NUMBERS]


def _recalled(settings: Sequence[Setting], width: int, pairs: int) -> Part:
    name = f"width {width}, {pairs} pairs"
    tuned = [one for one in settings if one.fields.get(TUNED)]
    setting = choose(tuned, MQAR, {WIDTH: width, PAIRS: pairs}, (FULL, HEAVY))
    if setting is None:
        return missing(name, f"no pair of {FULL} and {HEAVY} at tuned rates")
    part = faster(name, setting, other=HEAVY)
    if not any(setting.times(arm, THRESHOLD).reached.any() for arm in (FULL, HEAVY)):
        return replace(part, decision="not applicable", why="neither arm learns to recall", seeds=None)
    bands = [arm for arm in setting.arms if arm.startswith("banded:")]
    times = {arm: setting.times(arm, THRESHOLD) for arm in bands}
    beside = [f"{arm} in {int(own.reached.sum())} of {len(own)} runs" for arm, own in times.items()]
    return replace(part, effect=", ".join((part.effect, *beside)))


def c22(settings: Sequence[Setting], measurements: Measurements) -> list[Part]:
    """The best head's score, and the accuracy of copying, along the training of both arms."""

    def measured(record: Record) -> Induction | None:
        stored = measurements.get(record.id, {}).get(Induction.NAME)
        return stored if isinstance(stored, Induction) and len(stored.points) > 1 else None

    blocks, width = SIZES["3 M"]
    setting = choose(
        [one for one in settings if one.fields.get(TUNED)], TEXT,
        {"model.blocks": blocks, WIDTH: width}, (FULL, HEAVY), lambda record: measured(record) is not None,
    )  # fmt: skip
    if setting is None:
        why = f"no pair of {FULL} and {HEAVY} of 3 M parameters whose heads were measured along training"
        return [missing(aspect, why, aspect) for aspect in (HEADS, COPYING)]
    known = {
        arm: {seed: own for seed, record in setting.arms[arm].items() if (own := measured(record)) is not None}
        for arm in (FULL, HEAVY)
    }
    ways = Counter(_way(own) for runs in known.values() for own in runs.values())
    usual = min(ways, key=lambda way: (-ways[way], way))
    alike = {arm: {seed: own for seed, own in runs.items() if _way(own) == usual} for arm, runs in known.items()}
    pairs = [(seed, alike[FULL][seed], alike[HEAVY][seed]) for seed in sorted(alike[FULL].keys() & alike[HEAVY].keys())]
    return [
        _appearing(HEADS, setting, [(seed, full.best_heads, heavy.best_heads) for seed, full, heavy in pairs], pairs),
        _appearing(COPYING, setting, [(seed, full.accuracies, heavy.accuracies) for seed, full, heavy in pairs], pairs),
    ]


def _way(measured: Induction) -> str:
    """Runs are compared that were measured in the same way at the same steps."""
    return json.dumps([sorted(measured.points), measured.rows, measured.half])


def _appearing(
    aspect: str,
    setting: Setting,
    curves: Sequence[tuple[int, list[float], list[float]]],
    pairs: Sequence[tuple[int, Induction, Induction]],
) -> Part:
    """Does the quantity get sooner to half of what both runs of a seed come to?"""
    steps = np.array(pairs[0][1].steps, dtype=np.float64)
    if max(value for _, full, heavy in curves for value in (*full, *heavy)) < LEAST:
        runs = setting.ids([seed for seed, *_ in curves], FULL, HEAVY)
        return Part(aspect, "not applicable", runs=runs, why=f"nothing above {LEAST:g} in any run", aspect=aspect)
    ratios = {}
    for seed, full, heavy in curves:
        level = max(LEAST, min(max(full), max(heavy)) / 2)
        times = [first_at(steps, -np.array(own), -level) or float(steps[-1]) for own in (full, heavy)]
        ratios[seed] = math.log(times[0] / times[1])
    return signed_part(aspect, setting, ratios, FULL, HEAVY, aspect)


CLAIMS = (
    Claim(
        "C21",
        "Focus finds associations sooner than full attention.",
        "A part for each of the widths 32, 64 and 128 and of 8, 16 and 32 pairs of the task mqar, each arm at a rate "
        "tuned for it: topk:8 against full by the epochs to 95 % training accuracy (of the values that are asked for), "
        "compared as in C1. Not applicable where no run of either arm gets there. How many runs of the band of the "
        "same study do stands beside it and decides nothing.",
        c21,
        "open",
    ),
    Claim(
        "C22",
        "Induction heads appear sooner with focus.",
        "Two aspects, from the measurement `induction` of runs of the task text with 3 M parameters, each arm at a "
        "rate tuned for it, along kept checkpoints (runs measured at other steps or on other examples than most do not "
        "count). Heads sooner: the ratio of the steps, full over topk:8, to half of the smaller of the two runs' "
        "highest scores, at least 0.1, the score being the best head's mean weight, in repeated random tokens, from a "
        "token's second occurrence to the one after its first; the mean of its logarithm over seeds is above 0 by the "
        "t interval at 5 % (refuted: below 0); between checkpoints along a straight line, and a run that never gets "
        "there does so at the end. Copying sooner: the same of the accuracy on the repeated half. Not applicable where "
        "no run comes to 0.1. At least 6 pairs.",
        c22,
        "open",
    ),
)
