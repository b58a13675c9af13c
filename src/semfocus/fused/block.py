"""`embed` and `block` of the model by fused kernels, with gradients: the same functions, fewer trips through memory.

A block is one node of autograd. Its attention is that of `attend`, with a small graph of its own inside the node.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from semfocus import model
from semfocus.attention.kernels.short_configs import WHOLE
from semfocus.attention.operator import BACKENDS
from semfocus.attention.problem import pose
from semfocus.fused.launch import launch_for, pieces_of
from semfocus.model import NORM_EPSILON, Parts, Spec

WIDEST = 64  # of model, heads together and hidden layer: a program keeps three gradients of that size in registers
SHARED_MEMORY = 180_224  # bytes of the largest program, `leave_backward` in float32
MOST_IDS = 64  # of a vocabulary whose gradient is taken as a product


def fused_parts(spec: Spec, device: torch.device, read_out: Callable[..., Tensor]) -> Parts | None:
    """The model's functions by these kernels, with this `read_out`; None where they cannot serve."""
    if refuses(spec, device) is not None:
        return None
    return Parts(embed if spec.num_ids <= MOST_IDS else model.embed, block, read_out)


def fused_pays(spec: Spec, precision: str) -> bool:
    """Whether these kernels are the faster way: see results/engine. Short rows in float32 are better compiled."""
    return precision == "tf32" or spec.length > WHOLE


def refuses(spec: Spec, device: torch.device) -> str | None:
    """Why these kernels cannot serve a model; None if they can."""
    shape = spec.model
    widths = {"d_model": shape.d_model, "heads * head_dim": shape.heads * shape.head_dim, "d_mlp": shape.d_mlp}
    for name, width in widths.items():
        if width > WIDEST:
            return f"{name} is at most {WIDEST}, not {width}"
    if shape.norm != "pre":
        return "LayerNorm stands before each layer, not after it"
    if shape.activation != "relu":
        return f"the hidden layer is ReLU, not {shape.activation}"
    if device.type == "cuda" and (room := _shared_memory(device)) < SHARED_MEMORY:
        return f"its programs take {SHARED_MEMORY} bytes of shared memory, and {device} has {room}"
    q = torch.empty(1, 1, shape.heads, spec.length, shape.head_dim, device=device)
    problem = pose(q, q, q, spec.mechanism, normaliser=model.NORMALISERS[spec.attention.normaliser])
    return BACKENDS["triton"].refuses(problem, False)


def _shared_memory(device: torch.device) -> int:
    """Bytes that one program may have, as Triton finds them; 0 without Triton."""
    try:
        from triton.compiler.compiler import max_shared_mem
    except ImportError:
        return 0
    return max_shared_mem(torch.cuda.current_device() if device.index is None else device.index)


def embed(table: Tensor, tokens: Tensor, waves: Tensor, spec: Spec, seed: Tensor | None) -> Tensor:
    """`model.embed`."""
    return _Embed.apply(table, tokens.contiguous(), waves, seed, spec.model.dropout if seed is not None else 0.0)


def block(
    x: Tensor, weights: list[Tensor], mask: Tensor | None, seeds: Tensor | None, spec: Spec, epsilon: float, train: bool
) -> Tensor:
    """`model.block`."""
    p = spec.model.dropout if train and seeds is not None else 0.0
    mix = partial(model.attention, mask=mask, seeds=seeds, spec=spec, train=train, backend="triton")
    return _Block.apply(x.contiguous(), mix, seeds, p, epsilon, spec.model.heads, *weights)


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, tokens: Tensor, waves: Tensor, seed: Tensor | None, p: float) -> Tensor:
        members, ids, d = table.shape
        x = table.new_empty(*tokens.shape, d)
        _run(
            "embed_forward", tokens, table, tokens, waves, seed, x, table.stride(0), count=tokens[0].numel(),
            length=tokens.shape[-1], scale=math.sqrt(d), **_dropout(p), D=d,
        )  # fmt: skip
        ctx.save_for_backward(tokens, seed)
        ctx.sizes, ctx.p = (members, ids, d), p
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), (tokens, seed) = grads, ctx.saved_tensors
        members, ids, d = ctx.sizes
        parts = _partial("embed_backward", grad, tokens[0].numel(), ids * d)
        _run(
            "embed_backward", tokens, grad.contiguous(), tokens, seed, parts, count=tokens[0].numel(),
            scale=math.sqrt(d), **_dropout(ctx.p), IDS=ids, D=d,
        )  # fmt: skip
        return _total(parts).view(members, ids, d), None, None, None, None


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, mix: Callable[..., Tensor], seeds: Tensor | None, p: float, epsilon: float, heads: int,
        *weights: Tensor,
    ) -> Tensor:  # fmt: skip
        aw, ab, *rest = weights
        stride, count, trained = _member_stride(weights), x.shape[1] * x.shape[2], any(ctx.needs_input_grad)
        sizes = {"D": x.shape[-1], "H": aw.shape[-1] // 3, "M": weights[4].shape[-1]}
        inputs = [x.new_empty(*x.shape[:-1], sizes["H"]) for _ in range(3)]
        _run("enter_forward", x, x, aw, ab, *inputs, stride, count=count, epsilon=epsilon, **sizes)
        with torch.set_grad_enabled(trained):
            inputs = [_split(part, heads).requires_grad_(trained) for part in inputs]
            mixed = mix(*inputs)
        flat = _merge(mixed.detach())
        middle, out = torch.empty_like(x) if trained else None, torch.empty_like(x)
        _run(
            "leave_forward", x, x, flat, *rest, seeds, _place_stride(seeds), middle, out, stride, count=count,
            epsilon=NORM_EPSILON, **_dropout(p), **sizes,
        )  # fmt: skip
        ctx.save_for_backward(x, middle, flat, seeds, *weights)
        ctx.attention = (mixed, inputs) if trained else None
        ctx.numbers = stride, count, p, epsilon, heads, sizes
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, middle, flat, seeds, *weights = ctx.saved_tensors
        stride, count, p, epsilon, heads, sizes = ctx.numbers
        aw, _ab, wo, _bo, wi, bi, wt, _bt = weights
        dmiddle, dmixed = torch.empty_like(x), torch.empty_like(flat)
        after = _partial("leave_backward", x, count, sum(w[0].numel() for w in weights[2:]))
        _run(
            "leave_backward", x, grads[0].contiguous(), middle, flat, wo, wi, bi, wt, seeds, _place_stride(seeds),
            dmiddle, dmixed, after, stride, count=count, epsilon=NORM_EPSILON, **_dropout(p), **sizes,
        )  # fmt: skip
        mixed, inputs = ctx.attention
        gradients = torch.autograd.grad(mixed, inputs, _split(dmixed, heads))
        dx = torch.empty_like(x)
        before = _partial("enter_backward", x, count, sum(w[0].numel() for w in weights[:2]))
        _run(
            "enter_backward", x, x, aw, *map(_merge, gradients), dmiddle, dx, before, stride, count=count,
            epsilon=epsilon, **sizes,
        )  # fmt: skip
        columns = torch.cat([_total(before), _total(after)], dim=1)
        parts = columns.split([w[0].numel() for w in weights], dim=1)
        shaped = [part.unflatten(1, weight.shape[1:]) for part, weight in zip(parts, weights, strict=True)]
        return dx, None, None, None, None, None, *shaped


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


def _precision(kernel: str) -> str:
    """How a kernel multiplies. A table's gradient is a sum, taken as a product: it is not for TF32 to round."""
    from semfocus.attention.kernels.shared import precision

    return precision(bool(torch.backends.cuda.matmul.allow_tf32) and kernel != "embed_backward")


def _partial(kernel: str, x: Tensor, count: int, size: int) -> Tensor:
    """(E, pieces, size): room for a partial sum a piece."""
    launch = launch_for(kernel, _precision(kernel))
    return x.new_empty(x.shape[0], pieces_of(launch, x.shape[0], count), size)


def _total(parts: Tensor) -> Tensor:
    return parts[:, 0] if parts.shape[1] == 1 else parts.sum(dim=1)


def _run(name: str, like: Tensor, *arguments: Any, count: int, **named: Any) -> None:
    """Launch a kernel for all members of `like` (E, ...): constants are those that it asks for, widths also padded."""
    from semfocus.attention.kernels.short_arguments import padded
    from semfocus.fused import kernels

    kernel, precision = getattr(kernels, name), _precision(name)
    launch = launch_for(name, precision)
    pieces = pieces_of(launch, like.shape[0], count)
    known = named | {"PRECISION": precision, "T": launch.tile, "count": count, "pieces": pieces}
    for width, filled in (("D", "DP"), ("H", "HP"), ("M", "MP"), ("IDS", "IDP")):
        if width in known:
            known[filled] = padded(known[width])
    given = {key: value for key, value in known.items() if key in kernel.arg_names}
    with torch.cuda.device_of(like):
        kernel[(like.shape[0] * pieces,)](*arguments, **given, num_warps=launch.warps, num_stages=launch.stages)
