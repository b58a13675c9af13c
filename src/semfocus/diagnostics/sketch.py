"""Quantiles of values that stream by, in memory that does not grow with them.

    sketch = Sketch(groups=4, error=0.01)           # one group a head
    sketch.add(groups, values)                      # as often as you like; values >= 0, inf allowed
    sketch.quantiles((0.5, 1.0), group=2)

Up to `EXACT` values a group are kept as they are. From then on they are counted in cells whose borders grow by a
constant factor, so that a quantile is within `error` (relative) of the value of that rank. The smallest and the
largest value stay exact. What lies below `LOWEST` counts as 0, above `HIGHEST` as infinite.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from semfocus.errors import UsageError
from semfocus.theory import aggregate

EXACT = 4096
LOWEST, HIGHEST = 1e-9, 1e9


class Sketch:
    """Values by group."""

    def __init__(self, groups: int, error: float = 0.01) -> None:
        if not 0 < error < 1:
            raise UsageError(f"error = {error!r} must lie between 0 and 1")
        self.groups, self.error = groups, error
        self._step = math.log((1 + error) / (1 - error))
        # Cell 0 holds what counts as zero, the last one infinity.
        self._cells = math.ceil((math.log(HIGHEST) - math.log(LOWEST)) / self._step) + 2
        self._kept: list[tuple[Tensor, Tensor]] | None = []
        self._num_kept = 0
        self._counts: Tensor | None = None
        self._low = torch.full((groups,), math.inf, dtype=torch.float64)
        self._high = torch.full((groups,), -math.inf, dtype=torch.float64)

    @property
    def is_exact(self) -> bool:
        """Whether every value is still there."""
        return self._kept is not None

    def count(self, group: int | None = None) -> int:
        """How many values were added, to one group or to all."""
        if self._counts is not None:
            return int((self._counts if group is None else self._counts[group]).sum())
        return self._num_kept if group is None else int(sum((g == group).sum() for g, _ in self._kept or []))

    def add(self, groups: Tensor, values: Tensor) -> None:
        """Add values (n,) to the groups (n,) int64 that they belong to."""
        add_rows([self], groups, values.unsqueeze(0))

    def quantiles(self, levels: Sequence[float], group: int | None = None) -> list[float | None]:
        """The quantiles of one group, or of all values together; None where there are none.

        While every value is there, linear between neighbours; afterwards the value of the nearest lower rank.
        """
        if self._kept is not None:
            parts = [values if group is None else values[g == group] for g, values in self._kept]
            values = torch.cat(parts) if parts else torch.empty(0)
            if not values.numel():
                return [None] * len(levels)
            return torch.as_tensor(aggregate(values, list(levels))).tolist()
        if self._counts is None:
            raise RuntimeError("a sketch keeps values or counts them")
        counts = self._counts.sum(0) if group is None else self._counts[group]
        low, high = (self._low.amin(), self._high.amax()) if group is None else (self._low[group], self._high[group])
        return self._ranks(counts.cpu(), levels, low.item(), high.item())

    @staticmethod
    def pooled(sketches: Iterable[Sketch]) -> Sketch:
        """The values of all these sketches, as one group."""
        given = list(sketches)
        total = Sketch(1, max((sketch.error for sketch in given), default=0.01))
        for sketch in given:
            if sketch._kept is not None:
                for groups, values in sketch._kept:
                    total.add(torch.zeros_like(groups), values)
            elif sketch._counts is not None:
                if sketch.error != total.error:
                    raise UsageError(f"sketches of errors {sketch.error} and {total.error} cannot be put together")
                total._spill()
                total._merge(sketch)
        return total

    def _merge(self, other: Sketch) -> None:
        if self._counts is None or other._counts is None:
            raise RuntimeError("only counted values can be merged")
        self._counts += other._counts.sum(0, keepdim=True).to(self._counts.device)
        self._low = torch.minimum(self._low, other._low.amin().to(self._low.device))
        self._high = torch.maximum(self._high, other._high.amax().to(self._high.device))

    def _has_room(self, values: int) -> bool:
        return self._kept is not None and self._num_kept + values <= EXACT * self.groups

    def _keep(self, groups: Tensor, values: Tensor) -> None:
        if self._kept is None:
            raise RuntimeError("values are kept only until they are counted")
        self._kept.append((groups.cpu(), values.double().cpu()))
        self._num_kept += values.numel()

    def _spill(self) -> None:
        """From keeping to counting."""
        if self._kept is None:
            return
        kept, self._kept = self._kept, None
        self._counts = torch.zeros(self.groups, self._cells, dtype=torch.int64)
        for groups, values in kept:
            _count_rows([self], groups, values.unsqueeze(0))

    def _absorb(self, counts: Tensor, low: Tensor, high: Tensor) -> None:
        """Add what was counted elsewhere, on its device."""
        if self._counts is None:
            raise RuntimeError("values are counted only after the first few were kept")
        self._counts = self._counts.to(counts.device) + counts
        self._low = torch.minimum(self._low.to(low.device), low)
        self._high = torch.maximum(self._high.to(high.device), high)

    def _ranks(self, counts: Tensor, levels: Sequence[float], low: float, high: float) -> list[float | None]:
        """The value of the nearest lower rank for each level."""
        running = counts.cumsum(0)
        total = int(running[-1])
        if not total:
            return [None] * len(levels)
        ranks = [math.floor(level * (total - 1)) for level in levels]
        cells = torch.searchsorted(running, torch.tensor(ranks), right=True).tolist()
        ends = {0: low, total - 1: high}
        return [ends.get(rank, self._middle(cell, low, high)) for rank, cell in zip(ranks, cells, strict=True)]

    def _middle(self, cell: int, low: float, high: float) -> float:
        """The middle of a cell in the sense that both of its borders are equally far, relatively."""
        if cell == 0:
            return max(0.0, low)
        if cell == self._cells - 1:
            return math.inf
        start = LOWEST * math.exp((cell - 1) * self._step)
        return min(max(start * 2 / (1 + math.exp(-self._step)), low), high)


def add_rows(sketches: Sequence[Sketch], groups: Tensor, values: Tensor) -> None:
    """Add row s of values (S, n) to the s-th sketch. Sketches of one kind, to which all was added together, take few
    operations more than one alone: what counts where a GPU is faster than the host that tells it what to do."""
    if not values.numel():
        return
    if all(sketch._has_room(values.shape[1]) for sketch in sketches):
        for sketch, row in zip(sketches, values, strict=True):
            sketch._keep(groups, row)
        return
    for sketch in sketches:
        sketch._spill()
    _count_rows(sketches, groups, values)


def _count_rows(sketches: Sequence[Sketch], groups: Tensor, values: Tensor) -> None:
    count, cells, step = sketches[0].groups, sketches[0]._cells, sketches[0]._step
    values = values.double()
    place = ((values.clamp(min=LOWEST).log() - math.log(LOWEST)) / step).floor().clamp(max=cells) + 1
    place = torch.where(values < LOWEST, 0, torch.where(values > HIGHEST, cells - 1, place))
    row = torch.arange(len(sketches), device=values.device).unsqueeze(-1)
    flat = (row * count + groups) * cells + place.long().clamp(max=cells - 1)
    counted = torch.bincount(flat.flatten(), minlength=len(sketches) * count * cells).view(-1, count, cells)
    for sketch, own, low, high in zip(sketches, counted, *extremes(groups, values, count), strict=True):
        sketch._absorb(own, low, high)


def extremes(groups: Tensor, values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(S, count): the smallest and the largest of values (S, n) in each group; infinities where there is none."""
    if count == 1:
        return values.amin(-1, keepdim=True), values.amax(-1, keepdim=True)
    if values.is_cuda:  # scattered, all values of a group would wait for one address
        own, spread = groups == torch.arange(count, device=groups.device).unsqueeze(-1), values.unsqueeze(1)
        return torch.where(own, spread, math.inf).amin(-1), torch.where(own, spread, -math.inf).amax(-1)
    low, high = (values.new_full((len(values), count), bound) for bound in (math.inf, -math.inf))
    index = groups.expand_as(values)
    return low.scatter_reduce_(1, index, values, "amin"), high.scatter_reduce_(1, index, values, "amax")
