"""Whole payloads of every kind, of which a test changes what it is about."""

from __future__ import annotations

from typing import Any

from semfocus.measurements.kinds import PERCENTILES, PERCENTS, SPREADS
from semfocus.store import RunDirectory, read_measurement
from semfocus.store.measurements import measurement_names


def checkpoint(epoch: float = 0.0, **spreads: float | dict[str, float | None] | None) -> dict[str, Any]:
    """The same number at every percent where one is given; `spreads` by name, the others are 1."""
    values = {name: spreads.get(name, 1.0) for name in SPREADS}
    full = {
        name: dict.fromkeys(PERCENTS) | value if isinstance(value, dict) else dict.fromkeys(PERCENTS, value)
        for name, value in values.items()
    }
    return {"epoch": epoch, "keys": 40, **full}


def dispersion(checkpoints: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return {"k": 5, "split": "train", "rows": 100, "checkpoints": checkpoints or {"last": checkpoint()}} | fields


def mask_stability(kept: list[float | None], **fields: Any) -> dict[str, Any]:
    groups = {"borders": [0.1], "kept": [[share, share] for share in kept]}
    noise = [0.1 * (i + 1) for i in range(len(kept))]
    usual = {"k": 5, "split": "train", "rows": 100, "noise": noise, "kept": kept, "by_separation": groups}
    return usual | fields


def surface(slopes: list[float | None], **fields: Any) -> dict[str, Any]:
    """`slopes` per distance and per step, at every percentile; one for each square."""
    table = {str(percentile): list(slopes) for percentile in PERCENTILES}
    usual = {"grid": 51, "extent": 1.0, "directions": "random", "rows": 100, "squares": [0.1, 0.7]}
    return usual | {"per_distance": table, "per_step": table} | fields


def sharpness(**fields: Any) -> dict[str, Any]:
    usual = {"epochs": [0.0, 1.0], "gradient_norm": [2.0, None], "hessian_top": [30.0, 4.0], "rows": 100}
    return usual | {"certified": None} | fields


def stored(run: RunDirectory) -> dict[str, dict[str, Any] | None]:
    """Every document of a run, by name."""
    return {name: read_measurement(run, name) for name in measurement_names(run)}
