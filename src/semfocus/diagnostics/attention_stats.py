"""Statistics of one call of attention, for each query, key and head, computed for one chunk of queries after another.

    measured = examine(inputs, grouped=False, k=8)
    measured.queries.rows                   (9, n): one row for each of PER_QUERY, one column for each query that counts
    measured.queries.groups                 (n,) the head of each column

Scores are recomputed in float32 (float64 stays). All scores of one chunk are held at once, and O(L) numbers for each
head beyond that. Shapes: R sequences of the batch, H heads, C queries of a chunk, K keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from semfocus.attention.inputs import AttentionInputs
from semfocus.attention.positions import Positions
from semfocus.diagnostics.scores import (
    HIDDEN,
    chunks,
    counting_queries,
    heaviest_mask,
    kth_largest,
    running_sums,
    score_gap,
    scores_of,
    sort_descending,
    visible_keys,
)

UNSEEN = torch.iinfo(torch.int64).max
SHARES = {"k95": 0.95, "k99": 0.99}
PER_QUERY = (
    "delta", "delta_full", "delta_heavy", "separation", "entropy", "top_share", "k95", "k99", "jacobian",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Values:
    """Numbers by group."""

    rows: Tensor  # (rows, n)
    groups: Tensor  # (n,)
    sizes: Tensor  # (groups,) on the host: how many columns each group has


@dataclass(frozen=True, eq=False)
class Measured:
    """Statistics of one call, in which a group is a head, or of several calls, in which it is a head of one place.

    queries      one row for each name of PER_QUERY, one column for each query that counts: delta over the keys that the
                 mechanism keeps, delta_full over all visible keys, delta_heavy and separation of the k heaviest,
                 entropy (nats) and the weight of the k heaviest (top_share) under full attention, the fewest keys that
                 hold 95 % and 99 % of that weight, and the 1-norm of the softmax's Jacobian under full attention
    in_degree    for each key that some query may see: the number of queries that have it among their k heaviest
    sink_share   for each sequence: the largest share of a head's attention that one key receives
    """

    queries: Values
    in_degree: Values
    sink_share: Values
    # By group, on the host:
    most_seen: Tensor  # keys that any query may see
    fewest_seen: Tensor  # keys that any query with two or more may see; UNSEEN where there is none
    empty: Tensor  # queries that may see no key; padding is not counted at all
    not_finite: Tensor  # queries with a score that is NaN or infinite
    uneven: Tensor  # rows whose queries do not all see the same keys, or are more than these


def heads_of(inputs: AttentionInputs, grouped: bool) -> int:
    """The number of heads of a call. With `grouped` they take the last two leading dimensions, not one."""
    return inputs.lead[-2 if grouped else -1 :].numel()


def examine(inputs: AttentionInputs, grouped: bool, k: int, owners: Sequence[int] | None = None) -> Measured:
    """Measure every query of a call. With `owners` the first dimension holds several calls, and `owners` has the number
    of the place of each."""
    with _exact_products(inputs.q.device):
        return _examine(inputs, grouped, k, owners)


@contextmanager
def _exact_products(device: torch.device) -> Iterator[None]:
    """No gradients, no autocast, float32 products without TF32; restored afterwards."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _examine(inputs: AttentionInputs, grouped: bool, k: int, owners: Sequence[int] | None) -> Measured:
    groups, count = _groups(inputs, grouped, owners)
    visible = visible_keys(inputs, groups.shape)
    total = _Totals(groups.shape, inputs.num_keys, inputs.q.device)
    parts: list[tuple[Tensor, Tensor]] = []
    for positions in chunks(inputs):
        scores, allowed = scores_of(inputs, positions)
        kept = _kept(inputs, positions, scores, allowed)
        scores = scores.reshape(*groups.shape, *scores.shape[-2:])
        allowed = None if allowed is None else allowed.reshape(scores.shape)
        counts = counting_queries(inputs, positions, visible)
        parts.append(_measure_chunk(_Chunk(scores, allowed, kept, counts), groups, k, total))
    sought = visible & total.seen
    in_degree, key_groups = _where(sought, total.in_degree, groups.unsqueeze(-1))
    # amax fails on a call without keys.
    largest = total.received.amax(-1) if inputs.num_keys else total.received.sum(-1)
    shares = largest / total.usable.clamp(min=1)
    sink_share, sink_groups = _where(total.usable > 0, shares, groups)
    counted = [total.usable, sought.sum(-1), total.usable > 0, total.empty, total.not_finite, total.uneven()]
    sums = torch.stack(counted).flatten(1)
    # One copy to the host for everything that is needed there.
    by_group = sums.new_zeros(8, count)
    by_group[:6].index_add_(1, groups.flatten(), sums)
    by_group[6].scatter_reduce_(0, groups.flatten(), total.most_seen.flatten(), "amax")
    by_group[7].fill_(UNSEEN).scatter_reduce_(0, groups.flatten(), total.fewest_seen.flatten(), "amin")
    queries, keys, sinks, empty, not_finite, uneven, most_seen, fewest_seen = by_group.cpu().unbind()
    return Measured(
        queries=Values(
            _joined([values for values, _ in parts]) if parts else shares.new_empty(len(PER_QUERY), 0),
            _joined([owner for _, owner in parts]) if parts else key_groups[:0],
            queries,
        ),
        in_degree=Values(in_degree.unsqueeze(0), key_groups, keys),
        sink_share=Values(sink_share.unsqueeze(0), sink_groups, sinks),
        most_seen=most_seen,
        fewest_seen=fewest_seen,
        empty=empty,
        not_finite=not_finite,
        uneven=uneven,
    )


def _groups(inputs: AttentionInputs, grouped: bool, owners: Sequence[int] | None) -> tuple[Tensor, int]:
    """(R, H): the group of every sequence and head, and the number of groups. Several calls have R sequences in all."""
    heads, device = heads_of(inputs, grouped), inputs.q.device
    head_of = torch.arange(heads, device=device)
    if owners is None:
        return head_of.expand(inputs.lead.numel() // max(heads, 1), -1), heads
    rows = inputs.lead.numel() // max(heads * len(owners), 1)
    first = torch.tensor(owners, device=device).mul_(heads)
    groups = first.view(-1, 1, 1) + head_of
    return groups.expand(-1, rows, -1).flatten(0, 1), (max(owners) + 1) * heads


def _where(chosen: Tensor, *tensors: Tensor) -> list[Tensor]:
    """The entries of these tensors where `chosen`. Testing for "everywhere" first is cheaper than indexing."""
    whole, everywhere = [tensor.expand_as(chosen) for tensor in tensors], bool(chosen.all())
    return [tensor.flatten() if everywhere else tensor[chosen] for tensor in whole]


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


class _Totals:
    """Sums over the chunks of one call, each (R, H) or (R, H, K)."""

    def __init__(self, shape: torch.Size, keys: int, device: torch.device) -> None:
        self.in_degree = torch.zeros(*shape, keys, dtype=torch.int64, device=device)
        self.received = torch.zeros(*shape, keys, device=device)
        self.seen = torch.zeros(*shape, keys, dtype=torch.bool, device=device)
        self.usable, self.empty, self.not_finite, self.most_seen = (
            torch.zeros(shape, dtype=torch.int64, device=device) for _ in range(4)
        )
        self.fewest_seen, self.least_seen = (
            torch.full(shape, UNSEEN, dtype=torch.int64, device=device) for _ in range(2)
        )

    def uneven(self) -> Tensor:
        """Where some query sees fewer keys than all queries together, or than there are queries."""
        return (self.least_seen < torch.maximum(self.seen.sum(-1), self.usable)) & (self.usable > 0)


def _kept(inputs: AttentionInputs, positions: Positions, scores: Tensor, allowed: Tensor | None) -> Tensor | int | None:
    """The keys that the mechanism keeps: None for all visible keys, a number for that many heaviest, else a mask."""
    mechanism = inputs.mechanism
    if mechanism.keeps_all:
        return None
    if mechanism.keeps_largest is not None:
        return mechanism.keeps_largest
    if allowed is None:
        allowed = torch.ones((), dtype=torch.bool, device=scores.device).expand_as(scores)
    q, k = inputs.vectors(positions)
    return mechanism.keep(
        scores, allowed, causal=inputs.causal, positions=positions, seed=inputs.choice_seed, queries=q, keys=k
    )


@dataclass(frozen=True, eq=False)
class _Chunk:
    """Some consecutive queries of a call."""

    scores: Tensor  # (R, H, C, K)
    allowed: Tensor | None  # (R, H, C, K) the visible keys; None: all of them
    kept: Tensor | int | None  # as `_kept` gives it
    counts: Tensor  # (R, H, C) the queries that are not padding


def _measure_chunk(chunk: _Chunk, groups: Tensor, k: int, total: _Totals) -> tuple[Tensor, Tensor]:
    """Statistics of the queries of a chunk that count, one row for each of PER_QUERY, and the group of each query."""
    scores, allowed, counts = chunk.scores, chunk.allowed, chunk.counts
    if allowed is None:
        masked, seen = scores, torch.full_like(counts, scores.shape[-1], dtype=torch.int64)
        total.seen |= counts.any(-1, keepdim=True)
    else:
        masked, seen = torch.where(allowed, scores, -torch.inf), allowed.sum(-1)
        total.seen |= (allowed & counts.unsqueeze(-1)).any(-2)
    ordered = sort_descending(masked)
    top = ordered[..., :1]
    finite = top.isfinite().squeeze(-1)  # NaN sorts first, so the top score shows whether there is one
    usable = counts & (seen > 0) & finite
    every = bool(usable.all())
    total.usable += usable.sum(-1)
    total.empty += (counts & (seen == 0)).sum(-1)
    total.not_finite += (counts & (seen > 0) & ~finite).sum(-1)
    total.most_seen = torch.maximum(total.most_seen, torch.where(counts, seen, 0).amax(-1))
    seen_by_usable = torch.where(usable, seen, UNSEEN)
    total.least_seen = torch.minimum(total.least_seen, seen_by_usable.amin(-1))
    # The softmax over a single key is 1 whatever its score: such queries need no bound, and must not loosen it.
    choosing = torch.where(seen > 1, seen_by_usable, UNSEEN)
    total.fewest_seen = torch.minimum(total.fewest_seen, choosing.amin(-1))
    # The weight that each key receives; queries that do not count give none.
    own = masked.softmax(-1)
    own = own if every else torch.where(usable.unsqueeze(-1), own, 0.0)
    total.received += own.sum(-2).to(total.received.dtype)
    heavy_low, below = kth_largest(ordered, seen.clamp(max=k)), kth_largest(ordered, seen.clamp(max=k) + 1)
    dropped = seen > k
    chosen = heaviest_mask(masked, heavy_low, (dropped & (heavy_low == below) & usable), k)
    chosen = chosen if every else chosen & usable.unsqueeze(-1)
    total.in_degree += chosen.sum(-2)
    values = _of_queries(ordered, top, seen, heavy_low, k)
    values["delta"] = _kept_spread(chunk.kept, masked, ordered, seen, values["delta_full"])
    values["separation"] = torch.where(dropped, score_gap(heavy_low, below), torch.inf)
    rows = torch.stack([values[name] for name in PER_QUERY]).flatten(1)
    owner = groups.unsqueeze(-1).expand_as(usable).flatten()
    if every:
        return rows, owner
    columns = usable.flatten().nonzero().squeeze(-1)
    return rows[:, columns], owner[columns]


def _of_queries(ordered: Tensor, top: Tensor, seen: Tensor, heavy_low: Tensor, k: int) -> dict[str, Tensor]:
    """Statistics that follow from the sorted scores of each query, largest first."""
    below_top = ordered - top
    weights = below_top.exp()
    running = running_sums(weights)
    mass = running[..., -1]
    # A hidden key has weight 0 and score -inf, and 0 * -inf is NaN: any finite score gives 0.
    spread = weights.mul_(below_top.clamp_(min=HIDDEN)).sum(-1)
    first_share = 1 / mass
    enough = torch.searchsorted(running, torch.stack([share * mass for share in SHARES.values()], dim=-1)) + 1
    counted = torch.minimum(enough, seen.unsqueeze(-1)).to(mass.dtype).unbind(-1)
    return {
        "delta_full": score_gap(top.squeeze(-1), kth_largest(ordered, seen)),
        "delta_heavy": score_gap(top.squeeze(-1), heavy_low),
        "entropy": (mass.log() - spread / mass).clamp(min=0.0),
        "top_share": (kth_largest(running, seen.clamp(max=k)) / mass).clamp(max=1.0),
        "jacobian": 2 * first_share * (1 - first_share),
        **dict(zip(SHARES, counted, strict=True)),
    }


def _kept_spread(
    kept: Tensor | int | None, masked: Tensor, ordered: Tensor, seen: Tensor, delta_full: Tensor
) -> Tensor:
    """Largest minus smallest score that the mechanism keeps; 0 where it keeps none."""
    if kept is None:
        return delta_full
    if isinstance(kept, int):
        return score_gap(ordered[..., 0], kth_largest(ordered, seen.clamp(max=kept)))
    keep = kept.reshape(masked.shape) & (masked != -torch.inf)
    high = torch.where(keep, masked, -torch.inf).amax(-1)
    low = torch.where(keep, masked, torch.inf).amin(-1)
    return torch.where(keep.any(-1), score_gap(high, low), 0.0)
