"""All scores at once, as matrix products: the best there is for short sequences, and able to do everything."""

from __future__ import annotations

import torch
from torch import Tensor

from semfocus.attention.info import AttentionInfo, info_from_mask
from semfocus.attention.mechanisms import Full, Selective, TopK
from semfocus.attention.normalisers import Softmax
from semfocus.attention.places import Places
from semfocus.attention.problem import Problem
from semfocus.attention.selection import keep_best, may_look


def dense(problem: Problem, want_info: bool = False) -> tuple[Tensor, AttentionInfo | None]:
    """Only tensor operations: works under compile, vmap and func.grad, with any mechanism and normaliser."""
    q, k, v = (tensor.to(problem.compute_dtype) for tensor in (problem.q, problem.k, problem.v))
    scores = (q @ k.transpose(-1, -2)) * problem.scale
    if problem.bias is not None:
        scores = scores + problem.bias
    places = problem.places()
    valid = problem.valid()
    mechanism, normaliser = problem.mechanism, problem.normaliser
    keep = _keep(problem, scores.detach(), valid, places)
    if isinstance(normaliser, Softmax) and not problem.restricted and problem.num_queries <= problem.num_keys:
        # No row can be without keys, which spares the care for such rows.
        weights = torch.where(keep, scores, float("-inf")).softmax(dim=-1)
    else:
        weights = normaliser.weights(scores, keep)
    info = None
    if want_info:
        whole = (*problem.lead, *scores.shape[-2:])
        info = info_from_mask(
            scores.expand(whole), keep.expand(whole), weights.expand(whole), mechanism.most(problem.num_keys)
        )
    if problem.straight_through:
        everything = places.allowed(scores.detach() != float("-inf"), valid, problem.causal)
        soft = normaliser.weights(scores, everything)
        weights = soft + (weights - soft).detach()
    weights = problem.dropout(weights, places, places.key)
    harmless = problem.assume_finite or (isinstance(mechanism, Full) and not problem.restricted)
    out = weights @ v if harmless else _mix(weights, keep, v)
    return out.to(problem.q.dtype), info


def _keep(problem: Problem, scores: Tensor, valid: Tensor | None, places: Places) -> Tensor:
    """What `mechanism.keep` says, by a faster way where there is one."""
    mechanism = problem.mechanism
    if not isinstance(mechanism, Selective):
        return mechanism.keep(scores, valid, causal=problem.causal, places=places, seed=problem.choice_seed)
    forced = mechanism.forced(places, problem.causal)
    if isinstance(mechanism, TopK) and forced is None and not problem.restricted:
        return keep_best(scores, None, mechanism.k)
    candidates = places.allowed(scores != float("-inf"), valid, problem.causal)
    free = candidates if forced is None else candidates & ~forced
    chosen = keep_best(mechanism.priority(scores, places, problem.choice_seed), free, mechanism.k) & free
    return chosen if forced is None else chosen | (candidates & forced)


def _mix(weights: Tensor, keep: Tensor, v: Tensor) -> Tensor:
    """weights @ v, except that a value that is not finite spoils only the rows that keep it (0 * NaN is NaN)."""
    if may_look(v) and bool(v.detach().sum().isfinite()):
        return weights @ v
    finite = v.isfinite()
    spoiled = keep.to(v.dtype) @ (~finite).to(v.dtype) > 0
    return torch.where(spoiled, float("nan"), weights @ torch.where(finite, v, 0.0))
