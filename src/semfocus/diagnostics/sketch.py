"""Quantiles of a stream of values in bounded memory.

    sketch = Sketch(groups=4, error=0.01)           # one group for each head
    sketch.add(groups, values)                      # as often as you like; values >= 0, inf allowed
    sketch.quantiles((0.5, 1.0), group=2)

Up to `EXACT` values of a group are stored. Beyond that they are counted in cells whose borders grow by a constant
factor, so a quantile is within `error` (relative) of the value of that rank. The smallest and the largest value stay
exact. Values below `LOWEST` count as 0, values above `HIGHEST` as infinite.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import compress

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semfocus.diagnostics.scores import launch_bound
from semfocus.errors import UsageError
from semfocus.theory import aggregate

EXACT = 4096
LOWEST, HIGHEST = 1e-9, 1e39  # no two finite float32 scores lie further apart
ADDRESSES = 2**14  # over which comparisons are spread on a GPU


class Sketch:
    """Values by group. With several `rows`, whole columns are added at once."""

    def __init__(self, groups: int, error: float = 0.01, rows: int = 1) -> None:
        if not 0 < error < 1:
            raise UsageError(f"error = {error!r} must lie between 0 and 1")
        self.groups, self.error, self.rows = groups, error, rows
        self._step = math.log((1 + error) / (1 - error))
        # Cell 0 holds what counts as zero, the last one infinity.
        self._cells = math.ceil((math.log(HIGHEST) - math.log(LOWEST)) / self._step) + 2
        # Groups (n,) and values (rows, n), on the device where they were computed.
        nothing = torch.empty(0, dtype=torch.int64), torch.empty(rows, 0, dtype=torch.float64)
        self._kept: tuple[Tensor, Tensor] | None = nothing
        self._counts: Tensor | None = None  # (rows, groups, cells)
        self._ends: Tensor | None = None  # (2, rows, groups): the smallest of the values, and of their negatives
        self._read: tuple[NDArray[np.int64], NDArray[np.float64]] | None = None  # both on the host, once asked for

    @property
    def is_exact(self) -> bool:
        """Whether every value is still stored."""
        return self._kept is not None

    def count(self, group: int | None = None) -> int:
        """The number of columns added, to one group or to all."""
        if self._kept is None:
            counts = self._counted()[0][0]
            return int((counts if group is None else counts[group]).sum())
        groups, _ = self._values(self._kept)
        return len(groups) if group is None else int((groups == group).sum())

    def add(self, groups: Tensor, values: Tensor) -> None:
        """Add values (rows, n), or (n,) to one row, to the groups (n,) int64 that they belong to."""
        add_to_all([self], groups, values.reshape(self.rows, len(groups)), [len(groups)])

    def quantiles(self, levels: Sequence[float], group: int | None = None, row: int = 0) -> list[float | None]:
        """The quantiles of one group, or of all values together; None where there are none.

        Interpolated linearly while every value is stored; afterwards the value of the nearest lower rank.
        """
        if self._kept is not None:
            groups, values = self._values(self._kept)
            chosen = values[row] if group is None else values[row, groups == group]
            if not chosen.numel():
                return [None] * len(levels)
            return torch.as_tensor(aggregate(chosen, list(levels))).tolist()
        counts, ends = self._counted()
        counts, ends = counts[row], ends[:, row]
        counts, ends = (counts.sum(0), ends.min(-1)) if group is None else (counts[group], ends[:, group])
        return self._ranks(counts, levels, float(ends[0]), -float(ends[1]))

    @staticmethod
    def pooled(sketches: Iterable[Sketch]) -> Sketch:
        """The values of all these sketches, which have as many rows, as one group."""
        given = list(sketches)
        error, rows = max((sketch.error for sketch in given), default=0.01), max((s.rows for s in given), default=1)
        total = Sketch(1, error, rows)
        for sketch in given:
            if sketch._kept is None:
                if sketch.error != total.error:
                    raise UsageError(f"sketches of errors {sketch.error} and {total.error} cannot be put together")
                counts, ends = (torch.from_numpy(part) for part in sketch._counted())
                total._absorb(counts.sum(1, keepdim=True), ends.amin(-1, keepdim=True))
        for sketch in given:  # only now: what follows counted values is counted itself
            if sketch._kept is not None:
                groups, values = sketch._values(sketch._kept)
                total.add(torch.zeros_like(groups), values)
        return total

    def _has_room(self, columns: int) -> bool:
        return self._kept is not None and len(self._kept[0]) + columns <= EXACT * self.groups

    def _keep(self, groups: Tensor, values: Tensor) -> None:
        if self._kept is None:
            raise RuntimeError("values are kept only until they are counted")
        before = [part.to(values.device) for part in self._kept]
        self._kept = torch.cat([before[0], groups]), torch.cat([before[1], values.double()], dim=1)

    def _absorb(self, counts: Tensor, ends: Tensor) -> None:
        """Add counts made elsewhere, on their device; from now on no values are stored."""
        self._kept = self._read = None
        if self._counts is None or self._ends is None:
            self._counts, self._ends = counts.clone(), ends.clone()
        else:
            self._counts = self._counts.to(counts.device) + counts
            self._ends = torch.minimum(self._ends.to(ends.device), ends)

    def _values(self, kept: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The stored values, moved to the host."""
        self._kept = kept[0].cpu(), kept[1].cpu()
        return self._kept

    def _counted(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        if self._counts is None or self._ends is None:
            raise RuntimeError("a sketch keeps values or counts them")
        if self._read is None:
            self._read = self._counts.cpu().numpy(), self._ends.cpu().numpy()
        return self._read

    def _ranks(self, counts: NDArray[np.int64], levels: Sequence[float], low: float, high: float) -> list[float | None]:
        """The value of the nearest lower rank for each level."""
        running = counts.cumsum()
        total = int(running[-1])
        if not total:
            return [None] * len(levels)
        ranks = [math.floor(level * (total - 1)) for level in levels]
        cells = np.searchsorted(running, ranks, side="right").tolist()
        ends = {0: low, total - 1: high}
        return [ends.get(rank, self._middle(cell, low, high)) for rank, cell in zip(ranks, cells, strict=True)]

    def _middle(self, cell: int, low: float, high: float) -> float:
        """The point of a cell from which both borders are equally far, relatively."""
        if cell == 0:
            return max(0.0, low)
        if cell == self._cells - 1:
            return math.inf
        start = LOWEST * math.exp((cell - 1) * self._step)
        return min(max(start * 2 / (1 + math.exp(-self._step)), low), high)


def add_to_all(sketches: Sequence[Sketch], groups: Tensor, values: Tensor, sizes: Sequence[int]) -> None:
    """Add values (rows, n) to several sketches that are alike, `sizes` of the n columns to each.

    Their groups are numbered on: with two sketches of three groups, group 4 is group 1 of the second.
    """
    if not values.numel():
        return
    each = sketches[0].groups
    keeps = [sketch._has_room(size) for sketch, size in zip(sketches, sizes, strict=True)]
    if any(keeps):
        parts = [(groups, values)] if len(sketches) == 1 else _parted(groups, values, each, sizes)
        for sketch, part in compress(zip(sketches, parts, strict=True), keeps):
            sketch._keep(*part)
    if not all(keeps):
        counting = [(i, sketch) for i, sketch in enumerate(sketches) if not keeps[i]]
        # Their stored values are counted now, together with the new ones.
        before = [(i * each, *sketch._kept) for i, sketch in counting if sketch._kept and len(sketch._kept[0])]
        if before:
            groups = torch.cat([groups, *(kept.to(groups.device) + first for first, kept, _ in before)])
            values = torch.cat([values.double(), *(kept.to(values.device) for _, _, kept in before)], dim=1)
        counts, ends = _count(groups, values, each * len(sketches), sketches[0])
        counts, ends = counts.split(each, dim=1), ends.split(each, dim=2)
        for i, sketch in counting:
            sketch._absorb(counts[i], ends[i])


def _parted(groups: Tensor, values: Tensor, each: int, sizes: Sequence[int]) -> Iterable[tuple[Tensor, Tensor]]:
    """The columns of each sketch, by sorting: one mask for each sketch would synchronise each time."""
    order = (groups // each).argsort(stable=True)
    return zip((groups[order] % each).split(list(sizes)), values[:, order].split(list(sizes), dim=1), strict=True)


def _count(groups: Tensor, values: Tensor, count: int, like: Sketch) -> tuple[Tensor, Tensor]:
    """(rows, count, cells): how many values lie in each cell of a sketch like this one; and the ends of each group."""
    cells, values = like._cells, values.double()
    place = ((values.clamp(min=LOWEST).log() - math.log(LOWEST)) / like._step).floor().clamp(max=cells) + 1
    place = torch.where(values < LOWEST, 0, torch.where(values > HIGHEST, cells - 1, place))
    row = torch.arange(len(values), device=values.device).unsqueeze(-1)
    flat = ((row * count + groups) * cells + place.long().clamp(max=cells - 1)).flatten()
    counts = _occurrences(flat, len(values) * count * cells).view(-1, count, cells)
    return counts, extremes(groups, values, count)


def _occurrences(places: Tensor, count: int) -> Tensor:
    """(count,): how often each index occurs. On a GPU bincount would synchronise to read the largest index."""
    if not launch_bound(places.device):
        return torch.bincount(places, minlength=count)
    return places.new_zeros(count).scatter_add_(0, places, places.new_ones(()).expand_as(places))


def extremes(groups: Tensor, values: Tensor, count: int) -> Tensor:
    """(2, rows, count): the smallest of the values (rows, n) of each group, and of their negatives; infinite where
    there is none."""
    if count == 1:
        return torch.stack([values.amin(-1, keepdim=True), -values.amax(-1, keepdim=True)])
    # With one address for each group, thousands of GPU threads would wait for each other.
    lanes = max(1, ADDRESSES // count) if launch_bound(values.device) else 1
    address = (groups * lanes + torch.arange(len(groups), device=groups.device) % lanes).expand_as(values)
    low, high = (values.new_full((len(values), count * lanes), bound) for bound in (math.inf, -math.inf))
    low.scatter_reduce_(1, address, values, "amin")
    high.scatter_reduce_(1, address, values, "amax")
    return torch.stack([low, -high]).unflatten(-1, (count, lanes)).amin(-1)
