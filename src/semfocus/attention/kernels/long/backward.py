"""Top-k attention over long rows, backward: kept pairs only, no atomics, the same bits every time.

    query_gradients    per query: its weights again, dq, and for every kept pair its two factors
    hub_parts          keys that very many queries keep: their lists in pieces of CHUNK, one partial sum a piece
    key_gradients      per key: dk and dv over the queries that keep it, in the order of the queries

Pairs are brought into the order of their keys by one stable sort. Pieces are cut along each key's own list, so that
a gradient does not depend on what else is in the batch.

Shapes: M problems, n keys kept by a query, P = M Lq n pairs, T = all keys of all problems, D width.
"""

from __future__ import annotations

import triton
import triton.language as tl

from semfocus.attention.kernels.shared import MINUS_INF, survives


@triton.jit
def query_gradients(
    grad, grad_lse, q, k, v, hashes, indices, dq, weights_out, factors_out, owners_out,
    rows, queries, keys, total_keys, heads_per_key, scale, threshold, dropout,
    LIST: tl.constexpr, NP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr,
    R: tl.constexpr, GRAD_LSE: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """dq (M, Lq, D), and for each pair what the keys need of it.

    That is: its weight after dropout (dv = sum of weight times grad), the factor of q in dk, and the key among all
    keys of all problems (T where there is none).
    """
    row = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    inside = row < rows
    row = tl.where(inside, row, 0)
    kv = row // queries // heads_per_key * keys
    place = tl.arange(0, NP)
    listed = tl.load(
        indices + row[:, None] * LIST + place[None, :], mask=inside[:, None] & (place < LIST)[None, :], other=-1
    )
    present = listed >= 0
    at = kv[:, None] + listed
    channel = tl.arange(0, DP)
    q_rows = tl.load(q + row[:, None] * D + channel[None, :], mask=(channel < D)[None, :], other=0.0).to(tl.float32)
    k_rows = tl.load(
        k + at[:, :, None] * D + channel[None, None, :], mask=present[:, :, None] & (channel < D)[None, None, :],
        other=0.0,
    ).to(tl.float32)  # fmt: skip
    scores = tl.sum(q_rows[:, None, :] * k_rows, axis=2) * scale
    # As the forward pass took them: from the log-sum-exp they would lose as many bits as large scores take of it.
    scores = tl.where(present, scores, MINUS_INF)
    top = tl.max(scores, axis=1)
    weights = tl.where(present, tl.exp(scores - tl.where(top > MINUS_INF, top, 0.0)[:, None]), 0.0)
    total = tl.sum(weights, axis=1)
    weights = weights / tl.where(total == 0.0, 1.0, total)[:, None]
    out_channel = tl.arange(0, DVP)
    grads = tl.load(
        grad + row[:, None] * DV + out_channel[None, :], mask=(out_channel < DV)[None, :], other=0.0
    ).to(tl.float32)  # fmt: skip
    v_rows = tl.load(
        v + at[:, :, None] * DV + out_channel[None, None, :],
        mask=present[:, :, None] & (out_channel < DV)[None, None, :], other=0.0,
    ).to(tl.float32)  # fmt: skip
    slopes = tl.sum(grads[:, None, :] * v_rows, axis=2)
    dropped = weights
    if DROPOUT:
        factor = tl.where(survives(tl.load(hashes + row)[:, None], listed, threshold), dropout, 0.0)
        dropped = weights * factor
        slopes = slopes * factor
    mean = tl.sum(weights * slopes, axis=1)
    if GRAD_LSE:
        mean -= tl.load(grad_lse + row)
    factors = tl.where(present, weights * (slopes - mean[:, None]), 0.0) * scale
    tl.store(
        dq + row[:, None] * D + channel[None, :],
        tl.sum(factors[:, :, None] * k_rows, axis=1).to(dq.dtype.element_ty),
        mask=inside[:, None] & (channel < D)[None, :],
    )
    pair = row[:, None] * LIST + place[None, :]
    kept = inside[:, None] & (place < LIST)[None, :]
    tl.store(weights_out + pair, dropped, mask=kept)
    tl.store(factors_out + pair, factors, mask=kept)
    tl.store(owners_out + pair, tl.where(present, at, total_keys).to(tl.int32), mask=kept)


@triton.jit
def list_sums(
    start, end, order, weights, factors, q, grad,
    LIST: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, U: tl.constexpr,
):  # fmt: skip
    """Sums over the sorted pairs start .. end - 1: of factor times q (DP), and of weight times grad (DVP)."""
    channel = tl.arange(0, DP)
    out_channel = tl.arange(0, DVP)
    dk = tl.zeros((DP,), tl.float32)
    dv = tl.zeros((DVP,), tl.float32)
    for begin in range(start, end, U):
        slot = begin + tl.arange(0, U)
        real = slot < end
        pair = tl.load(order + slot, mask=real, other=0)
        row = pair // LIST
        factor = tl.load(factors + pair, mask=real, other=0.0)
        weight = tl.load(weights + pair, mask=real, other=0.0)
        q_rows = tl.load(
            q + row[:, None] * D + channel[None, :], mask=real[:, None] & (channel < D)[None, :], other=0.0
        ).to(tl.float32)  # fmt: skip
        grads = tl.load(
            grad + row[:, None] * DV + out_channel[None, :],
            mask=real[:, None] & (out_channel < DV)[None, :], other=0.0,
        ).to(tl.float32)  # fmt: skip
        dk += tl.sum(factor[:, None] * q_rows, axis=0)
        dv += tl.sum(weight[:, None] * grads, axis=0)
    return dk, dv


@triton.jit
def hub_parts(
    sorted_keys, order, offsets, weights, factors, q, grad, parts, pairs, total_keys,
    LIST: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr,
    U: tl.constexpr, CHUNK: tl.constexpr, HUB: tl.constexpr,
):  # fmt: skip
    """parts (windows, 2, DP + DVP): sums of the pieces of long lists that begin in each window of CHUNK sorted pairs.

    Two pieces at most begin in a window: one of the list that holds the window's first pair, and the first piece of
    the list that holds its last pair. A list between them lies within the window and is no hub.
    """
    window = tl.program_id(0)
    second = tl.program_id(1)
    low = window * CHUNK
    high = tl.minimum(low + CHUNK, pairs)
    opening = tl.load(sorted_keys + low)
    key = opening
    if second == 1:
        key = tl.load(sorted_keys + high - 1)
    ours = (key < total_keys) & ((second == 0) | (key != opening))
    key = tl.where(ours, key, 0)
    begin = tl.load(offsets + key)
    end = tl.load(offsets + key + 1)
    start = begin + tl.cdiv(tl.maximum(low - begin, 0), CHUNK) * CHUNK
    if ours & (end - begin > HUB) & (start < high) & (start < end):
        dk, dv = list_sums(
            start, tl.minimum(start + CHUNK, end), order, weights, factors, q, grad, LIST, D, DP, DV, DVP, U
        )
        at = parts + (window * 2 + second).to(tl.int64) * (DP + DVP)
        tl.store(at + tl.arange(0, DP), dk)
        tl.store(at + DP + tl.arange(0, DVP), dv)


@triton.jit
def key_gradients(
    sorted_keys, order, offsets, weights, factors, q, grad, parts, dk_out, dv_out,
    LIST: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr,
    U: tl.constexpr, CHUNK: tl.constexpr, HUB: tl.constexpr,
):  # fmt: skip
    """dk (T, D) and dv (T, Dv): a short list is summed here, a long one from its parts, in order."""
    key = tl.program_id(0)
    begin = tl.load(offsets + key)
    end = tl.load(offsets + key + 1)
    channel = tl.arange(0, DP)
    out_channel = tl.arange(0, DVP)
    if end - begin <= HUB:
        dk, dv = list_sums(begin, end, order, weights, factors, q, grad, LIST, D, DP, DV, DVP, U)
    else:
        dk = tl.zeros((DP,), tl.float32)
        dv = tl.zeros((DVP,), tl.float32)
        for start in range(begin, end, CHUNK):
            window = start // CHUNK
            second = (tl.load(sorted_keys + window * CHUNK) != key).to(tl.int32)
            at = parts + (window * 2 + second).to(tl.int64) * (DP + DVP)
            dk += tl.load(at + channel)
            dv += tl.load(at + DP + out_channel)
    place = key.to(tl.int64)
    tl.store(dk_out + place * D + channel, dk.to(dk_out.dtype.element_ty), mask=channel < D)
    tl.store(dv_out + place * DV + out_channel, dv.to(dv_out.dtype.element_ty), mask=out_channel < DV)
