"""What comparisons lack: seeds that some mechanism has not been run with, and runs that precision keeps apart.

    for gap in gaps(Results.load("runs")):
        print(gap)             # listops: topk:5 has no ended run of seed 153476998

Nothing is mixed because of a gap: seeds are paired, and runs of another precision form a group of their own. But a
reader has to know.
"""

from __future__ import annotations

import json

from semfocus.analysis.groups import Group
from semfocus.analysis.results import Results


def gaps(results: Results) -> list[str]:
    """A sentence for each gap."""
    missing = [text for group in results.groups for text in _missing_seeds(group)]
    return [*missing, *_mixed_precisions(results.groups)]


def _missing_seeds(group: Group) -> list[str]:
    seeds = {record.seed for record in group.records}
    texts = []
    for mechanism in group.mechanisms:
        absent = sorted(seeds - {record.seed for record in group.runs(mechanism) if record.ended})
        if absent:
            plural = "s" if len(absent) > 1 else ""
            texts.append(f"{group.name}: {mechanism} has no ended run of seed{plural} {', '.join(map(str, absent))}")
    return texts


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
