"""Measurements that were made in one way, so that they can be held against each other, and who is left out.

    found = alike({"parity": [(full, topk), ...], ...}, everywhere=("split", "k"), here=("rows",))
    found.runs             ids of the runs that count
    found.left_out         by task the others, each with what was different

Runs that are compared with each other (a pair of one seed, or a run alone) come together. The way that most of them
share wins: first in what has to be the same `everywhere`, then, task by task, in what has to be so only `here`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from semfocus.analysis.records import Record


class Seen(NamedTuple):
    """A run, and the settings it was measured with; None: it was not."""

    record: Record
    settings: Mapping[str, Any] | None


class LeftOut(NamedTuple):
    """A run whose measurement does not count."""

    record: Record
    why: str


@dataclass(frozen=True)
class Alike:
    """What is left when all are measured in one way."""

    runs: frozenset[str]
    shared: Mapping[str, Any]  # the settings that are the same everywhere
    left_out: Mapping[str, tuple[LeftOut, ...]]  # by task


def alike(tasks: Mapping[str, Sequence[Sequence[Seen]]], everywhere: Sequence[str], here: Sequence[str]) -> Alike:
    """Of the runs that belong together, those of the commonest way; a setting that a run does not have is any."""
    shared = _commonest(_way(together, everywhere) for groups in tasks.values() for together in groups)
    runs: set[str] = set()
    left_out = {}
    for task, groups in tasks.items():
        fitting = [together for together in groups if _way(together, everywhere) == shared]
        own = _commonest(_way(together, here) for together in fitting)
        way = None if shared is None or own is None else shared | own
        runs |= {seen.record.id for together in groups if way and _way(together, list(way)) == way for seen in together}
        left_out[task] = tuple(_differing(groups, way or shared or {}, [*everywhere, *here]))
    return Alike(frozenset(runs), shared or {}, left_out)


def _way(together: Sequence[Seen], names: Sequence[str]) -> dict[str, Any] | None:
    """These settings, if all members were measured and agree in them."""
    found: dict[str, Any] = {}
    for seen in together:
        if seen.settings is None:
            return None
        for name in names:
            if name in seen.settings and found.setdefault(name, seen.settings[name]) != seen.settings[name]:
                return None
    return found


def _commonest(ways: Iterable[dict[str, Any] | None]) -> dict[str, Any] | None:
    """The most frequent one; of several, the first in the order of their text."""
    counts = Counter(json.dumps(way, sort_keys=True) for way in ways if way is not None)
    return json.loads(min(counts, key=lambda text: (-counts[text], text))) if counts else None


def _differing(groups: Sequence[Sequence[Seen]], way: Mapping[str, Any], names: Sequence[str]) -> Iterable[LeftOut]:
    """Who was measured otherwise; in what is common to none, otherwise than the run that it is compared with."""
    for together in groups:
        usual = {**(together[0].settings or {}), **way}
        for record, settings in together:
            mine = settings or {}
            other = [name for name in names if name in mine and name in usual and mine[name] != usual[name]]
            if other:
                yield LeftOut(record, "; ".join(f"{name} = {mine[name]}, not {usual[name]}" for name in other))
