"""Statistics of a mask over the scores of a query: dispersion, separation, in-degree, sink ratio; and quantiles.

    scores   3.0  2.5  1.0  0.2      one query, as its scores enter the softmax (scale and bias included)
    keep      x    x    .    .
    dispersion 0.5   separation 1.5

Shapes: scores and keep (..., Lq, Lk). A key whose score is minus infinity has weight zero under any mask, so it counts
neither as kept nor as dropped. The distance of two scores of plus infinity is 0. A NaN affects the value of its own
query only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from semfocus.errors import UsageError
from semfocus.theory.arguments import aligned, fitting, number

_INF = float("inf")


def dispersion(scores: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Largest kept score minus smallest kept score: one value per query (..., Lq); 0 where no key is kept."""
    scores, keep = aligned(scores, keep=keep)
    kept = keep & (scores != -_INF)
    spread = _apart(_masked(scores, kept, -_INF).amax(-1), _masked(scores, kept, _INF).amin(-1))
    return torch.where(kept.any(-1), spread, 0.0)


def separation(scores: torch.Tensor, keep: torch.Tensor, valid: torch.Tensor | None = None) -> torch.Tensor:
    """Smallest kept score minus largest dropped score: one value per query (..., Lq).

    Keys outside `valid` (padding, the future) are neither kept nor dropped. Nothing dropped, or nothing kept:
    +inf. Negative where the kept keys are not the heaviest.
    """
    if valid is None:
        scores, keep = aligned(scores, keep=keep)
        counted = scores != -_INF
    else:
        scores, keep, valid = aligned(scores, keep=keep, valid=valid)
        counted = valid & (scores != -_INF)
    kept, dropped = keep & counted, ~keep & counted
    gap = _apart(_masked(scores, kept, _INF).amin(-1), _masked(scores, dropped, -_INF).amax(-1))
    return torch.where(kept.any(-1) | gap.isnan(), gap, _INF)


def in_degree(keep: torch.Tensor) -> torch.Tensor:
    """How many queries keep each key: (..., Lk), int64. The mask of a padding query must be all False."""
    return _mask("keep", keep).sum(-2)


def sink_ratio(keep: torch.Tensor, k: int | None = None) -> torch.Tensor:
    """beta = largest in-degree / k, for each (Lq, Lk) mask: shape (...).

    `k` defaults to the smallest number of keys that a query keeps, without queries that keep none: with it the
    bounds hold for irregular masks too. A mask that keeps nothing gives 0.
    """
    keep = _mask("keep", keep)
    heaviest = in_degree(keep).amax(-1).double()
    if k is not None:
        keys = number("k", k, at_least=1, finite=True)
        fitting(keep=heaviest, k=keys)
        return heaviest / keys
    kept = keep.sum(-1)
    fewest = torch.where(kept > 0, kept, keep.shape[-1]).amin(-1)
    return heaviest / fewest


def aggregate(values: Any, quantile: float | Sequence[float]) -> float | torch.Tensor:
    """The quantile(s) of all elements, between neighbours by linear interpolation.

    One quantile gives a float, several a tensor. Infinite elements are ordered like any other and never give NaN
    (between -inf and +inf the nearer one counts, the lower on a tie). A NaN among the values gives NaN, since a
    quantile without it would hide it.
    """
    ordered = number("values", values).flatten().sort().values
    if not ordered.numel():
        raise UsageError("values is empty: a quantile needs at least one value")
    levels = number("quantile", quantile, at_least=0)
    if bool((levels > 1).any()) or bool(levels.isnan().any()):
        raise UsageError(f"quantile = {quantile!r} must lie between 0 and 1")
    place = levels.to(ordered.device) * (ordered.numel() - 1)
    low, high = ordered[place.floor().long()], ordered[place.ceil().long()]
    share = place - place.floor()
    # At share 0 an infinite neighbour would make 0 * inf; low + share * (high - low) would make inf - inf.
    between = torch.where(share == 0, low, (1 - share) * low + share * high)
    between = torch.where((low == -_INF) & (high == _INF), torch.where(share > 0.5, high, low), between)
    result = torch.where(ordered[-1].isnan(), torch.nan, between)
    return result.item() if result.ndim == 0 else result


def _mask(name: str, mask: torch.Tensor) -> torch.Tensor:
    given = torch.as_tensor(mask)
    if given.dtype != torch.bool or given.ndim < 2 or 0 in given.shape[-2:]:
        raise UsageError(
            f"{name} must be a bool tensor of shape (..., Lq, Lk) with at least one query and one key, "
            f"not {given.dtype} {tuple(given.shape)}"
        )
    return given


def _apart(upper: torch.Tensor, lower: torch.Tensor) -> torch.Tensor:
    """upper - lower, and 0 where both are the same infinity."""
    return torch.where(upper == lower, 0.0, upper - lower)


def _masked(scores: torch.Tensor, mask: torch.Tensor, fill: float) -> torch.Tensor:
    return torch.where(mask, scores, fill)
