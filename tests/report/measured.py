"""Measurements of synthetic runs, as `diagnose`, `surface` and `sharpness` store them."""

from __future__ import annotations

import math
import zlib
from typing import Any

import numpy as np

from semfocus.measurements import grid_axis
from semfocus.measurements.kinds import PERCENTILES, PERCENTS, SPREADS
from semfocus.measurements.surface import SQUARES, slopes
from semfocus.store import RunDirectory
from semfocus.store.measurements import write_arrays, write_measurement

EPOCHS = (0.0, 1.0, 5.0, 20.0)
KEY = b"k" * 32


def measure(run: RunDirectory, grid: int = 21) -> None:
    """Store one measurement of each kind with the run."""
    write_measurement(run, "dispersion", dispersion(run))
    write_measurement(run, "mask_stability", mask_stability(run))
    write_measurement(run, "sharpness", sharpness(run))
    payload, arrays = surface(run, grid)
    write_measurement(run, "surface", payload)
    write_arrays(run, "surface", arrays)


def dispersion(run: RunDirectory) -> dict[str, Any]:
    draw, focused = _draw(run)
    scale = float(draw.uniform(3, 9)) * (0.6 if focused else 1.0)
    checkpoints = {f"{epoch:g}": _checkpoint(epoch, scale) for epoch in EPOCHS}
    return {
        "k": 5,
        "split": "train",
        "rows": 100,
        "error": 0.001,
        "checkpoints": checkpoints | {"last": checkpoints["20"]},
    }


def _checkpoint(epoch: float, scale: float) -> dict[str, Any]:
    grown = scale * (0.3 + math.log1p(epoch) / 3)
    worse = dict(zip(PERCENTS, (0.3, 0.5, 0.7, 0.8, 1.6), strict=True))
    spreads = {
        "delta": {p: grown * worse[p] for p in PERCENTS},
        "delta_full": {p: grown * worse[p] for p in PERCENTS},
        "delta_heavy": {p: 0.4 * grown * worse[p] for p in PERCENTS},
        "separation": {p: 0.05 * grown / worse[p] ** 4 for p in PERCENTS},
        "in_degree": {p: 2.0 + 9 * worse[p] for p in PERCENTS},
    }
    assert set(spreads) == set(SPREADS)
    return {"epoch": epoch, "keys": 40, "infinite": {}, **spreads}


def mask_stability(run: RunDirectory) -> dict[str, Any]:
    draw, focused = _draw(run)
    noise = [0.001, 0.01, 0.1, 0.3]
    kept = [float(1 - (0.3 if focused else 0.6) * size ** float(draw.uniform(0.3, 0.5))) for size in noise]
    rows = [[share * (0.8 + 0.05 * i) for i in range(5)] for share in kept]
    groups = {"borders": [1e-3, 1e-2, 1e-1, 1.0], "kept": rows}
    return {"k": 5, "split": "train", "rows": 100, "noise": noise, "kept": kept, "by_separation": groups}


def sharpness(run: RunDirectory) -> dict[str, Any]:
    draw, focused = _draw(run)
    sizes = [float(draw.uniform(0.5, 2)) * (3 if focused else 1) / (1 + epoch) for epoch in EPOCHS]
    along_training = {"epochs": list(EPOCHS), "gradient_norm": sizes, "hessian_top": [40 * size for size in sizes]}
    return {**along_training, "certified": [1e6 * size for size in sizes], "rows": 100}


def surface(run: RunDirectory, grid: int = 21) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    draw, focused = _draw(run)
    axis, lengths = grid_axis(grid, 1.0), [30.0, 30.0]
    across, up = np.meshgrid(axis, axis)
    bumps = sum(float(draw.uniform(0, 0.3)) * np.sin(i * across + float(draw.uniform(0, 6))) ** 2 for i in range(1, 5))
    losses = 0.01 + (0.6 if focused else 1.5) * (across**2 + 1.4 * up**2) + bumps
    payload = {
        "grid": grid, "extent": 1.0, "directions": "random", "seed": 0, "rows": 100, "lengths": lengths,
        "lowest": float(losses.min()), "highest": float(losses.max()), "not_finite": 0, "squares": list(SQUARES),
        "percentiles": list(PERCENTILES), **slopes(losses, axis, lengths), "key": KEY.hex(),
    }  # fmt: skip
    plan = np.array([1, 1, 1, losses.size], dtype=np.int64)
    return payload, {"losses": losses, "key": np.frombuffer(KEY, dtype=np.uint8), "plan": plan}


def _draw(run: RunDirectory) -> tuple[np.random.Generator, bool]:
    mechanism = run.config()["attention"]["mechanism"]
    return np.random.default_rng(zlib.crc32(run.id.encode())), mechanism.startswith("topk")
