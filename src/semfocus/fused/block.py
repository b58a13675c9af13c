"""`embed` and `block` of the model by fused kernels, with gradients: the same functions, fewer trips through memory.

A block is one node of autograd. Its attention is computed by the kernels that `attend` uses for short rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from semfocus import model
from semfocus.attention.inputs import prepare_inputs
from semfocus.attention.kernels.short.dispatch import short_refuses
from semfocus.fused.launch import launch_for, pieces_of
from semfocus.model import NORM_EPSILON, ForwardFns, Padding
from semfocus.spec import Spec

if TYPE_CHECKING:
    from semfocus.attention.kernels.short.launch import Call

WIDEST = 64  # of model, heads together and hidden layer: a program keeps three gradients of that size in registers
SHARED_MEMORY = 98_304  # bytes of the largest program without a pipeline, `enter_backward` in float32
MOST_IDS = 64  # of a vocabulary whose gradient is taken as a product


def fused_parts(spec: Spec, device: torch.device, head: Callable[..., Tensor]) -> ForwardFns | None:
    """The model's functions by these kernels, with this `head`; None where they cannot serve."""
    if refuses(spec, device) is not None:
        return None
    return ForwardFns(embed if spec.num_ids <= MOST_IDS else model.embed, block, head)


def refuses(spec: Spec, device: torch.device) -> str | None:
    """Why these kernels cannot serve a model; None if they can."""
    shape = spec.model
    widths = {"d_model": shape.d_model, "heads * head_dim": shape.heads * shape.head_dim, "d_mlp": shape.d_mlp}
    for name, width in widths.items():
        if width > WIDEST:
            return f"{name} is at most {WIDEST}, not {width}"
    if spec.is_causal:
        return "every position sees the whole sequence, not only the positions before it"
    if shape.norm != "pre":
        return "LayerNorm stands before each layer, not after it"
    if shape.activation != "relu":
        return f"the hidden layer is ReLU, not {shape.activation}"
    if device.type == "cuda" and (room := _shared_memory(device)) < SHARED_MEMORY:
        return f"its programs take {SHARED_MEMORY} bytes of shared memory, and {device} has {room}"
    q = torch.empty(1, 1, shape.heads, spec.length, shape.head_dim, device=device)
    inputs = prepare_inputs(q, q, q, spec.mechanism, normaliser=spec.normaliser)
    return short_refuses(inputs)  # the kernels that a block calls; those for long rows may serve more


def _shared_memory(device: torch.device) -> int:
    """Bytes that one program may have, as Triton finds them; 0 without Triton."""
    try:
        from triton.compiler.compiler import max_shared_mem
    except ImportError:
        return 0
    return max_shared_mem(torch.cuda.current_device() if device.index is None else device.index)


def embed(table: Tensor, tokens: Tensor, pos_enc: Tensor, spec: Spec, seed: Tensor | None) -> Tensor:
    """`model.embed`."""
    return _Embed.apply(table, tokens.contiguous(), pos_enc, seed, spec.model.dropout if seed is not None else 0.0)


def block(
    x: Tensor, weights: list[Tensor], padding: Padding, seeds: Tensor | None, spec: Spec, epsilon: float, train: bool
) -> Tensor:
    """`model.block`, but for what padding attends to, which nobody reads."""
    with torch.autocast(x.device.type, enabled=False):  # which would make numbers of what counts units
        return _Block.apply(x.contiguous(), padding, seeds, spec, epsilon, train, torch.is_grad_enabled(), *weights)


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, tokens: Tensor, pos_enc: Tensor, seed: Tensor | None, p: float) -> Tensor:
        members, ids, d = table.shape
        x = table.new_empty(*tokens.shape, d)
        _run(
            "embed_forward", tokens, table, tokens, pos_enc, seed, x, table.stride(0), count=tokens[0].numel(),
            length=tokens.shape[-1], scale=math.sqrt(d), **_dropout(p), D=d,
        )  # fmt: skip
        ctx.save_for_backward(tokens, seed)
        ctx.sizes, ctx.p = (members, ids, d), p
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), (tokens, seed) = grads, ctx.saved_tensors
        members, ids, d = ctx.sizes
        parts = _partial(grad, tokens[0].numel(), ids * d)
        _run(
            "embed_backward", tokens, grad.contiguous(), tokens, seed, parts, count=tokens[0].numel(),
            scale=math.sqrt(d), **_dropout(ctx.p), IDS=ids, D=d,
        )  # fmt: skip
        return _total(parts).view(members, ids, d), None, None, None, None


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, padding: Padding, seeds: Tensor | None, spec: Spec, epsilon: float, train: bool,
        recorded: bool, *weights: Tensor,
    ) -> Tensor:  # fmt: skip
        from semfocus.attention.kernels.short.ops import empty_results, plan

        _aw, ab, _wo, bo, wi, bi, _wt, bt = weights
        tf32, trained = bool(torch.backends.cuda.matmul.allow_tf32), recorded and any(ctx.needs_input_grad)
        stride, count, heads = _member_stride(weights), x.shape[1] * x.shape[2], spec.model.heads
        sizes = {"D": x.shape[-1], "H": ab.shape[-1] // 3, "M": wi.shape[-1]}
        narrow = _narrowed(weights, stride, sizes)
        # Of 11 bits that products take, attention need not be given more.
        dtype = torch.float16 if tf32 else torch.float32
        inputs = [x.new_empty(*x.shape[:-1], sizes["H"], dtype=dtype) for _ in range(3)]
        _run("enter_forward", x, x, *narrow, ab, *inputs, stride, count=count, tf32=tf32, epsilon=epsilon, **sizes)
        q, k, v = (_split(part, heads) for part in inputs)
        call = _attention(q, k, v, padding, seeds, spec, train, tf32, narrow[-1])
        # But tiled kernels take the sum of P dP from their output, where rounding would not cancel.
        tiled = plan(x.shape[2], x.shape[2], call.mechanism) == "tiled"
        results = empty_results(q, k, v, call.mechanism, torch.float32 if tiled else None)
        call.forward(*results, careful=False)
        attn_out = _merge(results[0])
        given: dict[str, Any] = {"count": count, "tf32": tf32, "epsilon": NORM_EPSILON, **sizes}
        given |= {"weight": 1 / (1 - call.dropout_p)}
        given |= _dropout(spec.model.dropout if train and seeds is not None else 0.0)
        middle, out = torch.empty_like(x) if trained else None, torch.empty_like(x)
        after = (bo, bi, bt, seeds, _place_stride(seeds))
        _run("leave_forward", x, x, attn_out, *narrow, *after, middle, out, stride, **given)
        if trained:
            ctx.save_for_backward(x, middle, attn_out, *narrow[:-1], bi, seeds)
            ctx.attention, ctx.results = call, results
            ctx.numbers = stride, epsilon, given, [weight.shape for weight in weights]
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from semfocus.fused.split_fp16 import FOUND

        x, middle, attn_out, *narrow, bi, seeds = ctx.saved_tensors
        narrow.append(ctx.attention.bounds)
        stride, epsilon, given, shapes = ctx.numbers
        ctx.attention.bounds[..., FOUND].zero_()  # the largest that several programs find
        columns = [shape[1:].numel() for shape in shapes]
        dmiddle, d_attn_out = torch.empty_like(x), x.new_empty(attn_out.shape)
        partial = _partial(x, given["count"], sum(columns))
        _run("leave_backward", x, grads[0].contiguous(), middle, attn_out, *narrow, bi, seeds, _place_stride(seeds),
             dmiddle, d_attn_out, partial, stride, **given)  # fmt: skip
        call, (out, kept, _lse, saved) = ctx.attention, ctx.results
        gradients = [torch.empty_like(part, dtype=torch.float32) for part in (call.q, call.k, call.v)]
        call.backward(_split(d_attn_out, call.q.shape[2]), None, out, kept, saved, *gradients)
        dx = torch.empty_like(x)
        _run("enter_backward", x, x, *narrow, *map(_merge, gradients), dmiddle, dx, partial,
             **(given | {"epsilon": epsilon}))  # fmt: skip
        parts = _total(partial).split(columns, dim=1)
        shaped = [part.unflatten(1, shape[1:]) for part, shape in zip(parts, shapes, strict=True)]
        return dx, None, None, None, None, None, None, *shaped


def _narrowed(weights: tuple[Tensor, ...], stride: int, sizes: dict[str, int]) -> tuple[Tensor, ...]:
    """What `narrowing` makes of a block's weights: high, low, facts and bounds."""
    from semfocus.fused.split_fp16 import BOUNDS, FACTS

    aw, ab, wo, _bo, wi, bi, wt, _bt = weights
    members, size = aw.shape[0], sum(weight[0].numel() for weight in (aw, wo, wi, wt))
    high, low = (aw.new_empty(members, size, dtype=torch.float16) for _ in range(2))
    facts, bounds = aw.new_empty(members, FACTS.value), aw.new_empty(members, 1, 1, 1, BOUNDS.value)
    _run("narrow_weights", aw, aw, ab, wo, wi, bi, wt, high, low, facts, bounds, stride, count=0, tf32=False, **sizes)
    return high, low, facts, bounds


def _attention(
    q: Tensor, k: Tensor, v: Tensor, padding: Padding, seeds: Tensor | None, spec: Spec, train: bool, tf32: bool,
    bounds: Tensor,
) -> Call:  # fmt: skip
    """The call of the kernels that `model.block` would end up with, told how large its inputs can be."""
    from semfocus.attention.kernels.short.launch import Call

    inputs = prepare_inputs(
        q, k, v, spec.mechanism, **padding._asdict(), **model.attention_settings(seeds, spec, train)
    )
    return Call(
        inputs.q, inputs.k, inputs.v, inputs.mask, inputs.lengths, inputs.dropout_seed, inputs.mechanism,
        inputs.causal, inputs.scale, inputs.dropout_p, tf32, bounds, ragged=inputs.lengths is not None,
    )  # fmt: skip


def _split(x: Tensor, heads: int) -> Tensor:
    """(E, B, L, H w) as attention takes it: (E, B, H, L, w)."""
    return x.unflatten(-1, (heads, -1)).transpose(2, 3)


def _merge(x: Tensor) -> Tensor:
    return x.transpose(2, 3).flatten(3).contiguous()


def _member_stride(weights: tuple[Tensor, ...]) -> int:
    """How far members lie apart: the weights are columns of one matrix."""
    strides = {weight.stride(0) for weight in weights if weight.shape[0] > 1}
    if len(strides) > 1 or not all(weight[0].is_contiguous() for weight in weights):
        raise ValueError("the weights of a block must be columns of one matrix (Layout.split)")
    return strides.pop() if strides else 0


def _place_stride(seeds: Tensor | None) -> int:
    return 0 if seeds is None else seeds.stride(0)


def _dropout(p: float) -> dict[str, Any]:
    from semfocus.attention.kernels.shared import dropout_threshold

    return {"threshold": dropout_threshold(p), "factor": 1 / (1 - p), "DROPS": p > 0}


def _partial(x: Tensor, count: int, size: int) -> Tensor:
    """(E, pieces, size): room for a partial sum a piece."""
    return x.new_empty(x.shape[0], pieces_of(x.shape[0], count), size)


def _total(parts: Tensor) -> Tensor:
    return parts[:, 0] if parts.shape[1] == 1 else parts.sum(dim=1)


def _run(name: str, like: Tensor, *arguments: Any, count: int, tf32: bool = False, **named: Any) -> None:
    """Launch a kernel for all members of `like` (E, ...): constants are those that it asks for, widths also padded.

    (A table's gradient is a sum, taken as a product: it is not for TF32 to round.)
    """
    from triton import OutOfResources

    from semfocus.attention.kernels.products import precision
    from semfocus.attention.kernels.short.arguments import padded
    from semfocus.fused import embedding, kernels, split_fp16

    kernel, products = (vars(embedding) | vars(kernels) | vars(split_fp16))[name], precision(tf32, bounded=True)
    launch = launch_for(name, products)
    pieces = split_fp16.MATRICES.value if name == "narrow_weights" else pieces_of(like.shape[0], count)
    known = named | {"PRECISION": products, "T": launch.tile, "count": count, "pieces": pieces}
    for width, valid_mask in (("D", "DP"), ("H", "HP"), ("M", "MP"), ("IDS", "IDP")):
        if width in known:
            known[valid_mask] = padded(known[width])
    given = {key: value for key, value in known.items() if key in kernel.arg_names}
    start = kernel[(like.shape[0] * pieces,)]
    with torch.cuda.device_of(like):
        try:
            start(*arguments, **given, **launch.options)
        except OutOfResources:
            start(*arguments, **given, **launch.without_pipeline().options)
