"""All scores at once, as matrix products: the best there is for short sequences, and able to do everything."""

from __future__ import annotations

import torch
from torch import Tensor

from semfocus.attention.info import AttentionInfo, info_from_mask
from semfocus.attention.inputs import Problem
from semfocus.attention.mechanisms import Full, Selective, TopK
from semfocus.attention.normalisers import Softmax
from semfocus.attention.positions import Places
from semfocus.attention.selection import keep_best, may_look


def dense(problem: Problem, want_info: bool = False) -> tuple[Tensor, AttentionInfo | None]:
    """Only tensor operations: works under compile, vmap and func.grad, with any mechanism and normaliser."""
    q, k, v = (tensor.to(problem.compute_dtype) for tensor in (problem.q, problem.k, problem.v))
    scores = (q @ k.transpose(-1, -2)) * problem.scale
    if problem.bias is not None:
        scores = scores + problem.bias
    places = problem.places()
    if _is_simple(problem) and not want_info:
        weights = problem.dropout(_simple_weights(problem, scores), places, places.key)
        return (weights @ v).to(problem.q.dtype), None
    valid = problem.valid()
    mechanism, normaliser = problem.mechanism, problem.normaliser
    keep = _keep(problem, scores.detach(), valid, places)
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
    harmless = problem.assume_finite or (type(mechanism) is Full and not problem.restricted)
    out = weights @ v if harmless else _mix(weights, keep, v)
    return out.to(problem.q.dtype), info


def _is_simple(problem: Problem) -> bool:
    """Whether every query keeps something, and all that it keeps is finite: then there is nothing to guard against."""
    mechanism = problem.mechanism
    chosen = type(mechanism) is Full or (type(mechanism) is TopK and not (mechanism.sinks or mechanism.window))
    trusted = problem.assume_finite and problem.bias is None and not problem.restricted and not problem.straight_through
    return chosen and trusted and type(problem.normaliser) is Softmax


def _simple_weights(problem: Problem, scores: Tensor) -> Tensor:
    if isinstance(problem.mechanism, TopK):
        scores = torch.where(keep_best(scores.detach(), None, problem.mechanism.k), scores, float("-inf"))
    return scores.softmax(dim=-1)


def _keep(problem: Problem, scores: Tensor, valid: Tensor | None, places: Places) -> Tensor:
    """What `mechanism.keep` says, by a faster way where there is one."""
    mechanism = problem.mechanism
    if not isinstance(mechanism, Selective):
        return mechanism.keep(scores, valid, causal=problem.causal, places=places, seed=problem.choice_seed)
    if type(mechanism) is TopK and not (mechanism.sinks or mechanism.window or problem.restricted):
        return keep_best(scores, None, mechanism.k)
    free, fixed = mechanism.candidates(scores, valid, problem.causal, places)
    chosen = keep_best(mechanism.priority(scores, places, problem.choice_seed), free, mechanism.k)
    return chosen if fixed is None else chosen | fixed


def _mix(weights: Tensor, keep: Tensor, v: Tensor) -> Tensor:
    """weights @ v, except that a value that is not finite spoils only the rows that keep it (0 * NaN is NaN)."""
    if may_look(v) and bool(v.detach().sum().isfinite()):
        return weights @ v
    finite = v.isfinite()
    spoiled = keep.to(v.dtype) @ (~finite).to(v.dtype) > 0
    return torch.where(spoiled, float("nan"), weights @ torch.where(finite, v, 0.0))
