"""Measurements that were made in one way, so that they can be held against each other, and who is left out.

    found = alike({"parity": [(full, topk), ...], ...}, everywhere=("split", "k"), here=("rows",))
    found.runs             ids of the runs that count
    found.left_out         by task the others, each with what was different
    seen(record, measurements, "dispersion", ("split", "rows"))      a run with these settings of its measurement

Runs that are compared with each other (a pair of one seed, or a run alone) come together. The way that most of them
share wins: first in what has to be the same `everywhere`, then, task by task, in what has to be so only `here`.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from semfocus.analysis.records import Record
from semfocus.measurements import Measurements

LAST = "last"
USUAL = {"checkpoint": LAST}  # where a measurement does not say


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


def seen(record: Record, measurements: Measurements, name: str, fields: Sequence[str]) -> Seen:
    """A run with these settings of its measurement."""
    measured = measurements.get(record.id, {}).get(name)
    found = None if measured is None else {field: getattr(measured, field, USUAL.get(field)) for field in fields}
    return Seen(record, found)


def alike(tasks: Mapping[str, Sequence[Sequence[Seen]]], everywhere: Sequence[str], here: Sequence[str]) -> Alike:
    """Of the runs that belong together, those of the commonest way; a setting that a run does not have is any."""
    shared = commonest(_way(together, everywhere) for groups in tasks.values() for together in groups)
    runs: set[str] = set()
    left_out = {}
    for task, groups in tasks.items():
        fitting = [together for together in groups if _way(together, everywhere) == shared]
        own = commonest(_way(together, here) for together in fitting)
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


def commonest(ways: Iterable[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """The most frequent one; of several, that of the later checkpoint, and then the first in order of their text."""
    counts = Counter(json.dumps(way, sort_keys=True) for way in ways if way is not None)
    found = sorted(counts, key=lambda text: (-counts[text], -_age(json.loads(text).get("checkpoint")), text))
    return json.loads(found[0]) if found else None


def _age(checkpoint: Any) -> float:
    """Of a checkpoint: the last is the oldest; what is not one is younger than all."""
    if checkpoint == LAST:
        return math.inf
    try:
        epoch = float(checkpoint)
    except (TypeError, ValueError, OverflowError):
        return -1.0
    return epoch if math.isfinite(epoch) else -1.0


def _differing(groups: Sequence[Sequence[Seen]], way: Mapping[str, Any], names: Sequence[str]) -> Iterable[LeftOut]:
    """Who was measured otherwise; in what is common to none, otherwise than the run that it is compared with."""
    for together in groups:
        usual = {**(together[0].settings or {}), **way}
        for record, settings in together:
            mine = settings or {}
            other = [name for name in names if name in mine and name in usual and mine[name] != usual[name]]
            if other:
                yield LeftOut(record, "; ".join(f"{name} = {mine[name]}, not {usual[name]}" for name in other))
