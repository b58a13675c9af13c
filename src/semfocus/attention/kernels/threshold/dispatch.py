"""Exact top-k attention with any number of keys a query: a threshold a query, then masked flash attention.

Registered with torch.library, so that torch.compile and CUDA graphs see one opaque operator. Memory beside the output:
four numbers a query. Shapes as in `long.dispatch`: q (B, H, G, Lq, D), k (B, H, Lk, D), v (B, H, Lk, Dv).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from triton import OutOfResources

from semfocus.attention.chunked import counted_info, listed_info
from semfocus.attention.inputs import AttentionInputs
from semfocus.attention.inspection import AttentionInfo
from semfocus.attention.kept_pairs import listed_scores
from semfocus.attention.kernels.eager import choose_way
from semfocus.attention.kernels.long.arguments import flattened
from semfocus.attention.kernels.shared import dropout_threshold
from semfocus.attention.kernels.short.arguments import cdiv, padded
from semfocus.attention.kernels.short.configs import MIN_TILE, shrinking
from semfocus.attention.kernels.threshold import flash, gradients, listing
from semfocus.attention.kernels.threshold.configs import Look, launch_for
from semfocus.attention.kernels.threshold.search import find_thresholds
from semfocus.attention.weights import log_sum_exp

FLAG_ROWS = 128  # rows of v that a program looks at


@dataclass(frozen=True)
class Call:
    """The inputs of one call, and its launches."""

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

    @property
    def problems(self) -> int:
        return math.prod(self.q.shape[:-2])

    @cached_property
    def look(self) -> Look:
        """What kernels are compiled for."""
        d, dv = self.q.shape[-1], self.v.shape[-1]
        return Look(
            *(d, padded(d), dv, padded(dv)),
            causal=self.causal,
            mask=self.mask is not None,
            lengths=self.lengths is not None,
            always_kept=self.sinks + self.window > 0,
            dropout=self.hashes is not None,
            precision="tf32x3" if self.q.dtype == torch.float32 else "tf32",  # 16-bit operands are multiplied as such
        )

    @cached_property
    def restrictions(self) -> tuple[Tensor, Tensor | None]:
        """Mask and lengths; without a mask any address will do."""
        queries, keys = self.q.shape[-2], self.k.shape[-2]
        mask = self.q if self.mask is None else self.mask.expand(*self.q.shape[:-2], queries, keys)
        return mask, self.lengths

    @cached_property
    def sizes(self) -> tuple[Any, ...]:
        """Strides of the mask, key heads, queries, keys, query heads a key head, sinks, window."""
        strides = (0,) * 5 if self.mask is None else self.restrictions[0].stride()
        return (
            *(strides, self.q.shape[1], self.q.shape[-2], self.k.shape[-2], self.q.shape[2]),
            *(self.sinks, self.window),
        )

    @property
    def softmax(self) -> tuple[float, int, float]:
        return self.scale, dropout_threshold(self.dropout_p), 1 / (1 - self.dropout_p)

    def search(self, thresholds: Tensor, last_ties: Tensor) -> Tensor:
        """Fill the thresholds; return how many passes over the keys each search took."""
        queries = self.q.shape[-2]
        passes = thresholds.new_empty(self.problems, cdiv(queries, MIN_TILE), dtype=torch.int32)

        def start(grid, **constants) -> None:
            find_thresholds[grid](
                self.q, self.k, *self.restrictions, thresholds, last_ties, passes, *self.sizes, self.topk, **constants
            )

        with torch.cuda.device_of(self.q):
            self._run("search", start, queries)
        return passes

    def forward(self, out: Tensor, thresholds: Tensor, last_ties: Tensor, saved: Tensor) -> None:
        """Fill the results."""
        self.search(thresholds, last_ties)

        def start(grid, **constants) -> None:
            flash.forward[grid](
                self.q, self.k, self.v, *self.restrictions, self.hashes, flag, thresholds, last_ties, out, saved,
                *self.sizes, *self.softmax, **constants,
            )  # fmt: skip

        with torch.cuda.device_of(self.q):
            flag = self._find_nonfinite()
            self._run("forward", start, self.q.shape[-2])

    def _find_nonfinite(self) -> Tensor:
        """(1,) int32: whether v holds NaN or infinity."""
        rows, width = math.prod(self.v.shape[:-1]), self.v.shape[-1]
        flag = torch.zeros(1, dtype=torch.int32, device=self.v.device)
        grid = (cdiv(rows, FLAG_ROWS),)
        flash.find_nonfinite[grid](self.v, flag, rows, WIDTH=width, BLOCK=padded(width), BLOCK_M=FLAG_ROWS)
        return flag

    def backward(
        self, grad: Tensor, out: Tensor, thresholds: Tensor, last_ties: Tensor, saved: Tensor,
        dq: Tensor, dk: Tensor, dv: Tensor,
    ) -> None:  # fmt: skip
        """Fill dq, dk and dv."""
        means = torch.empty_like(thresholds)
        given = (*self.restrictions, self.hashes, thresholds, last_ties, saved, means)

        def by_query(grid, **constants) -> None:
            gradients.by_query[grid](
                grad, self.q, self.k, self.v, out, *given, dq, *self.sizes, *self.softmax, **constants
            )

        def by_key(grid, **constants) -> None:
            gradients.by_key[grid](
                grad, self.q, self.k, self.v, *given, dk, dv, *self.sizes, *self.softmax, **constants
            )

        with torch.cuda.device_of(self.q):
            self._run("by_query", by_query, self.q.shape[-2])
            self._run("by_key", by_key, self.k.shape[-2])

    def list_kept(self, thresholds: Tensor, last_ties: Tensor, saved: Tensor) -> tuple[Tensor, Tensor]:
        """(B, H, G, Lq, n) the kept keys in increasing order, -1 for none, and their weights before dropout."""
        queries, keys = self.q.shape[-2], self.k.shape[-2]
        size = *self.q.shape[:-1], min(self.topk + self.sinks + self.window, keys)
        indices = torch.full(size, -1, dtype=torch.int32, device=self.q.device)
        weights = torch.zeros(size, dtype=torch.float32, device=self.q.device)

        def start(grid, **constants) -> None:
            listing.list_kept[grid](
                self.q, self.k, *self.restrictions, thresholds, last_ties, saved, indices, weights, *self.sizes,
                self.scale, size[-1], **constants,
            )  # fmt: skip

        with torch.cuda.device_of(self.q):
            self._run("list", start, queries)
        return indices, weights

    def _run(self, name: str, start: Callable[..., None], rows: int) -> None:
        """Launch a kernel: a program for each tile of rows; on a GPU with less shared memory with smaller tiles."""
        look = self.look
        launch = launch_for(name, max(look.d, look.dv), look.precision)
        problems = self.problems if name != "by_key" else math.prod(self.k.shape[:-2])
        for attempt in shrinking(launch, MIN_TILE):
            tile = attempt.block_n if name == "by_key" else attempt.block_m
            try:
                start(
                    (problems * cdiv(rows, tile),), LOOK=look, BLOCK_M=attempt.block_m, BLOCK_N=attempt.block_n,
                    # with fused multiply-adds, score - row_max would not be exactly zero for the largest score
                    enable_fp_fusion=False, **attempt.options,
                )  # fmt: skip
                return
            except OutOfResources as error:
                lacking = error
        raise lacking


@torch.library.custom_op("semfocus::threshold_topk", mutates_args=())
def threshold_topk(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, lengths: Tensor | None, hashes: Tensor | None,
    topk: int, sinks: int, window: int, causal: bool, scale: float, dropout_p: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Output (B, H, G, Lq, Dv), thresholds and last ties (B, H, G, Lq), saved numbers (B, H, G, 2, Lq)."""
    return launch_forward(q, k, v, mask, lengths, hashes, topk, sinks, window, causal, scale, dropout_p)


def launch_forward(
    q, k, v, mask, lengths, hashes, topk, sinks, window, causal, scale, dropout_p
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`threshold_topk` without the dispatcher."""
    results = _empty_results(q, k, v)
    Call(q, k, v, mask, lengths, hashes, topk, sinks, window, causal, scale, dropout_p).forward(*results)
    return results


@threshold_topk.register_fake
def _(q, k, v, mask, lengths, hashes, topk, sinks, window, causal, scale, dropout_p):
    return _empty_results(q, k, v)


def _empty_results(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows = q.shape[:-1]
    return (
        q.new_empty(*rows, v.shape[-1]),
        q.new_empty(rows, dtype=torch.float32),
        q.new_empty(rows, dtype=torch.int32),
        q.new_empty(*rows[:-1], 2, rows[-1], dtype=torch.float32),
    )


@torch.library.custom_op("semfocus::threshold_topk_backward", mutates_args=())
def threshold_topk_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, lengths: Tensor | None, hashes: Tensor | None,
    out: Tensor, thresholds: Tensor, last_ties: Tensor, saved: Tensor,
    sinks: int, window: int, causal: bool, scale: float, dropout_p: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k and v over the kept pairs."""
    return launch_backward(
        grad, q, k, v, mask, lengths, hashes, out, thresholds, last_ties, saved, sinks, window, causal, scale, dropout_p
    )


def launch_backward(
    grad, q, k, v, mask, lengths, hashes, out, thresholds, last_ties, saved, sinks, window, causal, scale, dropout_p
):
    """`threshold_topk_backward` without the dispatcher."""
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    call = Call(q, k, v, mask, lengths, hashes, 0, sinks, window, causal, scale, dropout_p)
    call.backward(grad, out, thresholds, last_ties, saved, dq, dk, dv)
    return dq, dk, dv


@threshold_topk_backward.register_fake
def _(grad, q, k, v, mask, lengths, hashes, out, thresholds, last_ties, saved, sinks, window, causal, scale, dropout_p):
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _setup_context(ctx, inputs, output) -> None:
    ctx.set_materialize_grads(False)
    *tensors, _topk, ctx.sinks, ctx.window, ctx.causal, ctx.scale, ctx.dropout_p = inputs
    ctx.save_for_backward(*tensors, *output)


def _backward(ctx, grad, *_others):
    tensors = ctx.saved_tensors
    grad = torch.zeros_like(tensors[6]) if grad is None else grad.contiguous()
    grads = threshold_topk_backward(grad, *tensors, ctx.sinks, ctx.window, ctx.causal, ctx.scale, ctx.dropout_p)
    return *grads, *([None] * 9)


threshold_topk.register_autograd(_backward, setup_context=_setup_context)


class _Eager(torch.autograd.Function):
    """`threshold_topk` and its gradient without the dispatcher."""

    @staticmethod
    def forward(ctx, *inputs):
        results = launch_forward(*inputs)
        _setup_context(ctx, inputs, results)
        ctx.mark_non_differentiable(*results[1:])
        return results

    @staticmethod
    @once_differentiable
    def backward(ctx, grad, *_others):
        tensors = ctx.saved_tensors
        grad = torch.zeros_like(tensors[6]) if grad is None else grad.contiguous()
        grads = launch_backward(grad, *tensors, ctx.sinks, ctx.window, ctx.causal, ctx.scale, ctx.dropout_p)
        return *grads, *([None] * 9)


@torch.library.custom_op("semfocus::threshold_lists", mutates_args=())
def threshold_lists(
    q: Tensor, k: Tensor, mask: Tensor | None, lengths: Tensor | None, thresholds: Tensor, last_ties: Tensor,
    saved: Tensor, topk: int, sinks: int, window: int, causal: bool, scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The kept keys (B, H, G, Lq, n) int32 in increasing order, -1 for none, and their weights before dropout."""
    call = Call(q, k, q, mask, lengths, None, topk, sinks, window, causal, scale, 0.0)
    return call.list_kept(thresholds, last_ties, saved)


@threshold_lists.register_fake
def _(q, k, mask, lengths, thresholds, last_ties, saved, topk, sinks, window, causal, scale):
    size = *q.shape[:-1], min(topk + sinks + window, k.shape[-2])
    return q.new_empty(size, dtype=torch.int32), q.new_empty(size, dtype=torch.float32)


def threshold(inputs: AttentionInputs, want_info: bool = False) -> tuple[Tensor, AttentionInfo | None]:
    """Top-k attention of a call that `threshold_refuses` does not refuse."""
    mechanism, lead = inputs.mechanism, inputs.lead
    given = flattened(inputs)
    run = choose_way(threshold_topk, _Eager, launch_forward, inputs.q, inputs.k, inputs.v)
    options = min(mechanism.size or 0, inputs.num_keys), mechanism.num_sinks, mechanism.num_nearest, inputs.causal
    out, thresholds, last_ties, saved = run(*given, *options, inputs.scale, inputs.dropout_p)
    out = out.view(*lead, *out.shape[-2:])
    if not want_info:
        return out, None
    q, k = given.q.detach(), given.k.detach()
    indices, weights = threshold_lists(
        q, k, given.mask, given.lengths, thresholds, last_ties, saved, *options, inputs.scale
    )  # fmt: skip
    indices, weights = (tensor.view(*lead, *tensor.shape[-2:]) for tensor in (indices.long(), weights))
    if torch.is_grad_enabled() and (inputs.q.requires_grad or inputs.k.requires_grad):
        return out, listed_info(inputs, indices, log_sum_exp(listed_scores(inputs, indices), indices >= 0))
    row_max, norm = saved.view(*lead, *saved.shape[-2:]).unbind(-2)  # logarithms to the base of two
    lse = (row_max - norm.log2()) * math.log(2)
    return out, counted_info(inputs, indices, weights, torch.where(indices[..., 0] < 0, -math.inf, lse))
