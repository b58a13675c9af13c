"""Which keys each query keeps, as a list of indices: by position alone, or by the rank of its scores.

Shapes: *lead batch dimensions and heads, C queries of a chunk, n keys kept by a query.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from semfocus.attention.base import SelectionInputs
from semfocus.attention.inputs import AttentionInputs, shared_product, slice_queries
from semfocus.attention.inspection import check_listed
from semfocus.attention.kept_pairs import Vectors, look_up, pair_scores
from semfocus.attention.positions import Positions
from semfocus.attention.selection import best_indices


def select_keys(inputs: AttentionInputs, positions: Positions, q_chunk: Tensor, keys: Vectors) -> tuple[Tensor, Tensor]:
    """The kept keys (*lead, C, n), in increasing order with -1 last, and their scores."""
    if inputs.mechanism.is_local:
        kept = _near(inputs, positions)
        kept = kept.expand(*inputs.lead, *kept.shape[-2:])
        kept = ordered(kept, inputs.num_keys)[..., : inputs.num_keys]
        scores = pair_scores(inputs, positions, q_chunk, keys.gather(kept), kept)
        return torch.where(scores == float("-inf"), -1, kept), scores
    all_keys = keys.flat.view(*inputs.k.shape)
    if _is_plain_causal(inputs):
        kept, scores = _select_before(inputs, positions, q_chunk, all_keys)
        return kept, scores.gather(-1, kept.clamp(min=0))
    scores = inputs.capped(shared_product(q_chunk, all_keys.transpose(-1, -2)).mul_(inputs.scale))  # (*lead, C, Lk)
    bias = slice_queries(inputs.bias, positions.first, positions.queries)
    if bias is not None:
        scores = scores + bias
    kept = _chosen(inputs, inputs.selection(scores, q_chunk, all_keys, positions))
    return kept, scores.gather(-1, kept.clamp(min=0))


def is_listed_by_position(inputs: AttentionInputs) -> bool:
    """Whether positions alone give the list of keys of a query, without a look at all keys."""
    return inputs.mechanism.is_local and inputs.k_positions is None


def _near(inputs: AttentionInputs, positions: Positions) -> Tensor:
    """(.., C, n): the keys that a local mechanism keeps, -1 for none."""
    mechanism = inputs.mechanism
    if is_listed_by_position(inputs):
        kept = mechanism.indices(positions, inputs.causal)
        return torch.where(_allowed(inputs, positions, kept), kept, -1)
    valid = inputs.valid(positions.first - inputs.first_query, positions.queries)
    unused = torch.zeros((), device=inputs.q.device).expand(positions.queries, inputs.num_keys)  # scores
    keep = mechanism.choose(SelectionInputs(unused, positions, valid, inputs.causal))
    check_listed(keep.sum(dim=-1), mechanism.max_listed(inputs.num_keys))
    return _listed(keep, mechanism.max_listed(inputs.num_keys))


def _listed(keep: Tensor, most: int) -> Tensor:
    """(.., C, most): the keys of a mask (.., C, Lk), -1 for none."""
    held, indices = keep.to(torch.int8).topk(most, dim=-1)
    return torch.where(held > 0, indices, -1)


def _is_plain_causal(inputs: AttentionInputs) -> bool:
    """Whether queries keep their k best of all keys up to their own, and nothing else matters."""
    others = (inputs.mask, inputs.bias, inputs.lengths, inputs.k_positions)
    plain = inputs.causal and all(tensor is None for tensor in others) and inputs.num_queries <= inputs.num_keys
    return plain and inputs.mechanism.keeps_largest is not None


def _select_before(
    inputs: AttentionInputs, positions: Positions, q_chunk: Tensor, all_keys: Tensor
) -> tuple[Tensor, Tensor]:
    """The kept keys (*lead, C, n), and scores (*lead, C, P) of the P keys up to the last query's, masked in place."""
    k, queries = inputs.mechanism.keeps_largest, positions.queries
    assert k is not None
    end = positions.first + queries + positions.keys - positions.total
    scores = inputs.capped(shared_product(q_chunk, all_keys[..., :end, :].transpose(-1, -2)).mul_(inputs.scale))
    later = torch.ones(queries, queries, dtype=torch.bool, device=scores.device).triu(1)
    scores[..., end - queries :].masked_fill_(later, float("-inf"))
    kept = ordered(best_indices(scores, None, k), end)
    return pad(kept, (0, inputs.mechanism.max_kept(inputs.num_keys) - kept.shape[-1]), value=-1), scores


def _chosen(inputs: AttentionInputs, selection: SelectionInputs) -> Tensor:
    """(*lead, C, n): the keys that a ranked mechanism keeps, in increasing order with -1 last."""
    mechanism = inputs.mechanism
    k = mechanism.keeps_largest
    if k is not None and not inputs.restricted:
        kept = best_indices(selection.scores, None, k)  # a score of -inf ranks last by itself
        return ordered(kept, inputs.num_keys)
    ranking = mechanism.ranking(selection)
    kept = best_indices(ranking.priority, ranking.candidates, ranking.k)
    if ranking.always_kept is not None:
        most = mechanism.max_kept(inputs.num_keys)
        kept = torch.cat([kept, _listed(ranking.always_kept, most).expand(*kept.shape[:-1], -1)], dim=-1)
        if inputs.k_positions is not None:
            check_listed((kept >= 0).sum(dim=-1), most)
    return ordered(kept, inputs.num_keys)[..., : mechanism.max_kept(inputs.num_keys)]


def ordered(kept: Tensor, num_keys: int) -> Tensor:
    """Indices in increasing order, -1 last."""
    in_order = torch.where(kept < 0, num_keys, kept).sort(dim=-1).values
    return torch.where(in_order == num_keys, -1, in_order)


def _allowed(inputs: AttentionInputs, positions: Positions, kept: Tensor) -> Tensor:
    """Which indices of a list (C, n) causality, mask and lengths leave."""
    allowed = kept >= 0
    if inputs.causal:
        allowed = allowed & (kept <= positions.position)
    mask = slice_queries(inputs.mask, positions.first, positions.queries)
    if mask is not None:
        allowed = allowed & look_up(mask, kept)
    if inputs.lengths is not None:
        allowed = allowed & (kept < inputs.lengths)
    return allowed
