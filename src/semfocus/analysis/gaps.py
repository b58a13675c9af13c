"""What comparisons lack: seeds that some mechanism has not been run with, and runs that precision keeps apart.

    for gap in gaps(Results.load("runs")):
        print(gap)             # listops: topk:5 has no ended run of seed 153476998

Nothing is mixed because of a gap: seeds are paired, and runs of another precision form a group of their own. But a
reader has to know. Arms that have fewer seeds by design (a study gives its headline arms twice as many) lack none of
the others' seeds; `fewer_seeds` says of whom this was assumed.
"""

from __future__ import annotations

import json

from semfocus.analysis.groups import Group
from semfocus.analysis.multiple import pairs_needed
from semfocus.analysis.results import Results
from semfocus.recipes import seeds as seeds_of_studies

WHOLE = 2 / 3  # an arm with more than this share of a longer one's seeds has lost the others


def gaps(results: Results) -> list[str]:
    """A sentence for each gap."""
    missing = [text for group in results.groups for text in _missing_seeds(group)]
    return [*missing, *_mixed_precisions(results.groups)]


def fewer_seeds(results: Results) -> list[str]:
    """A sentence for each number of seeds that some arms of a group were given, where others have more."""
    return [text for group in results.groups for text in _fewer_seeds(group)]


def _missing_seeds(group: Group) -> list[str]:
    ended, lengths = _ended(group), _planned_lengths(group)
    every = {record.seed for record in group.records}
    texts = []
    for mechanism, own in ended.items():
        begun = {record.seed for record in group.runs(mechanism)}
        planned = (set(seeds_of_studies(n)) for n in lengths)
        wanted = next((seeds for seeds in planned if begun <= seeds), every)
        absent = sorted(wanted - own)
        if absent:
            plural = "s" if len(absent) > 1 else ""
            texts.append(f"{group.name}: {mechanism} has no ended run of seed{plural} {', '.join(map(str, absent))}")
    return texts


def _fewer_seeds(group: Group) -> list[str]:
    every = len({record.seed for record in group.records})
    texts = []
    for n in _planned_lengths(group):
        arms = [mechanism for mechanism, own in _ended(group).items() if own == set(seeds_of_studies(n))]
        if n < every:
            texts.append(f"{group.name}: the first {n} of {every} seeds alone: {', '.join(arms)}")
    return texts


def _ended(group: Group) -> dict[str, set[int]]:
    return {
        mechanism: {record.seed for record in group.runs(mechanism) if record.ended} for mechanism in group.mechanisms
    }


def _planned_lengths(group: Group) -> list[int]:
    """How many seeds arms of this group were given, as far as can be seen; in ascending order.

    An arm was given n seeds if it has the first n of those that studies take, these alone and all ended, n is enough to
    decide anything, and every longer arm is longer by half or more: nine of ten seeds are ten, of which one is lost.
    """
    ended = _ended(group)
    lengths = {len(own) for own in ended.values()}
    whole = {
        len(own)
        for mechanism, own in ended.items()
        if len(own) >= pairs_needed(1)
        and own == set(seeds_of_studies(len(own)))
        and own == {record.seed for record in group.runs(mechanism)}
    }
    return sorted(n for n in whole if all(n <= WHOLE * longer for longer in lengths if longer > n))


def _mixed_precisions(groups: list[Group]) -> list[str]:
    alike: dict[str, list[Group]] = {}
    for group in groups:
        others = {name: value for name, value in group.settings.items() if name != "precision"}
        alike.setdefault(f"{group.task} {json.dumps(others, sort_keys=True, default=str)}", []).append(group)
    return [
        f"{parts[0].task}: runs of several precisions are compared apart: "
        + "; ".join(f"{group.settings['precision']} has {', '.join(group.mechanisms)}" for group in parts)
        for parts in alike.values()
        if len(parts) > 1
    ]
