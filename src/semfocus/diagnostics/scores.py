"""What one call of attention looked like: numbers for each query, key and head, a chunk of queries at a time.

    measured = examine(problem, grouped=False, k=8)
    measured.queries["delta_full"]          (n,) one value for each query that counts; its head in `query_heads`

Scores are computed anew in float32 (float64 stays). Of a chunk all scores are held at once, of the rest nothing but
O(L) numbers a head. Shapes: R rows (batch), H heads, C queries of a chunk, K keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from semfocus.attention.mechanisms import Full, TopK
from semfocus.attention.places import Places
from semfocus.attention.problem import Problem, rows_of

CHUNK_ELEMENTS = 2**20  # scores held at once: 4 MiB, which stays near the caches through some twenty passes
# A float mask hides a key by a large negative number, of which every library has its own; all give the weight zero.
HIDDEN = -1e4
SHARES = {"k95": 0.95, "k99": 0.99}
PER_QUERY = (
    "delta", "delta_full", "delta_heavy", "separation", "entropy", "top_share", "k95", "k99", "jacobian",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Measured:
    """The numbers of one call.

    queries      by name, (n,): delta over the keys that the mechanism keeps, delta_full over all it may see,
                 delta_heavy and separation of its k heaviest, entropy (nats) and the weight of the k heaviest
                 (top_share) under full attention, the fewest keys that hold 95 % and 99 % of that weight, and the
                 1-norm of the softmax's Jacobian under full attention
    in_degree    (m,): for each key that some query may see, how many have it among their k heaviest
    sink_share   (R * H,): the largest share of a head's attention that one key receives
    """

    heads: int
    queries: dict[str, Tensor]
    query_heads: Tensor
    in_degree: Tensor
    key_heads: Tensor
    sink_share: Tensor
    sink_heads: Tensor
    longest: int  # keys of the call
    most_seen: int  # keys that any query may see
    empty: Tensor  # (H,) queries that may see no key; padding is not counted at all
    not_finite: Tensor  # (H,) queries with a score that is NaN or infinite


def examine(problem: Problem, grouped: bool, k: int) -> Measured:
    """Look at every query of a call. `grouped`: its heads are the last two leading dimensions, not one."""
    with _onlooking(problem.q.device):
        return _examine(problem, grouped, k)


@contextmanager
def _onlooking(device: torch.device) -> Iterator[None]:
    """No gradients, no autocast, full float32 products; all as before afterwards."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _examine(problem: Problem, grouped: bool, k: int) -> Measured:
    heads = problem.lead[-2:] if grouped else problem.lead[-1:]
    shape = (problem.lead[: len(problem.lead) - len(heads)].numel(), heads.numel())
    visible = visible_keys(problem, shape)
    total = _Totals(shape, problem.num_keys, problem.q.device)
    parts: list[tuple[dict[str, Tensor], Tensor]] = []
    for places in chunks(problem):
        scores, allowed = scores_of(problem, places)
        kept = _kept(problem, places, scores, allowed)
        scores = scores.reshape(*shape, *scores.shape[-2:])
        allowed = None if allowed is None else allowed.reshape(scores.shape)
        counts = counting_queries(problem, places, visible)
        parts.append(_chunk(scores, allowed, kept, counts, k, total))
    head_of = torch.arange(shape[1], device=problem.q.device)
    in_degree, key_heads = _where(visible & total.seen, total.in_degree, head_of.view(1, -1, 1))
    shares = total.received.amax(-1) / total.usable.clamp(min=1)
    sink_share, sink_heads = _where(total.usable > 0, shares, head_of)
    return Measured(
        heads=shape[1],
        queries={name: _joined([values[name] for values, _ in parts]) for name in PER_QUERY} if parts else {},
        query_heads=_joined([owner for _, owner in parts]) if parts else head_of[:0],
        in_degree=in_degree,
        key_heads=key_heads,
        sink_share=sink_share,
        sink_heads=sink_heads,
        longest=problem.num_keys,
        most_seen=total.most_seen,
        empty=total.empty.sum(0),
        not_finite=total.not_finite.sum(0),
    )


def _where(chosen: Tensor, *tensors: Tensor) -> list[Tensor]:
    """The entries of these where `chosen`; a look at whether that is everywhere costs less than a search."""
    whole, everywhere = [tensor.expand_as(chosen) for tensor in tensors], bool(chosen.all())
    return [tensor.flatten() if everywhere else tensor[chosen] for tensor in whole]


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


class _Totals:
    """What is summed over the chunks of one call."""

    def __init__(self, shape: tuple[int, int], keys: int, device: torch.device) -> None:
        self.in_degree = torch.zeros(*shape, keys, dtype=torch.int64, device=device)
        self.received = torch.zeros(*shape, keys, device=device)
        self.seen = torch.zeros(*shape, keys, dtype=torch.bool, device=device)
        self.usable, self.empty, self.not_finite = (
            torch.zeros(shape, dtype=torch.int64, device=device) for _ in range(3)
        )
        self.most_seen = 0


def chunks(problem: Problem) -> Iterator[Places]:
    if not problem.lead.numel() or not problem.num_keys:
        return
    step = max(1, CHUNK_ELEMENTS // (problem.lead.numel() * problem.num_keys))
    for first in range(0, problem.num_queries, step):
        yield problem.places(first, min(step, problem.num_queries - first))


def scores_of(problem: Problem, places: Places) -> tuple[Tensor, Tensor | None]:
    """(*lead, C, K) scores as they enter the softmax, and which keys each query may see; None: all of them."""
    first = places.first - problem.first_query
    q = problem.q[..., first : first + places.queries, :].to(problem.compute_dtype)
    scores = (q @ problem.k.to(problem.compute_dtype).transpose(-1, -2)) * problem.scale
    pattern = torch.ones((), dtype=torch.bool, device=scores.device)
    bias = rows_of(problem.bias, first, places.queries)
    if bias is not None:
        scores, pattern = scores + bias, bias > HIDDEN
    whole = (*problem.lead, *scores.shape[-2:])
    scores, valid = scores.expand(whole), problem.valid(first, places.queries)
    hides = problem.causal or not bool(pattern.all()) or (valid is not None and not bool(valid.all()))
    if not hides and bool(scores.amin() > -torch.inf):  # most passes over all scores can then be left out
        return scores, None
    allowed = places.allowed(pattern & (scores != -torch.inf), valid, problem.causal)
    return scores, allowed.expand(whole)


def _kept(problem: Problem, places: Places, scores: Tensor, allowed: Tensor | None) -> Tensor | int | None:
    """What the mechanism keeps: None for all that may be seen, a number for that many heaviest, else a mask."""
    mechanism = problem.mechanism
    if type(mechanism) is Full:
        return None
    if type(mechanism) is TopK and not (mechanism.sinks or mechanism.window):
        return mechanism.k
    if allowed is None:
        allowed = torch.ones((), dtype=torch.bool, device=scores.device).expand_as(scores)
    return mechanism.keep(scores, allowed, causal=problem.causal, places=places, seed=problem.choice_seed)


def visible_keys(problem: Problem, shape: tuple[int, int]) -> Tensor:
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


def _chunk(
    scores: Tensor, allowed: Tensor | None, kept: Tensor | int | None, counts: Tensor, k: int, total: _Totals
) -> tuple[dict[str, Tensor], Tensor]:
    """The numbers of the queries (R, H, C) of a chunk that count, and the head of each."""
    if allowed is None:
        masked, seen = scores, torch.full_like(counts, scores.shape[-1], dtype=torch.int64)
        total.seen |= counts.any(-1, keepdim=True)
    else:
        masked, seen = torch.where(allowed, scores, -torch.inf), allowed.sum(-1)
        total.seen |= (allowed & counts.unsqueeze(-1)).any(-2)
    ordered = _falling(masked)
    top = ordered[..., :1]
    finite = top.isfinite().squeeze(-1)  # NaN comes first in the order, so that the top tells of any
    usable = counts & (seen > 0) & finite
    every = bool(usable.all())
    total.usable += usable.sum(-1)
    total.empty += (counts & (seen == 0)).sum(-1)
    total.not_finite += (counts & (seen > 0) & ~finite).sum(-1)
    total.most_seen = max(total.most_seen, int(torch.where(counts, seen, 0).amax()))
    # What each key receives; rows that do not count give nothing.
    own = masked.softmax(-1)
    own = own if every else torch.where(usable.unsqueeze(-1), own, 0.0)
    total.received += own.sum(-2).to(total.received.dtype)
    heavy_low, below = _kth(ordered, seen.clamp(max=k)), _kth(ordered, seen.clamp(max=k) + 1)
    dropped = seen > k
    chosen = _heaviest(masked, heavy_low, (dropped & (heavy_low == below) & usable), k)
    chosen = chosen if every else chosen & usable.unsqueeze(-1)
    total.in_degree += chosen.sum(-2)
    values = _of_queries(ordered, top, seen, heavy_low, k)
    values["delta"] = _kept_spread(kept, masked, ordered, seen, values["delta_full"])
    values["separation"] = torch.where(dropped, heavy_low - below, torch.inf)
    owner = torch.arange(usable.shape[1], device=usable.device).view(1, -1, 1).expand_as(usable).flatten()
    if every:
        return {name: values[name].flatten() for name in PER_QUERY}, owner
    places = usable.flatten().nonzero().squeeze(-1)
    return {name: values[name].flatten()[places] for name in PER_QUERY}, owner[places]


def _of_queries(ordered: Tensor, top: Tensor, seen: Tensor, heavy_low: Tensor, k: int) -> dict[str, Tensor]:
    """What follows from the scores of each query, from the largest down."""
    below_top = ordered - top
    weights = below_top.exp()
    running = weights.cumsum(-1)
    mass = running[..., -1]
    # A hidden key has weight 0 at minus infinity: any finite number in its place gives 0, and not NaN.
    spread = weights.mul_(below_top.clamp_(min=HIDDEN)).sum(-1)
    first_share = 1 / mass
    enough = torch.searchsorted(running, torch.stack([share * mass for share in SHARES.values()], dim=-1)) + 1
    counted = torch.minimum(enough, seen.unsqueeze(-1)).to(mass.dtype).unbind(-1)
    return {
        "delta_full": top.squeeze(-1) - _kth(ordered, seen),
        "delta_heavy": top.squeeze(-1) - heavy_low,
        "entropy": (mass.log() - spread / mass).clamp(min=0.0),
        "top_share": (_kth(running, seen.clamp(max=k)) / mass).clamp(max=1.0),
        "jacobian": 2 * first_share * (1 - first_share),
        **dict(zip(SHARES, counted, strict=True)),
    }


def _falling(scores: Tensor) -> Tensor:
    """Each row from the largest down, NaN first. On a CPU numpy sorts five times as fast as torch."""
    if scores.device.type != "cpu":
        return scores.sort(dim=-1, descending=True).values
    return torch.from_numpy(np.sort(scores.numpy(), axis=-1)).flip(-1)


def _kth(ordered: Tensor, rank: Tensor) -> Tensor:
    """The entry of each row at this rank, counted from 1; rows without one give some entry, and do not count."""
    place = (rank - 1).clamp(min=0, max=ordered.shape[-1] - 1)
    return ordered.gather(-1, place.unsqueeze(-1)).squeeze(-1)


def _heaviest(masked: Tensor, heavy_low: Tensor, tied: Tensor, k: int) -> Tensor:
    """(R, H, C, K): the k heaviest keys of each query; where the last is `tied` with the next, the first index wins."""
    border = heavy_low.unsqueeze(-1)
    chosen = masked >= border
    if bool(tied.any()):
        rows = masked[tied]
        edge = border.expand_as(masked)[tied]
        above, level = rows > edge, rows == edge
        room = k - above.sum(-1, keepdim=True)
        chosen[tied] = above | (level & (level.cumsum(-1) <= room))
    return chosen


def _kept_spread(
    kept: Tensor | int | None, masked: Tensor, ordered: Tensor, seen: Tensor, delta_full: Tensor
) -> Tensor:
    """Largest minus smallest score that the mechanism keeps; 0 where it keeps none."""
    if kept is None:
        return delta_full
    if isinstance(kept, int):
        return ordered[..., 0] - _kth(ordered, seen.clamp(max=kept))
    keep = kept.reshape(masked.shape) & (masked != -torch.inf)
    high = torch.where(keep, masked, -torch.inf).amax(-1)
    low = torch.where(keep, masked, torch.inf).amin(-1)
    return torch.where(keep.any(-1), high - low, 0.0)
