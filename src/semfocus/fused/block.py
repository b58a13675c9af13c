"""`embed` and `block` of the model by fused kernels, with gradients: the same functions with less memory traffic.

A block is one autograd node. Its attention runs by the kernels that `attend` uses for short sequences.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from semfocus.attention.arguments import prepare_inputs
from semfocus.attention.kernels.short.arguments import empty_like_layout
from semfocus.attention.kernels.short.dispatch import empty_saved, plan, short_refuses, short_refuses_form
from semfocus.fused.launch import launch_for, num_splits
from semfocus.model import layers
from semfocus.model.block import attention_settings
from semfocus.model.forward_fns import ForwardFns
from semfocus.model.inputs import Padding
from semfocus.model.layers import NORM_EPSILON
from semfocus.spec import Spec

if TYPE_CHECKING:
    from semfocus.attention.kernels.short.launch import Call
    from semfocus.fused.kernels import Weights

MAX_WIDTH = 64  # of the model, all heads together and the hidden layer: registers hold three gradients of that size
SHARED_MEMORY = 98_304  # bytes of the largest program without a pipeline, `ln_qkv_backward` in float32
MAX_PRODUCT_IDS = 64  # largest vocabulary whose gradient is computed as a product with one-hot vectors


def fused_parts(spec: Spec, device: torch.device) -> ForwardFns | None:
    """The functions of a step by these kernels; None where they cannot serve. The head is too small to gain."""
    if refuses(spec, device) is not None:
        return None
    from semfocus.fused.step import fold_in, sgd_update

    shared = spec.model.position_kind in ("sine", "none")  # the same positions for all members and examples
    own_embed = embed if shared and spec.num_ids <= MAX_PRODUCT_IDS else layers.embed
    return ForwardFns(own_embed, block, fold_in=fold_in, sgd_update=sgd_update)


class BlockWeights(NamedTuple):
    """The weights of one block, (E, in, out) and (E, out), in the order of the layout."""

    qkv_weight: Tensor
    qkv_bias: Tensor
    o_weight: Tensor
    o_bias: Tensor
    mlp_in_weight: Tensor
    mlp_in_bias: Tensor
    mlp_out_weight: Tensor
    mlp_out_bias: Tensor

    @property
    def member_stride(self) -> int:
        """The stride between members: the weights are columns of one matrix (E, parameters)."""
        strides = {weight.stride(0) for weight in self if weight.shape[0] > 1}
        if len(strides) > 1 or not all(weight[0].is_contiguous() for weight in self):
            raise ValueError("the weights of a block must be columns of one matrix (Layout.split)")
        return strides.pop() if strides else 0

    @property
    def widths(self) -> dict[str, int]:
        """The widths that kernels are compiled for: model, all heads together, hidden layer."""
        return {"D": self.qkv_weight.shape[-2], "H": self.o_weight.shape[-2], "MLP": self.mlp_in_weight.shape[-1]}


def refuses(spec: Spec, device: torch.device, shared_memory: Callable[[torch.device], int] | None = None) -> str | None:
    """Why these kernels cannot serve a model; None if they can. `shared_memory`: bytes that a program may use.

    On the device `meta`, which stands for GPUs of other machines: whether some GPU could.
    """
    shape = spec.model
    widths = {"d_model": shape.d_model, "heads * head_dim": shape.heads * shape.head_dim, "d_mlp": shape.d_mlp}
    for name, width in widths.items():
        if width > MAX_WIDTH:
            return f"{name} is at most {MAX_WIDTH}, not {width}"
    if shape.position_kind in ("alibi", "rope"):
        return f"positions enter with the embeddings, not into the scores ({shape.position_kind})"
    if spec.plan.sole is None:
        return f"all blocks have one mechanism throughout training, not {spec.plan}"
    if spec.learned:
        return f"it has no parameters of attention, and {spec.mechanism} with {spec.normaliser} learns some"
    if spec.is_causal:
        return "every position sees the whole sequence, not only the positions before it"
    if shape.norm != "pre":
        return "LayerNorm stands before each layer, not after it"
    if shape.activation != "relu":
        return f"the hidden layer is ReLU, not {shape.activation}"
    if not shape.is_as_published:
        return "blocks have LayerNorm and biases, and the head is its own, right after the last block"
    if device.type == "cuda" and (room := (shared_memory or _shared_memory)(device)) < SHARED_MEMORY:
        return f"its programs take {SHARED_MEMORY} bytes of shared memory, and {device} has {room}"
    q = torch.empty(1, 1, shape.heads, spec.length, shape.head_dim, device=device)
    plans = {plan(spec.length, spec.length, part.mechanism) for part, _ in spec.by_attention}
    if len(plans) > 1:
        return f"mechanisms of one cohort share one kind of kernel, not {', '.join(sorted(plans))}"
    for part, _ in spec.by_attention:
        inputs = prepare_inputs(q, q, q, part.mechanism, normaliser=part.normaliser)
        reason = short_refuses_form(inputs) if device.type == "meta" else short_refuses(inputs)
        if reason is not None:  # a block calls these kernels only
            return reason
    return None


def _shared_memory(device: torch.device) -> int:
    """Bytes that one program may use, as Triton reports them; 0 without Triton."""
    try:
        from triton.compiler.compiler import max_shared_mem
    except ImportError:
        return 0
    return max_shared_mem(torch.cuda.current_device() if device.index is None else device.index)


def embed(table: Tensor, tokens: Tensor, pos_enc: Tensor, spec: Spec, seed: Tensor | None) -> Tensor:
    """`embed` of the model."""
    return _Embed.apply(table, tokens.contiguous(), pos_enc, seed, spec.model.dropout if seed is not None else 0.0)


def block(
    x: Tensor, weights: list[Tensor], padding: Padding, seeds: Tensor | None, spec: Spec, epsilon: float, train: bool
) -> Tensor:
    """`block` of the model, except for the attention of padding, whose output is not read."""
    with torch.autocast(x.device.type, enabled=False):  # autocast would cast the scaled fp16 operands
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
        partial = _partial_sums(grad, tokens[0].numel(), ids * d)
        _run(
            "embed_backward", tokens, grad.contiguous(), tokens, seed, partial, count=tokens[0].numel(),
            scale=math.sqrt(d), **_dropout(ctx.p), IDS=ids, D=d,
        )  # fmt: skip
        return _sum_splits(partial).view(members, ids, d), None, None, None, None


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, padding: Padding, seeds: Tensor | None, spec: Spec, epsilon: float, train: bool,
        recorded: bool, *weights: Tensor,
    ) -> Tensor:  # fmt: skip

        block = BlockWeights(*weights)
        tf32, trained = bool(torch.backends.cuda.matmul.allow_tf32), recorded and any(ctx.needs_input_grad)
        stride, count = block.member_stride, x.shape[1] * x.shape[2]
        split = _split_fp16(block)
        # Where products take 11 bits, attention needs no more.
        dtype = torch.float16 if tf32 else torch.float32
        qkv = [x.new_empty(*x.shape[:-1], block.widths["H"], dtype=dtype) for _ in range(3)]  # (E, B, L, H)
        settings: dict[str, Any] = {"count": count, "tf32": tf32, **block.widths}
        _run("ln_qkv_forward", x, x, split, block.qkv_bias, *qkv, stride, epsilon=epsilon, **settings)
        q, k, v = (_split_heads(part, spec.model.heads) for part in qkv)
        # Tiled kernels take the sum of P dP from their output, where rounding to float16 would not cancel.
        tiled = plan(x.shape[2], x.shape[2], spec.mechanism) == "tiled"
        out = empty_like_layout(q, q.shape, torch.float32 if tiled else None)
        calls = []
        for part, members in spec.by_attention:
            call = _attention(
                q[members], k[members], v[members], padding.only(members), None if seeds is None else seeds[:, members],
                part, train, tf32, split.bounds[members],
            )  # fmt: skip
            own = out[members], *empty_saved(call.q, call.k, call.mechanism)
            call.forward(*own, check_finite=False)
            calls.append((call, own, members))
        attn_out = _merge_heads(out)
        settings |= {"epsilon": NORM_EPSILON, "max_weight": 1 / (1 - call.dropout_p)}
        settings |= _dropout(spec.model.dropout if train and seeds is not None else 0.0)
        middle, x_out = torch.empty_like(x) if trained else None, torch.empty_like(x)
        biases = (block.o_bias, block.mlp_in_bias, block.mlp_out_bias)
        _run("proj_mlp_forward", x, x, attn_out, split, *biases, seeds, _seed_stride(seeds), middle, x_out, stride,
             **settings)  # fmt: skip
        if trained:
            ctx.save_for_backward(x, middle, attn_out, *split[:-1], block.mlp_in_bias, seeds)
            ctx.calls, ctx.bounds, ctx.heads = calls, split.bounds, spec.model.heads
            ctx.settings = stride, epsilon, settings, [weight.shape for weight in weights]
        return x_out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from semfocus.fused.kernels import Weights
        from semfocus.fused.split_fp16 import GRADIENT_BOUNDS

        x, middle, attn_out, high, low, absmax, mlp_in_bias, seeds = ctx.saved_tensors
        split = Weights(high, low, absmax, ctx.bounds)
        stride, epsilon, settings, shapes = ctx.settings
        ctx.bounds[..., GRADIENT_BOUNDS].zero_()  # programs raise them to the largest entry that they find
        sizes = [shape[1:].numel() for shape in shapes]
        dmiddle, d_attn_out = torch.empty_like(x), x.new_empty(attn_out.shape)
        partial = _partial_sums(x, settings["count"], sum(sizes))
        _run("proj_mlp_backward", x, grads[0].contiguous(), middle, attn_out, split, mlp_in_bias, seeds,
             _seed_stride(seeds), dmiddle, d_attn_out, partial, stride, **settings)  # fmt: skip
        d_attn_out = _split_heads(d_attn_out, ctx.heads)
        gradients = [empty_like_layout(d_attn_out, d_attn_out.shape) for _ in range(3)]  # of q, k and v
        for call, (out, kept, _lse, saved), members in ctx.calls:
            own = [gradient[members] for gradient in gradients]
            call.backward(d_attn_out[members], None, out, kept, saved, *own)
        dx = torch.empty_like(x)
        _run("ln_qkv_backward", x, x, split, *map(_merge_heads, gradients), dmiddle, dx, partial,
             **(settings | {"epsilon": epsilon}))  # fmt: skip
        parts = _sum_splits(partial).split(sizes, dim=1)
        shaped = [part.unflatten(1, shape[1:]) for part, shape in zip(parts, shapes, strict=True)]
        return dx, None, None, None, None, None, None, *shaped


def _split_fp16(block: BlockWeights) -> Weights:
    """The weights of a block as float16 operands, with their bounds (module `split_fp16`)."""
    from semfocus.fused.kernels import Weights
    from semfocus.fused.split_fp16 import NUM_ABSMAX, NUM_BOUNDS

    like = block.qkv_weight
    matrices = (block.qkv_weight, block.o_weight, block.mlp_in_weight, block.mlp_out_weight)
    members, size = like.shape[0], sum(weight[0].numel() for weight in matrices)
    high, low = (like.new_empty(members, size, dtype=torch.float16) for _ in range(2))
    absmax, bounds = like.new_empty(members, NUM_ABSMAX.value), like.new_empty(members, 1, 1, 1, NUM_BOUNDS.value)
    _run("split_fp16_weights", like, block.qkv_weight, block.qkv_bias, block.o_weight, block.mlp_in_weight,
         block.mlp_in_bias, block.mlp_out_weight, high, low, absmax, bounds, block.member_stride, count=0,
         tf32=False, **block.widths)  # fmt: skip
    return Weights(high, low, absmax, bounds)


def _attention(
    q: Tensor, k: Tensor, v: Tensor, padding: Padding, seeds: Tensor | None, spec: Spec, train: bool, tf32: bool,
    bounds: Tensor,
) -> Call:  # fmt: skip
    """The call of the short kernels that `block` of the model would make, with bounds of its inputs."""
    from semfocus.attention.kernels.short.launch import Call

    inputs = prepare_inputs(q, k, v, spec.mechanism, **padding._asdict(), **attention_settings(seeds, spec, train))
    return Call(
        inputs.q, inputs.k, inputs.v, inputs.mask, inputs.lengths, inputs.dropout_seed, inputs.mechanism,
        inputs.causal, inputs.scale, inputs.dropout_p, tf32, bounds, ragged=inputs.lengths is not None,
    )  # fmt: skip


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """(E, B, L, H w) -> (E, B, H, L, w)."""
    return x.unflatten(-1, (heads, -1)).transpose(2, 3)


def _merge_heads(x: Tensor) -> Tensor:
    """(E, B, H, L, w) -> (E, B, L, H w)."""
    return x.transpose(2, 3).flatten(3).contiguous()


def _seed_stride(seeds: Tensor | None) -> int:
    return 0 if seeds is None else seeds.stride(0)


def _dropout(p: float) -> dict[str, Any]:
    from semfocus.attention.kernels.shared import dropout_threshold

    return {"threshold": dropout_threshold(p), "factor": 1 / (1 - p), "DROPOUT": p > 0}


def _partial_sums(x: Tensor, count: int, size: int) -> Tensor:
    """(E, splits, size): space for one partial sum per split."""
    return x.new_empty(x.shape[0], num_splits(x.shape[0], count), size)


def _sum_splits(partial: Tensor) -> Tensor:
    """(E, size) from (E, splits, size)."""
    return partial[:, 0] if partial.shape[1] == 1 else partial.sum(dim=1)


def _run(name: str, like: Tensor, *arguments: Any, count: int, tf32: bool = False, **named: Any) -> None:
    """Launch a kernel for all members of `like` (E, ...), with those of the named values that it takes; widths also
    padded. The gradient of the embedding is a sum taken as a product, which TF32 must not round: hence tf32=False."""
    from triton import OutOfResources

    from semfocus.attention.kernels.products import precision
    from semfocus.attention.kernels.short.arguments import padded
    from semfocus.fused.kernels import KERNELS
    from semfocus.fused.split_fp16 import NUM_MATRICES

    kernel, products = KERNELS[name], precision(tf32, bounded=True)
    launch = launch_for(name, products)
    splits = NUM_MATRICES.value if name == "split_fp16_weights" else num_splits(like.shape[0], count)
    values = named | {"PRECISION": products, "BLOCK_M": launch.block_m, "count": count, "splits": splits}
    values |= {f"BLOCK_{width}": padded(values[width]) for width in ("D", "H", "MLP", "IDS") if width in values}
    given = {key: value for key, value in values.items() if key in kernel.arg_names}
    start = kernel[(like.shape[0] * splits,)]
    with torch.cuda.device_of(like):
        try:
            start(*arguments, **given, **launch.options)
        except OutOfResources:
            start(*arguments, **given, **launch.without_pipeline().options)
