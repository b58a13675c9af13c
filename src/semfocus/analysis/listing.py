"""Rows of a store's overview, chosen and sorted: what `semfocus runs` shows.

chosen(results.overview(), task=["parity"], settings=["blocks 6"])
in_order(rows, "-heldout_accuracy")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from semfocus.analysis.groups import mechanism_order
from semfocus.errors import unknown

Row = dict[str, Any]
# What rows can be sorted by, as people write it, and the value of a row that it means.
KEYS = {
    "run": "id", "task": "task", "settings": "settings", "mechanism": "mechanism", "seed": "seed", "state": "state",
    "epochs": "epoch", "train": "train_accuracy", "heldout": "heldout_accuracy", "learned": "converged_at",
    "time": "seconds",
}  # fmt: skip


def chosen(
    rows: Sequence[Row],
    *,
    task: Sequence[str] = (),
    mechanism: Sequence[str] = (),
    state: Sequence[str] = (),
    settings: Sequence[str] = (),
) -> list[Row]:
    """The rows that have one of the given values of each field; all settings that are given have to be there.

    A value that no row has is an error: most likely it is misspelt.
    """
    for name, values in (("task", task), ("mechanism", mechanism), ("state", state)):
        known = sorted({str(row[name]) for row in rows if name in row})
        for value in values:
            if value not in known:
                raise unknown(f"{name} in this store", value, known)
    every = sorted({part for row in rows for part in _parts(row)})
    for value in settings:
        if value not in every:
            raise unknown("setting in which runs of this store differ", value, every)
    return [
        row
        for row in rows
        if all(not wanted or row.get(name) in wanted for name, wanted in
               (("task", task), ("mechanism", mechanism), ("state", state)))
        and set(settings) <= {*_parts(row)}
    ]  # fmt: skip


def in_order(rows: Sequence[Row], by: str) -> list[Row]:
    """The rows sorted by one of `KEYS`, `-heldout` from the largest down; what has no value comes last."""
    name = by.removeprefix("-")
    if name not in KEYS:
        raise unknown("column to sort by", name, list(KEYS))
    there = [row for row in rows if row.get(KEYS[name]) is not None]
    rest = [row for row in rows if row.get(KEYS[name]) is None]
    key = mechanism_order if name == "mechanism" else lambda value: value
    return [*sorted(there, key=lambda row: key(row[KEYS[name]]), reverse=by.startswith("-")), *rest]


def _parts(row: Row) -> list[str]:
    """`["blocks 6", "heads 2"]`"""
    return [part for part in str(row.get("settings", "")).split(", ") if part]
