"""Top-k attention over long sequences, backward: kept pairs only, no atomics, bitwise reproducible.

    query_gradients    per query: its weights again, dq, and two factors for every kept pair
    hub_parts          keys that very many queries keep: their lists in splits of CHUNK pairs, one partial sum per split
    key_gradients      per key: dk and dv over the queries that keep it, in the order of the queries

One stable sort brings the pairs into the order of their keys. Splits are cut along each key's own list, so that a
gradient does not depend on what else is in the batch.

Shapes: M problems, n keys kept by a query (LIST), P = M Lq n pairs, T = all keys of all problems, D and Dv head
dimensions of q, k and of v.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from semfocus.attention.kernels.shared import MINUS_INF, survives


class PairLists(NamedTuple):
    """Addresses of the pairs in the order of their keys, and of what the sums over them need."""

    sorted_keys: Any  # (P,) key of each sorted pair, T for pairs without a key
    order: Any  # (P,) pair numbers
    offsets: Any  # (T + 1,) where the list of each key begins
    weights: Any  # (P,) weight after dropout, by pair number
    factors: Any  # (P,) factor of q in dk, by pair number
    q: Any
    grad: Any


@triton.jit
def query_gradients(
    grad, grad_lse, q, k, v, hashes, indices, dq, weights_out, factors_out, owners_out,
    rows, queries, keys, total_keys, heads_per_key, sm_scale, threshold, dropout,
    LIST: tl.constexpr, BLOCK_LIST: tl.constexpr, DIMS: tl.constexpr, BLOCK_M: tl.constexpr, GRAD_LSE: tl.constexpr,
    DROPOUT: tl.constexpr,
):  # fmt: skip
    """dq (M, Lq, D), and (P,) for each pair: its weight after dropout (dv = sum of weight * grad), the factor of q in
    dk, and its owner, the key among all keys of all problems (T for none). Grid: tiles of BLOCK_M queries."""
    D: tl.constexpr = DIMS.d
    DV: tl.constexpr = DIMS.dv
    BLOCK_D: tl.constexpr = DIMS.block_d
    BLOCK_DV: tl.constexpr = DIMS.block_dv
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = row < rows
    row = tl.where(inside, row, 0)
    kv = row // queries // heads_per_key * keys
    entry = tl.arange(0, BLOCK_LIST)
    listed = tl.load(
        indices + row[:, None] * LIST + entry[None, :], mask=inside[:, None] & (entry < LIST)[None, :], other=-1
    )
    present = listed >= 0
    at = kv[:, None] + listed
    channel = tl.arange(0, BLOCK_D)
    q_rows = tl.load(q + row[:, None] * D + channel[None, :], mask=(channel < D)[None, :], other=0.0).to(tl.float32)
    k_rows = tl.load(
        k + at[:, :, None] * D + channel[None, None, :], mask=present[:, :, None] & (channel < D)[None, None, :],
        other=0.0,
    ).to(tl.float32)  # fmt: skip
    scores = tl.sum(q_rows[:, None, :] * k_rows, axis=2) * sm_scale
    # As in the forward pass: weights from the log-sum-exp would lose bits where scores are large.
    scores = tl.where(present, scores, MINUS_INF)
    top = tl.max(scores, axis=1)
    weights = tl.where(present, tl.exp(scores - tl.where(top > MINUS_INF, top, 0.0)[:, None]), 0.0)
    total = tl.sum(weights, axis=1)
    weights = weights / tl.where(total == 0.0, 1.0, total)[:, None]
    out_channel = tl.arange(0, BLOCK_DV)
    grads = tl.load(
        grad + row[:, None] * DV + out_channel[None, :], mask=(out_channel < DV)[None, :], other=0.0
    ).to(tl.float32)  # fmt: skip
    v_rows = tl.load(
        v + at[:, :, None] * DV + out_channel[None, None, :],
        mask=present[:, :, None] & (out_channel < DV)[None, None, :], other=0.0,
    ).to(tl.float32)  # fmt: skip
    dp = tl.sum(grads[:, None, :] * v_rows, axis=2)
    dropped = weights
    if DROPOUT:
        factor = tl.where(survives(tl.load(hashes + row)[:, None], listed, threshold), dropout, 0.0)
        dropped = weights * factor
        dp = dp * factor
    mean = tl.sum(weights * dp, axis=1)
    if GRAD_LSE:
        mean -= tl.load(grad_lse + row)
    factors = tl.where(present, weights * (dp - mean[:, None]), 0.0) * sm_scale
    tl.store(
        dq + row[:, None] * D + channel[None, :],
        tl.sum(factors[:, :, None] * k_rows, axis=1).to(dq.dtype.element_ty),
        mask=inside[:, None] & (channel < D)[None, :],
    )
    pair = row[:, None] * LIST + entry[None, :]
    kept = inside[:, None] & (entry < LIST)[None, :]
    tl.store(weights_out + pair, dropped, mask=kept)
    tl.store(factors_out + pair, factors, mask=kept)
    tl.store(owners_out + pair, tl.where(present, at, total_keys).to(tl.int32), mask=kept)


@triton.jit
def list_sums(start, end, lists, LIST: tl.constexpr, DIMS: tl.constexpr, BLOCK_PAIRS: tl.constexpr):
    """Sums over the sorted pairs start .. end - 1: of factor * q (BLOCK_D,), and of weight * grad (BLOCK_DV,)."""
    D: tl.constexpr = DIMS.d
    DV: tl.constexpr = DIMS.dv
    BLOCK_D: tl.constexpr = DIMS.block_d
    BLOCK_DV: tl.constexpr = DIMS.block_dv
    channel = tl.arange(0, BLOCK_D)
    out_channel = tl.arange(0, BLOCK_DV)
    dk = tl.zeros((BLOCK_D,), tl.float32)
    dv = tl.zeros((BLOCK_DV,), tl.float32)
    for begin in range(start, end, BLOCK_PAIRS):
        slot = begin + tl.arange(0, BLOCK_PAIRS)
        real = slot < end
        pair = tl.load(lists.order + slot, mask=real, other=0)
        row = pair // LIST
        factor = tl.load(lists.factors + pair, mask=real, other=0.0)
        weight = tl.load(lists.weights + pair, mask=real, other=0.0)
        q_rows = tl.load(
            lists.q + row[:, None] * D + channel[None, :], mask=real[:, None] & (channel < D)[None, :], other=0.0
        ).to(tl.float32)  # fmt: skip
        grads = tl.load(
            lists.grad + row[:, None] * DV + out_channel[None, :],
            mask=real[:, None] & (out_channel < DV)[None, :], other=0.0,
        ).to(tl.float32)  # fmt: skip
        dk += tl.sum(factor[:, None] * q_rows, axis=0)
        dv += tl.sum(weight[:, None] * grads, axis=0)
    return dk, dv


@triton.jit
def load_range(offsets, key):
    """Where the list of a key begins, and one past its end."""
    return tl.load(offsets + key), tl.load(offsets + key + 1)


@triton.jit
def hub_parts(
    lists, parts, pairs, total_keys,
    LIST: tl.constexpr, DIMS: tl.constexpr, BLOCK_PAIRS: tl.constexpr, CHUNK: tl.constexpr, HUB: tl.constexpr,
):  # fmt: skip
    """parts (windows, 2, BLOCK_D + BLOCK_DV): sums over splits of long lists, by the window of CHUNK pairs.

    At most two splits begin in a window: one of the list that holds the window's first pair, and the first split of the
    list that holds its last pair. A list between them lies within the window and is no hub. Grid: windows x 2.
    """
    BLOCK_D: tl.constexpr = DIMS.block_d
    BLOCK_DV: tl.constexpr = DIMS.block_dv
    window = tl.program_id(0)
    second = tl.program_id(1)
    low = window * CHUNK
    high = tl.minimum(low + CHUNK, pairs)
    opening = tl.load(lists.sorted_keys + low)
    key = opening
    if second == 1:
        key = tl.load(lists.sorted_keys + high - 1)
    ours = (key < total_keys) & ((second == 0) | (key != opening))
    key = tl.where(ours, key, 0)
    begin, end = load_range(lists.offsets, key)
    start = begin + tl.cdiv(tl.maximum(low - begin, 0), CHUNK) * CHUNK
    if ours & (end - begin > HUB) & (start < high) & (start < end):
        dk, dv = list_sums(
            start, tl.minimum(start + CHUNK, end), lists, LIST, DIMS, BLOCK_PAIRS
        )  # fmt: skip
        at = parts + (window * 2 + second).to(tl.int64) * (BLOCK_D + BLOCK_DV)
        tl.store(at + tl.arange(0, BLOCK_D), dk)
        tl.store(at + BLOCK_D + tl.arange(0, BLOCK_DV), dv)


@triton.jit
def key_gradients(
    lists, parts, dk_out, dv_out,
    LIST: tl.constexpr, DIMS: tl.constexpr, BLOCK_PAIRS: tl.constexpr, CHUNK: tl.constexpr, HUB: tl.constexpr,
):  # fmt: skip
    """dk (T, D) and dv (T, Dv): a short list is summed here, a long one from its parts, in order. Grid: T keys."""
    D: tl.constexpr = DIMS.d
    DV: tl.constexpr = DIMS.dv
    BLOCK_D: tl.constexpr = DIMS.block_d
    BLOCK_DV: tl.constexpr = DIMS.block_dv
    key = tl.program_id(0)
    begin, end = load_range(lists.offsets, key)
    channel = tl.arange(0, BLOCK_D)
    out_channel = tl.arange(0, BLOCK_DV)
    if end - begin <= HUB:
        dk, dv = list_sums(begin, end, lists, LIST, DIMS, BLOCK_PAIRS)
    else:
        dk = tl.zeros((BLOCK_D,), tl.float32)
        dv = tl.zeros((BLOCK_DV,), tl.float32)
        for start in range(begin, end, CHUNK):
            window = start // CHUNK
            second = (tl.load(lists.sorted_keys + window * CHUNK) != key).to(tl.int32)
            at = parts + (window * 2 + second).to(tl.int64) * (BLOCK_D + BLOCK_DV)
            dk += tl.load(at + channel)
            dv += tl.load(at + BLOCK_D + out_channel)
    place = key.to(tl.int64)
    tl.store(dk_out + place * D + channel, dk.to(dk_out.dtype.element_ty), mask=channel < D)
    tl.store(dv_out + place * DV + out_channel, dv.to(dv_out.dtype.element_ty), mask=out_channel < DV)
