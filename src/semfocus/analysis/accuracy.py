"""Accuracy over seeds: level, spread, and the difference between two mechanisms.

    topk = Accuracies.of({7: 0.93, 8: 0.95, 9: 0.91, 10: 0.94})
    topk.median, topk.quartiles, topk.interquartile_mean
    accuracy_difference(full, topk).interval      of the mean of other - full, seed by seed

Accuracies are fractions of 1. The caller chooses the epoch they come from; verdicts use the last one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from semfocus.analysis.intervals import (
    ACCURACY_MARGIN,
    Equivalence,
    Interval,
    NonInferiority,
    equivalence,
    mean_interval,
    non_inferiority,
    too_few,
)
from semfocus.analysis.pairing import Floats, Unpaired, paired_seeds, positions, seed_order
from semfocus.errors import UsageError


@dataclass(frozen=True, eq=False)
class Accuracies:
    """Accuracies of one task and mechanism, one run per seed, in the order of the seeds."""

    values: Floats
    seeds: tuple[int, ...]

    def __post_init__(self) -> None:
        order, seeds = seed_order(self.seeds)
        values = np.asarray(self.values, dtype=np.float64)
        if values.shape != (len(seeds),):
            raise UsageError(f"accuracies {values.shape} must have one entry for each of the {len(seeds)} seeds")
        values = values[order]
        for seed, value in zip(seeds, values, strict=True):
            if not 0 <= value <= 1:
                raise UsageError(f"accuracy = {value} of seed {seed} must be a fraction between 0 and 1")
        values.setflags(write=False)
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "seeds", seeds)

    @classmethod
    def of(cls, values: Mapping[int, float]) -> Accuracies:
        """From accuracies by seed."""
        return cls(np.array(list(values.values()), dtype=np.float64), tuple(values))

    def __len__(self) -> int:
        return len(self.seeds)

    def only(self, seeds: Sequence[int]) -> Accuracies:
        """The runs of these seeds only."""
        return Accuracies(self.values[positions(self.seeds, seeds)], tuple(seeds))

    @property
    def mean(self) -> float | None:
        """The mean; None without runs, as for the other statistics."""
        return float(np.mean(self.values)) if len(self) else None

    @property
    def median(self) -> float | None:
        """The median."""
        return float(np.median(self.values)) if len(self) else None

    @property
    def quartiles(self) -> tuple[float, float] | None:
        """The lower and the upper quartile, interpolated linearly."""
        if not len(self):
            return None
        low, high = np.quantile(self.values, [0.25, 0.75])
        return float(low), float(high)

    @property
    def interquartile_mean(self) -> float | None:
        """The mean of the middle half: a quarter of the runs, rounded down, is dropped at either end."""
        if not len(self):
            return None
        dropped = len(self) // 4
        return float(np.mean(np.sort(self.values)[dropped : len(self) - dropped]))

    @property
    def interval(self) -> Interval | None:
        """Student's t interval of the mean; None below three runs."""
        return mean_interval(self.values)

    def near(self, level: float) -> Equivalence:
        """Whether the mean is within two points of `level`, for example chance."""
        return equivalence(mean_interval(self.values - level), ACCURACY_MARGIN)


@dataclass(frozen=True)
class AccuracyDifference:
    """The difference in accuracy between the other arm and full attention, over the seeds they share."""

    mean: float | None  # of other - full; None without a shared seed
    median: float | None
    interval: Interval | None  # of the mean: Student's t on the paired differences
    pairs: int
    left_out: tuple[Unpaired, ...]
    why: str = ""

    def equivalence(self) -> Equivalence:
        """Whether the two differ by at most two points."""
        return equivalence(self.interval, ACCURACY_MARGIN)

    def non_inferiority(self) -> NonInferiority:
        """Whether the other arm is at most two points worse."""
        return non_inferiority(self.interval, ACCURACY_MARGIN)


def accuracy_difference(full: Accuracies, other: Accuracies) -> AccuracyDifference:
    """Other minus full, seed by seed."""
    seeds, left_out = paired_seeds(full.seeds, other.seeds)
    differences = other.only(seeds).values - full.only(seeds).values
    return AccuracyDifference(
        mean=float(np.mean(differences)) if seeds else None,
        median=float(np.median(differences)) if seeds else None,
        interval=mean_interval(differences),
        pairs=len(seeds),
        left_out=left_out,
        why=too_few(len(seeds)),
    )
