"""A member's weights as 16-bit floats, once a pass, and how large they and what comes of them can be.

    high, low    (E, S) float16: the weights in units: q k v, Wo, Wi, Wt, each without gaps
    facts        (E, 6) float32: the largest entry of each, and the largest norm of a row of Wo and of Wt
    bounds       (E, 8): what no entry exceeds of q, k, v; of the gradients of attention's output, of q, k and v, which
                 are found later; of the hidden layer

A row y of a LayerNorm has |y| <= sqrt(D), so that |y W + b| <= sqrt(D) |column of W| + |b|: the units that operands
need follow from the weights, and no tile has to be searched for its largest entry.
"""

from __future__ import annotations

import triton
import triton.language as tl

from semfocus.attention.kernels.products import operand, unit_of
from semfocus.attention.kernels.short.positions import OF_DV, OF_GRAD, OF_K, OF_Q, OF_V
from semfocus.fused.tiles import load_bias, load_weight, store_weight

MATRICES = tl.constexpr(4)
FACTS, BOUNDS = tl.constexpr(6), tl.constexpr(8)
IN, OUT, UP, DOWN, ROW_OUT, ROW_DOWN = (tl.constexpr(place) for place in range(6))  # facts
HIDDEN = tl.constexpr(7)  # the bound behind those of attention
FOUND = slice(OF_GRAD.value, OF_DV.value + 1)  # bounds of gradients


@triton.jit
def narrow_weights(
    aw, ab, wo, wi, bi, wt, high, low, facts, bounds, member_stride,
    D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, HP: tl.constexpr, M: tl.constexpr, MP: tl.constexpr,
):  # fmt: skip
    """One layer of one member."""
    member, which = tl.program_id(0) // MATRICES, tl.program_id(0) % MATRICES
    own, base = member.to(tl.int64) * member_stride, member.to(tl.int64) * (4 * D * H + 2 * D * M)
    facts, bounds = facts + member * FACTS, bounds + member * BOUNDS
    high, low = high + base, low + base
    # Each in a function of its own: where branches meet, Triton wants one shape for one name.
    if which == IN:
        narrow_projections(aw + own, ab + own, high, low, facts + IN, bounds, D, DP, H, HP)
    elif which == OUT:
        at = 3 * D * H
        narrow_layer(wo + own, None, high + at, low + at, facts + OUT, facts + ROW_OUT, H, HP, D, DP)
    elif which == UP:
        at = 4 * D * H
        narrow_layer(wi + own, bi + own, high + at, low + at, facts + UP, bounds + HIDDEN, D, DP, M, MP)
    else:
        at = 4 * D * H + D * M
        narrow_layer(wt + own, None, high + at, low + at, facts + DOWN, facts + ROW_DOWN, M, MP, D, DP)


@triton.jit
def narrow_projections(
    w, b, high, low, fact, bounds, D: tl.constexpr, DP: tl.constexpr, H: tl.constexpr, HP: tl.constexpr
):  # fmt: skip
    """q, k and v, which share a unit."""
    q, k = load_weight(w, 3 * H, D, DP, H, HP), load_weight(w + H, 3 * H, D, DP, H, HP)
    v = load_weight(w + 2 * H, 3 * H, D, DP, H, HP)
    largest = tl.maximum(tl.maximum(tl.max(tl.abs(q)), tl.max(tl.abs(k))), tl.max(tl.abs(v)))
    tl.store(fact, largest)
    store_narrow(high, low, q, largest, 3 * H, D, DP, H, HP)
    store_narrow(high + H, low + H, k, largest, 3 * H, D, DP, H, HP)
    store_narrow(high + 2 * H, low + 2 * H, v, largest, 3 * H, D, DP, H, HP)
    tl.store(bounds + OF_Q, output_bound(q, load_bias(b, H, HP), D))
    tl.store(bounds + OF_K, output_bound(k, load_bias(b + H, H, HP), D))
    tl.store(bounds + OF_V, output_bound(v, load_bias(b + 2 * H, H, HP), D))


@triton.jit
def narrow_layer(
    w, b, high, low, fact, found,
    ROWS: tl.constexpr, RP: tl.constexpr, COLUMNS: tl.constexpr, CP: tl.constexpr,
):  # fmt: skip
    """One matrix. With a bias what its outputs do not exceed is found, without one the largest norm of a row."""
    weight = load_weight(w, COLUMNS, ROWS, RP, COLUMNS, CP)
    largest = tl.max(tl.abs(weight))
    tl.store(fact, largest)
    store_narrow(high, low, weight, largest, COLUMNS, ROWS, RP, COLUMNS, CP)
    if b is not None:
        tl.store(found, output_bound(weight, load_bias(b, COLUMNS, CP), ROWS))
    else:
        tl.store(found, tl.sqrt(tl.max(tl.sum(weight * weight, axis=1))))


@triton.jit
def output_bound(weight, bias, D: tl.constexpr):
    """What no entry of y W + b exceeds, for rows y of a LayerNorm."""
    return tl.sqrt(tl.max(tl.sum(weight * weight, axis=0)) * D) + tl.max(tl.abs(bias))


@triton.jit
def store_narrow(
    high, low, weight, largest, stride, ROWS: tl.constexpr, RP: tl.constexpr, COLUMNS: tl.constexpr, CP: tl.constexpr
):  # fmt: skip
    """A matrix in units."""
    upper, lower, _unit = operand(weight, unit_of(largest), "fp16x3")
    store_weight(high, stride, upper, ROWS, RP, COLUMNS, CP)
    store_weight(low, stride, lower, ROWS, RP, COLUMNS, CP)


@triton.jit
def load_narrow(
    high, low, largest, stride,
    ROWS: tl.constexpr, RP: tl.constexpr, COLUMNS: tl.constexpr, CP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A matrix as an operand."""
    upper = load_weight(high, stride, ROWS, RP, COLUMNS, CP)
    lower = upper
    if PRECISION == "fp16x3":
        lower = load_weight(low, stride, ROWS, RP, COLUMNS, CP)
    return upper, lower, unit_of(largest)
