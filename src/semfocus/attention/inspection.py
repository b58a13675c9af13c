"""What can be seen of a call of `attend`, none of which changes its output.

    out, info = attend(q, k, v, TopK(8), return_info=True)     # the kept keys and their weights

    with observing(lambda inputs, grouped: print(inputs.mechanism, inputs.lead)):
        model(tokens)                                          # the inputs of each call inside the model

Without observers `attend` pays for one test of an empty list, which torch.compile folds away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from semfocus.attention.inputs import AttentionInputs
from semfocus.attention.normalisers import log_sum_exp
from semfocus.counter_rng import is_traced
from semfocus.errors import UsageError

Observer = Callable[[AttentionInputs, bool], None]  # the inputs, and whether heads are grouped (two dimensions)
observers: list[Observer] = []


@dataclass(frozen=True, eq=False)
class AttentionInfo:
    """Which keys are kept and their weights, before dropout. n is the most keys a query can keep.

    indices (..., H, Lq, n) int64   kept keys in increasing order, -1 for none
    weights (..., H, Lq, n)         the weight of each, 0 for none
    lse (..., H, Lq)                log of the sum of exp over the kept scores; -inf for a query without keys
    in_degree (..., H, Lk) int64    how many queries keep each key
    """

    indices: Tensor
    weights: Tensor
    lse: Tensor
    in_degree: Tensor

    def dense_weights(self, keys: int) -> Tensor:
        """(..., H, Lq, Lk): the weights as a matrix over `keys` keys."""
        empty = self.weights.new_zeros(*self.weights.shape[:-1], keys)
        return empty.scatter_add(-1, self.indices.clamp(min=0), self.weights)

    def ungrouped(self) -> AttentionInfo:
        """With grouped heads (Hkv, G) as one dimension H."""
        return AttentionInfo(
            self.indices.flatten(-4, -3),
            self.weights.flatten(-4, -3),
            self.lse.flatten(-3, -2),
            self.in_degree.flatten(-3, -2),
        )


def info_from_mask(scores: Tensor, keep: Tensor, weights: Tensor, most: int) -> AttentionInfo:
    """`AttentionInfo` from (..., Lq, Lk) tensors; `most` is n."""
    keys = keep.shape[-1]
    check_listed(keep.sum(dim=-1), most)
    order = torch.where(keep, torch.arange(keys, device=keep.device), keys).sort(dim=-1).values[..., :most]
    present = order < keys
    kept_weights = weights.gather(-1, order.clamp(max=max(keys - 1, 0)))
    return AttentionInfo(
        indices=torch.where(present, order, -1),
        weights=torch.where(present, kept_weights, 0.0),
        lse=log_sum_exp(scores, keep),
        in_degree=keep.sum(dim=-2),
    )


def check_listed(counts: Tensor, most: int) -> None:
    """Raise an error where queries keep more keys than a list of `most` holds."""
    if not is_traced() and counts.device.type != "meta" and counts.numel() and int(counts.max()) > most:
        raise UsageError(
            "k_positions: positions repeat among the keys that one query may see, so that it keeps "
            f"{int(counts.max())} keys and not at most {most}; give a mask that separates the texts of a row"
        )


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Call `observer` with the inputs of every call of `attend` inside this block, before it is computed."""
    observers.append(observer)
    try:
        yield
    finally:
        observers.remove(observer)


@torch.compiler.disable  # an observer is ordinary Python: while there is one, the graph breaks here
def report(inputs: AttentionInputs, grouped: bool) -> None:
    """Call all observers."""
    with torch.no_grad():
        for observer in list(observers):
            observer(inputs, grouped)
