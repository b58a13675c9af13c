"""The k keys of highest priority for each query. Ties go to the lowest index; NaN ranks before all numbers.

An infinite priority counts as the largest number of its type, so that NaN can be ranked as infinity.

Shapes: priorities and candidates (..., Lk), one line for each query.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from semfocus.counter_rng import is_traced

MINUS_INF = float("-inf")
SHORT = 128  # up to so many keys, numpy's partition is faster than torch's topk
FEW = 16  # up to so many rounds of argmax, compiled, are faster than the library's topk


def can_sync(tensor: Tensor) -> bool:
    """Whether Python may branch on data: not while they are traced, and not where it would wait for a GPU."""
    return tensor.device.type == "cpu" and not is_traced() and type(tensor) in (Tensor, Parameter)


def topk_mask_by_sorting(priority: Tensor, candidates: Tensor, k: int) -> Tensor:
    """(..., Lk) bool: the definition. The first k candidates, ordered by priority and then by index."""
    order = _order(priority.expand(candidates.shape), candidates)
    first = torch.zeros_like(candidates).scatter(-1, order[..., :k], torch.ones_like(candidates[..., :k]))
    return first & candidates


def _order(priority: Tensor, candidates: Tensor) -> Tensor:
    """(..., Lk) int64: all keys, candidates first, then by priority, then by index."""
    order = _without_nan(priority).sort(dim=-1, descending=True, stable=True).indices
    return order.gather(
        -1, candidates.gather(-1, order).to(torch.int8).sort(dim=-1, descending=True, stable=True).indices
    )


def _without_nan(priority: Tensor) -> Tensor:
    """The same order in numbers that compare: NaN as infinity, before infinity as the largest number."""
    largest = torch.finfo(priority.dtype).max
    return torch.where(priority.isnan(), float("inf"), priority.clamp(max=largest))


def topk_mask(priority: Tensor, candidates: Tensor | None, k: int) -> Tensor:
    """(..., Lk) bool: the same, faster. `candidates` None means every key whose priority is not -inf.

    Branches on data only where `can_sync`, so that it works under compile, vmap and on every device.
    """
    ranked = priority if candidates is None else torch.where(candidates, priority, MINUS_INF)
    if k < priority.shape[-1] and can_sync(ranked):
        border, following = _border(ranked, k)
        unusual = (border == following) | ~border.isfinite()
        if not bool(unusual.any()):
            return ranked >= border.unsqueeze(-1)
    allowed = ranked != MINUS_INF if candidates is None else candidates
    if k >= priority.shape[-1]:
        return allowed
    ranked = _without_nan(ranked)
    if torch.compiler.is_compiling() and k <= FEW:
        return _keep_by_rounds(ranked, allowed, k)
    kth = ranked.topk(k, dim=-1).values[..., -1:]
    above = ranked > kth
    tied = (ranked == kth) & allowed
    room = k - above.sum(dim=-1, keepdim=True)
    return above | (tied & (tied.cumsum(dim=-1) <= room))


def _border(ranked: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k-th and the next largest value; the k-th is NaN where one of the k largest is.

    numpy's partition does not sort the k largest: for few keys it takes a quarter of the time of torch's topk.
    """
    if type(ranked) is Tensor and ranked.shape[-1] <= SHORT and ranked.dtype in (torch.float32, torch.float64):
        last = ranked.shape[-1] - k
        parts = np.partition(ranked.detach().numpy(), last - 1, axis=-1)
        return torch.as_tensor(parts[..., last:].min(axis=-1)), torch.as_tensor(parts[..., last - 1])
    best = ranked.topk(k + 1, dim=-1).values
    return torch.where(best[..., 0].isnan(), best[..., 0], best[..., k - 1]), best[..., k]


def _keep_by_rounds(ranked: Tensor, candidates: Tensor, k: int) -> Tensor:
    """k rounds of argmax: a compiler keeps the priorities of a query in registers through all of them."""
    index = torch.arange(ranked.shape[-1], device=ranked.device)
    left = candidates  # a candidate of priority -inf is one until it is taken, and other keys never are
    for _ in range(k):
        best = torch.where(left, ranked, MINUS_INF).amax(dim=-1, keepdim=True)
        first = torch.where(left & (ranked == best), index, ranked.shape[-1]).amin(dim=-1, keepdim=True)
        left = left & (index != first)
    return candidates & ~left


def best_indices(priority: Tensor, candidates: Tensor | None, k: int) -> Tensor:
    """(..., min(k, Lk)) int64: the same choice as indices in no particular order, -1 where candidates are fewer.

    Branches on data: only queries whose k-th place is contested pay for a stable sort.
    """
    size = priority.shape[-1]
    ranked = priority if candidates is None else torch.where(candidates, priority, MINUS_INF)
    values, indices = ranked.topk(min(k + 1, size), dim=-1)
    if size > k:
        last, following = values[..., k - 1], values[..., k]
        contested = (last == following) | ~last.isfinite()
        values, indices = values[..., :k], indices[..., :k]
        if candidates is None:
            contested &= last != MINUS_INF
        elif bool(contested.any()):
            # Most queries whose k-th priority is -inf have fewer than k candidates, and no contest.
            beaten = (candidates & (ranked == MINUS_INF)).any(dim=-1)
            contested &= (last != MINUS_INF) | beaten
        if bool(contested.any()):
            rows = ranked[contested]
            among = rows != MINUS_INF if candidates is None else candidates.expand_as(ranked)[contested]
            indices = indices.masked_scatter(contested.unsqueeze(-1), _order(rows, among)[..., :k])
            values = ranked.gather(-1, indices)
    present = values != MINUS_INF if candidates is None else candidates.expand_as(ranked).gather(-1, indices)
    return torch.where(present, indices, -1)
