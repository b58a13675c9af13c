"""What the paper explains, judged by changing the cause alone: C12 (unstable choices) and C13 (dispersion)."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from semfocus.analysis.correlation import spearman
from semfocus.analysis.intervals import (
    SPEEDUP_MARGIN,
    Interval,
    jackknife_t,
    leave_one_out_means,
    log_interval,
    one_sided_p,
)
from semfocus.analysis.multiple import ALPHA, not_enough
from semfocus.analysis.records import THRESHOLD, Record
from semfocus.analysis.speedup import speed_up
from semfocus.analysis.survival import ConvergenceTimes
from semfocus.analysis.verdicts.evidence import Claim, Decision, Part, missing
from semfocus.analysis.verdicts.measured import K, choose_consistent, dispersion_of, measured_runs
from semfocus.analysis.verdicts.pairs import faster, interval_text, log_or_none
from semfocus.analysis.verdicts.power import seeds_to_decide
from semfocus.analysis.verdicts.settings import FULL, TOPK, Setting, choose
from semfocus.measurements import MaskStability, Measurements
from semfocus.measurements.kinds import USUAL_PERCENT

NOISY, LESS_NOISY = f"{TOPK}~1", (f"{TOPK}~0.01", f"{TOPK}~0.1")
UNSTABLE, SLOWER = "small separation, unstable masks", "noisy choice, slower"  # the aspects of C12
TEMPERATURE = "attention.inverse_temperature"
NOISY_TASKS = (  # on which top-5 is the faster one
    "parity", "even_pairs", "missing_duplicate", "cycle_navigation", "modular_arithmetic", "solve_equation",
)  # fmt: skip
HEATED_TASKS = ("even_pairs", "missing_duplicate", "stack_manipulation", "modular_arithmetic")
LOWERED, RAISED = "full at top-5's dispersion", "top-5 at full's dispersion"  # of C13
HALF = 0.5  # of the lead, on the logarithm: what dispersion has to explain


def c12(settings: Sequence[Setting], measurements: Measurements) -> list[Part]:
    """Over tasks, separation against the keys kept under noise; on each task, a noisy choice against a clean one."""
    return [_separation_and_kept(settings, measurements), *(_noisy(settings, task) for task in NOISY_TASKS)]


def _separation_and_kept(settings: Sequence[Setting], measurements: Measurements) -> Part:
    """Spearman's correlation over tasks. Shown: positive at 5 %. Refuted: negative at 5 %."""

    def masks(record: Record) -> MaskStability | None:
        measured = measurements.get(record.id, {}).get(MaskStability.NAME)
        return measured if isinstance(measured, MaskStability) and measured.k == K else None

    def numbers(record: Record) -> tuple[float, float] | None:
        measured = masks(record)
        gap, kept = (None, None) if measured is None else (measured.separation["50"], measured.mean_kept)
        return None if gap is None or kept is None else (gap, kept)

    def known(record: Record) -> bool:
        return record.mechanism == FULL or numbers(record) is not None

    chosen, has = choose_consistent(settings, measurements, MaskStability.NAME, (TOPK,), known)
    runs = {
        task: [run for run in measured_runs(setting, has) if run.mechanism == TOPK] for task, setting in chosen.items()
    }
    if len({str(measured.noise) for own in runs.values() for run in own if (measured := masks(run))}) > 1:
        return missing(UNSTABLE, "masks were tried with different levels of noise", UNSTABLE)
    values = {task: [pair for run in own if (pair := numbers(run))] for task, own in runs.items()}
    gaps, kept = ({task: statistics.median(p[i] for p in pairs) for task, pairs in values.items()} for i in (0, 1))
    correlation = spearman(gaps, kept)
    ids = frozenset(run.id for setting in chosen.values() for run in measured_runs(setting, has))
    notes = "; ".join(sorted({setting.note() for setting in chosen.values()} - {""}))
    if correlation.rho is None or correlation.p is None or correlation.interval is None:
        return Part(UNSTABLE, "undecided", runs=ids, why=correlation.why, setting=notes, aspect=UNSTABLE)
    decision: Decision = "undecided" if correlation.p > ALPHA else "yes" if correlation.rho > 0 else "no"
    effect = f"rho = {correlation.rho:.2f} over {correlation.items} tasks"
    why = "" if decision == "yes" else f"{effect}, {interval_text(correlation.interval)}"
    return Part(UNSTABLE, decision, correlation.p, effect, correlation.interval, ids, why, notes, aspect=UNSTABLE)


def _noisy(settings: Sequence[Setting], task: str) -> Part:
    """Is top-5 less than 0.8 times as fast where its keys are chosen from scores with noise of their own unit?"""
    name = f"{task}: {SLOWER}"
    setting = choose(settings, task, mechanisms=(TOPK, NOISY), level=THRESHOLD)
    if setting is None:
        return missing(name, f"no pair of {TOPK} and {NOISY}", SLOWER)
    gain = speed_up(setting.times(TOPK, THRESHOLD), setting.times(NOISY, THRESHOLD))
    bound, ends = SPEEDUP_MARGIN.low, None if gain.interval is None else log_interval(gain.interval)
    less = [(arm, speed_up(setting.times(TOPK, THRESHOLD), setting.times(arm, THRESHOLD))) for arm in LESS_NOISY]
    texts = [f"{arm} {one.ratio.text}" for arm, one in less if one.pairs]
    effect = ", ".join([f"{NOISY} {gain.ratio.text}", *texts])
    above, p = _against_bound(ends, log_or_none(gain.estimate), gain.pairs, math.log(bound))
    decision: Decision = "yes" if above == "no" else "no" if above == "yes" else above  # slower is what is claimed
    # a censored arm looks faster than it is, so that most of the arm that this would favour have to get there
    censored = gain.reached_full if decision == "yes" else gain.reached_other
    if decision != "undecided" and 2 * censored <= gain.pairs:
        decision = "undecided"
    seeds = (
        seeds_to_decide(log_or_none(gain.estimate), ends, gain.pairs, [math.log(bound)])
        if decision == "undecided"
        else None
    )
    why = "" if decision == "yes" else not_enough(gain.pairs, 1) or f"{effect}; {interval_text(gain.interval)}"
    return Part(
        name, decision, p, effect, gain.interval, setting.ids(setting.seeds(TOPK, NOISY), TOPK, NOISY), why,
        setting.note(), aspect=SLOWER, seeds=seeds, precision=setting.precision,
    )  # fmt: skip


def _against_bound(
    ends: Interval | None, estimate: float | None, n: int, bound: float
) -> tuple[Decision, float | None]:
    """ "yes": the interval lies above the bound; "no": below; and the two-sided p of whichever is nearer."""
    if ends is None or estimate is None or not_enough(n, 1):
        return "undecided", None
    p = min(one_sided_p(estimate, ends, n, bound), one_sided_p(estimate, ends, n, bound, below=True))
    return ("yes" if ends.low > bound else "no" if ends.high < bound else "undecided"), p


def c13(settings: Sequence[Setting], measurements: Measurements) -> list[Part]:
    """On each task: full attention at top-5's dispersion is as fast as top-5, and top-5 at full's dispersion is not."""
    return [part for task in HEATED_TASKS for part in _by_intervention(settings, task, measurements)]


def _by_intervention(settings: Sequence[Setting], task: str, measurements: Measurements) -> list[Part]:
    family = by_temperature(settings, task)
    names = f"{task}: {LOWERED}", f"{task}: {RAISED}"
    if not family:
        return [_part(name, why=f"no runs of {FULL} and {TOPK} at several temperatures") for name in names]
    plain = family[1.0]
    lead = faster("", plain)
    if lead.decision != "yes":
        few = not_enough(len(plain.seeds(FULL, TOPK)), 1)
        why = few or f"no lead of {TOPK} to explain: {lead.effect}"
        return [_part(name, "undecided" if few else "not applicable", runs=lead.runs, why=why) for name in names]
    spread = {arm: dispersions(family, arm, measurements) for arm in (FULL, TOPK)}
    parts = []
    for name, moved, still in ((names[0], FULL, TOPK), (names[1], TOPK, FULL)):
        around = bracket(spread[moved], spread[still].get(1.0))
        if around is None:
            why = f"the dispersion of {still} is not measured, or not between those of {moved} at other temperatures"
            parts.append(_part(name, runs=lead.runs, why=why))
        else:
            parts.append(_half_way(name, family, moved, around))
    return parts


def by_temperature(settings: Sequence[Setting], task: str) -> dict[float, Setting]:
    """By inverse temperature, settings of a task that differ in nothing else; of several such families the nearest to
    the paper's. Empty if there is none with temperature 1 and another one."""
    families: dict[str, dict[float, Setting]] = {}
    for setting in settings:
        if setting.task == task:
            others = {name: value for name, value in setting.fields.items() if name != TEMPERATURE}
            family = families.setdefault(json.dumps(others, sort_keys=True, default=str), {})
            family[float(setting.fields.get(TEMPERATURE, 1.0))] = setting
    swept = [family for family in families.values() if 1.0 in family and len(family) > 1]
    nearest = choose([family[1.0] for family in swept], task)
    return next((family for family in swept if family[1.0] is nearest), {})


def dispersions(family: Mapping[float, Setting], arm: str, measurements: Measurements) -> dict[float, float]:
    """By inverse temperature, the median dispersion of an arm before training, of runs measured in one way."""
    ways: dict[str, dict[float, list[float]]] = {}
    for temperature, setting in family.items():
        for record in setting.arms.get(arm, {}).values():
            measured = dispersion_of(record, measurements)
            at = measured.checkpoints.get("0") if measured is not None else None
            delta = None if at is None else at.at("delta", USUAL_PERCENT)
            if measured is not None and delta is not None and delta > 0:
                way = json.dumps([measured.split, measured.rows])
                ways.setdefault(way, {}).setdefault(temperature, []).append(delta)
    most = max(sorted(ways), key=lambda way: sum(map(len, ways[way].values())), default="")
    return {temperature: statistics.median(values) for temperature, values in sorted(ways.get(most, {}).items())}


def bracket(spread: Mapping[float, float], target: float | None) -> tuple[float, ...] | None:
    """The one or two inverse temperatures whose dispersions lie around `target`; None if they do not."""
    if target is None:
        return None
    below = [t for t, delta in spread.items() if delta <= target]
    above = [t for t, delta in spread.items() if delta >= target]
    if not below or not above:
        return None
    return tuple(dict.fromkeys((max(below, key=lambda t: spread[t]), min(above, key=lambda t: spread[t]))))


def _half_way(name: str, family: Mapping[float, Setting], moved: str, around: Sequence[float]) -> Part:
    """Where the dispersion of an arm is moved to that of the other, does it move half of the way in epochs, too?

    Epochs at the dispersion in question lie between those at the two temperatures around it. Shown: at one of the two
    more than half of the lead is gained (full) or lost (top-5), Bonferroni over both. Refuted: at both, less than half.
    """
    tries = [(t, *_distance(family, moved, t)) for t in around]
    decided = [(_against_bound(interval, value, n, 0.0), t, value, interval, n) for t, value, interval, n in tries]
    shown = [
        (p, t) for (decision, p), t, *_ in decided
        if decision == "yes" and p is not None and p * len(around) <= ALPHA and _is_sound(family, moved, t, shown=True)
    ]  # fmt: skip
    against = all(d == "no" and _is_sound(family, moved, t, shown=False) for (d, _), t, *_ in decided)
    decision: Decision = "yes" if shown else "no" if against else "undecided"
    nearest = max(decided, key=lambda one: -math.inf if one[2] is None else one[2])
    (_, p), _, value, interval, n = nearest
    p = min(shown)[0] * len(around) if shown else max((q or 1.0 for (_, q), *_ in decided)) if against else p
    shares = ", ".join(f"{_share(family, moved, t):.0%} at inverse temperature {t:g}" for t in around)
    effect = f"{shares} of the lead {'gained' if moved == FULL else 'lost'}"
    seeds = seeds_to_decide(value, interval, n, [0.0]) if decision == "undecided" else None
    ids = [(family[1.0], FULL), (family[1.0], TOPK), *((family[t], moved) for t in around)]
    runs = frozenset[str]().union(*(setting.ids(list(setting.arms.get(arm, {})), arm) for setting, arm in ids))
    ends = None if interval is None else Interval(math.exp(interval.low), math.exp(interval.high))
    why = "" if decision == "yes" else not_enough(n, 1) or effect
    return _part(name, decision, p, effect, ends, runs, why, family[1.0].note(), seeds, family[1.0].precision)


def _three(family: Mapping[float, Setting], moved: str, t: float) -> tuple[ConvergenceTimes, ...]:
    """Epochs of full, of top-5, and of the moved arm, on the seeds that all three have."""
    places = (family[1.0], FULL), (family[1.0], TOPK), (family[t], moved)
    arms = [setting.times(arm, THRESHOLD) for setting, arm in places]
    seeds = sorted(set.intersection(*(set(times.seeds) for times in arms)))
    return tuple(times.only(seeds) for times in arms)


def _distance(family: Mapping[float, Setting], moved: str, t: float) -> tuple[float | None, Interval | None, int]:
    """How far the moved arm is beyond half of the way, as the logarithm of a ratio of restricted means."""
    full, topk, own = (times.epochs for times in _three(family, moved, t))
    sign = 1.0 if moved == FULL else -1.0

    def beyond(means: Iterable[Any]) -> Any:
        a, b, c = (np.log(mean) for mean in means)
        return sign * (HALF * (a + b) - c)

    if len(full) < 2:
        return None, None, len(full)
    estimate = float(beyond(map(np.mean, (full, topk, own))))
    return estimate, jackknife_t(estimate, beyond(map(leave_one_out_means, (full, topk, own)))), len(full)


def _share(family: Mapping[float, Setting], moved: str, t: float) -> float:
    """The share of the lead, on the logarithm, by which the moved arm comes nearer to the other."""
    full, topk, own = (math.log(np.mean(times.epochs)) for times in _three(family, moved, t))
    return ((full - own) if moved == FULL else (own - topk)) / (full - topk)


def _is_sound(family: Mapping[float, Setting], moved: str, t: float, *, shown: bool) -> bool:
    """Whether censoring cannot be what decides: most runs of an arm that would look too fast got there."""
    full, topk, own = (2 * int(times.reached.sum()) > len(times) for times in _three(family, moved, t))
    if moved == FULL:
        return own if shown else full and topk
    return full and topk if shown else own


def _part(name: str, decision: Decision = "undecided", p: float | None = None, effect: str = "",
    interval: Interval | None = None, runs: frozenset[str] = frozenset(), why: str = "", setting: str = "",
    seeds: int | None = None, precision: str = "",
) -> Part:  # fmt: skip
    aspect = name.partition(": ")[2]
    return Part(
        name, decision, p, effect, interval, runs, why, setting, aspect=aspect, seeds=seeds, precision=precision
    )


CLAIMS = (
    Claim(
        "C12",
        "A small semantic separation makes the mask unstable under input noise, and hurts convergence.",
        "Two aspects. Small separation, unstable masks: Spearman's correlation over the eight tasks, with an exact "
        "permutation p-value, of the medians over seeds of the median separation and of the share of kept keys that "
        "stay, averaged over the levels of noise, from the measurement `mask_stability` (k = 5); shown: positive at "
        "5 % (refuted: negative at 5 %). Noisy choice, slower, by intervention, on each of the six tasks of rows of "
        "40 but Stack Manipulation: topk:5~1, whose five keys are chosen from scores with noise of standard "
        "deviation 1 and weighted by the clean ones, is less than 0.8 times as fast as topk:5, by the upper end of "
        "the 95 % interval (refuted: by the lower end it is faster than that), more than half of the arm there whose "
        "censoring would favour the decision.",
        c12,
    ),
    Claim(
        "C13",
        "The ratio of dispersions (top-k / full) predicts the speed-up across tasks.",
        "By intervention, since dispersion before training does not depend on labels and cannot tell tasks apart. "
        "Two aspects on each of Even Pairs, Missing Duplicates, Stack Manipulation and Modular Arithmetic, from runs "
        "whose scores are multiplied by an inverse temperature from 1/4 to 4, all else equal. Full at top-5's "
        "dispersion: of the two temperatures whose dispersions (median over seeds, percentile 95, before training, "
        "measurement `dispersion` with k = 5) lie around that of topk:5, full attention gains at one more than half "
        "of topk:5's lead over full, in the logarithm of restricted means, by the jackknife-t interval at 5 %, "
        "Bonferroni over the two (refuted: less than half at both). Top-5 at full's dispersion: in the same way "
        "topk:5 loses more than half of its lead. More than half of the arms there whose censoring would favour the "
        "decision. Not applicable where no lead of topk:5 is shown, as in C1.",
        c13,
    ),
)
