"""Who learns faster: C1 (top-k), C3 (masks that ignore the input) and C11 (as k grows)."""

from __future__ import annotations

from collections.abc import Sequence

from semfocus.analysis.accuracy import sign_p
from semfocus.analysis.intervals import log_interval
from semfocus.analysis.multiple import ALPHA, holm, not_enough
from semfocus.analysis.paired import paired_logrank
from semfocus.analysis.records import THRESHOLD, Measurements
from semfocus.analysis.verdicts.evidence import Claim, Decision, Part, merged, missing
from semfocus.analysis.verdicts.pairs import (
    FITTED,
    arm_speed_up,
    faster,
    faster_on,
    interval_text,
    log_or_none,
    near_target,
    target_bounds,
)
from semfocus.analysis.verdicts.power import seeds_to_decide
from semfocus.analysis.verdicts.settings import FULL, TASKS, TOPK, Setting, choose

MASKS = {  # the paper's twelve, by family
    "banded": ("banded:5", "banded:9"),
    "block-local": ("block_local:5", "block_local:9"),
    "banded with global tokens": ("banded:5+1g", "banded:5+3g", "banded:9+1g", "banded:9+3g"),
    "block-local with global tokens": ("block_local:5+1g", "block_local:5+3g", "block_local:9+1g", "block_local:9+3g"),
}
EVERY_MASK = tuple(mask for family in MASKS.values() for mask in family)
MASK_EXAMPLE = "even_pairs"  # the task on which the paper shows a mask that never fits
NO_GAIN, NEVER = "no consistent gain", "some never reach 100 %"  # the aspects of C3
EQUAL, GONE = "k = L equals full", "k = 5 faster than k = L"  # of C11


def c1(settings: Sequence[Setting], measurements: Measurements) -> list[Part]:
    return [faster_on(settings, task) for task in TASKS]


def c3(settings: Sequence[Setting], measurements: Measurements) -> list[Part]:
    families = [
        merged(f"{family}: {NO_GAIN}", [_no_consistent_gain(settings, mask) for mask in masks])
        for family, masks in MASKS.items()
    ]
    return [*families, _never_fitted(settings)]


def _no_consistent_gain(settings: Sequence[Setting], mask: str) -> Part:
    """Shown if the mask is slower on some task (Holm over the eight); refuted if it is faster on each of them."""
    chosen = {task: choose(settings, task, mechanisms=(FULL, mask), level=THRESHOLD) for task in TASKS}
    parts = {task: faster(task, setting, other=mask) for task, setting in chosen.items() if setting is not None}
    if not parts:
        return missing(mask, f"no pair of {FULL} and one of these masks", NO_GAIN)
    p_values = holm({task: parts[task].p if task in parts and parts[task].decision == "no" else None for task in TASKS})
    sure = {task: p for task, p in p_values.items() if p is not None and p <= ALPHA}
    runs = frozenset[str]().union(*(part.runs for part in parts.values()))
    notes = "; ".join(sorted({part.setting for part in parts.values()} - {""}))
    precision = next(iter(parts.values())).precision
    if sure:
        task = min(sure, key=lambda task: (sure[task], task))
        effect = f"{parts[task].effect} on {task}"
        return Part(
            mask, "yes", sure[task], effect, parts[task].interval, runs, "", notes, aspect=NO_GAIN, precision=precision
        )  # fmt: skip
    won = [task for task, part in parts.items() if part.decision == "yes"]
    decision: Decision = "no" if len(won) == len(TASKS) else "undecided"
    p = max(parts[task].p or 0.0 for task in won) if decision == "no" else None
    short = min((not_enough(len(part.runs) // 2, 1) for part in parts.values()), key=len)
    why = short or f"faster on {len(won)} of the {len(parts)} tasks run, slower beyond chance on none"
    estimates = [part.seeds for part in parts.values() if part.seeds is not None]
    seeds = min(estimates, default=None) if decision == "undecided" else None
    why = why if decision == "undecided" else "faster on every task"
    return Part(mask, decision, p, "", None, runs, why, notes, aspect=NO_GAIN, seeds=seeds, precision=precision)


def _never_fitted(settings: Sequence[Setting]) -> Part:
    """Some mask never reaches 100 % training accuracy on Even Pairs, and full attention does."""
    name = f"{NEVER} on {MASK_EXAMPLE}"
    chosen = {mask: choose(settings, MASK_EXAMPLE, mechanisms=(FULL, mask), level=FITTED) for mask in EVERY_MASK}
    never: dict[str, float | None] = dict.fromkeys(EVERY_MASK)
    mostly: dict[str, float] = {}  # p of the sign test of masks that get there in most of their runs
    texts, runs = {}, set[str]()
    for mask, setting in chosen.items():
        if setting is None:
            continue
        seeds = setting.seeds(FULL, mask)
        runs |= setting.ids(seeds, FULL, mask)
        full, other = (setting.times(arm, FITTED).only(seeds) for arm in (FULL, mask))
        reached, base = int(other.reached.sum()), int(full.reached.sum())
        texts[mask] = f"{mask} in 0 of {len(seeds)} runs, {FULL} in {base}"
        never[mask] = paired_logrank(full, other).p if base and not reached else None
        if 2 * reached > len(seeds):
            mostly[mask] = sign_p(reached, len(seeds))
    sure = {mask: p for mask, p in holm(never).items() if p is not None and p <= ALPHA}
    if sure:
        best = min(sure, key=lambda mask: (sure[mask], mask))
        return Part(name, "yes", sure[best], texts[best], None, frozenset(runs), aspect=NEVER)
    if len(mostly) == len(EVERY_MASK) and max(mostly.values()) <= ALPHA:
        why = "every mask gets there in most of its runs"
        return Part(name, "no", max(mostly.values()), "", None, frozenset(runs), why, aspect=NEVER)
    why = "no mask stays below beyond chance" if texts else f"no pair of {FULL} and a mask"
    return Part(name, "undecided", None, "", None, frozenset(runs), why, aspect=NEVER)


def c11(settings: Sequence[Setting], measurements: Measurements) -> list[Part]:
    """Two parts per task: at k = L the speed-up is 1 within the margin, and k = 5 is faster than k = L."""
    parts = []
    for task in TASKS:
        setting = choose(settings, task, mechanisms=_with_widest, level=THRESHOLD)
        if setting is None:
            why = f"no runs of {FULL}, {TOPK} and topk:L"
            parts += [missing(f"{task}: {aspect}", why, aspect) for aspect in (EQUAL, GONE)]
            continue
        parts += [_equal_at_last(task, setting), faster(f"{task}: {GONE}", setting, base=_widest(setting), aspect=GONE)]
    return parts


def _equal_at_last(task: str, setting: Setting) -> Part:
    widest = _widest(setting)
    gain = arm_speed_up(setting, other=widest)
    decision, p = near_target(gain, 1.0)
    why = "" if decision == "yes" else gain.why or f"{gain.ratio.text}, {interval_text(gain.interval)}"
    ends = None if gain.interval is None else log_interval(gain.interval)
    seeds = None
    if decision == "undecided":
        seeds = seeds_to_decide(log_or_none(gain.estimate), ends, gain.pairs, target_bounds(1.0))
    return Part(
        f"{task}: {EQUAL}", decision, p, gain.ratio.text, gain.interval,
        setting.ids(setting.seeds(FULL, widest), FULL, widest), why, setting.note(),
        aspect=EQUAL, seeds=seeds, precision=setting.precision,
    )  # fmt: skip


def _with_widest(setting: Setting) -> tuple[str, str, str]:
    return FULL, TOPK, _widest(setting)


def _widest(setting: Setting) -> str:
    """The top-k mechanism that keeps every key of the setting's sequences."""
    return f"topk:{setting.seq_len}"


CLAIMS = (
    Claim(
        "C1",
        "Top-k attention (k = 5) reaches 95 % training accuracy in fewer epochs than full attention.",
        "A part for each of the paper's eight tasks. Shown: the exact paired log-rank test of topk:5 against full is "
        "significant at 5 % in favour of topk:5, and the ratio of restricted means is at least 1. Refuted: "
        "significant in favour of full, and the ratio at most 1. Arms that are alike are undecided, and the reason "
        "says how large a gain can be at most.",
        c1,
    ),
    Claim(
        "C3",
        "Masks that ignore the input (banded, block-local, with 0, 1 or 3 global tokens) give no consistent gain;"
        " some never reach 100 % training accuracy.",
        "Two aspects. No consistent gain, a part for each of the four families (banded, block-local, each without "
        "and with global tokens) of the paper's twelve masks, of which every one that was run has to be slower than "
        "full on some task, by the exact test as in C1, Holm over the eight tasks (refuted: one of them is faster on "
        "each of the eight, Bonferroni over the masks of the family). Some never reach 100 %: on Even Pairs no run "
        "of some mask reaches 99.5 % training accuracy, and full attention does so significantly more often, Holm "
        "over the twelve masks (refuted: each of the twelve gets there in more than half of its runs, by the sign "
        "test at 5 %).",
        c3,
    ),
    Claim(
        "C11",
        "As k grows to the length L, top-k becomes full attention and the benefit vanishes.",
        "Two aspects on each of the eight tasks. k = L equals full: the speed-up of topk:L over full has its 95 % "
        "interval within 0.8 to 1.25 (refuted: wholly outside), more than half of both arms there. k = 5 is faster "
        "than k = L: topk:5 against topk:L, compared as in C1.",
        c11,
    ),
)
