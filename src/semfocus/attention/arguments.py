"""The arguments of one call of `attend`: checked, and brought into the one form that every backend takes.

Shapes are those of `attention.inputs`; `lead` = batch dimensions and heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from semfocus.attention.base import Mechanism
from semfocus.attention.inputs import AttentionInputs, common_lead
from semfocus.attention.normalisers import Normaliser
from semfocus.attention.pairs import broadcasts, check_learned, own_normaliser
from semfocus.attention.scoring import check_sinks, check_softcap
from semfocus.attention.seeding import draw_seed
from semfocus.errors import UsageError


def prepare_inputs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mechanism: Mechanism,
    *,
    normaliser: Normaliser,
    causal: bool = False,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    generator: torch.Generator | None = None,
    seed: Tensor | None = None,
    enable_gqa: bool = False,
    straight_through: bool = False,
    assume_finite: bool = False,
    learned: Mapping[str, Tensor] | None = None,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> AttentionInputs:
    """Check the arguments of `attend` and bring them into one form."""
    check_types(q, k, v)
    q, k, v = _autocast(q), _autocast(k), _autocast(v)
    _check_fit(q, k, v)
    if not 0 <= dropout_p < 1:
        raise UsageError(f"dropout_p = {dropout_p!r} must be at least 0 and below 1")
    if causal and not mechanism.serves_causal:
        why = "global tokens see and are seen by all" if mechanism.num_globals else "it has no causal form"
        raise UsageError(f"{mechanism} with causal=True: {why}; use one or the other")
    normaliser = own_normaliser(mechanism, normaliser, causal)
    if (reason := mechanism.refuses(q.shape[-2], k.shape[-2])) is not None:
        raise UsageError(f"{mechanism} cannot serve this call: {reason}")
    q, k = normaliser.prepared(q), normaliser.prepared(k)
    if scale is not None and not math.isfinite(scale):
        raise UsageError(f"scale = {scale!r} must be a finite number, or None for 1 / sqrt(D)")
    _check_heads(q, k, v, enable_gqa)
    inputs = AttentionInputs(
        *(q, k, v, mechanism, normaliser),
        causal=causal,
        scale=scale if scale is not None else 1 / math.sqrt(q.shape[-1]),
        dropout_p=dropout_p,
        dropout_seed=draw_seed(generator, q.device) if dropout_p and seed is None else None,
        choice_seed=draw_seed(generator, q.device) if mechanism.is_stochastic and generator is not None else None,
        straight_through=straight_through,
        assume_finite=assume_finite,
        softcap=check_softcap(softcap),
    )
    lead = _lead_of_heads(q, k, v, enable_gqa)
    if learned:
        inputs = replace(inputs, learned=check_learned(learned, mechanism, normaliser, lead, q.shape[-2]))
    if sinks is not None:
        inputs = replace(inputs, sinks=check_sinks(sinks, normaliser, lead, q.device, inputs.compute_dtype))
    if seed is not None:
        inputs = _with_seed(inputs, seed, generator, lead)
    if mask is not None:
        inputs = _with_mask(inputs, mask, lead)
    if lengths is not None:
        inputs = _with_lengths(inputs, lengths, lead)
    if q_positions is not None or k_positions is not None:
        inputs = _with_positions(inputs, q_positions, k_positions, lead)
    return _grouped(inputs, (k.shape[-3], q.shape[-3] // k.shape[-3])) if enable_gqa else inputs


def check_types(q: Tensor, k: Tensor, v: Tensor) -> None:
    """An error for what is no dense floating tensor of at least two dimensions."""
    for name, tensor in {"q": q, "k": k, "v": v}.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a tensor, not {type(tensor).__name__}")
        if not tensor.is_floating_point():
            raise TypeError(f"{name} has dtype {tensor.dtype}; attention needs a floating type, e.g. {name}.float()")
        if tensor.is_nested:
            raise UsageError(
                f"{name} is a nested tensor; pad it (torch.nested.to_padded_tensor) and pass the lengths as lengths="
            )
        if tensor.layout != torch.strided:
            raise UsageError(
                f"{name} has the layout {tensor.layout}; attention needs a dense one, e.g. {name}.to_dense()"
            )
        if tensor.dim() < 2:
            raise UsageError(f"{name} has shape {tuple(tensor.shape)}; it must be (..., H, L, D)")


def _check_fit(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, tensor in {"k": k, "v": v}.items():
        for kind in ("device", "dtype"):
            ours, theirs = getattr(q, kind), getattr(tensor, kind)
            if ours != theirs:
                raise UsageError(f"q and {name} differ in {kind}: {ours} and {theirs}; move or cast one of them")
    if q.shape[-1] != k.shape[-1] or q.shape[-1] == 0:
        raise UsageError(
            f"q and k must share a head width D >= 1; their last dimensions are {q.shape[-1]}, {k.shape[-1]}: project "
            "them to one width"
        )
    if k.shape[-2] != v.shape[-2]:
        raise UsageError(f"k and v must have the same number of keys; they have {k.shape[-2]} and {v.shape[-2]}")


def _check_heads(q: Tensor, k: Tensor, v: Tensor, enable_gqa: bool) -> None:
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if enable_gqa:
        few = min(q.dim(), k.dim(), v.dim()) < 3
        if few or k.shape[-3] != v.shape[-3] or not k.shape[-3] or q.shape[-3] % k.shape[-3]:
            raise UsageError(f"enable_gqa: the heads of q must be a multiple of those of k and v; got {shapes}")
        q, k, v = (tensor[..., :1, :, :] for tensor in (q, k, v))  # the other dimensions must fit as without groups
    try:
        common_lead(q, k, v)
    except RuntimeError:
        hint = "; for grouped heads pass enable_gqa=True" if q.dim() > 2 and k.dim() > 2 else ""
        raise UsageError(f"the batch dimensions of q, k and v do not fit together: {shapes}{hint}") from None


def _autocast(tensor: Tensor) -> Tensor:
    """Under autocast, cast as torch's own attention does: to the narrow dtype; float64 stays."""
    kind = tensor.device.type
    if kind == "meta" or not torch.is_autocast_enabled(kind) or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(torch.get_autocast_dtype(kind))


def _lead_of_heads(q: Tensor, k: Tensor, v: Tensor, enable_gqa: bool) -> torch.Size:
    """Batch dimensions and query heads: what masks, lengths and seeds are given for."""
    if not enable_gqa:
        return common_lead(q, k, v)
    batch = q.shape[:-3]
    if not batch == k.shape[:-3] == v.shape[:-3]:
        batch = torch.broadcast_shapes(batch, k.shape[:-3], v.shape[:-3])
    return torch.Size((*batch, q.shape[-3]))


def _with_seed(
    inputs: AttentionInputs, seed: Tensor, generator: torch.Generator | None, lead: torch.Size
) -> AttentionInputs:
    if generator is not None:
        raise UsageError("give seed or generator, not both: they are two ways to say where randomness comes from")
    if not isinstance(seed, Tensor) or seed.dtype != torch.int64 or not broadcasts(seed.shape, lead):
        given = f"{seed.dtype} {tuple(seed.shape)}" if isinstance(seed, Tensor) else repr(seed)
        raise UsageError(f"seed = {given} must be an int64 tensor that broadcasts to {tuple(lead)}")
    seed = seed[..., None, None]
    # Two streams: the bits that choose a key must not also decide whether it is dropped.
    return replace(inputs, dropout_seed=seed if inputs.dropout_p else None, choice_seed=seed ^ 0x5DEECE66D)


def _with_mask(inputs: AttentionInputs, mask: Tensor, lead: torch.Size) -> AttentionInputs:
    if not isinstance(mask, Tensor) or not (mask.dtype == torch.bool or mask.is_floating_point()):
        kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"mask has dtype {kind}; it must be bool (True = keep) or floating (added to the scores)")
    if mask.device != inputs.q.device:
        raise UsageError(f"q and mask differ in device: {inputs.q.device} and {mask.device}; move one of them")
    shape = (*lead, inputs.num_queries, inputs.num_keys)
    if not broadcasts(mask.shape, shape):
        raise UsageError(f"mask has shape {tuple(mask.shape)}, which does not broadcast to {shape}")
    mask = mask[(None,) * max(2 - mask.dim(), 0)]
    if mask.dtype == torch.bool:
        return replace(inputs, mask=mask)
    # -inf hides a key whatever its score: NaN minus infinity is NaN.
    return replace(inputs, bias=mask.to(inputs.compute_dtype), mask=mask != float("-inf"))


def _with_lengths(inputs: AttentionInputs, lengths: Tensor, lead: torch.Size) -> AttentionInputs:
    if not isinstance(lengths, Tensor) or lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise TypeError("lengths must be a tensor of whole numbers, one for each batch row")
    if lengths.device != inputs.q.device and lengths.dim():
        raise UsageError(f"q and lengths differ in device: {inputs.q.device} and {lengths.device}; move one of them")
    if not broadcasts(lengths.shape, lead[:-1]):
        raise UsageError(f"lengths has shape {tuple(lengths.shape)}; the batch dimensions are {tuple(lead[:-1])}")
    heads = (None,) if len(lead) else ()
    return replace(inputs, lengths=lengths.to(inputs.q.device)[(..., *heads, None, None)])


def _with_positions(
    inputs: AttentionInputs, q_positions: Tensor | None, k_positions: Tensor | None, lead: torch.Size
) -> AttentionInputs:
    queries, keys = inputs.num_queries, inputs.num_keys
    if k_positions is None:
        k_positions = torch.arange(keys, device=inputs.q.device)
    k_positions = _checked_positions("k_positions", k_positions, (*lead[:-1], keys), inputs.q.device)
    if q_positions is None:
        if queries > keys:
            raise UsageError(f"{queries} queries over {keys} keys: give q_positions as well as k_positions")
        q_positions = k_positions[..., keys - queries :]
    q_positions = _checked_positions("q_positions", q_positions, (*lead[:-1], queries), inputs.q.device)
    heads = (None,) if len(lead) else ()
    every = slice(None)
    return replace(
        inputs,
        q_positions=q_positions[(..., *heads, every, None)],  # (.., 1, Lq, 1)
        k_positions=k_positions[(..., *heads, None, every)],  # (.., 1, 1, Lk)
    )


def _checked_positions(name: str, positions: Tensor, shape: tuple[int, ...], device: torch.device) -> Tensor:
    if not isinstance(positions, Tensor) or positions.is_floating_point() or positions.dtype == torch.bool:
        raise TypeError(f"{name} must be a tensor of whole numbers, one for each token")
    if positions.device != device:
        raise UsageError(f"q and {name} differ in device: {device} and {positions.device}; move one of them")
    if not broadcasts(positions.shape, shape) or positions.shape[-1:] != shape[-1:]:
        raise UsageError(f"{name} has shape {tuple(positions.shape)}; it must broadcast to {shape}")
    return positions.long()


def _grouped(inputs: AttentionInputs, heads: tuple[int, int]) -> AttentionInputs:
    """Heads as two dimensions, (Hkv, G) for queries and (Hkv, 1) for keys, which broadcast together."""

    def split(tensor: Tensor | None) -> Tensor | None:
        if tensor is None or tensor.dim() < 3:
            return tensor
        return tensor.unflatten(-3, heads if tensor.shape[-3] != 1 else (1, 1))

    learned = {name: cast("Tensor", split(tensor)) for name, tensor in (inputs.learned or {}).items()}

    def shared(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.unsqueeze(-3)

    # A scalar seed serves all heads; a seed for each head is split as the heads are.
    dropout_seed, choice_seed = split(inputs.dropout_seed), split(inputs.choice_seed)
    return replace(
        inputs,
        q=inputs.q.unflatten(-3, heads),
        k=inputs.k.unsqueeze(-3),
        v=inputs.v.unsqueeze(-3),
        mask=split(inputs.mask),
        bias=split(inputs.bias),
        lengths=shared(inputs.lengths),
        q_positions=shared(inputs.q_positions),
        k_positions=shared(inputs.k_positions),
        dropout_seed=dropout_seed,
        choice_seed=choice_seed,
        learned=learned or None,
        sinks=split(inputs.sinks),
    )
