"""The mask function and the attention function that transformers calls, one of each for all mechanisms.

Shapes: B batch, H heads of the queries, G heads of keys and values (H a multiple of G), Q queries, K keys.
    query (B, H, Q, D)    key (B, G, K, D)    value (B, G, K, Dv)    mask (B or 1, H or 1, Q, K)    out (B, Q, H, Dv)
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers.masking_utils import sdpa_mask

from semfocus.errors import UsageError
from semfocus.integrations.transformers.arguments import (
    check_unmasked,
    forgets_keys,
    is_causal,
    refuse_unsupported,
    usable_mask,
    weights_wanted,
)
from semfocus.integrations.transformers.choices import chosen_mechanism
from semfocus.integrations.transformers.placing import Call, run_in_place


def focused_mask(*args: Any, **kwargs: Any) -> Tensor:
    """The (B, 1, Q, K) bool mask of a model, always spelt out.

    transformers leaves a plain causal mask out where it expects the kernel to know about causality; here nothing but
    the mask does.
    """
    kwargs |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    mask = sdpa_mask(*args, **kwargs)
    if mask is None:
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
    """Attention over the keys that the layer's mechanism keeps; with it the weights (B, H, Q, K) if they are wanted."""
    mechanism = chosen_mechanism(module)
    refuse_unsupported(module, options)
    mask = usable_mask(module, attention_mask)
    causal = is_causal(module, options)
    if mask is None:
        check_unmasked(module, query.shape[-2], key.shape[-2], causal, options.get("sliding_window"))
    placed = mechanism.uses_positions
    if placed and causal is None:
        raise UsageError(
            f"{mechanism} counts positions, and {type(module).__name__} does not say whether it is causal; "
            "use a mechanism such as topk:8"
        )
    call = Call(
        query,
        key,
        value,
        mechanism,
        mask,
        # Elsewhere the mask alone decides: models of images and text let some queries see later keys.
        causal=bool(causal) and (placed or (mask is None and query.shape[-2] > 1)),
        scale=scaling,
        dropout_p=dropout if module.training else 0.0,
        want_weights=weights_wanted(options),
    )
    out, weights = run_in_place(call, forgets_keys(module, options)) if placed else call.run()
    return out.transpose(1, 2).contiguous(), weights
