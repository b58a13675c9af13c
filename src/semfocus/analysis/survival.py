"""Epochs to a threshold, if some runs never reach it.

    times = ConvergenceTimes.of({7: 54.0, 8: 61.5, 9: None}, horizon=100)      # epochs by seed; None: never

    times.median             61.5     where the Kaplan-Meier curve crosses one half
    times.restricted_mean    71.8     mean epochs; a run that never reaches it counts 100
    times.curve()            1 until 54, 2/3 until 61.5, 1/3 until 100

All runs of a task train to the same horizon, so that a run is censored there or not at all. A diverged run counts as
never reaching the threshold. An unfinished run belongs in no `ConvergenceTimes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from semfocus.analysis.pairing import Floats, positions, seed_order
from semfocus.errors import UsageError


class Curve(NamedTuple):
    """A right-continuous step curve: `waiting[i]` holds from `epochs[i]` up to the next one."""

    epochs: Floats  # starts with 0
    waiting: Floats  # the share of runs that have not reached the threshold


@dataclass(frozen=True, eq=False)
class ConvergenceTimes:
    """Epochs to the threshold of one task and mechanism, one run per seed, in the order of the seeds.

    Epochs may be fractions. The value in `epochs` of a run that has not reached the threshold is replaced by the
    horizon.
    """

    epochs: Floats
    reached: NDArray[np.bool_]
    horizon: float
    seeds: tuple[int, ...]

    def __post_init__(self) -> None:
        order, seeds = seed_order(self.seeds)
        horizon = float(self.horizon)
        if not 0 < horizon < np.inf:
            raise UsageError(f"horizon = {self.horizon} must be a positive number of epochs")
        reached = np.asarray(self.reached)
        if reached.size and reached.dtype != np.bool_:
            raise UsageError(f"reached must be True or False for each run, not {reached.dtype}")
        epochs = np.asarray(self.epochs, dtype=np.float64)
        if epochs.shape != (len(seeds),) or reached.shape != epochs.shape:
            raise UsageError(
                f"epochs {epochs.shape} and reached {reached.shape} must have one entry for each of the "
                f"{len(seeds)} seeds"
            )
        epochs = np.where(reached, epochs, horizon)[order]
        reached = reached.astype(bool)[order]
        for seed, epoch in zip(seeds, epochs, strict=True):
            if not 0 < epoch <= horizon:
                raise UsageError(
                    f"epochs = {epoch} of seed {seed} must lie above 0 and not beyond the horizon {horizon:g}; "
                    "a run that never got there is given as not reached (None)"
                )
        epochs.setflags(write=False)
        reached.setflags(write=False)
        for name, value in (("epochs", epochs), ("reached", reached), ("horizon", horizon), ("seeds", seeds)):
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, epochs: Mapping[int, float | None], *, horizon: float) -> ConvergenceTimes:
        """From epochs by seed; None for a run that never reached the threshold, including diverged ones."""
        reached = np.array([value is not None for value in epochs.values()], dtype=bool)
        filled = np.array([horizon if value is None else value for value in epochs.values()], dtype=np.float64)
        return cls(filled, reached, horizon, tuple(epochs))

    def __len__(self) -> int:
        return len(self.seeds)

    def only(self, seeds: Sequence[int]) -> ConvergenceTimes:
        """The runs of these seeds only."""
        at = positions(self.seeds, seeds)
        return ConvergenceTimes(self.epochs[at], self.reached[at], self.horizon, tuple(seeds))

    def until(self, horizon: float) -> ConvergenceTimes:
        """The same runs as if training had stopped at an earlier horizon."""
        if horizon > self.horizon:
            raise UsageError(f"horizon = {horizon:g} exceeds {self.horizon:g}, up to which these runs were trained")
        return ConvergenceTimes(self.epochs, self.reached & (self.epochs <= horizon), horizon, self.seeds)

    def curve(self) -> Curve:
        """The Kaplan-Meier curve up to the horizon.

        No run is censored earlier, so that the product of conditional shares telescopes to a plain count.
        """
        if not len(self):
            raise UsageError("no runs: a Kaplan-Meier curve needs at least one")
        steps, arrivals = np.unique(self.epochs[self.reached], return_counts=True)
        waiting = (len(self) - np.concatenate([[0], np.cumsum(arrivals)])) / len(self)
        return Curve(np.concatenate([[0.0], steps]), waiting)

    @property
    def median(self) -> float | None:
        """The Kaplan-Meier median; the middle of the flat section if the curve equals one half there.

        None if it lies beyond the horizon: at most half of the runs reached the threshold.
        """
        if not len(self):
            return None
        middle = float(np.median(np.where(self.reached, self.epochs, np.inf)))
        return middle if np.isfinite(middle) else None

    @property
    def restricted_mean(self) -> float | None:
        """Mean epochs up to the horizon: the area under the Kaplan-Meier curve. None without runs."""
        return float(np.mean(self.epochs)) if len(self) else None


def logrank_scores(epochs: ArrayLike, reached: ArrayLike) -> Floats:
    """The log-rank score of each run (last axis): its arrival (0 or 1) minus its expected arrivals so far.

        score_i = reached_i - sum over arrivals j with t_j <= t_i of 1 / #(runs still waiting just before t_j)

    Scores sum to zero, early runs score high, and the scores of one arm sum to observed minus expected arrivals, the
    log-rank statistic. Arrivals at the same epoch share their score. A run that never arrives waits longer than any
    that does, also than one that arrives at the horizon.
    """
    arrived = np.asarray(reached, dtype=bool)
    moment = np.where(arrived, np.asarray(epochs, dtype=np.float64), np.inf)
    waiting = np.sum(moment[..., None, :] >= moment[..., :, None], axis=-1)
    hazard = arrived / waiting
    return arrived - np.sum(np.where(moment[..., None, :] <= moment[..., :, None], hazard[..., None, :], 0.0), axis=-1)
