"""C3: masks that ignore the input."""

from __future__ import annotations

from collections.abc import Sequence

from semfocus.analysis.multiple import ALPHA, holm, not_enough
from semfocus.analysis.paired import paired_logrank
from semfocus.analysis.records import Measurements
from semfocus.analysis.verdicts.evidence import Claim, Decision, Part, missing
from semfocus.analysis.verdicts.pairs import FITTED, faster, gained, no_gain_p
from semfocus.analysis.verdicts.settings import FULL, TASKS, Setting, choose
from semfocus.recipes import GRID

MASKS = tuple(mechanism for mechanism in GRID if mechanism.startswith(("banded", "block_local")))
EXAMPLE = "even_pairs"  # where the paper shows it


def c3(settings: Sequence[Setting], measurements: Measurements) -> list[Part]:
    return [*(_no_consistent_gain(settings, mask) for mask in MASKS), _never_fitted(settings)]


def _no_consistent_gain(settings: Sequence[Setting], mask: str) -> Part:
    """Shown where some task has no gain (Holm over tasks); refuted where every task has one."""
    name = f"{mask}: no consistent gain"
    there = _settings(settings, mask)
    if not there:
        return missing(name, f"no pair of {FULL} and this mask")
    gains = {task: gained(setting, other=mask) for task, setting in there.items()}
    p_values = holm({task: no_gain_p(gains[task]) if task in gains else None for task in TASKS})
    sure = {task: p for task, p in p_values.items() if p is not None and p <= ALPHA}
    runs = frozenset[str]().union(*(s.ids(s.seeds(FULL, mask), FULL, mask) for s in there.values()))
    notes = "; ".join(sorted({setting.note() for setting in there.values()} - {""}))
    if sure:
        best = min(sure, key=lambda task: (sure[task], task))
        gain = gains[best]
        return Part(name, "yes", sure[best], f"{gain.ratio.text} on {best}", gain.interval, runs, "", notes)
    won = [task for task, setting in there.items() if faster(task, setting, other=mask).decision == "yes"]
    decision: Decision = "no" if len(won) == len(TASKS) else "undecided"
    short = min((not_enough(gain.pairs, 1) for gain in gains.values()), key=len)
    why = short or f"faster on {len(won)} of {len(TASKS)} tasks, a gain on the others not excluded"
    return Part(name, decision, None, "", None, runs, why if decision == "undecided" else "faster on every task", notes)


def _never_fitted(settings: Sequence[Setting]) -> Part:
    """Some mask never gets to 100 % training accuracy on Even Pairs, where full attention does."""
    name = f"some mask never reaches 100 % on {EXAMPLE}"
    chosen = {mask: choose(settings, EXAMPLE, mechanisms=(FULL, mask)) for mask in MASKS}
    p_values: dict[str, float | None] = dict.fromkeys(MASKS)
    texts, runs, mostly = {}, set[str](), []
    for mask, setting in chosen.items():
        if setting is None:
            continue
        seeds = setting.seeds(FULL, mask)
        runs |= setting.ids(seeds, FULL, mask)
        full, other = (setting.times(arm, FITTED).only(seeds) for arm in (FULL, mask))
        there, base = int(other.reached.sum()), int(full.reached.sum())
        texts[mask] = f"{mask} in 0 of {len(seeds)} runs, {FULL} in {base}"
        p_values[mask] = paired_logrank(full, other).p if base and not there else None
        mostly.append(2 * there > len(seeds) and not not_enough(len(seeds), 1))
    sure = {mask: p for mask, p in holm(p_values).items() if p is not None and p <= ALPHA}
    if sure:
        best = min(sure, key=lambda mask: (sure[mask], mask))
        return Part(name, "yes", sure[best], texts[best], None, frozenset(runs))
    if len(mostly) == len(MASKS) and all(mostly):
        return Part(name, "no", None, "", None, frozenset(runs), "every mask gets there in most of its runs")
    why = "no mask stays below beyond chance" if mostly else f"no pair of {FULL} and a mask"
    return Part(name, "undecided", None, "", None, frozenset(runs), why)


def _settings(settings: Sequence[Setting], mask: str) -> dict[str, Setting]:
    found = {task: choose(settings, task, mechanisms=(FULL, mask)) for task in TASKS}
    return {task: setting for task, setting in found.items() if setting is not None}


CLAIMS = (
    Claim(
        "C3",
        "Masks that ignore the input (banded, block-local, with 0, 1 or 3 global tokens) give no consistent gain;"
        " some never reach 100 % training accuracy.",
        "A part for each of the paper's twelve masks: on some task its speed-up over full attention stays below "
        "1.25, by the upper end of the interval, more than half of full attention's runs there, Holm over tasks "
        "(refuted: faster on each of the eight tasks). One more part: on Even Pairs no run of some mask reaches "
        "99.5 % training accuracy, and full attention does so significantly more often, Holm over masks (refuted:"
        " every mask gets there in most of its runs).",
        c3,
    ),
)
