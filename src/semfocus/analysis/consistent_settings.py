"""Measurements that were made with the same settings, and the runs that are left out because theirs were not.

    units = {"parity": [(full, topk), ...], ...}       the runs of a unit are compared with each other
    kept = consistent_settings(units, everywhere=("split", "k"), within_task=("rows",))
    kept.runs             ids of the runs that count
    kept.left_out         by task the other runs, each with what differs
    measured_with(record, measurements, "dispersion", ("split", "rows"))      a run, and how it was measured

A unit is a pair of one seed, or a single run. The most common settings win: first over all tasks for the settings that
have to agree `everywhere`, then in each task for those that have to agree only `within_task`.
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
DEFAULTS = {"checkpoint": LAST}  # of settings that a measurement does not state


class MeasuredWith(NamedTuple):
    """A run and the settings of its measurement; None if it was not measured."""

    record: Record
    settings: Mapping[str, Any] | None


class LeftOut(NamedTuple):
    """A run whose measurement does not count."""

    record: Record
    why: str


@dataclass(frozen=True)
class ConsistentRuns:
    """The runs that were measured with the same settings."""

    runs: frozenset[str]
    shared: Mapping[str, Any]  # the settings that agree everywhere
    left_out: Mapping[str, tuple[LeftOut, ...]]  # by task


def measured_with(record: Record, measurements: Measurements, name: str, fields: Sequence[str]) -> MeasuredWith:
    """A run and these settings of its measurement."""
    measured = measurements.get(record.id, {}).get(name)
    settings = None if measured is None else {field: getattr(measured, field, DEFAULTS.get(field)) for field in fields}
    return MeasuredWith(record, settings)


def consistent_settings(
    tasks: Mapping[str, Sequence[Sequence[MeasuredWith]]], everywhere: Sequence[str], within_task: Sequence[str]
) -> ConsistentRuns:
    """Keep the units that have the most common settings; a setting that a run does not have agrees with any value."""
    shared = commonest(_settings_of_unit(unit, everywhere) for units in tasks.values() for unit in units)
    runs: set[str] = set()
    left_out = {}
    for task, units in tasks.items():
        fitting = [unit for unit in units if _settings_of_unit(unit, everywhere) == shared]
        own = commonest(_settings_of_unit(unit, within_task) for unit in fitting)
        wanted = None if shared is None or own is None else shared | own
        for unit in units:
            if wanted and _settings_of_unit(unit, list(wanted)) == wanted:
                runs |= {member.record.id for member in unit}
        left_out[task] = tuple(_left_out(units, wanted or shared or {}, [*everywhere, *within_task]))
    return ConsistentRuns(frozenset(runs), shared or {}, left_out)


def _settings_of_unit(unit: Sequence[MeasuredWith], names: Sequence[str]) -> dict[str, Any] | None:
    """These settings, if all members were measured and agree in them."""
    shared: dict[str, Any] = {}
    for member in unit:
        if member.settings is None:
            return None
        for name in names:
            if name in member.settings and shared.setdefault(name, member.settings[name]) != member.settings[name]:
                return None
    return shared


def commonest(candidates: Iterable[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """The most frequent settings; ties go to the later checkpoint, then to the first in order of their text."""
    counts = Counter(json.dumps(settings, sort_keys=True) for settings in candidates if settings is not None)
    ranked = sorted(counts, key=lambda text: (-counts[text], -_checkpoint_epoch(json.loads(text)), text))
    return json.loads(ranked[0]) if ranked else None


def _checkpoint_epoch(settings: Mapping[str, Any]) -> float:
    """The epoch of the checkpoint: infinite for the last one, -1 for anything that is not an epoch."""
    checkpoint: Any = settings.get("checkpoint")
    if checkpoint == LAST:
        return math.inf
    try:
        epoch = float(checkpoint)
    except (TypeError, ValueError, OverflowError):
        return -1.0
    return epoch if math.isfinite(epoch) else -1.0


def _left_out(
    units: Sequence[Sequence[MeasuredWith]], wanted: Mapping[str, Any], names: Sequence[str]
) -> Iterable[LeftOut]:
    """The runs with other settings than `wanted`, or, where nothing is wanted, than the first run of their unit."""
    for unit in units:
        expected = {**(unit[0].settings or {}), **wanted}
        for record, settings in unit:
            own = settings or {}
            different = [name for name in names if name in own and name in expected and own[name] != expected[name]]
            if different:
                why = "; ".join(f"{name} = {own[name]}, not {expected[name]}" for name in different)
                yield LeftOut(record, why)
