"""Capture calls of torch's own attention by wrapping the functions that programs call.

    torch.nn.functional.scaled_dot_product_attention      wherever a loaded module holds that name
    torch._native_multi_head_attention                    the fused path of nn.MultiheadAttention in evaluation
    torch._transformer_encoder_layer_fwd                  the same of nn.TransformerEncoderLayer

Each function is replaced by a wrapper that reports the call and then calls the original with the same arguments. All
are restored afterwards.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from semfocus.attention.inputs import AttentionInputs, prepare_inputs
from semfocus.attention.mechanisms import Full
from semfocus.attention.normalisers import Softmax
from semfocus.errors import UsageError

Tell = Callable[[AttentionInputs, bool], None]
OURS = "semfocus."  # `attend` reports its calls itself
_PADDING_MASK = 1  # how torch's fused path numbers a mask (B, L); 2 is one (B, H, L, L)


@contextmanager
def intercepted(tell: Tell) -> Iterator[None]:
    """Report every call inside this block."""
    changed: list[tuple[ModuleType, str, Any]] = []
    try:
        spies = {id(original): (original, spy) for original, spy in _spies(tell).items()}
        for module, name, which in _holders(spies.keys()):
            original, spy = spies[which]
            changed.append((module, name, original))
            setattr(module, name, spy)
        yield
    finally:
        for module, name, original in reversed(changed):
            setattr(module, name, original)


def full_attention_inputs(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None, gqa: bool
) -> AttentionInputs:
    """Softmax attention over every key that the mask leaves, as `attend` poses it."""
    return prepare_inputs(
        q, k, v, Full(), normaliser=Softmax(), causal=causal, mask=mask, lengths=None, scale=scale, dropout_p=0.0,
        generator=None, seed=None, enable_gqa=gqa, straight_through=False, assume_finite=False,
    )  # fmt: skip


def _spies(tell: Tell) -> dict[Any, Callable[..., Any]]:
    attention = functional.scaled_dot_product_attention
    fused, fused_layer = torch._native_multi_head_attention, torch._transformer_encoder_layer_fwd

    @torch.compiler.disable
    def spy_attention(*args: Any, **kwargs: Any) -> Any:
        _tell_attention(tell, *args, **kwargs)
        return attention(*args, **kwargs)

    @torch.compiler.disable
    def spy_fused(*args: Any, **kwargs: Any) -> Any:
        query, _, _, _, heads, weight, bias, _, _, mask, _, _, kind = args
        _tell_fused(tell, query, heads, weight, bias, mask, kind)
        return fused(*args, **kwargs)

    @torch.compiler.disable
    def spy_layer(*args: Any, **kwargs: Any) -> Any:
        source, _, heads, weight, bias, _, _, _, norm_first, epsilon, gain, shift, *_, mask, kind = args
        _refuse_nested(source)
        with torch.no_grad():
            tokens = functional.layer_norm(source, source.shape[-1:], gain, shift, epsilon) if norm_first else source
        _tell_fused(tell, tokens, heads, weight, bias, mask, kind)
        return fused_layer(*args, **kwargs)

    return {attention: spy_attention, fused: spy_fused, fused_layer: spy_layer}


def _holders(wanted: Collection[int]) -> list[tuple[ModuleType, str, int]]:
    """Every loaded module that has one of these objects (by id) among its globals, and the name it has there."""
    sought = frozenset(wanted)
    modules = [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    # A program has some hundred thousand globals: first, in one step each, the few modules that hold one.
    holding = [
        module
        for module in modules
        if _may_call(module.__name__) and not sought.isdisjoint(map(id, list(vars(module).values())))
    ]
    return [
        (module, name, id(value))
        for module in holding
        for name, value in list(vars(module).items())
        if id(value) in sought
    ]


def _may_call(module: str) -> bool:
    """Whether a model's attention may be called from a module: not from Python's own, nor from most of torch's."""
    package = module.partition(".")[0]
    if package == "torch":
        return module == "torch" or module.startswith("torch.nn")
    return package not in sys.stdlib_module_names and not module.startswith(OURS)


def _tell_attention(
    tell: Tell,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> None:
    _refuse_nested(query)
    with torch.no_grad():
        queries, keys = query.shape[-2], key.shape[-2]
        if is_causal and queries != keys:  # torch aligns the first query with the first key, attend the last ones
            attn_mask = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril()
            is_causal = False
        tell(full_attention_inputs(query, key, value, attn_mask, is_causal, scale, enable_gqa), enable_gqa)


def _tell_fused(
    tell: Tell, tokens: Tensor, heads: int, weight: Tensor, bias: Tensor, mask: Tensor | None, kind: int | None
) -> None:
    """The problem inside a fused self-attention over tokens (B, L, d); its mask hides where it is not zero."""
    _refuse_nested(tokens)
    with torch.no_grad():
        parts = functional.linear(tokens, weight, bias).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts)
        if mask is not None:
            mask = ~mask.bool()
            mask = mask[:, None, None, :] if kind == _PADDING_MASK else mask
        tell(full_attention_inputs(q, k, v, mask, False, None, False), False)


def _refuse_nested(tensor: Tensor) -> None:
    if tensor.is_nested:
        raise UsageError(
            "this model packs rows of different lengths into a nested tensor, which cannot be observed; "
            "build nn.TransformerEncoder with enable_nested_tensor=False, or give batches without padding"
        )
