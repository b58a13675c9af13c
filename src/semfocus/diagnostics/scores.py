"""The scores of a call of attention as they enter the softmax, a chunk of queries at a time, and which of them count.

    for places in chunks(problem):
        scores, allowed = scores_of(problem, places)

They are computed anew in float32 (float64 stays). Shapes: R rows (batch), H heads, C queries of a chunk, K keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from semfocus.attention.inputs import Problem, rows_of
from semfocus.attention.positions import Places
from semfocus.diagnostics.launches import scores_at_once

# A float mask hides a key by a large negative number, of which every library has its own; all give the weight zero.
HIDDEN = -1e4


def chunks(problem: Problem) -> Iterator[Places]:
    if not problem.lead.numel() or not problem.num_keys:
        return
    step = max(1, scores_at_once(problem.q.device) // (problem.lead.numel() * problem.num_keys))
    for first in range(0, problem.num_queries, step):
        yield problem.places(first, min(step, problem.num_queries - first))


def scores_of(problem: Problem, places: Places) -> tuple[Tensor, Tensor | None]:
    """(*lead, C, K) scores as they enter the softmax, and which keys each query may see; None: all of them."""
    first = places.first - problem.first_query
    q = problem.q[..., first : first + places.queries, :].to(problem.compute_dtype)
    scores = (q @ problem.k.to(problem.compute_dtype).transpose(-1, -2)) * problem.scale
    valid, bias = problem.valid(first, places.queries), rows_of(problem.bias, first, places.queries)
    if bias is not None:
        scores, unhidden = scores + bias, bias > HIDDEN
        valid = unhidden if valid is None else valid & unhidden
    whole = (*problem.lead, *scores.shape[-2:])
    scores = scores.expand(whole)
    if not problem.causal:
        open_to_all = scores.amin() > -torch.inf
        if bool(open_to_all if valid is None else open_to_all & valid.all()):
            return scores, None  # most passes over all scores can then be left out
    return scores, places.allowed(scores != -torch.inf, valid, problem.causal).expand(whole)


def visible_keys(problem: Problem, shape: Sequence[int]) -> Tensor:
    """(R, H, K): keys that mask, bias and lengths do not hide from every query; the others are padding."""
    visible = torch.ones(problem.num_keys, dtype=torch.bool, device=problem.q.device)
    valid = problem.valid()
    if valid is not None:
        visible = visible & valid.any(-2)
    if problem.bias is not None:
        visible = visible & (problem.bias > HIDDEN).any(-2)
    return visible.expand(*problem.lead, problem.num_keys).reshape(*shape, problem.num_keys)


def counting_queries(problem: Problem, places: Places, visible: Tensor) -> Tensor:
    """(R, H, C): where queries and keys are the same positions, a padding key is a padding query."""
    if problem.num_queries != problem.num_keys:
        return torch.ones(*visible.shape[:-1], places.queries, dtype=torch.bool, device=visible.device)
    return visible[..., places.first : places.first + places.queries]
