"""A store at a glance: a row for everything in it, each shown for what it is."""

from __future__ import annotations

from typing import Any

from semfocus.analysis.records import Record
from semfocus.errors import SemfocusError
from semfocus.store import RunStore


def overview(store: RunStore) -> list[dict[str, Any]]:
    """One row an entry; `why` says what is wrong with one that cannot be read as a run."""
    rows = []
    for entry in store.entries():
        row: dict[str, Any] = {"id": entry.name, "state": entry.state, "why": entry.why}
        try:
            if entry.config is not None:
                row |= _described(Record.read(store.open(entry.name))) | {"state": entry.state}
        except (SemfocusError, KeyError, TypeError) as error:
            row |= {"state": "corrupt", "why": f"{type(error).__name__}: {error}"}
        rows.append(row)
    return rows


def _described(record: Record) -> dict[str, Any]:
    return {
        "task": record.config["task"]["name"],
        "mechanism": record.mechanism,
        "seed": record.seed,
        "epoch": record.final("epoch") or 0,
        "epochs": record.horizon,
        "train_accuracy": record.final("train_accuracy"),
        "heldout_accuracy": record.final("heldout_accuracy"),
        "converged_at": record.converged_at,
        "seconds": record.seconds,
    }
