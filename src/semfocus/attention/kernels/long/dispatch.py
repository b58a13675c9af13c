"""Exact top-k attention over long sequences, by Triton kernels: memory O(L k), and backward work O(L k).

Forward: see `forward`. The indices (int32) are saved for the backward pass: see `backward`. Registered with
torch.library, so that torch.compile and CUDA graphs see one opaque operator.

Shapes: q (B, H, G, Lq, D): G query heads share one key head; k (B, H, Lk, D); v (B, H, Lk, Dv).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from triton import OutOfResources

from semfocus.attention.chunked import listed_info
from semfocus.attention.inputs import AttentionInputs
from semfocus.attention.inspection import AttentionInfo
from semfocus.attention.kept_keys import ordered
from semfocus.attention.kernels.eager import choose_way
from semfocus.attention.kernels.long.arguments import flattened
from semfocus.attention.kernels.long.backward import PairLists, hub_parts, key_gradients, query_gradients
from semfocus.attention.kernels.long.forward import best_groups, group_maxima, select_and_mix
from semfocus.attention.kernels.products import precision
from semfocus.attention.kernels.shared import dropout_threshold
from semfocus.attention.kernels.short.arguments import HeadDims, cdiv, next_power_of_2
from semfocus.attention.kernels.short.configs import MIN_TILE

SCRATCH_BYTES = 2**29  # of group maxima held at once; more queries take several launches
HUB, CHUNK = 1024, 256  # a key that more than HUB queries keep is summed in splits of CHUNK pairs


@dataclass(frozen=True)
class Tiles:
    """Tile sizes and warps, measured on an H200 (docs/kernels.md); any choice gives the same answer."""

    queries: int = 128  # BLOCK_M of group_maxima
    lanes: int = 64  # BLOCK_N of group_maxima: groups in a stretch
    group: int = 8  # GROUP_SIZE: keys in a group
    maxima_warps: int = 8
    maxima_stages: int = 4
    group_rows: int = 32  # BLOCK_M of best_groups: one query a thread
    select_numbers: int = 1024  # numbers that one program of select_and_mix holds at once
    select_warps: int = 1
    gradient_numbers: int = 1024  # entries of keys that one warp of query_gradients holds
    list_rows: int = 8  # BLOCK_PAIRS: pairs of a list that are summed at a time
    list_warps: int = 1


@dataclass(frozen=True)
class LongCall:
    """The inputs of one forward call: those of `long_topk`."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    lengths: Tensor | None
    hashes: Tensor | None
    topk: int
    sinks: int
    window: int
    causal: bool
    scale: float
    dropout_p: float


def tiles_for(keys: int, wide: bool) -> Tiles:
    """The measured choice: groups grow with the number of keys, so that finding the best of them stays cheap."""
    group = 4 if keys <= 4096 else 8 if keys <= 32768 else 16 if keys <= 65536 else 32
    if wide:  # float32 takes three products and twice the memory
        return Tiles(queries=64, group=group, maxima_warps=4, maxima_stages=2)
    return Tiles(group=group)


def shrinking(tiles: Tiles) -> Iterator[Tiles]:
    """The tiles, then ever smaller ones, for GPUs with less shared memory than the one they were measured on."""
    yield tiles
    yield replace(tiles, maxima_stages=1)
    while tiles.queries > MIN_TILE:
        tiles = replace(tiles, queries=tiles.queries // 2, maxima_warps=min(tiles.maxima_warps, 4), maxima_stages=1)
        yield tiles


@torch.library.custom_op("semfocus::long_topk", mutates_args=())
def long_topk(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, lengths: Tensor | None, hashes: Tensor | None,
    topk: int, sinks: int, window: int, causal: bool, scale: float, dropout_p: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Output (B, H, G, Lq, Dv), kept keys (B, H, G, Lq, n) int32 in no particular order, log-sum-exp (B, H, G, Lq)."""
    return launch_lists(q, k, v, mask, lengths, hashes, topk, sinks, window, causal, scale, dropout_p)


def launch_lists(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    """`long_topk` without the dispatcher."""
    return launch_forward(LongCall(*inputs))


def launch_forward(call: LongCall) -> tuple[Tensor, Tensor, Tensor]:
    """The three forward kernels, for one chunk of queries after the other; on a smaller GPU with smaller tiles."""
    tiles = tiles_for(call.k.shape[-2], call.q.dtype == torch.float32)
    with torch.cuda.device_of(call.q):
        for attempt in shrinking(tiles):
            try:
                return _forward(call, attempt)
            except OutOfResources as error:
                lacking = error
    raise lacking


def _forward(call: LongCall, tiles: Tiles) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v, mask, lengths, hashes = call.q, call.k, call.v, call.mask, call.lengths, call.hashes
    topk, sinks, window = call.topk, call.sinks, call.window
    *lead, queries, width = q.shape
    problems, keys, value_width = math.prod(lead), k.shape[-2], v.shape[-1]
    out, indices, lse = _empty_results(q, k, v, topk, sinks, window)
    groups = cdiv(keys, tiles.group)
    chunk = max(tiles.queries, SCRATCH_BYTES // (4 * problems * groups) // tiles.queries * tiles.queries)
    chunk = min(chunk, queries)
    maxima = torch.empty(problems, groups, chunk, dtype=torch.float32, device=q.device)
    octet_maxima = torch.empty(problems, cdiv(groups, 8), chunk, dtype=torch.float32, device=q.device)
    chosen = torch.empty(problems, chunk, topk, dtype=torch.int32, device=q.device)
    mask_data = q if mask is None else mask.expand(*lead, queries, keys)  # without a mask any address will do
    strides = (0,) * 5 if mask is None else mask_data.stride()
    block_k, block_list = next_power_of_2(topk), next_power_of_2(topk + sinks + window)
    block_d = min(next_power_of_2(width), max(16, tiles.select_numbers // (block_k * tiles.group)))
    block_dv = min(next_power_of_2(value_width), max(16, tiles.select_numbers // block_list))
    numbers = max(block_k * tiles.group * block_d, block_list * max(block_d, block_dv))  # of one query
    rows = max(1, min(tiles.select_numbers // numbers, 16))
    looks = {"CAUSAL": call.causal, "LENGTHS": lengths is not None}
    flags = {"MASK": mask is not None, "ALWAYS_KEPT": sinks + window > 0, **looks}
    for first in range(0, queries, chunk):
        here = min(chunk, queries - first)
        group_maxima[(cdiv(here, tiles.queries) * problems,)](
            q, k, mask_data, lengths, maxima, octet_maxima, strides, lead[1],
            first, here, queries, keys, groups, sinks, window, lead[-1],
            D=width, BLOCK_D=max(16, next_power_of_2(width)), BLOCK_M=tiles.queries, BLOCK_N=tiles.lanes,
            GROUP_SIZE=tiles.group, PRECISION=precision(tf32=False), **flags,
            num_warps=tiles.maxima_warps, num_stages=tiles.maxima_stages,
        )  # fmt: skip
        best_groups[(cdiv(here, tiles.group_rows) * problems,)](
            maxima, octet_maxima, lengths, chosen, first, here, queries, keys, groups,
            TOPK=topk, BLOCK_K=block_k, BLOCK_M=tiles.group_rows, GROUP_SIZE=tiles.group, **looks,
            num_warps=tiles.group_rows // 32,
        )  # fmt: skip
        select_and_mix[(cdiv(here, rows) * problems,)](
            q, k, v, mask_data, lengths, hashes, chosen, out, indices, lse, strides, lead[1],
            first, here, queries, keys, sinks, window, lead[-1],
            call.scale, dropout_threshold(call.dropout_p), 1 / (1 - call.dropout_p), TOPK=topk, BLOCK_K=block_k,
            LIST=indices.shape[-1], BLOCK_LIST=block_list, D=width, DV=value_width, BLOCK_D=block_d,
            BLOCK_DV=block_dv, BLOCK_M=rows, GROUP_SIZE=tiles.group, DROPOUT=hashes is not None, **flags,
            num_warps=tiles.select_warps,
        )  # fmt: skip
    return out, indices, lse


@long_topk.register_fake
def _(q, k, v, mask, lengths, hashes, topk, sinks, window, causal, scale, dropout_p):
    return _empty_results(q, k, v, topk, sinks, window)


def _empty_results(
    q: Tensor, k: Tensor, v: Tensor, topk: int, sinks: int, window: int
) -> tuple[Tensor, Tensor, Tensor]:
    rows = q.shape[:-1]
    return (
        q.new_empty(*rows, v.shape[-1]),
        q.new_empty(*rows, topk + sinks + window, dtype=torch.int32),
        q.new_empty(rows, dtype=torch.float32),
    )


@torch.library.custom_op("semfocus::long_topk_backward", mutates_args=())
def long_topk_backward(
    grad: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, hashes: Tensor | None, indices: Tensor,
    scale: float, dropout_p: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k and v over the kept pairs."""
    return launch_backward(grad, grad_lse, q, k, v, hashes, indices, scale, dropout_p)


def launch_backward(
    grad: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, hashes: Tensor | None, indices: Tensor,
    scale: float, dropout_p: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """`long_topk_backward` without the dispatcher."""
    with torch.cuda.device_of(q):
        tiles = tiles_for(k.shape[-2], q.dtype == torch.float32)
        return _backward_kernels(grad, grad_lse, q, k, v, hashes, indices, scale, dropout_p, tiles)


def _backward_kernels(grad, grad_lse, q, k, v, hashes, indices, scale, dropout_p, tiles):
    """dq by query, then dk and dv by key after one stable sort of the pairs."""
    queries, width = q.shape[-2:]
    keys, value_width, listed = k.shape[-2], v.shape[-1], indices.shape[-1]
    rows, heads = q.shape[:-1].numel(), q.shape[2]
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    weights = torch.empty(indices.shape, dtype=torch.float32, device=q.device)
    factors, owners = torch.empty_like(weights), torch.empty_like(indices)
    total_keys = k.shape[0] * k.shape[1] * keys
    block_d, block_dv = next_power_of_2(width), next_power_of_2(value_width)
    block_list = next_power_of_2(listed)
    widths = {"LIST": listed, "DIMS": HeadDims(width, block_d, value_width, block_dv)}
    numbers = block_list * max(block_d, block_dv)  # of one query
    block_m = max(1, min(tiles.gradient_numbers // numbers, 16))
    warps = max(1, min(next_power_of_2(numbers // tiles.gradient_numbers), 8))
    query_gradients[(cdiv(rows, block_m),)](
        grad, grad_lse, q, k, v, hashes, indices, dq, weights, factors, owners, rows, queries, keys, total_keys, heads,
        scale, dropout_threshold(dropout_p), 1 / (1 - dropout_p), BLOCK_LIST=block_list, BLOCK_M=block_m,
        GRAD_LSE=grad_lse is not None, DROPOUT=hashes is not None, **widths, num_warps=warps,
    )  # fmt: skip
    sorted_keys, order = owners.flatten().sort(stable=True)
    key_range = torch.arange(total_keys + 1, device=q.device, dtype=torch.int32)
    offsets = torch.searchsorted(sorted_keys, key_range, out_int32=True)
    pairs = order.numel()
    windows = cdiv(pairs, CHUNK)
    parts = torch.empty(windows, 2, block_d + block_dv, dtype=torch.float32, device=q.device)
    lists = PairLists(sorted_keys, order, offsets, weights, factors, q, grad)
    options = {"BLOCK_PAIRS": tiles.list_rows, "CHUNK": CHUNK, "HUB": HUB, "num_warps": tiles.list_warps, **widths}
    hub_parts[(windows, 2)](lists, parts, pairs, total_keys, **options)
    key_gradients[(total_keys,)](lists, parts, dk, dv, **options)
    return dq, dk, dv


@long_topk_backward.register_fake
def _(grad, grad_lse, q, k, v, hashes, indices, scale, dropout_p):
    return tuple(torch.empty_like(tensor) for tensor in (q, k, v))


def _setup_context(ctx, inputs, output) -> None:
    ctx.set_materialize_grads(False)
    q, k, v, _, _, hashes, _, _, _, _, ctx.scale, ctx.dropout_p = inputs
    ctx.save_for_backward(q, k, v, hashes, output[1])


def _backward(ctx, grad, _grad_indices, grad_lse):
    q, k, v, hashes, indices = ctx.saved_tensors
    grad = q.new_zeros(*q.shape[:-1], v.shape[-1]) if grad is None else grad.contiguous()
    grad_lse = None if grad_lse is None else grad_lse.contiguous()
    grads = long_topk_backward(grad, grad_lse, q, k, v, hashes, indices, ctx.scale, ctx.dropout_p)
    return *grads, *([None] * 9)


long_topk.register_autograd(_backward, setup_context=_setup_context)


class _Eager(torch.autograd.Function):
    """`long_topk` and its gradient without the dispatcher."""

    @staticmethod
    def forward(ctx, *inputs):
        results = launch_lists(*inputs)
        _setup_context(ctx, inputs, results)
        ctx.mark_non_differentiable(results[1])
        return results

    @staticmethod
    @once_differentiable
    def backward(ctx, grad, _grad_indices, grad_lse):
        q, k, v, hashes, indices = ctx.saved_tensors
        grad = q.new_zeros(*q.shape[:-1], v.shape[-1]) if grad is None else grad.contiguous()
        grad_lse = None if grad_lse is None else grad_lse.contiguous()
        grads = launch_backward(grad, grad_lse, q, k, v, hashes, indices, ctx.scale, ctx.dropout_p)
        return *grads, *([None] * 9)


def long(inputs: AttentionInputs, want_info: bool = False) -> tuple[Tensor, AttentionInfo | None]:
    """Top-k attention of a call that `long_refuses` does not refuse."""
    mechanism = inputs.mechanism
    run = choose_way(long_topk, _Eager, launch_lists, inputs.q, inputs.k, inputs.v)
    out, indices, lse = run(
        *flattened(inputs), min(mechanism.size or 0, inputs.num_keys), mechanism.num_sinks, mechanism.num_nearest,
        inputs.causal, inputs.scale, inputs.dropout_p,
    )  # fmt: skip
    lead = inputs.lead
    out = out.view(*lead, *out.shape[-2:])
    if not want_info:
        return out, None
    indices = ordered(indices.view(*lead, *indices.shape[-2:]).long(), inputs.num_keys)
    return out, listed_info(inputs, indices[..., : mechanism.max_kept(inputs.num_keys)], lse.view(*lead, -1))
