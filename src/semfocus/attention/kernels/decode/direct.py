"""A call of `attend` like an earlier one, from its tensors to the launches."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from semfocus.attention.inputs import AttentionInputs
from semfocus.attention.kernels.decode import dispatch


@dataclass(frozen=True)
class DirectCall:
    """Calls of contiguous q (B, heads x shared, Lq, D), k (B, heads, Lk, D) and v that `decode` is chosen for."""

    heads: int
    shared: int
    topk: int
    causal: bool
    scale: float
    min_keys: int
    max_keys: int

    @classmethod
    def of(cls, inputs: AttentionInputs, min_keys: int, max_keys: int) -> DirectCall:
        """Those like a call whose inputs are grouped, (B, heads, shared, Lq, D), or not, (B, heads, Lq, D)."""
        grouped = inputs.q.dim() == 5
        shared = inputs.q.shape[2] if grouped else 1
        return cls(
            inputs.q.shape[1], shared, inputs.mechanism.size or 0, inputs.causal, inputs.scale, min_keys, max_keys
        )

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, lengths: Tensor | None) -> Tensor | None:
        """The output; None where the number of keys is out of bounds or the mask has another shape."""
        batch, all_heads, queries, width = q.shape
        keys, value_width = v.shape[2:]
        if not self.min_keys <= keys <= self.max_keys:
            return None
        of_mask = of_lengths = None
        if mask is not None:
            full = (batch, all_heads, queries, keys)
            if any(size not in (1, wanted) for size, wanted in zip(mask.shape, full, strict=True)):
                return None
            own = [0 if size == 1 else step for size, step in zip(mask.shape, mask.stride(), strict=True)]
            of_mask = own[0], own[1] * self.shared, *own[1:]
        if lengths is not None:
            of_lengths = lengths.stride(0), 0, 0
        plan = dispatch.plan_for(
            dispatch.TILES, q.device, q.dtype, batch * self.heads, self.heads, self.shared, queries, keys, width,
            value_width, self.topk, self.causal, mask is not None, lengths is not None,
        )  # fmt: skip
        out = torch.empty((batch, all_heads, queries, value_width), dtype=q.dtype, device=q.device)
        found = torch.empty((batch, all_heads, queries, 2 * self.topk + 1), dtype=torch.int32, device=q.device)
        plan.run(q, k, v, mask, lengths, (of_mask, of_lengths), out, found, self.scale)
        return out
