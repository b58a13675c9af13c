"""The paper's Table 6 for stored runs: dispersions, separation, in-degree, W and X, percentile by percentile.

The paper takes delta_s from a model trained with full attention and the rest from a model trained with top-k
(`two_models`). Both can also come from one model (`one_model`), where delta_heavy + separation <= delta_full for every
query. `PUBLISHED` are the paper's numbers (arXiv 2506.14095, k = 5, one seed), with W and X computed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from semfocus.analysis.conditions import condition
from semfocus.errors import UsageError
from semfocus.measurements import Dispersion
from semfocus.measurements.kinds import Checkpoint

COLUMNS = ("75", "90", "95", "100")
FLOOR = 1e-9  # the paper's, under separations: a tie would make every bound infinite
PAPER_K = 5
Way = Literal["two models", "one model", "published"]

# The sequence length; delta_s, delta_h, Delta_h and the in-degree at COLUMNS.
PUBLISHED: dict[str, tuple[int, tuple[tuple[float, ...], ...]]] = {
    "listops": (
        599, ((8.61, 18.5, 29.4, 87.8), (3.51, 6.74, 9.67, 28.2), (0.016, 0.005, 0.002, 1e-9), (1, 3, 15, 598)),
    ),
    "parity": (40, ((8.30, 10.1, 11.2, 19.4), (2.31, 3.13, 3.78, 9.16), (0.062, 0.022, 0.011, 1e-6), (8, 13, 16, 33))),
    "even_pairs": (
        40, ((2.03, 4.73, 9.44, 14.6), (1.03, 2.84, 5.50, 8.25), (0.009, 0.003, 0.002, 3e-8), (6, 17, 26, 40)),
    ),
    "missing_duplicate": (
        40, ((4.63, 9.25, 17.1, 23.9), (2.36, 4.25, 4.88, 10.5), (0.018, 0.006, 0.003, 1e-7), (7, 15, 21, 40)),
    ),
}  # fmt: skip


def published(task: str) -> dict[str, Any] | None:
    """The paper's row for this task; None if it has none."""
    if task not in PUBLISHED:
        return None
    length, lines = PUBLISHED[task]
    cells = {
        percent: condition(full, heavy, gap, degree, k=PAPER_K, length=length).to_dict()
        for percent, full, heavy, gap, degree in zip(COLUMNS, *lines, strict=True)
    }
    return {"way": "published", "task": task, "k": PAPER_K, "length": length, "cells": cells}


def two_models(full: Dispersion, heavy: Dispersion, checkpoint: str = "last") -> dict[str, Any]:
    """The paper's way, from the "dispersion" measurements of a full and of a top-k run."""
    whole, focused = _at(full, checkpoint), _at(heavy, checkpoint)
    sources = {"delta_full": whole, "delta_heavy": focused, "separation": focused, "in_degree": focused}
    names = {"delta_heavy": "delta"}  # what the top-k model itself keeps
    return _row("two models", heavy.k, checkpoint, sources, names, whole.keys)


def one_model(measured: Dispersion, checkpoint: str = "last") -> dict[str, Any]:
    """Both dispersions from the same scores of one run."""
    whole = _at(measured, checkpoint)
    sources = dict.fromkeys(("delta_full", "delta_heavy", "separation", "in_degree"), whole)
    return _row("one model", measured.k, checkpoint, sources, {}, whole.keys)


def _row(
    way: Way,
    k: int,
    checkpoint: str,
    sources: Mapping[str, Checkpoint],
    names: Mapping[str, str],
    length: int,
) -> dict[str, Any]:
    fewest = min(source.fewest_keys for source in sources.values())
    keys = {"length": length, "fewest": fewest, "uneven": any(source.uneven for source in sources.values())}
    cells = {}
    for percent in COLUMNS:
        numbers = [getattr(source, names.get(name, name)).or_infinite(percent) for name, source in sources.items()]
        known = [number for number in numbers if number is not None]
        if len(known) == len(sources):
            spread, heavy, gap, degree = known
            cell = condition(spread, heavy, max(gap, FLOOR), degree, k=k, **keys)
            cells[percent] = cell.to_dict()
    diverged = all(source.queries == 0 for source in sources.values())
    epochs = sorted({source.epoch for source in sources.values()})
    about = {"way": way, "k": k, "checkpoint": checkpoint, "epochs": epochs, **keys}
    return about | {"diverged": diverged, "cells": cells}


def _at(measured: Dispersion, checkpoint: str) -> Checkpoint:
    known = measured.checkpoints
    if checkpoint not in known:
        raise UsageError(f"checkpoint {checkpoint!r} was not measured; there are: {', '.join(known)}")
    return known[checkpoint]
