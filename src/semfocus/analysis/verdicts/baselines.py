"""What accuracies are compared with: guessing, and the best shortcut; and whether an arm does better."""

from __future__ import annotations

import json
from functools import cache

from semfocus.analysis.accuracy import PAIRS_FOR_GROUPS, Accuracies, two_groups
from semfocus.analysis.intervals import ACCURACY_MARGIN, one_sided_p
from semfocus.analysis.multiple import not_enough
from semfocus.analysis.verdicts.evidence import Decision, Part
from semfocus.analysis.verdicts.power import seeds_to_decide
from semfocus.analysis.verdicts.settings import Setting
from semfocus.errors import SemfocusError
from semfocus.tasks import get_task, task_names
from semfocus.tasks.registry import task_class

GUESSING = ("chance", "majority")  # needs no look at the input
SHORTCUTS = (*GUESSING, "shortcut")  # needs no more than a glance: the last token, the root operator


def bar(setting: Setting, kinds: tuple[str, ...] = SHORTCUTS) -> float:
    """The best of these baselines of the setting's task, with its own options where this version knows them."""
    prefix = "task.options."
    options = {name.removeprefix(prefix): value for name, value in setting.fields.items() if name.startswith(prefix)}
    known = _baselines(setting.task, json.dumps(options, sort_keys=True))
    return max(known.get(kind, 0.0) for kind in kinds)


@cache
def _baselines(task: str, options: str) -> dict[str, float]:
    if task in task_names() and task_class(task).reads_files:  # the options may come from someone else
        return get_task(task).baselines
    try:
        return get_task(task, **json.loads(options)).baselines
    except (SemfocusError, TypeError):  # options that this version does not know
        return get_task(task).baselines


def beats(level: float, accuracies: Accuracies, *, claimed: bool = True) -> Part:
    """Does the mean lie more than two points above `level`? With `claimed = False`: does it not?

    Decided by the 95 % interval. Fewer than 6 runs, or fewer than 30 that fall in two groups, decide nothing.
    """
    n, interval, mean = len(accuracies), accuracies.interval, accuracies.mean
    bound = level + ACCURACY_MARGIN.high
    short, least = not_enough(n, 1), 0
    if not short and two_groups(accuracies.values) and n < PAIRS_FOR_GROUPS:
        short, least = f"runs fall in two groups, which takes {PAIRS_FOR_GROUPS} seeds; there are {n}", PAIRS_FOR_GROUPS
    if interval is None or mean is None or short:
        return Part(
            "",
            "undecided",
            interval=interval,
            why=short,
            seeds=seeds_to_decide(None, None, n, [], least) or least or None,
        )
    above, below = interval.low > bound, interval.high <= bound
    decision: Decision = "undecided" if not (above or below) else "yes" if above == claimed else "no"
    p = min(one_sided_p(mean, interval, n, bound), one_sided_p(mean, interval, n, bound, below=True))
    effect = f"{mean:.1%} against {level:.1%}"
    seeds = seeds_to_decide(mean, interval, n, [bound]) if decision == "undecided" else None
    return Part("", decision, p, effect, interval, why="" if decision == "yes" else effect, seeds=seeds)


def does_not_beat(level: float, accuracies: Accuracies) -> bool:
    """Whether it is shown that the mean does not lie more than two points above `level`."""
    return beats(level, accuracies, claimed=False).decision == "yes"
