"""Which k to take, from a comparison of full attention with several k; or that focus does not help here.

    recommend(comparison).text
    "Take topk:4: it learns 2.1x as fast as full attention (p = 0.008 after Holm over 4 comparisons), and ..."

A k helps if it learns faster and is as accurate on unseen rows, or else if it is more accurate and no slower. Where
runs learn by balanced accuracy, that counts on unseen rows too: always naming the frequent class is no answer. The
tests are the comparison's own exact paired log-rank test, and the paired t of accuracy, both adjusted for the number of
k tried. The best of several k is chosen on the same seeds, so that its gain is a little flattered; its p is not.
"""

from __future__ import annotations

from dataclasses import dataclass

from semfocus.analysis.accuracy import AccuracyDifference, accuracy_difference
from semfocus.analysis.comparison import BASE, Arm, Comparison
from semfocus.analysis.intervals import ACCURACY_MARGIN, one_sided_p
from semfocus.analysis.multiple import ALPHA, not_enough
from semfocus.analysis.tokens import TokenRace
from semfocus.training.objective import ACCURACY, Metric


@dataclass(frozen=True)
class Recommendation:
    """What to take, and why; `mechanism` is full where focus does not help, and empty where nothing follows."""

    mechanism: str
    is_decided: bool  # whether the seeds suffice for it
    text: str


def recommend(comparison: Comparison) -> Recommendation:
    """What the comparison says about k."""
    if comparison.race is not None:
        return _by_tokens(comparison.race)
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
    hint = " A hint, not a proof: too few seeds." if doubt else ""  # how many would do, the findings say
    faster = sorted((arm for arm in others if _ratio(arm) > 1), key=_rank)
    gains = {arm.mechanism: _Gain.of(base, arm, comparison.learned.metric) for arm in others}
    as_accurate = [arm for arm in faster if not gains[arm.mechanism].is_worse]
    if as_accurate and (doubt or _is_decided(as_accurate[0])):
        best = as_accurate[0]
        return Recommendation(best.mechanism, not doubt, _praise(best, gains[best.mechanism], len(others), hint))
    better = [arm for arm in others if _is_better(arm, gains[arm.mechanism], len(others), bool(doubt))]
    if better:
        best = max(better, key=lambda arm: gains[arm.mechanism].difference.mean or 0.0)
        return Recommendation(best.mechanism, not doubt, _praise(best, gains[best.mechanism], len(others), hint))
    if comparison.too_coarse is not None:
        return Recommendation(
            "", False, "Nothing to recommend: all had learned at their first evaluation. Evaluate more often."
        )
    why = _why_not(faster, as_accurate, gains)
    return Recommendation(BASE, not doubt, f"Focus does not help here: {why}. Take full attention.{hint}")


def _by_tokens(race: TokenRace) -> Recommendation:
    """Of language models: the mechanism of the lowest final loss, where that is beyond chance, or as a hint."""
    lower = [lane for lane in race.others if lane.change is not None and lane.change < 0]
    best = min(lower, key=lambda lane: lane.change or 0.0, default=None)
    hint = f" A hint, not a proof: {race.doubt}." if race.doubt else ""
    if not race.others:
        return Recommendation("", False, "Nothing to recommend: it takes ended runs of full attention and of some k.")
    if best is None or not (race.doubt or (best.p is not None and best.p <= ALPHA)):
        why = "none ends at a lower held-out loss" + (" beyond chance" if lower else "")
        return Recommendation(BASE, not race.doubt, f"Focus does not help here: {why}. Take full attention.{hint}")
    verb = "looks best" if race.doubt else "is the one to take"
    gain = f"its final held-out loss is {-(best.change or 0.0):.1%} below full attention's"
    return Recommendation(best.mechanism, not race.doubt, f"{best.mechanism} {verb}: {gain}.{hint}")


@dataclass(frozen=True)
class _Gain:
    """How much more accurate a mechanism is on unseen rows than full attention, and in which accuracy."""

    difference: AccuracyDifference
    name: str  # `test accuracy`, `held-out balanced accuracy`

    @staticmethod
    def of(base: Arm, arm: Arm, metric: Metric) -> _Gain:
        """In the metric of learning where that is a share, on the test split where it was measured."""
        for split in ("test", "heldout"):
            one, other = (each.others.get(metric.column(split)) for each in (base, arm))
            if one and other:
                return _Gain(accuracy_difference(one, other), metric.text(split))
        return _Gain(accuracy_difference(base.unseen, arm.unseen), ACCURACY.text("test" if arm.test else "heldout"))

    @property
    def is_worse(self) -> bool:
        """Whether it is more than two points lower, in the mean over seeds."""
        return self.difference.mean is not None and self.difference.mean < ACCURACY_MARGIN.low

    @property
    def text(self) -> str:
        """`its test accuracy is +3.3 points against full attention`."""
        mean = self.difference.mean
        if mean is None:
            return f"its {self.name} was not measured"
        return f"its {self.name} is {100 * mean:+.1f} points against full attention"


def _praise(arm: Arm, gain: _Gain, tried: int, hint: str) -> str:
    is_decided = arm.p is not None and not hint
    p = f" (p = {arm.p:.2g} after Holm over {tried} comparison{'s' if tried > 1 else ''})" if is_decided else ""
    verb = "looks best" if hint else "is the one to take"
    speed = f"it learns {_speed(arm)} as fast as full attention{p}"
    if _ratio(arm) < 1 and arm.speed_up is not None:
        speed = f"it takes {arm.speed_up.ratio.inverse.words} as many epochs as full attention{p}"
    return f"{arm.mechanism} {verb}: {speed}, and {gain.text}.{hint}"


def _why_not(faster: list[Arm], as_accurate: list[Arm], gains: dict[str, _Gain]) -> str:
    names = ", ".join(gains)
    if as_accurate:
        best = as_accurate[0]
        p = "" if best.p is None else f", p = {best.p:.2g}"
        return f"none of {names} learns faster beyond chance (best: {best.mechanism}, {_speed(best)}{p})"
    if faster:
        best = faster[0]
        return f"{best.mechanism} learns {_speed(best)} as fast, but {gains[best.mechanism].text}"
    return f"none of {names} learns faster than full attention"


def _ratio(arm: Arm) -> float:
    value = None if arm.speed_up is None else arm.speed_up.ratio.value
    return value if value is not None and arm.reached else 0.0


def _rank(arm: Arm) -> tuple[float, float, float]:
    """The most certain first; among equals the fastest, then the most accurate."""
    return (1.0 if arm.p is None else arm.p), -_ratio(arm), -(arm.unseen.mean or 0.0)


def _is_decided(arm: Arm) -> bool:
    return arm.p is not None and arm.p <= ALPHA


def _is_better(arm: Arm, gained: _Gain, tried: int, is_hint: bool) -> bool:
    """Whether accuracy on unseen rows is over two points higher (beyond chance, or as a hint) at no less speed."""
    gain = gained.difference
    if gain.mean is None or gain.mean <= ACCURACY_MARGIN.high or gain.interval is None or not arm.reached:
        return False
    is_slower = _is_decided(arm) and _ratio(arm) < 1
    p = one_sided_p(gain.mean, gain.interval, gain.pairs, 0.0)
    return not is_slower and (is_hint or tried * p <= ALPHA)


def _speed(arm: Arm) -> str:
    return "" if arm.speed_up is None else arm.speed_up.ratio.words
