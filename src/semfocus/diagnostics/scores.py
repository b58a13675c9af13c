"""The scores of a call of attention as they enter the softmax, a chunk of queries at a time, and which of them count.

    for places in chunks(problem):
        scores, allowed = scores_of(problem, places)

They are computed anew in float32 (float64 stays). Shapes: R rows (batch), H heads, C queries of a chunk, K keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from semfocus.attention.inputs import AttentionInputs, slice_queries
from semfocus.attention.positions import Positions
from semfocus.diagnostics.launches import scores_at_once

# A float mask hides a key by a large negative number, of which every library has its own; all give the weight zero.
HIDDEN = -1e4


def chunks(inputs: AttentionInputs) -> Iterator[Positions]:
    if not inputs.lead.numel() or not inputs.num_keys:
        return
    step = max(1, scores_at_once(inputs.q.device) // (inputs.lead.numel() * inputs.num_keys))
    for first in range(0, inputs.num_queries, step):
        yield inputs.positions(first, min(step, inputs.num_queries - first))


def scores_of(inputs: AttentionInputs, positions: Positions) -> tuple[Tensor, Tensor | None]:
    """(*lead, C, K) scores as they enter the softmax, and which keys each query may see; None: all of them."""
    first = positions.first - inputs.first_query
    q = inputs.q[..., first : first + positions.queries, :].to(inputs.compute_dtype)
    scores = (q @ inputs.k.to(inputs.compute_dtype).transpose(-1, -2)) * inputs.scale
    valid, bias = inputs.valid(first, positions.queries), slice_queries(inputs.bias, first, positions.queries)
    if bias is not None:
        scores, unhidden = scores + bias, bias > HIDDEN
        valid = unhidden if valid is None else valid & unhidden
    whole = (*inputs.lead, *scores.shape[-2:])
    scores = scores.expand(whole)
    if not inputs.causal:
        open_to_all = scores.amin() > -torch.inf
        if bool(open_to_all if valid is None else open_to_all & valid.all()):
            return scores, None  # most passes over all scores can then be left out
    return scores, positions.allowed(scores != -torch.inf, valid, inputs.causal).expand(whole)


def visible_keys(inputs: AttentionInputs, shape: Sequence[int]) -> Tensor:
    """(R, H, K): keys that mask, bias and lengths do not hide from every query; the others are padding."""
    visible = torch.ones(inputs.num_keys, dtype=torch.bool, device=inputs.q.device)
    valid = inputs.valid()
    if valid is not None:
        visible = visible & valid.any(-2)
    if inputs.bias is not None:
        visible = visible & (inputs.bias > HIDDEN).any(-2)
    return visible.expand(*inputs.lead, inputs.num_keys).reshape(*shape, inputs.num_keys)


def counting_queries(inputs: AttentionInputs, positions: Positions, visible: Tensor) -> Tensor:
    """(R, H, C): where queries and keys are the same positions, a padding key is a padding query."""
    if inputs.num_queries != inputs.num_keys:
        return torch.ones(*visible.shape[:-1], positions.queries, dtype=torch.bool, device=visible.device)
    return visible[..., positions.first : positions.first + positions.queries]
