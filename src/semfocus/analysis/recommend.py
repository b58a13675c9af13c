"""Which k to take, from a comparison of full attention with several k; or that focus does not help here.

    recommend(comparison).text
    "Take topk:4: it learns 2.1x as fast as full attention (p = 0.008 after Holm over 4 comparisons), and ..."

The tests are the comparison's own: the exact paired log-rank test, adjusted for the number of k tried. The best of
several k is chosen on the same seeds, so that its speed-up is a little flattered; its p is not.
"""

from __future__ import annotations

from dataclasses import dataclass

from semfocus.analysis.accuracy import accuracy_difference
from semfocus.analysis.comparison import BASE, Arm, Comparison
from semfocus.analysis.intervals import ACCURACY_MARGIN
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
        goal = comparison.learned.text()
        return Recommendation(
            "", False, f"Nothing to recommend: nothing reached {goal}. Train longer, or with --tune lr."
        )
    doubt = not_enough(min(len(arm.times.seeds) for arm in (base, *others)), len(others))
    hint = f" A hint, not a proof: {doubt}." if doubt else ""
    faster = sorted((arm for arm in others if _ratio(arm) > 1), key=_rank)
    as_accurate = [arm for arm in faster if not _is_worse(base, arm)]
    if as_accurate and (doubt or _is_decided(as_accurate[0])):
        return Recommendation(as_accurate[0].mechanism, not doubt, _praise(base, as_accurate[0], len(others), hint))
    why = _why_not(base, faster, as_accurate, [arm.mechanism for arm in others])
    return Recommendation(BASE, not doubt, f"Focus does not help here: {why}. Take full attention.{hint}")


def _praise(base: Arm, arm: Arm, tried: int, hint: str) -> str:
    p = f" (p = {arm.p:.2g} after Holm over {tried} comparisons)" if arm.p is not None and not hint else ""
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
    return (1.0 if arm.p is None else arm.p), -_ratio(arm), -(arm.final_heldout.mean or 0.0)


def _is_decided(arm: Arm) -> bool:
    return arm.p is not None and arm.p <= ALPHA


def _is_worse(base: Arm, arm: Arm) -> bool:
    """Whether held-out accuracy is more than two points lower, in the mean over seeds."""
    mean = accuracy_difference(base.final_heldout, arm.final_heldout).mean
    return mean is not None and mean < ACCURACY_MARGIN.low


def _speed(arm: Arm) -> str:
    return "" if arm.speed_up is None else arm.speed_up.ratio.text


def _accuracy(base: Arm, arm: Arm) -> str:
    mean = accuracy_difference(base.final_heldout, arm.final_heldout).mean
    if mean is None:
        return "its held-out accuracy was not measured"
    return f"its held-out accuracy is {100 * mean:+.1f} points"
