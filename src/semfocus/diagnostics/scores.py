"""The scores of a call of attention as they enter the softmax, in chunks of queries, and order statistics of them.

    for positions in chunks(inputs):
        scores, allowed = scores_of(inputs, positions)

Scores are recomputed in float32 (float64 stays). Shapes: R sequences, H heads, C queries of a chunk, K keys.

On a CPU a pass over a chunk is fast while the chunk stays near the caches. On a GPU an operation of this size takes
less time than its launch, so fewer and larger operations are faster. `limited` changes how much is computed at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from semfocus.attention.arguments import prepare_inputs
from semfocus.attention.inputs import AttentionInputs, slice_queries
from semfocus.attention.mechanisms import Full
from semfocus.attention.normalisers import Softmax
from semfocus.attention.positions import Positions


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much is computed and held at once. Results do not depend on it, beyond rounding."""

    launch_bound: frozenset[str] = frozenset({"cuda"})  # device types
    scores_in_caches: int = 2**20  # 4 MiB, which stay in the caches for about twenty passes
    scores_per_launch: int = 2**24  # 64 MiB, and about ten times as much while they are measured
    held_bytes: int = 2**28  # of calls that wait to be measured together


DEFAULTS = Limits()
_limits: ContextVar[Limits] = ContextVar("limits", default=DEFAULTS)


@contextmanager
def limited(**changes: Any) -> Iterator[None]:
    """Change some of the limits inside this block."""
    token = _limits.set(replace(_limits.get(), **changes))
    try:
        yield
    finally:
        _limits.reset(token)


def launch_bound(device: torch.device) -> bool:
    """Whether the launch of an operation takes longer than its work."""
    return device.type in _limits.get().launch_bound


def scores_at_once(device: torch.device) -> int:
    """The number of scores that are held and measured together."""
    return _limits.get().scores_per_launch if launch_bound(device) else _limits.get().scores_in_caches


def held_bytes() -> int:
    """The bytes of calls that may wait to be measured together."""
    return _limits.get().held_bytes


# A float mask hides a key by a large negative number. Libraries use different numbers; all of them give weight 0.
HIDDEN = -1e4


def full_attention_inputs(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None, gqa: bool,
    softcap: float | None = None, sinks: Tensor | None = None,
) -> AttentionInputs:  # fmt: skip
    """The inputs of softmax attention over every key that the mask leaves, as `attend` prepares them."""
    return prepare_inputs(
        q, k, v, Full(), normaliser=Softmax(), causal=causal, mask=mask, lengths=None, scale=scale, dropout_p=0.0,
        generator=None, seed=None, enable_gqa=gqa, straight_through=False, assume_finite=False,
        softcap=softcap, sinks=sinks,
    )  # fmt: skip


def chunks(inputs: AttentionInputs) -> Iterator[Positions]:
    """The positions of consecutive queries whose scores are held together."""
    if not inputs.lead.numel() or not inputs.num_keys:
        return
    step = max(1, scores_at_once(inputs.q.device) // (inputs.lead.numel() * inputs.num_keys))
    for first in range(0, inputs.num_queries, step):
        yield inputs.positions(first, min(step, inputs.num_queries - first))


def scores_of(inputs: AttentionInputs, positions: Positions) -> tuple[Tensor, Tensor | None]:
    """(*lead, C, K) scores as they enter the softmax, and which keys each query may see; None: all of them."""
    first = positions.first - inputs.first_query
    q = inputs.q[..., first : first + positions.queries, :].to(inputs.compute_dtype)
    scores = inputs.capped((q @ inputs.k.to(inputs.compute_dtype).transpose(-1, -2)) * inputs.scale)
    valid, bias = inputs.valid(first, positions.queries), slice_queries(inputs.bias, first, positions.queries)
    if bias is not None:
        scores, unhidden = scores + bias, bias > HIDDEN
        valid = unhidden if valid is None else valid & unhidden
    whole = (*inputs.lead, *scores.shape[-2:])
    scores = scores.expand(whole)
    if not inputs.causal and positions.given is None:
        open_to_all = scores.amin() > -torch.inf
        if bool(open_to_all if valid is None else open_to_all & valid.all()):
            return scores, None  # the caller can then skip most passes over the scores
    return scores, positions.allowed(scores != -torch.inf, valid, inputs.causal).expand(whole)


def visible_keys(inputs: AttentionInputs, shape: Sequence[int]) -> Tensor:
    """(R, H, K): keys that some query may see; the others, hidden by mask, bias or lengths, are padding."""
    visible = torch.ones(inputs.num_keys, dtype=torch.bool, device=inputs.q.device)
    valid = inputs.valid()
    if valid is not None:
        visible = visible & valid.any(-2)
    if inputs.bias is not None:
        visible = visible & (inputs.bias > HIDDEN).any(-2)
    if inputs.k_positions is not None:
        visible = visible & (inputs.k_positions >= 0).squeeze(-2)
    return visible.expand(*inputs.lead, inputs.num_keys).reshape(*shape, inputs.num_keys)


def counting_queries(inputs: AttentionInputs, positions: Positions, visible: Tensor) -> Tensor:
    """(R, H, C): where queries and keys are the same positions, a padding key is a padding query."""
    if inputs.num_queries != inputs.num_keys:
        return torch.ones(*visible.shape[:-1], positions.queries, dtype=torch.bool, device=visible.device)
    return visible[..., positions.first : positions.first + positions.queries]


def running_sums(weights: Tensor) -> Tensor:
    """Cumulative sums along the keys. A GPU is twenty times as fast if many short rows lie side by side."""
    if not launch_bound(weights.device):
        return weights.cumsum(-1)
    return weights.movedim(-1, 0).contiguous().cumsum(0).movedim(0, -1).contiguous()


def sort_descending(scores: Tensor) -> Tensor:
    """The scores of each query, largest first, NaN before all. On a CPU numpy sorts five times as fast as torch."""
    if scores.device.type != "cpu":
        return scores.sort(dim=-1, descending=True).values
    return torch.from_numpy(np.sort(scores.numpy(), axis=-1)).flip(-1)


def kth_largest(ordered: Tensor, rank: Tensor) -> Tensor:
    """The score of each query at this rank, from 1; a query without one gets any score, and does not count."""
    place = (rank - 1).clamp(min=0, max=ordered.shape[-1] - 1)
    return ordered.gather(-1, place.unsqueeze(-1)).squeeze(-1)


def heaviest_mask(masked: Tensor, heavy_low: Tensor, tied: Tensor, k: int) -> Tensor:
    """(R, H, C, K): the k heaviest keys of each query; where the last is `tied` with the next, the first index wins."""
    border = heavy_low.unsqueeze(-1)
    chosen = masked >= border
    rows = tied.nonzero(as_tuple=True)
    if len(rows[0]):
        above, level = masked[rows] > border[rows], masked[rows] == border[rows]
        room = k - above.sum(-1, keepdim=True)
        chosen[rows] = above | (level & (level.cumsum(-1) <= room))
    return chosen


def score_gap(high: Tensor, low: Tensor) -> Tensor:
    """high - low in float64: two finite float32 scores can be further apart than float32 goes."""
    return high.double() - low.double()
