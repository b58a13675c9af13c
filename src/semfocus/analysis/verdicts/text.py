"""Next-token prediction: C14, the paper's claim on text, and open questions on pre-training, C19 and C20."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from semfocus.analysis.head_start import log_ratio
from semfocus.analysis.intervals import Interval, mean_interval
from semfocus.analysis.multiple import ALPHA
from semfocus.analysis.records import Measurements
from semfocus.analysis.verdicts.evidence import Claim, Decision, Part, merged, missing
from semfocus.analysis.verdicts.generalisation import AS_WELL
from semfocus.analysis.verdicts.pairs import generalises_as_well, interval_text, sooner_to_loss
from semfocus.analysis.verdicts.power import seeds_to_decide
from semfocus.analysis.verdicts.robustness import LOWER_LOSS
from semfocus.analysis.verdicts.settings import FULL, TOPK, Setting, choose
from semfocus.analysis.verdicts.token_ratios import after_holm, ends_as_well, least_squares, sooner, two_sided_p

NEXT_WORD, TEXT = "next_word", "text"
LENGTH, TUNED = "task.options.length", "training.tuned"


@dataclass(frozen=True)
class TextFigure:
    """What a figure of the paper on text has, whatever the corpus."""

    name: str
    blocks: tuple[int, ...]  # the ends of the paper's range, and what is between them here
    fields: Mapping[str, Any]


_SHARED = {"training.lr": 1.0, "training.decay": 0.99, "training.batch_size": 128}
FIGURE_19 = TextFigure(
    "figure 19",
    (8, 16, 32, 64),
    {"model.d_model": 32, "model.d_mlp": 128, "model.heads": 1, "task.options.tokenizer": "unigram:4096",
     "training.epochs": 50, **_SHARED},
)  # fmt: skip
FIGURE_20 = TextFigure(
    "figure 20",
    (6, 10, 15),
    {"model.d_model": 128, "model.d_mlp": 512, "model.heads": 4, "task.options.tokenizer": "bpe:10000",
     "training.epochs": 120, **_SHARED},
)  # fmt: skip
# Blocks and width of the decoders, by the parameters of their blocks in millions.
SIZES = {"1 M": (5, 128), "3 M": (4, 256), "10 M": (6, 384), "30 M": (10, 512)}
LENGTHS = (512, 2048)
HEAVY = "topk:8"
ARMS = (HEAVY, "topk:32", "topk:8+4s+16w", "topk:8>full@0.3")
BAND = "banded:32"  # a control: as few keys, chosen by their places
SHARES = {0.25: "sooner to 25 %", 0.5: "sooner to 50 %", 1.0: "sooner to 100 %"}
ENDS, NOT_BAND = "ends as well", "not by a window alone"  # the other aspects of C19
FEWEST_SIZES, FEWEST_SEEDS = 3, 4  # of C20


def c14(settings: Sequence[Setting], measurements: Measurements) -> list[Part]:
    """Two aspects in each of the paper's two figures, and in pre-training with either length of rows."""
    sooner_parts, well_parts = [], []
    for figure in (FIGURE_19, FIGURE_20):
        speed, well = zip(*(_in_figure(settings, figure, blocks) for blocks in figure.blocks), strict=True)
        sooner_parts.append(merged(f"{figure.name}: {LOWER_LOSS}", speed))
        well_parts.append(merged(f"{figure.name}: {AS_WELL}", well))
    for length in LENGTHS:
        names = [f"rows of {length}: {aspect}" for aspect in (LOWER_LOSS, AS_WELL)]
        setting = _pretrained(settings, "10 M", length)
        if setting is None:
            why = f"no pair of {FULL} and {HEAVY} of 10 M parameters at tuned rates"
            sooner_parts.append(missing(names[0], why, LOWER_LOSS))
            well_parts.append(missing(names[1], why, AS_WELL))
            continue
        sooner_parts.append(sooner(names[0], setting, 1.0, HEAVY, aspect=LOWER_LOSS))
        well_parts.append(ends_as_well(names[1], setting, HEAVY, AS_WELL))
    return [*sooner_parts, *well_parts]


def _in_figure(settings: Sequence[Setting], figure: TextFigure, blocks: int) -> tuple[Part, Part]:
    changes, name = {**figure.fields, "model.blocks": blocks}, f"{blocks} blocks"
    setting = choose(settings, NEXT_WORD, changes, to_the_end=True)
    if setting is None:
        why = f"no pair of {FULL} and {TOPK} with the sizes and rates of {figure.name}"
        return missing(name, why, LOWER_LOSS), missing(name, why, AS_WELL)
    return sooner_to_loss(name, setting, changes, LOWER_LOSS), generalises_as_well(name, setting, changes, AS_WELL)


def _pretrained(settings: Sequence[Setting], size: str, length: int) -> Setting | None:
    """Models of this size on text, each arm at a rate chosen for it."""
    blocks, width = SIZES[size]
    tuned = [one for one in settings if one.fields.get(TUNED)]
    return choose(tuned, TEXT, {"model.blocks": blocks, "model.d_model": width, LENGTH: length}, (FULL, HEAVY))


def c19(settings: Sequence[Setting], measurements: Measurements) -> list[Part]:
    """With rows of either length: each arm sooner at each share, and as well in the end; top-k sooner than the band."""
    parts: list[Part] = []
    for length in LENGTHS:
        setting, rows = _pretrained(settings, "10 M", length), f"rows of {length}"
        for share, aspect in SHARES.items():
            parts += _arms_sooner(rows, setting, share, aspect)
        for arm in ARMS:
            name = f"{rows}, {arm}: {ENDS}"
            has = setting is not None and setting.seeds(FULL, arm)
            parts.append(ends_as_well(name, setting, arm, ENDS) if setting and has else _absent(name, arm, ENDS))
        name = f"{rows}, {HEAVY} against {BAND}: {NOT_BAND}"
        if setting is None or not setting.seeds(BAND, HEAVY):
            parts.append(_absent(name, BAND, NOT_BAND))
        else:
            parts.append(sooner(name, setting, 0.5, HEAVY, BAND, NOT_BAND))
    return parts


def _arms_sooner(rows: str, setting: Setting | None, share: float, aspect: str) -> list[Part]:
    """Each arm against full attention; Holm over the arms that are compared with it, the band included."""
    run = {arm: _named(rows, arm, aspect) for arm in (*ARMS, BAND)}
    there = {arm: name for arm, name in run.items() if setting is not None and setting.seeds(FULL, arm)}
    tested = {
        arm: sooner(name, setting, share, arm, aspect=aspect) for arm, name in there.items() if setting is not None
    }
    judged = dict(zip(tested, after_holm(tested), strict=True))
    return [judged.get(arm, _absent(run[arm], arm, aspect)) for arm in ARMS]


def _named(rows: str, arm: str, aspect: str) -> str:
    return f"{rows}, {arm}: {aspect}"


def _absent(name: str, arm: str, aspect: str) -> Part:
    return missing(name, f"no pair of {FULL} and {arm} of 10 M parameters at tuned rates", aspect)


def c20(settings: Sequence[Setting], measurements: Measurements) -> list[Part]:
    """Does the head start at a quarter and at half of training shrink from 1 M to 30 M parameters?"""
    by_size = _sizes(settings)
    return [_trend(by_size, share, f"at {share:.0%}") for share in (0.25, 0.5)]


def _sizes(settings: Sequence[Setting]) -> dict[str, Setting]:
    """The settings of most sizes, then of most seeds, that differ in the size and the rates tried for it alone."""
    apart = {"model.blocks", "model.d_model", "model.heads", "model.d_mlp", TUNED, "training.lr"}
    families: dict[str, dict[str, Setting]] = {}
    for setting in settings:
        shape = setting.fields.get("model.blocks"), setting.fields.get("model.d_model")
        size = next((name for name, known in SIZES.items() if known == shape), None)
        if setting.task == TEXT and size and setting.fields.get(TUNED) and setting.seeds(FULL, HEAVY):
            others = {name: value for name, value in setting.fields.items() if name not in apart}
            families.setdefault(json.dumps(others, sort_keys=True, default=str), {}).setdefault(size, setting)
    order = sorted(families)
    best = max(order, key=lambda key: (len(families[key]), len(_common(families[key]))), default=None)
    return {} if best is None else {size: families[best][size] for size in SIZES if size in families[best]}


def _common(by_size: Mapping[str, Setting]) -> list[int]:
    seeds = [set(setting.seeds(FULL, HEAVY)) for setting in by_size.values()]
    return sorted(set.intersection(*seeds)) if seeds else []


def _trend(by_size: Mapping[str, Setting], share: float, name: str) -> Part:
    """The slope of the logarithm of the ratio of tokens in that of the parameters, seed by seed."""
    seeds = _common(by_size)
    runs = frozenset[str]().union(*(setting.ids(seeds, FULL, HEAVY) for setting in by_size.values()))
    if len(by_size) < FEWEST_SIZES or not seeds:
        return missing(
            name, f"no pairs of {FULL} and {HEAVY} at {FEWEST_SIZES} sizes or more that differ in nothing else"
        )
    first = next(iter(by_size.values()))
    part = Part(name, "undecided", runs=runs, setting=first.note(), precision=first.precision)
    starts = np.array(
        [[log_ratio(one.arms[FULL][seed], one.arms[HEAVY][seed], share) or 0.0 for one in by_size.values()]
         for seed in seeds]
    )  # fmt: skip
    if len(seeds) < FEWEST_SEEDS:
        return replace(
            part, why=f"{len(seeds)} seeds at every size; at least {FEWEST_SEEDS} are needed", seeds=FEWEST_SEEDS
        )
    lead, n = mean_interval(starts.mean(axis=1)), len(seeds)
    ratios = ", ".join(
        f"{math.exp(start):.3g}x at {size}" for size, start in zip(by_size, starts.mean(axis=0), strict=True)
    )
    if lead is None or lead.low <= 0:
        return replace(
            part, decision="not applicable", effect=ratios, why=f"no head start of {HEAVY} to follow: {ratios}"
        )
    parameters = np.log([math.prod((12, SIZES[size][0], SIZES[size][1] ** 2)) for size in by_size])
    slopes = np.array([least_squares(parameters, own) for own in starts])
    mean, interval = float(slopes.mean()), mean_interval(slopes)
    assert interval is not None
    p = two_sided_p(mean, interval, n)
    decision: Decision = "undecided" if p > ALPHA else "yes" if mean < 0 else "no"
    tenfold = Interval(10**interval.low, 10**interval.high)
    effect = f"{10**mean:.3g} times as large a ratio with ten times the parameters ({ratios})"
    why = "" if decision == "yes" else f"{effect}, {interval_text(tenfold)}"
    would = seeds_to_decide(mean, interval, n, [0.0]) if decision == "undecided" else None
    return replace(part, decision=decision, p=p, effect=effect, interval=tenfold, why=why, seeds=would)


_TOKENS = (
    "the ratio of the tokens in which the two runs of a seed reach one level, the larger of their held-out losses at "
    "that share of training (full attention's own where the other is ahead), its logarithm averaged over seeds with "
    "the t interval"
)
CLAIMS = (
    Claim(
        "C14",
        "Next-token prediction on text shows the same effect.",
        "Two aspects. Sooner to a training loss: in figures 19 and 20 (the task next_word with the paper's sizes, "
        "rates and kinds of vocabulary, on whatever corpus), for each number of blocks as in C7, Bonferroni over "
        "those that were run; and in pre-training (the task text, 10 M parameters, rows of 512 and of 2048, each arm "
        "at a rate tuned for it), topk:8 against full by tokens to a held-out loss: "
        f"{_TOKENS} at 5 %, at 100 % of training. As well: held-out accuracy in the last epoch as in C5 in the "
        "figures; in pre-training the last held-out loss of topk:8 is no more than 0.5 % above full's, by the t "
        "interval (refuted: wholly more).",
        c14,
    ),
    Claim(
        "C19",
        "Focus pre-trains a causal language model in fewer tokens, and ends as well.",
        "Five aspects, from runs of the task text with 10 M parameters, each arm at a rate tuned for it, with rows of "
        "512 and of 2048. Sooner to 25 %, to 50 % and to 100 %: topk:8, topk:32, topk:8+4s+16w and topk:8>full@0.3, "
        f"each against full, by {_TOKENS}, Holm over the arms compared with full (these and banded:32) for each share "
        "and length. Ends as well: the last held-out loss is no more than 0.5 % above full's, by the t interval "
        "(refuted: wholly more). Not by a window alone: topk:8 against banded:32, compared in the same way at 50 %. "
        "A run that diverged gets there at the end, and ends at guessing. At least 6 pairs; seconds stand beside each "
        "ratio and decide nothing.",
        c19,
        "open",
    ),
    Claim(
        "C20",
        "The head start of focus shrinks as language models grow.",
        "Two parts, at 25 % and at 50 % of training, from models of 1, 3, 10 and 30 M parameters (at least three of "
        "these) with the same batches, each arm at a rate tuned for it; at least 4 seeds at every size. The head start "
        "of a seed is the logarithm of the ratio of tokens of C19, topk:8 against full; its slope in the logarithm of "
        "the parameters is fitted for each seed. Shown: the mean slope is below 0 by the t interval over seeds at 5 % "
        "(refuted: above 0, it grows). Not applicable where the head start, averaged over the sizes, is not above 0 by "
        "its t interval.",
        c20,
        "open",
    ),
)
