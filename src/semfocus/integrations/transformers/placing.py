"""Where the tokens of a call stand in their texts, for mechanisms that use positions (windows, blocks, first keys).

transformers passes a mask and not the positions of the keys in a cache. They are found from the mask: a key that no
query may see is padding or not written yet, and the others stand one after another in their text. So a padded batch, a
continued cache and a static cache give what each text gives alone. Masks that leave positions ambiguous are refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from semfocus.attention import attend
from semfocus.attention.mechanisms import Mechanism
from semfocus.attention.positions import Positions
from semfocus.errors import UsageError

_FORGETS = (
    "{} counts from the first key, and this layer's mask hides earlier keys again (a sliding window, chunks, or "
    "sequences packed without cu_seq_lens_q and cu_seq_lens_k); use one that counts from the query, such as banded:64 "
    "or topk:8+16w"
)


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
    q_positions: Tensor | None = None
    k_positions: Tensor | None = None
    softcap: float | None = None
    sinks: Tensor | None = None  # (H,)
    cu_seqlens_q: Tensor | None = None  # boundaries of packed sequences
    cu_seqlens_k: Tensor | None = None

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
            q_positions=self.q_positions,
            k_positions=self.k_positions,
            scale=self.scale,
            softcap=self.softcap,
            sinks=self.sinks,
            cu_seqlens_q=self.cu_seqlens_q,
            cu_seqlens_k=self.cu_seqlens_k,
            dropout_p=self.dropout_p,
            enable_gqa=self.query.shape[1] != self.key.shape[1],
        )
        if not self.want_weights:
            return attention(), None
        out, info = attention(return_info=True)
        return out, info.dense_weights(self.key.shape[-2]).to(out.dtype)


def run_at_positions(
    call: Call, hides_earlier_keys: bool, position_ids: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """`call.run()` with every token at its own position."""
    queries, keys = call.query.shape[-2], call.key.shape[-2]
    if queries != keys and not (call.causal and queries < keys):
        raise UsageError(
            f"{call.mechanism} counts positions, and {queries} queries over {keys} other keys (cross-attention) share "
            "none; use a mechanism without a window, blocks or sinks, such as topk:8"
        )
    if call.causal and call.mechanism.counts_from_start and hides_earlier_keys:
        raise UsageError(_FORGETS.format(call.mechanism))
    alone = call.mask is None or call.cu_seqlens_q is not None  # packed sequences each stand at their own positions
    return call.run() if alone else _placed(call, position_ids).run()


@torch.compiler.disable  # branches on the mask, so that the graph breaks here
def _placed(call: Call, position_ids: Tensor | None) -> Call:
    """The call with the positions that its mask tells; a UsageError where it does not tell them."""
    mask, mechanism = call.mask, call.mechanism
    assert mask is not None
    keep = (mask if mask.dtype == torch.bool else mask != float("-inf")).any(dim=1)  # (B or 1, Q, K)
    seen = keep.any(dim=1)
    number = seen.cumsum(dim=-1) - 1  # of the keys up to each one, those of the text: (B or 1, K)
    queries, keys = keep.shape[-2:]
    if queries == keys or bool(seen[:, -1].any()):  # the last query stands at the last key
        q_positions = number[:, keys - queries :]
        _check_not_ahead(call, bool((keep & ~Positions.of(keep).past()).any()))
    else:  # a cache with keys that are not written yet: the last key that a query sees is its own
        q_positions = torch.where(keep, number.unsqueeze(1), -1).amax(dim=-1)
        _check_not_ahead(call, _sees_ahead(keep, q_positions, position_ids))
    if call.causal and mechanism.counts_from_start and _hides_again(keep):
        raise UsageError(_FORGETS.format(mechanism))
    if _stand_by_default(seen, from_start=mechanism.counts_from_start or not call.causal):
        return call
    return replace(call, q_positions=q_positions, k_positions=torch.where(seen, number, -1))


def _check_not_ahead(call: Call, sees_ahead: bool) -> None:
    if call.causal and sees_ahead:
        raise UsageError(
            f"{call.mechanism} looks back from each position, and the mask lets queries see later keys (a prefix or "
            "image that sees itself whole); use a mechanism without a window or blocks, such as topk:8"
        )


def _sees_ahead(keep: Tensor, q_positions: Tensor, position_ids: Tensor | None) -> bool:
    """Whether a query of a cache that is not full may see keys after its own, as far as that can be told.

    `q_positions` hold the last key that each query sees, which is no later than its own in a causal mask.
    """
    if keep.shape[-2] == 1:
        return False
    if position_ids is not None and position_ids.dim() == 2 and position_ids.shape[-1] == keep.shape[-2]:
        return bool((q_positions > position_ids).any())
    sees = keep.any(dim=-1)
    steps = q_positions[:, 1:] - q_positions[:, :-1]
    return bool(((steps != 1) & sees[:, :-1]).any())


def _hides_again(keep: Tensor) -> bool:
    """Whether some query sees a key that the next query does not see; a query that sees no key is skipped."""
    earlier, later = keep[..., :-1, :], keep[..., 1:, :]
    return bool((earlier & ~later & later.any(dim=-1, keepdim=True)).any())


def _stand_by_default(seen: Tensor, from_start: bool) -> bool:
    """Whether `attend` places these keys rightly by itself: all of them, or from one on where only distances count."""
    if from_start:
        return bool(seen.all())
    return bool(seen[:, -1].all()) and not bool((seen[:, :-1] & ~seen[:, 1:]).any())
