"""Which k to take, from a comparison of full attention with several k; or that focus does not help here.

    recommend(comparison).text
    "Take topk:4: it learns 2.1x as fast as full attention (p = 0.008 after Holm over 4 comparisons), and ..."

A k helps if it learns faster and is as accurate on unseen rows, or else if it is more accurate and no slower. The tests
are the comparison's own exact paired log-rank test, and the paired t of accuracy, both adjusted for the number of k
tried. The best of several k is chosen on the same seeds, so that its gain is a little flattered; its p is not.
"""

from __future__ import annotations

from dataclasses import dataclass

from semfocus.analysis.accuracy import AccuracyDifference, accuracy_difference
from semfocus.analysis.comparison import BASE, Arm, Comparison
from semfocus.analysis.intervals import ACCURACY_MARGIN, one_sided_p
from semfocus.analysis.multiple import ALPHA, not_enough


@dataclass(frozen=True)
class Recommendation:
    """What to take, and why; `mechanism` is full where focus does not help, and empty where nothing learned."""

    mechanism: str
    is_decided: bool  # whether the seeds suffice for it
    text: str


def recommend(comparison: Comparison) -> Recommendation:
    """What the comparison says about k."""
    base = next((arm for arm in comparison.arms if arm.mechanism == BASE and len(arm.times.seeds)), None)
    others = [arm for arm in comparison.arms if arm.mechanism != BASE and len(arm.times.seeds)]
    if base is None or not others:
        return Recommendation("", False, "Nothing to recommend: it takes ended runs of full attention and of some k.")
    if not any(arm.reached for arm in (base, *others)):
        goal = comparison.learned.text("")
        return Recommendation(
            "", False, f"Nothing to recommend: nothing reached {goal}. Train longer, or with --tune lr."
        )
    doubt = not_enough(min(len(arm.times.seeds) for arm in (base, *others)), len(others))
    hint = f" A hint, not a proof: {doubt}." if doubt else ""
    faster = sorted((arm for arm in others if _ratio(arm) > 1), key=_rank)
    as_accurate = [arm for arm in faster if not _is_worse(base, arm)]
    if as_accurate and (doubt or _is_decided(as_accurate[0])):
        return Recommendation(as_accurate[0].mechanism, not doubt, _praise(base, as_accurate[0], len(others), hint))
    better = [arm for arm in others if _is_better(base, arm, len(others), bool(doubt))]
    if better:
        best = max(better, key=lambda arm: _gain(base, arm).mean or 0.0)
        return Recommendation(best.mechanism, not doubt, _praise(base, best, len(others), hint))
    why = _why_not(base, faster, as_accurate, [arm.mechanism for arm in others])
    return Recommendation(BASE, not doubt, f"Focus does not help here: {why}. Take full attention.{hint}")


def _praise(base: Arm, arm: Arm, tried: int, hint: str) -> str:
    is_decided = arm.p is not None and not hint
    p = f" (p = {arm.p:.2g} after Holm over {tried} comparison{'s' if tried > 1 else ''})" if is_decided else ""
    verb = "looks best" if hint else "is the one to take"
    speed = f"it learns {_speed(arm)} as fast as full attention{p}"
    return f"{arm.mechanism} {verb}: {speed}, and {_accuracy(base, arm)}.{hint}"


def _why_not(base: Arm, faster: list[Arm], as_accurate: list[Arm], tried: list[str]) -> str:
    names = ", ".join(tried)
    if as_accurate:
        best = as_accurate[0]
        p = "" if best.p is None else f", p = {best.p:.2g}"
        return f"none of {names} learns faster beyond chance (best: {best.mechanism}, {_speed(best)}{p})"
    if faster:
        best = faster[0]
        return f"{best.mechanism} learns {_speed(best)} as fast, but {_accuracy(base, best)}"
    return f"none of {names} learns faster than full attention"


def _ratio(arm: Arm) -> float:
    value = None if arm.speed_up is None else arm.speed_up.ratio.value
    return value if value is not None and arm.reached else 0.0


def _rank(arm: Arm) -> tuple[float, float, float]:
    """The most certain first; among equals the fastest, then the most accurate."""
    return (1.0 if arm.p is None else arm.p), -_ratio(arm), -(arm.unseen.mean or 0.0)


def _is_decided(arm: Arm) -> bool:
    return arm.p is not None and arm.p <= ALPHA


def _is_better(base: Arm, arm: Arm, tried: int, is_hint: bool) -> bool:
    """Whether accuracy on unseen rows is over two points higher (beyond chance, unless it is a hint) at no less speed."""
    gain = _gain(base, arm)
    if gain.mean is None or gain.mean <= ACCURACY_MARGIN.high or gain.interval is None or not arm.reached:
        return False
    is_slower = _is_decided(arm) and _ratio(arm) < 1
    p = one_sided_p(gain.mean, gain.interval, gain.pairs, 0.0)
    return not is_slower and (is_hint or tried * p <= ALPHA)


def _gain(base: Arm, arm: Arm) -> AccuracyDifference:
    return accuracy_difference(base.unseen, arm.unseen)


def _is_worse(base: Arm, arm: Arm) -> bool:
    """Whether accuracy on unseen rows is more than two points lower, in the mean over seeds."""
    mean = _gain(base, arm).mean
    return mean is not None and mean < ACCURACY_MARGIN.low


def _speed(arm: Arm) -> str:
    return "" if arm.speed_up is None else arm.speed_up.ratio.text


def _accuracy(base: Arm, arm: Arm) -> str:
    mean = _gain(base, arm).mean
    split = "test" if arm.test else "held-out"
    if mean is None:
        return f"its {split} accuracy was not measured"
    return f"its {split} accuracy is {100 * mean:+.1f} points against full attention"
