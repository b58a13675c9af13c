"""Mechanisms that use positions (windows, blocks, first keys), computed at the positions of the text.

`attend` places the last query at the last key. That is right for a growing cache, but padding shifts a sequence, and a
static cache ends in keys that are not written yet. Each sequence is therefore narrowed to its own keys, and calls whose
positions are ambiguous are refused: a padded batch gives what its sequences give alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from semfocus.attention import AttentionInfo, attend
from semfocus.attention.mechanisms import Mechanism
from semfocus.attention.positions import Positions
from semfocus.errors import UsageError


@dataclass(frozen=True)
class Call:
    """One call of `attend`: query (B, H, Q, D), key and value (B, G, K, D), mask (B or 1, H or 1, Q, K)."""

    query: Tensor
    key: Tensor
    value: Tensor
    mechanism: Mechanism
    mask: Tensor | None
    causal: bool
    scale: float | None
    dropout_p: float
    want_weights: bool

    def run(self) -> tuple[Tensor, Tensor | None]:
        """Output (B, H, Q, Dv), and weights (B, H, Q, K) where `want_weights`."""
        attention = partial(
            attend,
            self.query,
            self.key,
            self.value,
            self.mechanism,
            mask=self.mask,
            causal=self.causal,
            scale=self.scale,
            dropout_p=self.dropout_p,
            enable_gqa=self.query.shape[1] != self.key.shape[1],
        )
        if not self.want_weights:
            return attention(), None
        out, info = attention(return_info=True)
        return out, _dense(info, self.key.shape[-2], out.dtype)

    def narrowed(self, batch: Tensor, queries: slice, keys: slice) -> Call:
        """The same for some batch entries, queries and keys."""
        mask = self.mask
        if mask is not None:
            mask = mask.expand(self.query.shape[0], -1, -1, -1)[batch][..., queries, keys]
        return replace(
            self,
            query=self.query[batch][:, :, queries],
            key=self.key[batch][:, :, keys],
            value=self.value[batch][:, :, keys],
            mask=mask,
        )


def _dense(info: AttentionInfo, keys: int, dtype: torch.dtype) -> Tensor:
    """(..., Q, K): the weights of the listed keys as a matrix."""
    empty = info.weights.new_zeros(*info.weights.shape[:-1], keys)
    return empty.scatter_add(-1, info.indices.clamp(min=0), info.weights).to(dtype)


@torch.compiler.disable  # branches on the mask, so that the graph breaks here
def run_at_positions(call: Call, hides_earlier_keys: bool) -> tuple[Tensor, Tensor | None]:
    """`call.run()` with every sequence at its own positions."""
    queries, keys = call.query.shape[-2], call.key.shape[-2]
    if queries != keys and not (call.causal and queries < keys):
        raise UsageError(
            f"{call.mechanism} counts positions, and {queries} queries over {keys} other keys (cross-attention) share "
            "none; use a mechanism without a window, blocks or sinks, such as topk:8"
        )
    if call.mask is None:
        return call.run()
    keep = call.mask if call.mask.dtype == torch.bool else call.mask != float("-inf")
    _check_positions(call, keep, hides_earlier_keys)
    if call.causal and not call.mechanism.counts_from_start:
        return call.run()
    groups: dict[tuple[int, int], list[int]] = {}
    for entry, span in enumerate(_spans(keep.expand(call.query.shape[0], -1, -1, -1), call.causal)):
        groups.setdefault(span, []).append(entry)
    if list(groups) == [(0, keys)]:
        return call.run()
    return _joined(call, groups)


def _check_positions(call: Call, keep: Tensor, hides_earlier_keys: bool) -> None:
    """Raise errors for masks that leave the positions ambiguous."""
    if not call.causal:
        return
    queries, keys = keep.shape[-2:]
    positions = Positions(queries, keys, keep.device, 0, queries)
    if bool((keep & ~positions.past()).any()):
        raise UsageError(
            f"{call.mechanism} looks back from each position, and the mask lets queries see later keys (a prefix or "
            "image that sees itself whole); use a mechanism without a window or blocks, such as topk:8"
        )
    if queries < keys and not bool(keep[..., -1].any()):
        raise UsageError(
            f"{call.mechanism} counts positions back from the last key, which no query may see: a static cache, or "
            "padding at the end of cached text; use the default cache, or a mechanism such as topk:8"
        )
    if call.mechanism.counts_from_start and (hides_earlier_keys or _hides_again(keep)):
        raise UsageError(
            f"{call.mechanism} counts from the first key, and this layer's mask hides earlier keys again (a sliding "
            "window, chunks or packed sequences); use one that counts from the query, such as banded:64 or topk:8+16w"
        )


def _hides_again(keep: Tensor) -> bool:
    """Whether some query sees a key that the next query does not see; a query that sees no key is skipped."""
    earlier, later = keep[..., :-1, :], keep[..., 1:, :]
    return bool((earlier & ~later & later.any(dim=-1, keepdim=True)).any())


def _spans(keep: Tensor, causal: bool) -> list[tuple[int, int]]:
    """For each batch entry, the first key that some query may see, and the end: after the last one, or of all keys."""
    seen = keep.any(dim=1).any(dim=1)
    keys = seen.shape[-1]
    index = torch.arange(keys, device=seen.device)
    first = torch.where(seen, index, keys).amin(dim=-1)
    end = torch.where(seen, index + 1, 0).amax(dim=-1)
    return [(a, keys if causal else b) if a < b else (0, keys) for a, b in torch.stack([first, end], dim=-1).tolist()]


def _joined(call: Call, groups: dict[tuple[int, int], list[int]]) -> tuple[Tensor, Tensor | None]:
    """One call for each span, with its results at their original positions; zeros for padding."""
    queries, keys = call.query.shape[-2], call.key.shape[-2]
    outs, weights, order = [], [], []
    for (first, end), entries in groups.items():
        start, stop = (first, end) if queries == keys else (0, queries)
        index = torch.tensor(entries, device=call.query.device)
        out, weight = call.narrowed(index, slice(start, stop), slice(first, end)).run()
        outs.append(pad(out, (0, 0, start, queries - stop)))
        if weight is not None:
            weights.append(pad(weight, (first, keys - end, start, queries - stop)))
        order.extend(entries)
    back = torch.tensor(order, device=call.query.device).argsort()
    return torch.cat(outs)[back], torch.cat(weights)[back] if weights else None
