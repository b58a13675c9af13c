"""A metric over epochs, for many seeds as one: median and quartiles.

A curve is made of ended runs; one that stopped early keeps its last value. While no run has ended, the curve is made of
the runs in progress, as far as all of them have come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semfocus.analysis.records import Record
from semfocus.training.objective import CLASSIFICATION

METRICS = CLASSIFICATION.column_texts
Floats = NDArray[np.float64]
Quantiles = tuple[float, float, float]  # lower end of the band, line, upper end
QUARTILES: Quantiles = (0.25, 0.5, 0.75)


@dataclass(frozen=True, eq=False)
class Series:
    """Quantiles of one metric at each epoch; NaN where too many runs have no finite value."""

    epochs: Floats
    low: Floats
    middle: Floats
    high: Floats
    runs: int
    in_progress: bool


def shown_runs(runs: Sequence[Record]) -> tuple[list[Record], bool]:
    """The runs that a curve is made of, and whether they are still in progress."""
    ended = [run for run in runs if run.ended and run.metrics]
    return (ended, False) if ended else ([run for run in runs if run.metrics], True)


def series(runs: Sequence[Record], metric: str, shares: Quantiles = QUARTILES) -> Series | None:
    """The curve of several seeds; None when nothing was measured."""
    shown, in_progress = shown_runs([run for run in runs if run.final(metric) is not None])
    if not shown:
        return None
    columns = [columns_of(run, metric) for run in shown]
    epochs = np.unique(np.concatenate([own for own, _ in columns]))
    if in_progress:
        epochs = epochs[epochs <= min(own[-1] for own, _ in columns)]
    low, middle, high = quantiles(np.stack([held(own, values, epochs) for own, values in columns]), shares)
    return Series(epochs, low, middle, high, len(shown), in_progress)


def columns_of(run: Record, metric: str) -> tuple[Floats, Floats]:
    """Epochs and values of one run."""
    return run.column("epoch").astype(np.float64), run.column(metric).astype(np.float64)


def held(own: Floats, values: Floats, epochs: Floats) -> Floats:
    """Values at other epochs: the last one measured by then, or the first one before any was."""
    return values[np.maximum(np.searchsorted(own, epochs, side="right") - 1, 0)]


def quantiles(values: Floats, shares: Quantiles = QUARTILES) -> tuple[Floats, Floats, Floats]:
    """Quantiles over runs, the first axis; a value that is not finite counts as the largest.

    (runs, epochs) -> three of (epochs,), NaN where a quantile is not finite.
    """
    ordered = np.sort(np.where(np.isfinite(values), values, np.inf), axis=0)
    low, middle, high = (_quantile(ordered, share) for share in shares)
    return low, middle, high


def _quantile(ordered: Floats, share: float) -> Floats:
    place = share * (len(ordered) - 1)
    below, above = ordered[int(np.floor(place))], ordered[int(np.ceil(place))]
    known = np.isfinite(above)
    start, end = np.where(known, below, 0.0), np.where(known, above, 0.0)
    return np.where(known, start + (place % 1) * (end - start), np.nan)
