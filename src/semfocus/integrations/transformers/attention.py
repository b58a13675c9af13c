"""The mask function and the attention function that transformers calls, one of each for all mechanisms.

Of the options that a model passes, some are honoured, some have no effect here, and all others are refused by name.

Shapes: B batch, H heads of the queries, G heads of keys and values (H a multiple of G), Q queries, K keys.
    query (B, H, Q, D)    key (B, G, K, D)    value (B, G, K, Dv)    mask (B or 1, H or 1, Q, K)    out (B, Q, H, Dv)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import sdpa_mask
from transformers.utils import output_capturing

from semfocus.errors import UsageError
from semfocus.integrations.transformers.choices import chosen_mechanism
from semfocus.integrations.transformers.placing import Call, run_at_positions

_PACKED = "sequences packed without the boundaries of keys and queries; pass cu_seq_lens_q and cu_seq_lens_k too"
# Options that change the output, and that no mechanism here computes.
REFUSED = {
    "indices": "the model's own choice of keys, as in DeepSeek V3.2",
    "block_indices": "the model's own choice of blocks, as in MiniMax M3",
    "max_length_q": _PACKED,
    "max_length_k": _PACKED,
    "seq_idx": _PACKED,
    "cache": "the paged cache of continuous batching; use generate",
}
# Options that do not say which keys count, or whose effect is in the mask or the queries already.
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
HONOURED = frozenset(
    {
        "cu_seq_lens_k",
        "cu_seq_lens_q",
        "is_causal",
        "output_attentions",
        "position_bias",
        "s_aux",
        "sliding_window",
        "softcap",
    }
)
# What goes with the boundaries of packed sequences and says nothing more.
OF_PACKED = frozenset({"max_length_k", "max_length_q", "seq_idx"})
# A float mask hides a key by a large negative number: -10000, -1e9, the smallest of its dtype or -inf, depending on the
# library. All give the weight zero; but left as finite numbers, bottom-k and random-k would choose such keys.
HIDDEN = -1e4


def focused_mask(*args: Any, **kwargs: Any) -> Tensor | None:
    """The (B, 1, Q, K) bool mask of a model; None where it is plainly causal, without padding.

    transformers omits masks in more cases, where it expects the kernel to know what they would say; here only those
    that `check_unmasked` lets pass: as many queries as keys, or one query behind all keys.
    """
    plain = bool(kwargs.get("allow_is_causal_skip")) and kwargs.get("q_length") in (1, kwargs.get("kv_length"))
    kwargs |= {"allow_is_causal_skip": plain, "allow_is_bidirectional_skip": False}
    mask = sdpa_mask(*args, **kwargs)
    if mask is None and not plain:
        raise UsageError("transformers made no attention mask, and without one a query would see later keys")
    return mask


def focused_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """(B, Q, H, Dv) attention over the keys that the layer's mechanism keeps, and weights (B, H, Q, K) or None."""
    mechanism = chosen_mechanism(module)
    refuse_unsupported(module, options)
    mask = usable_mask(module, attention_mask)
    causal = is_causal(module, options)
    if mask is None:
        check_unmasked(module, query.shape[-2], key.shape[-2], causal, options.get("sliding_window"))
    by_position = mechanism.uses_positions
    if by_position and causal is None:
        raise UsageError(
            f"{mechanism} counts positions, and {type(module).__name__} does not say whether it is causal; "
            "use a mechanism such as topk:8"
        )
    call = Call(
        query,
        key,
        value,
        mechanism,
        _with_bias(module, mask, options.get("position_bias")),
        # Otherwise the mask alone decides: models of images and text let some queries see later keys.
        causal=bool(causal) and (by_position or (mask is None and query.shape[-2] > 1)),
        scale=scaling,
        dropout_p=dropout if module.training else 0.0,
        want_weights=weights_wanted(options),
        softcap=options.get("softcap"),  # Gemma 2
        sinks=options.get("s_aux"),  # gpt-oss
        cu_seqlens_q=options.get("cu_seq_lens_q"),
        cu_seqlens_k=options.get("cu_seq_lens_k"),
    )
    if by_position:
        out, weights = run_at_positions(call, hides_earlier_keys(module, options), options.get("position_ids"))
    else:
        out, weights = call.run()
    return out.transpose(1, 2).contiguous(), weights


def refuse_unsupported(module: nn.Module, options: Mapping[str, Any]) -> None:
    """Raise an error for the first option that would change the output, or that is unknown."""
    packed = options.get("cu_seq_lens_q") is not None
    for name, value in options.items():
        if value is None or name in HARMLESS or name in HONOURED or (packed and name in OF_PACKED):
            continue
        where = f"{type(module).__name__} passes {name}"
        if name in REFUSED:
            raise UsageError(f"{where} ({REFUSED[name]}), which no mechanism here computes; call unfocus(model)")
        raise UsageError(
            f"{where}, which semfocus does not know and will not ignore; known without effect: "
            f"{', '.join(sorted(HARMLESS))}"
        )


def usable_mask(module: nn.Module, mask: Any) -> Tensor | None:
    """A model's mask in the form that `attend` takes: bool, or float with -inf for every hidden key."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.dim() != 4:
        got = f"shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
        raise UsageError(f"{type(module).__name__} passes a mask of {got}; it must be a tensor (B, 1, Q, K)")
    return mask.masked_fill(mask <= HIDDEN, float("-inf")) if mask.is_floating_point() else mask


def _with_bias(module: nn.Module, mask: Tensor | None, bias: Any) -> Tensor | None:
    """The mask with a learned position bias (B or 1, H, Q, K), as T5 has it, added to the scores."""
    if bias is None:
        return mask
    if not isinstance(bias, Tensor) or bias.dim() != 4 or not bias.is_floating_point():
        got = f"shape {tuple(bias.shape)}" if isinstance(bias, Tensor) else type(bias).__name__
        raise UsageError(f"{type(module).__name__} passes a position_bias of {got}; it must be floating (B, H, Q, K)")
    if mask is None:
        return bias
    return torch.where(mask, bias, float("-inf")) if mask.dtype == torch.bool else mask + bias


def is_causal(module: nn.Module, options: Mapping[str, Any]) -> bool | None:
    """Whether queries see earlier keys only; None if neither the call nor the module says so."""
    option = options.get("is_causal")  # from the caller, or from config.is_causal
    return getattr(module, "is_causal", None) if option is None else bool(option)


def hides_earlier_keys(module: nn.Module, options: Mapping[str, Any]) -> bool:
    """Whether the layer's mask hides keys from later queries again: a sliding window, or chunks."""
    windows = (options.get("sliding_window"), getattr(module, "sliding_window", None))
    return any(window is not None for window in (*windows, getattr(module.config, "attention_chunk_size", None)))


def check_unmasked(module: nn.Module, queries: int, keys: int, causal: bool | None, window: int | None) -> None:
    """Raise an error where a call without a mask would let a query see keys that it must not."""
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
