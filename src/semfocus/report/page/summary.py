"""The page's summary as text: the question and the findings, with no claim beyond what the tests support."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from semfocus.analysis.accuracy import accuracy_difference
from semfocus.analysis.comparison import BASE, Arm
from semfocus.analysis.groups import Group, base_first, mechanism_parts, short_name
from semfocus.analysis.intervals import ACCURACY_MARGIN
from semfocus.analysis.multiple import ALPHA, not_enough
from semfocus.analysis.recommend import recommend
from semfocus.report.text import counted
from semfocus.training.objective import Learned

_SHOWN = 8  # names in a sentence
_FEW_GOALS = 3  # that are named


class About(NamedTuple):
    """What a page is about, where its runs were trained to answer one question."""

    name: str  # as `semfocus run` takes it
    title: str
    question: str


@dataclass(frozen=True)
class Summary:
    """The text at the top of the page."""

    headline: str
    asked: str
    findings: list[str]
    meant: list[Group] = field(default_factory=list)  # the groups that the headline speaks of; none: all


def summarise(groups: Sequence[Group], about: About | None = None) -> Summary:
    """Summarise all groups; a single group has its own findings.

    The title and the question of what the page is about come first; the answer is then the first of the findings.
    """
    if not groups:
        return Summary("No runs yet", "Nothing was asked: the directory holds no run that can be read.", [])
    headline, meant = _headline(groups)
    findings = (
        summary_text(groups[0]) if len(groups) == 1 else [*_of_languages(groups), *_over_groups(_by_epochs(groups))]
    )
    if about is None:
        return Summary(headline, _asked(groups, _question(groups)), findings, meant)
    answer = [] if findings and findings[0].startswith(f"{headline}.") else [f"{headline}."]
    return Summary(about.title, _asked(groups, about.question), [*answer, *findings], meant)


def goal_text(groups: Sequence[Group], text: Callable[[Learned], str] = Learned.text) -> str:
    """What "learned" means in these groups: `95 % training accuracy`, and where they differ `... or ...`."""
    goals = list(dict.fromkeys(text(group.comparison.learned) for group in groups))
    return " or ".join(goals) if len(goals) <= _FEW_GOALS else "what each task's objective says"


def summary_text(group: Group) -> list[str]:
    """The findings of one group as sentences; mechanisms with the same finding share one.

    Where full attention and several k were trained, the last one says which k to take.
    """
    mechanisms: dict[str, list[str]] = {}  # by the predicate of their finding
    for finding in group.comparison.findings():
        mechanisms.setdefault(finding.predicate(" "), []).append(finding.mechanism)
    sentences = [_about_all(names, predicate) for predicate, names in mechanisms.items()]
    which_k = _is_ladder(group) and not group.comparison.nothing_learned and group.comparison.race is None
    return [*sentences, recommend(group.comparison).text] if which_k else sentences


def _is_ladder(group: Group) -> bool:
    """Whether the mechanisms are full attention and several plain sizes of top-k, as `--attention auto` trains them."""
    parts = [mechanism_parts(name) for name in group.mechanisms if name != BASE]
    plain = [
        each for each in parts if each and each.family == "topk" and not each.marked and not any(each.extras.values())
    ]
    return BASE in group.mechanisms and len(plain) == len(parts) > 1


def _about_all(names: Sequence[str], predicate: str) -> str:
    """`full is right on ... it has not seen`, `full and topk:12 are right on ... they have not seen`."""
    if len(names) > 1:
        for one, many in (
            (" is right", " are right"),
            ("; it are", "; they are"),
            ("it has not seen", "they have not seen"),
        ):
            predicate = predicate.replace(one, many)
    return f"{_joined(names)}{predicate}"


def _question(groups: Sequence[Group]) -> str:
    tasks = list(dict.fromkeys(group.task for group in groups))
    settings = f" under {len(groups)} settings" if len(groups) > len(tasks) else ""
    what = f"{_joined(tasks)}{settings}"
    if not _by_epochs(groups):
        return f"Which attention learns {what} with the fewest tokens, and where does each end?"
    return f"Which attention learns {what} in the fewest epochs, and which is right on rows it has not seen?"


def _asked(groups: Sequence[Group], question: str) -> str:
    mechanisms = base_first(m for group in groups for m in group.mechanisms)
    seeds = [len({run.seed for run in group.runs(name)}) for group in groups for name in group.mechanisms]
    many = f"{min(seeds)}" if min(seeds) == max(seeds) else f"{min(seeds)} to {max(seeds)}"
    by_epochs = _by_epochs(groups)
    learned = f"; learned means {goal_text(by_epochs)}" if by_epochs else ""
    return f"{question} {_joined(mechanisms)}, with {many} {'seed' if max(seeds) == 1 else 'seeds'} each{learned}."


def _by_epochs(groups: Sequence[Group]) -> list[Group]:
    """The groups that are no language models: those are compared by tokens."""
    return [group for group in groups if group.comparison.race is None]


def _of_languages(groups: Sequence[Group]) -> list[str]:
    """The answer of each group of language models."""
    return [f"{group.name}: {group.comparison.race.headline}." for group in groups if group.comparison.race is not None]


def _headline(groups: Sequence[Group]) -> tuple[str, list[Group]]:
    """The best-supported answer in one line, and the groups that it speaks of; none means all."""
    languages = [group.comparison.race for group in groups if group.comparison.race is not None]
    if len(languages) == len(groups) == 1:
        return languages[0].headline, []
    if len(languages) == len(groups):
        ahead = sum(race.best is not None for race in languages)
        line = "some mechanism is ahead of full attention at the end of training"
        return f"In {ahead} of {len(groups)} settings {line}", []
    groups = _by_epochs(groups)
    if not any(arm.times for group in groups for arm in group.comparison.arms):
        return "No run has ended yet", []
    if not any(arm.reached for group in groups for arm in group.comparison.arms):
        return "Nothing learned: no conclusion", []
    if all(group.comparison.too_coarse is not None for group in groups):
        return "All had learned at the first evaluation: no conclusion about speed", []
    pairs = _pairs(groups)
    if not pairs:
        return "No run of full attention to compare with", []
    wins = {name: [pair for pair in arms if _faster(pair[1])] for name, arms in pairs.items()}
    proven = {name: [pair for pair in own if _decided(pair[1])] for name, own in wins.items()}
    best = max(proven, key=lambda name: _lead(proven[name]))
    if proven[best]:
        line = _fewer(best, proven[best], pairs[best], "beyond chance ")
        return line, [group for group, _ in proven[best]]
    best = max(wins, key=lambda name: _lead(wins[name]))
    if any(_doubt(group) for group in groups):
        if not wins[best]:
            return "No mechanism is seen to need fewer epochs than full attention; too few seeds to be sure", []
        line = f"{_fewer(best, wins[best], pairs[best])}: a hint, too few seeds for a proof"
        return line, [group for group, _ in wins[best]]
    return "No mechanism needs fewer epochs than full attention beyond chance", []


Pairs = Sequence[tuple[Group, Arm]]


def _lead(won: Pairs) -> tuple[int, float]:
    """In how many groups a mechanism needs fewer epochs, and by how much on average."""
    ratios = [arm.speed_up.ratio.value or 1.0 for _, arm in won if arm.speed_up is not None]
    return len(won), sum(map(math.log, ratios)) / max(len(ratios), 1)


def _fewer(name: str, won: Pairs, every: Pairs, sure: str = "") -> str:
    """`topk:5 needs 2.6x fewer epochs than full attention on parity`, or over several groups in how many."""
    span = _span([arm for _, arm in won])
    if len(won) == 1:
        return f"{name} needs {span} fewer epochs than full attention on {won[0][0].name}"
    return f"{name} needs fewer epochs than full attention: {span}, {sure}in {len(won)} of {len(every)} comparisons"


def _over_groups(groups: Sequence[Group]) -> list[str]:
    """A sentence for each mechanism; mechanisms with the same finding share one."""
    if not groups:
        return []
    lost = [group for group in groups if group.comparison.nothing_learned]
    if len(lost) == len(groups):
        runs = sum(len(arm.times) for group in groups for arm in group.comparison.arms)
        return [f"None of {runs} runs reached {goal_text(groups)}; how often each is right on rows not seen, below."]
    said: dict[str, list[str]] = {}
    for name, arms in _pairs(groups).items():
        level = goal_text([group for group, _ in arms], Learned.level)
        said.setdefault(_about([arm for _, arm in arms], level) + _on_unseen(arms), []).append(name)
    lines = [f"{_joined(names)}: {text}." for text, names in said.items()]
    if lost and len(lost) < len(groups):
        names = [short_name(group, groups) for group in lost]
        lines.append(f"Nothing learned, full attention included, in {len(lost)} of {len(groups)}: {_joined(names)}.")
    weak = [group for group in groups if _doubt(group) and not group.comparison.nothing_learned]
    if weak:
        lines.append(f"A hint, not a proof, in {len(weak)} of {len(groups)}: {_doubt(weak[0])}.")
    return lines or ["Without full attention among the mechanisms there is nothing to compare with."]


def _about(arms: Sequence[Arm], level: str) -> str:
    faster = [arm for arm in arms if _faster(arm)]
    slower = [arm for arm in arms if _decided(arm) and not _faster(arm)]
    never = sum(bool(len(arm.times)) and not arm.reached for arm in arms)
    parts = [f"no fewer epochs than full attention in {counted(len(arms), 'comparison')}"]
    if faster:
        proven = [arm for arm in faster if _decided(arm)]
        parts[0] = f"fewer epochs than full attention in {len(faster)} of {counted(len(arms), 'comparison')}"
        parts[0] += f" ({_span(faster)} fewer, beyond chance in {len(proven) or 'none'})"
    if slower:
        parts.append(f"more epochs beyond chance in {len(slower)}")
    if never:
        parts.append(f"in {never} no seed reached {level}")
    return "; ".join(parts)


def _on_unseen(pairs: Pairs) -> str:
    """In how many groups a mechanism is right on unseen rows as often as full attention, or more or less often."""
    differences = []
    for group, arm in pairs:
        base = group.comparison.arm(BASE)
        mean = accuracy_difference(base.unseen, arm.unseen).mean
        if mean is not None:
            differences.append(mean)
    if not differences:
        return ""
    better = sum(mean > ACCURACY_MARGIN.high for mean in differences)
    worse = sum(mean < ACCURACY_MARGIN.low for mean in differences)
    alike = len(differences) - better - worse
    counts = {"more often": better, "as often (within 2 points)": alike, "less often": worse}
    said = ", ".join(f"{words} in {count}" for words, count in counts.items() if count)
    return f"; right on rows not seen, on average against full attention: {said}"


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


def _joined(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and 5 more`."""
    shown = list(names[:_SHOWN])
    if len(names) > _SHOWN:
        shown.append(f"{len(names) - _SHOWN} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
