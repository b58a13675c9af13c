"""The oracle: each pair of query and key on its own, in the order in which the definition reads. Slow on purpose."""

from __future__ import annotations

import torch
from torch import Tensor

from semfocus.attention.info import AttentionInfo, info_from_mask
from semfocus.attention.inputs import Problem


def reference(problem: Problem, want_info: bool = False) -> tuple[Tensor, AttentionInfo | None]:
    """score -> which keys -> how much each counts -> sum of the kept values.

    A kept value that is not finite makes its channel of that row NaN; a dropped one has no effect at all.
    """
    q, k, v = (tensor.to(problem.compute_dtype) for tensor in (problem.q, problem.k, problem.v))
    scores = (q.unsqueeze(-2) * k.unsqueeze(-3)).sum(dim=-1) * problem.scale
    if problem.bias is not None:
        scores = scores + problem.bias
    scores = scores.expand(*problem.lead, *scores.shape[-2:])
    places = problem.places()
    keep = problem.mechanism.keep(
        scores, problem.valid(), causal=problem.causal, places=places, seed=problem.choice_seed
    ).expand(scores.shape)
    weights = problem.normaliser.weights(scores, keep)
    info = info_from_mask(scores, keep, weights, problem.mechanism.most(problem.num_keys)) if want_info else None
    if problem.straight_through:
        everything = places.allowed(scores != float("-inf"), problem.valid(), problem.causal)
        soft = problem.normaliser.weights(scores, everything)
        weights = soft + (weights - soft).detach()
    weights = problem.dropout(weights, places, places.key)
    finite = v.isfinite().unsqueeze(-3)
    values = torch.where(keep.unsqueeze(-1) & finite, v.unsqueeze(-3), 0.0)
    if problem.straight_through:  # the soft weights of dropped keys have a gradient, which needs their values
        values = torch.where(finite, v.unsqueeze(-3), 0.0)
    out = (weights.unsqueeze(-1) * values).sum(dim=-2)
    spoiled = (keep.unsqueeze(-1) & ~finite).any(dim=-2)
    return torch.where(spoiled, float("nan"), out).to(problem.q.dtype), info
