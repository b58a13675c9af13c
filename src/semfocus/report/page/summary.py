"""The page's summary as text: the question and the findings, with no claim beyond what the tests support."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from semfocus.analysis.comparison import BASE, Arm
from semfocus.analysis.groups import Group, base_first
from semfocus.analysis.multiple import ALPHA, not_enough
from semfocus.report.text import ratio_words
from semfocus.training.objective import Learned

_SHOWN = 8  # names in a sentence


@dataclass(frozen=True)
class Summary:
    """The text at the top of the page."""

    headline: str
    asked: str
    findings: list[str]


def summarise(groups: Sequence[Group]) -> Summary:
    """Summarise all groups; a single group has its own findings."""
    if not groups:
        return Summary("No runs yet", "Nothing was asked: the directory holds no run that can be read.", [])
    findings = summary_text(groups[0]) if len(groups) == 1 else _over_groups(groups)
    return Summary(_headline(groups), _asked(groups), findings)


def goal_text(groups: Sequence[Group], text: Callable[[Learned], str] = Learned.text) -> str:
    """What "learned" means in these groups: `95 % training accuracy`."""
    goals = {text(group.comparison.learned) for group in groups}
    return goals.pop() if len(goals) == 1 else "what each task's objective says"


def summary_text(group: Group) -> list[str]:
    """The findings of one group as sentences; mechanisms with the same finding share one."""
    mechanisms: dict[str, list[str]] = {}  # by the predicate of their finding
    for finding in group.comparison.findings():
        mechanisms.setdefault(finding.predicate(" ", ratio_words), []).append(finding.mechanism)
    return [f"{_joined(names)}{predicate}" for predicate, names in mechanisms.items()]


def _asked(groups: Sequence[Group]) -> str:
    mechanisms = base_first(m for group in groups for m in group.mechanisms)
    tasks = list(dict.fromkeys(group.task for group in groups))
    seeds = [group.comparison.seeds for group in groups]
    many = f"{min(seeds)}" if min(seeds) == max(seeds) else f"{min(seeds)} to {max(seeds)}"
    settings = f" under {len(groups)} settings" if len(groups) > len(tasks) else ""
    return (
        f"Which attention learns {_joined(tasks)}{settings} in the fewest epochs, and which is right on rows it has "
        f"not seen? {_joined(mechanisms)}, with {many} {'seed' if max(seeds) == 1 else 'seeds'} each; learned means "
        f"{goal_text(groups)}."
    )


def _headline(groups: Sequence[Group]) -> str:
    """The best-supported answer in one line."""
    if not any(arm.times for group in groups for arm in group.comparison.arms):
        return "No run has ended yet"
    pairs = _pairs(groups)
    if not pairs:
        return "No run of full attention to compare with"
    wins = {name: [arm for _, arm in arms if _faster(arm)] for name, arms in pairs.items()}
    proven = {name: [arm for arm in arms if _decided(arm)] for name, arms in wins.items()}
    best = max(proven, key=lambda name: len(proven[name]))
    if proven[best]:
        return f"{best} learns {_span(proven[best])} as fast as full attention{_places(len(proven[best]), pairs[best])}"
    best = max(wins, key=lambda name: len(wins[name]))
    if wins[best] and any(_doubt(group) for group in groups):
        return f"{best} learns {_span(wins[best])} as fast as full attention: a hint, too few seeds for a proof"
    return "No mechanism learns faster than full attention beyond chance"


def _over_groups(groups: Sequence[Group]) -> list[str]:
    """A sentence for each mechanism; mechanisms with the same finding share one."""
    said: dict[str, list[str]] = {}
    for name, arms in _pairs(groups).items():
        level = goal_text([group for group, _ in arms], Learned.level)
        said.setdefault(_about([arm for _, arm in arms], level), []).append(name)
    lines = [f"{_joined(names)}: {text}." for text, names in said.items()]
    weak = [group for group in groups if _doubt(group)]
    if weak:
        lines.append(f"A hint, not a proof, in {len(weak)} of {len(groups)}: {_doubt(weak[0])}.")
    return lines or ["Without full attention among the mechanisms there is nothing to compare with."]


def _about(arms: Sequence[Arm], level: str) -> str:
    faster = [arm for arm in arms if _faster(arm)]
    slower = [arm for arm in arms if _decided(arm) and not _faster(arm)]
    never = sum(bool(len(arm.times)) and not arm.reached for arm in arms)
    parts = [f"in {len(faster)} of {len(arms)} comparisons faster than full attention"]
    if faster:
        proven = [arm for arm in faster if _decided(arm)]
        parts.append(f"{_span(faster)} as fast, beyond chance in {len(proven)}")
    if slower:
        parts.append(f"slower beyond chance in {len(slower)}")
    if never:
        parts.append(f"in {never} no seed reached {level}")
    return "; ".join(parts)


def _pairs(groups: Sequence[Group]) -> dict[str, list[tuple[Group, Arm]]]:
    """By mechanism, the arms that have an ended run paired with one of full attention."""
    pairs: dict[str, list[tuple[Group, Arm]]] = {}
    for name in base_first(m for group in groups for m in group.mechanisms):
        arms = [(group, arm) for group in groups for arm in group.comparison.arms if arm.mechanism == name]
        arms = [(group, arm) for group, arm in arms if arm.speed_up is not None and arm.speed_up.pairs]
        if arms:
            pairs[name] = arms
    return pairs


def _doubt(group: Group) -> str:
    others = [arm for arm in group.comparison.arms if arm.mechanism != BASE]
    base = [arm for arm in group.comparison.arms if arm.mechanism == BASE]
    return not_enough(len(base[0].times), len(others)) if base and others else ""


def _faster(arm: Arm) -> bool:
    ratio = arm.speed_up.ratio if arm.speed_up else None
    return ratio is not None and ratio.value is not None and ratio.sign != "<=" and ratio.value > 1


def _decided(arm: Arm) -> bool:
    return arm.p is not None and arm.p <= ALPHA


def _span(arms: Sequence[Arm]) -> str:
    """`5.2x`, `at least 2.4x`, `1.3x to 8.8x`."""
    ratios = sorted((arm.speed_up.ratio for arm in arms if arm.speed_up), key=lambda ratio: ratio.value or 0.0)
    low, high = ratios[0], ratios[-1]
    least = "at least " if low.sign == ">=" and len(ratios) == 1 else ""
    more = " or more" if high.sign == ">=" and len(ratios) > 1 else ""
    if f"{low.value:.2g}" == f"{high.value:.2g}":
        return f"{least}{low.value:.2g}x{more}"
    return f"{low.value:.2g}x to {high.value:.2g}x{more}"


def _places(won: int, arms: Sequence[tuple[Group, Arm]]) -> str:
    if len(arms) == 1:
        return f" on {arms[0][0].name}"
    return f", beyond chance in {won} of {len(arms)} comparisons"


def _joined(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and 5 more`."""
    shown = list(names[:_SHOWN])
    if len(names) > _SHOWN:
        shown.append(f"{len(names) - _SHOWN} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
