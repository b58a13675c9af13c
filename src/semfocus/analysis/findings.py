"""The findings of a comparison as values and as sentences, with no claim beyond what the seeds support.

    for finding in findings_of(comparison):
        print(finding.text)

    topk:5 reached 95% training accuracy in 8 epochs (median; 3 of 3 seeds), on average 2.59x fewer than full attention
    (1 of 3 seeds); it is right on 99.8% of the rows it has not seen, on average 29.7 points more than full attention
    (-38.8 to +98.3).

Each mechanism has one sentence, which answers both questions: in how many epochs it learned, and whether it is right on
rows that it has not seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from semfocus.analysis.accuracy import accuracy_difference
from semfocus.analysis.intervals import ACCURACY_MARGIN, Interval
from semfocus.analysis.multiple import ALPHA, not_enough
from semfocus.analysis.speedup import Ratio
from semfocus.training.objective import ACCURACY, CLASSIFICATION, Learned

if TYPE_CHECKING:
    from semfocus.analysis.comparison import Arm, Comparison

BASE = "full"
FindingKind = Literal[
    "no_base", "base_alone", "no_bar", "nothing_learned", "told",
    "no_run", "unlearned", "base", "never", "undefined", "speed_up",
    "too_coarse", "hint", "beyond_chance", "no_difference",
]  # fmt: skip  # the second line is about one mechanism, the others about the whole comparison


@dataclass(frozen=True)
class Unseen:
    """How often a mechanism is right on rows that it has not seen, at the end of training.

    The rows are those of the test split where it was measured: the held-out ones then decided when to stop.
    """

    median: float  # share, over seeds
    difference: float | None = None  # to full attention, the mean over shared seeds; None for full attention itself
    interval: Interval | None = None  # of that mean
    without_learning: float | None = None  # the best accuracy that needs no learning
    is_hint: bool = False  # whether the seeds are too few for a test to decide
    is_test: bool = False  # whether the rows are those of the test split

    def text(self, space: str = "") -> str:
        """`right on 99.8% of the rows it has not seen, on average 29.7 points more than full attention`."""
        rows = "test rows" if self.is_test else "rows"
        share = f"right on {100 * self.median:.1f}{space}% of the {rows} it has not seen"
        return f"{share}{self._compared(space)}{self._guessed(space)}"

    def _compared(self, space: str) -> str:
        if self.difference is None:
            return ""
        points = 100 * self.difference
        amount = (
            "as often as full attention"
            if abs(points) < 0.05
            else f"{abs(points):.1f} points {'more' if points > 0 else 'less'} than full attention"
        )
        if self.interval is None or self.interval.high - self.interval.low < 5e-4:
            return f", on average {amount}"
        ends = f"{100 * self.interval.low:+.1f} to {100 * self.interval.high:+.1f}"
        if self.interval.low <= 0 <= self.interval.high:
            return f", on average {amount}, which may be chance ({ends})"
        return f", on average {amount} ({'a hint: ' if self.is_hint else ''}95{space}% interval {ends})"

    def _guessed(self, space: str) -> str:
        if self.without_learning is None or self.median > self.without_learning + ACCURACY_MARGIN.high:
            return ""
        return f"; {100 * self.without_learning:.1f}{space}% needs no learning"


@dataclass(frozen=True)
class Finding:
    """One statement that the data support; `mechanism` is empty when it is about the whole comparison."""

    kind: FindingKind
    mechanism: str = ""
    reached: tuple[int, int] = (0, 0)  # seeds at the threshold, of how many
    base_reached: tuple[int, int] = (0, 0)  # the same of full attention
    epochs: float | None = None  # the median over seeds; None if half of them never got there
    ratio: Ratio | None = None
    unseen: Unseen | None = None
    horizon: float = 0.0
    comparisons: int = 0
    decided: tuple[tuple[str, float], ...] = ()  # mechanism and p, of differences beyond chance
    doubt: str = ""  # why the seeds cannot decide
    learned: Learned = CLASSIFICATION.learned
    baseline: float = 0.0  # the best accuracy that needs no learning
    told: str = ""  # of language models, the sentence as `analysis.tokens` has it

    @property
    def text(self) -> str:
        """The whole sentence."""
        return self.mechanism + self.predicate()

    def predicate(self, space: str = "") -> str:
        """The sentence without its mechanism. `space` stands before a percent sign."""
        match self.kind:
            case "told":
                return self.told
            case "no_base":
                return "Without full attention among the mechanisms there is nothing to compare with."
            case "base_alone":
                return "Full attention alone: nothing to compare with."
            case "no_bar":
                told = f"Without learning {100 * self.baseline:.1f}{space}% are right: {self.learned.text(space)}"
                return f"{told} shows nothing; compare with --option metrics=balanced."
            case "nothing_learned":
                return (
                    f"Nothing learned: no conclusion. None of {self.reached[1]} runs reached "
                    f"{self.learned.text(space)} within {_epochs(self.horizon)}."
                )
            case "no_run":
                return ": no finished run."
            case "too_coarse":
                epoch = self.epochs or 1.0
                return (
                    f"All runs had learned when they were first evaluated, after {_epochs(epoch)}: this does not tell "
                    f"which learns faster. Evaluate more often: --evaluate-every {epoch / 10:g}, with another --out."
                )
            case "hint":
                return f"A hint, not a proof: {self.doubt}."
            case "beyond_chance":
                names = ", ".join(f"{mechanism} (p = {p:.2g})" for mechanism, p in self.decided)
                return f"Beyond chance, after Holm over {self.comparisons} comparisons: {names}."
            case "no_difference":
                return (
                    "None of the differences in epochs is beyond chance after Holm over "
                    f"{self.comparisons} comparisons."
                )
        if self.kind == "unlearned":
            return "" if self.unseen is None else f" is {self.unseen.text(space)}."
        unseen = "" if self.unseen is None else f"; it is {self.unseen.text(space)}"
        return f"{self._epochs(space)}{self._against()}{unseen}."

    def _epochs(self, space: str) -> str:
        """` reached 95 % training accuracy in 8 epochs (median; 3 of 3 seeds)`."""
        share = _share(*self.reached)
        goal = self.learned.text(space)
        if self.kind == "never" or not self.reached[0]:
            return f" never reached {goal} within {_epochs(self.horizon)} ({share})"
        if self.epochs is None:
            return f" reached {goal} in more than {_epochs(self.horizon)} (median; {share})"
        return f" reached {goal} in {_epochs(self.epochs)} (median; {share})"

    def _against(self) -> str:
        if self.kind != "speed_up" or self.ratio is None or self.ratio.value is None:
            return ""
        if not self.base_reached[0] and self.ratio.value <= 1:  # a bound on the wrong side of 1 says nothing
            return f", which full attention never did ({_share(0, self.base_reached[1])})"
        fewer = self.ratio.value >= 1
        ratio = self.ratio if fewer else self.ratio.inverse
        base = _share(*self.base_reached)
        amount = "as many as" if f"{self.ratio.value:.3g}" == "1" and self.ratio.sign == "=" else (
            f"{ratio.words} {'fewer' if fewer else 'more'} than"
        )  # fmt: skip
        return f", on average {amount} full attention ({base})"


def _share(reached: int, seeds: int) -> str:
    return f"{reached} of {seeds} seed{'' if seeds == 1 else 's'}"


def _epochs(number: float) -> str:
    return f"{number:g} epoch{'' if number == 1 else 's'}"


def findings_of(comparison: Comparison) -> list[Finding]:
    """A sentence for each mechanism, then what the differences amount to."""
    if comparison.race is not None:
        return [Finding("told", name, told=text) for name, text in comparison.race.sentences()]
    others = [arm for arm in comparison.arms if arm.mechanism != BASE]
    base = next((arm for arm in comparison.arms if arm.mechanism == BASE), None)
    if comparison.nothing_learned:
        return _nothing_learned(comparison)
    learned, baseline = comparison.learned, comparison.baseline
    is_trivial = learned.metric == ACCURACY and baseline >= learned.threshold
    abouts = [Finding("no_bar", learned=learned, baseline=baseline)] if is_trivial else []
    abouts += [_about(arm, base, comparison) for arm in comparison.arms]
    if base is None:
        return [Finding("no_base"), *abouts]
    if not others:
        return [*abouts, Finding("base_alone")]
    if comparison.too_coarse is not None:
        return [*abouts, Finding("too_coarse", epochs=comparison.too_coarse)]
    decided = tuple((arm.mechanism, arm.p) for arm in others if arm.p is not None and arm.p <= ALPHA)
    doubt = not_enough(len(base.times.seeds), len(others))
    kind: FindingKind = "hint" if doubt else "beyond_chance" if decided else "no_difference"
    return [*abouts, Finding(kind, comparisons=len(others), decided=decided, doubt=doubt)]


def _nothing_learned(comparison: Comparison) -> list[Finding]:
    """That nothing follows, and how often each mechanism is right all the same."""
    runs = sum(len(arm.times) for arm in comparison.arms)
    nothing = Finding("nothing_learned", reached=(0, runs), horizon=comparison.horizon, learned=comparison.learned)
    shares = [(arm.mechanism, _unseen(arm, None, comparison)) for arm in comparison.arms]
    return [nothing, *(Finding("unlearned", name, unseen=unseen) for name, unseen in shares if unseen is not None)]


def _about(arm: Arm, base: Arm | None, comparison: Comparison) -> Finding:
    ratio = arm.speed_up.ratio if arm.speed_up else None
    kind: FindingKind = "speed_up"
    if not arm.times.seeds:
        kind = "no_run"
    elif arm is base:
        kind = "base"
    elif not arm.reached:
        kind = "never"
    elif ratio is None or ratio.value is None:
        kind = "undefined"
    return Finding(
        kind,
        arm.mechanism,
        reached=(arm.reached, len(arm.times.seeds)),
        base_reached=(0, 0) if base is None else (base.reached, len(base.times.seeds)),
        epochs=arm.times.median,
        ratio=ratio,
        unseen=_unseen(arm, base, comparison),
        horizon=comparison.horizon,
        learned=comparison.learned,
    )


def _unseen(arm: Arm, base: Arm | None, comparison: Comparison) -> Unseen | None:
    share, is_test = arm.unseen.median, bool(arm.test)
    if share is None:
        return None
    without = comparison.unseen_baseline if comparison.baselines else None
    if base is None or arm is base:
        return Unseen(share, without_learning=without, is_test=is_test)
    difference = accuracy_difference(base.unseen, arm.unseen)
    few = bool(not_enough(difference.pairs, max(1, len(comparison.arms) - 1)))
    return Unseen(share, difference.mean, difference.interval, without, few, is_test)
