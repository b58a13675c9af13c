"""What one call of attention looked like: numbers for each query, key and head, a chunk of queries at a time.

    measured = examine(problem, grouped=False, k=8)
    measured.queries.rows                   (9, n) a row for each of PER_QUERY, a column for each query that counts
    measured.queries.groups                 (n,) its head

Scores are computed anew in float32 (float64 stays). Of a chunk all scores are held at once, of the rest nothing but
O(L) numbers a head. Shapes: R rows (batch), H heads, C queries of a chunk, K keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from semfocus.attention.inputs import AttentionInputs
from semfocus.attention.positions import Positions
from semfocus.diagnostics.launches import launch_bound
from semfocus.diagnostics.scores import HIDDEN, chunks, counting_queries, scores_of, visible_keys

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
    """The numbers of one call, in which a group is a head, or of several, in which it is a head of a place.

    queries      a row for each name of PER_QUERY, a column for each query that counts: delta over the keys that the
                 mechanism keeps, delta_full over all it may see, delta_heavy and separation of its k heaviest, entropy
                 (nats) and the weight of the k heaviest (top_share) under full attention, the fewest keys that hold
                 95 % and 99 % of that weight, and the 1-norm of the softmax's Jacobian under full attention
    in_degree    for each key that some query may see, how many have it among their k heaviest
    sink_share   for each row of the batch the largest share of a head's attention that one key receives
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
    """How many heads a call has. `grouped`: they are the last two leading dimensions, not one."""
    return inputs.lead[-2 if grouped else -1 :].numel()


def examine(inputs: AttentionInputs, grouped: bool, k: int, owners: Sequence[int] | None = None) -> Measured:
    """Look at every query of a call; or, where the first dimension holds several calls, of all of them, as places
    that are numbered by the `owners` of these calls."""
    with _onlooking(inputs.q.device):
        return _examine(inputs, grouped, k, owners)


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
        parts.append(_chunk(scores, allowed, kept, counts, groups, k, total))
    sought = visible & total.seen
    in_degree, key_groups = _where(sought, total.in_degree, groups.unsqueeze(-1))
    # A call may have no keys at all, of which there is no largest.
    largest = total.received.amax(-1) if inputs.num_keys else total.received.sum(-1)
    shares = largest / total.usable.clamp(min=1)
    sink_share, sink_groups = _where(total.usable > 0, shares, groups)
    counted = [total.usable, sought.sum(-1), total.usable > 0, total.empty, total.not_finite, total.uneven()]
    sums = torch.stack(counted).flatten(1)
    # One journey to the host for all that is needed there.
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
    """(R, H): the group of every row and head, and how many groups there are. Several calls have R rows together."""
    heads, device = heads_of(inputs, grouped), inputs.q.device
    head_of = torch.arange(heads, device=device)
    if owners is None:
        return head_of.expand(inputs.lead.numel() // max(heads, 1), -1), heads
    rows = inputs.lead.numel() // max(heads * len(owners), 1)
    first = torch.tensor(owners, device=device).mul_(heads)
    groups = first.view(-1, 1, 1) + head_of
    return groups.expand(-1, rows, -1).flatten(0, 1), (max(owners) + 1) * heads


def _where(chosen: Tensor, *tensors: Tensor) -> list[Tensor]:
    """The entries of these where `chosen`; a look at whether that is everywhere costs less than a search."""
    whole, everywhere = [tensor.expand_as(chosen) for tensor in tensors], bool(chosen.all())
    return [tensor.flatten() if everywhere else tensor[chosen] for tensor in whole]


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


class _Totals:
    """What is summed over the chunks of one call."""

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
        """Where one query sees less than all of them together, or where they are more than the keys that it sees."""
        return (self.least_seen < torch.maximum(self.seen.sum(-1), self.usable)) & (self.usable > 0)


def _kept(inputs: AttentionInputs, positions: Positions, scores: Tensor, allowed: Tensor | None) -> Tensor | int | None:
    """What the mechanism keeps: None for all that may be seen, a number for that many heaviest, else a mask."""
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


def _chunk(
    scores: Tensor,
    allowed: Tensor | None,
    kept: Tensor | int | None,
    counts: Tensor,
    groups: Tensor,
    k: int,
    total: _Totals,
) -> tuple[Tensor, Tensor]:
    """The numbers of the queries (R, H, C) of a chunk that count, a row for each name, and the group of each."""
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
    total.most_seen = torch.maximum(total.most_seen, torch.where(counts, seen, 0).amax(-1))
    seen_by_usable = torch.where(usable, seen, UNSEEN)
    total.least_seen = torch.minimum(total.least_seen, seen_by_usable.amin(-1))
    # The softmax over a single key is 1 whatever its score: no bound on how it moves is needed, or spoilt by it.
    choosing = torch.where(seen > 1, seen_by_usable, UNSEEN)
    total.fewest_seen = torch.minimum(total.fewest_seen, choosing.amin(-1))
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
    values["separation"] = torch.where(dropped, _gap(heavy_low, below), torch.inf)
    rows = torch.stack([values[name] for name in PER_QUERY]).flatten(1)
    owner = groups.unsqueeze(-1).expand_as(usable).flatten()
    if every:
        return rows, owner
    columns = usable.flatten().nonzero().squeeze(-1)
    return rows[:, columns], owner[columns]


def _of_queries(ordered: Tensor, top: Tensor, seen: Tensor, heavy_low: Tensor, k: int) -> dict[str, Tensor]:
    """What follows from the scores of each query, from the largest down."""
    below_top = ordered - top
    weights = below_top.exp()
    running = _running_sums(weights)
    mass = running[..., -1]
    # A hidden key has weight 0 at minus infinity: any finite number in its place gives 0, and not NaN.
    spread = weights.mul_(below_top.clamp_(min=HIDDEN)).sum(-1)
    first_share = 1 / mass
    enough = torch.searchsorted(running, torch.stack([share * mass for share in SHARES.values()], dim=-1)) + 1
    counted = torch.minimum(enough, seen.unsqueeze(-1)).to(mass.dtype).unbind(-1)
    return {
        "delta_full": _gap(top.squeeze(-1), _kth(ordered, seen)),
        "delta_heavy": _gap(top.squeeze(-1), heavy_low),
        "entropy": (mass.log() - spread / mass).clamp(min=0.0),
        "top_share": (_kth(running, seen.clamp(max=k)) / mass).clamp(max=1.0),
        "jacobian": 2 * first_share * (1 - first_share),
        **dict(zip(SHARES, counted, strict=True)),
    }


def _running_sums(weights: Tensor) -> Tensor:
    """Along each row. A GPU takes many short rows twenty times as fast if they lie side by side."""
    if not launch_bound(weights.device):
        return weights.cumsum(-1)
    return weights.movedim(-1, 0).contiguous().cumsum(0).movedim(0, -1).contiguous()


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
    rows = tied.nonzero(as_tuple=True)
    if len(rows[0]):
        above, level = masked[rows] > border[rows], masked[rows] == border[rows]
        room = k - above.sum(-1, keepdim=True)
        chosen[rows] = above | (level & (level.cumsum(-1) <= room))
    return chosen


def _kept_spread(
    kept: Tensor | int | None, masked: Tensor, ordered: Tensor, seen: Tensor, delta_full: Tensor
) -> Tensor:
    """Largest minus smallest score that the mechanism keeps; 0 where it keeps none."""
    if kept is None:
        return delta_full
    if isinstance(kept, int):
        return _gap(ordered[..., 0], _kth(ordered, seen.clamp(max=kept)))
    keep = kept.reshape(masked.shape) & (masked != -torch.inf)
    high = torch.where(keep, masked, -torch.inf).amax(-1)
    low = torch.where(keep, masked, torch.inf).amin(-1)
    return torch.where(keep.any(-1), _gap(high, low), 0.0)


def _gap(high: Tensor, low: Tensor) -> Tensor:
    """high - low in float64: two finite float32 scores can be further apart than float32 goes."""
    return high.double() - low.double()
