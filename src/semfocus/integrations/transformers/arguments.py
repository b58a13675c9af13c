"""What a model hands to its attention function: what is honoured, what has no effect, and what is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from transformers.utils import output_capturing

from semfocus.errors import UsageError

_PACKED = "sequences packed for flash attention; pad them, or pack them by position_ids alone"
# They change the answer, and no mechanism here computes them.
REFUSED = {
    "softcap": "capped scores, as in Gemma 2",
    "s_aux": "a learned sink in the softmax, as in gpt-oss",
    "position_bias": "a learned position bias, as in T5",
    "indices": "the model's own choice of keys, as in DeepSeek V3.2",
    "block_indices": "the model's own choice of blocks, as in MiniMax M3",
    "cu_seq_lens_q": _PACKED,
    "cu_seq_lens_k": _PACKED,
    "max_length_q": _PACKED,
    "max_length_k": _PACKED,
    "seq_idx": _PACKED,
    "cache": "the paged cache of continuous batching; use generate",
}
# They say nothing about which keys count, or their effect is in the mask or the queries already.
HARMLESS = frozenset(
    {
        "cache_position",
        "deterministic",
        "num_items_in_batch",
        "output_hidden_states",
        "output_router_logits",
        "position_ids",
        "use_cache",
    }
)
HONOURED = frozenset({"is_causal", "output_attentions", "sliding_window"})
# A float mask hides a key by a large negative number, of which every library has its own: -10000, -1e9, the least of
# its type, -inf. All give the weight zero; but left as numbers, bottom-k and random-k would choose such keys.
HIDDEN = -1e4


def refuse_unsupported(module: nn.Module, options: Mapping[str, Any]) -> None:
    """An error for the first option that would change the answer, or of which nothing is known here."""
    for name, value in options.items():
        if value is None or name in HARMLESS or name in HONOURED:
            continue
        where = f"{type(module).__name__} passes {name}"
        if name in REFUSED:
            raise UsageError(f"{where} ({REFUSED[name]}), which no mechanism here computes; call unfocus(model)")
        raise UsageError(
            f"{where}, which semfocus does not know and will not ignore; known without effect: "
            f"{', '.join(sorted(HARMLESS))}"
        )


def usable_mask(module: nn.Module, mask: Any) -> Tensor | None:
    """A model's mask as `attend` takes it: bool, or float with -inf for every hidden key."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.dim() != 4:
        got = f"shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
        raise UsageError(f"{type(module).__name__} passes a mask of {got}; it must be a tensor (B, 1, Q, K)")
    return mask.masked_fill(mask <= HIDDEN, float("-inf")) if mask.is_floating_point() else mask


def is_causal(module: nn.Module, options: Mapping[str, Any]) -> bool | None:
    """Whether the layer looks back only; None if neither the call nor the module says so."""
    told = options.get("is_causal")  # from the caller, or from config.is_causal
    return getattr(module, "is_causal", None) if told is None else bool(told)


def forgets_keys(module: nn.Module, options: Mapping[str, Any]) -> bool:
    """Whether the layer's mask hides keys from later queries: a sliding window, or chunks."""
    windows = (options.get("sliding_window"), getattr(module, "sliding_window", None))
    return any(window is not None for window in (*windows, getattr(module.config, "attention_chunk_size", None)))


def check_unmasked(module: nn.Module, queries: int, keys: int, causal: bool | None, window: int | None) -> None:
    """An error where a call without a mask would let a query see what it must not."""
    name = type(module).__name__
    if window is not None and keys > window:
        raise UsageError(f"{name} passes sliding_window = {window} without a mask that holds it; pass a 4-D mask")
    if queries == 1 or causal is False:
        return
    if causal is None:
        raise UsageError(f"{name} passes no mask and does not say whether it is causal; pass a 4-D mask, or is_causal")
    if queries != keys:
        raise UsageError(f"{name} is causal and passes no mask for {queries} queries and {keys} keys; pass a 4-D mask")


def weights_wanted(options: Mapping[str, Any]) -> bool:
    """Whether the caller asked for attention weights; some layers (GPT-2) keep `output_attentions` to themselves."""
    collected = output_capturing._active_collector.get() or {}
    return bool(options.get("output_attentions")) or "attentions" in collected or "cross_attentions" in collected
