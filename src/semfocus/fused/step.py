"""What a training step does beside the model, in three small kernels: seeds of dropout, and each member's own update.

    fold_in        `counter_rng.fold_in`
    sum_squares    partial sums of each member's squared gradient
    sgd            clip, update, and freeze members whose loss or gradient is not finite

Torch's compiler would fuse these too; it takes longer to start than many a study takes to run.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from semfocus.attention.kernels.shared import GOLDEN, finite, mix

BLOCK: Any = 1024  # columns that a program takes at a time
SPLIT: Any = 8 * BLOCK  # columns of a program


@triton.jit(do_not_specialize=["count", "members"])
def fold_in_kernel(seeds, step, out, count, members, BLOCK: tl.constexpr):
    """out (sites, E) int64 from seeds (E,)."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    site, member = at // members, at % members
    seed = tl.load(seeds + member, mask=at < count, other=0)
    low, high = (seed & 0xFFFFFFFF).to(tl.int32), ((seed >> 32) & 0xFFFFFFFF).to(tl.int32)
    spread = mix(low ^ GOLDEN)
    high = mix(high + spread)
    low = mix(spread ^ high)
    first = mix(mix(low + tl.load(step).to(tl.int32)) ^ (site * GOLDEN))
    second = mix(mix(high + first) ^ site)
    tl.store(out + at, (first.to(tl.int64) << 32) | (second.to(tl.int64) & 0xFFFFFFFF), mask=at < count)


@triton.jit(do_not_specialize=["size", "splits"])
def sum_squares_kernel(gradient, partial, size, splits, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    """partial (E, splits) from gradient (E, size)."""
    member, split = tl.program_id(0), tl.program_id(1)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, SPLIT, BLOCK):
        column = split * SPLIT + start + tl.arange(0, BLOCK)
        g = tl.load(gradient + member.to(tl.int64) * size + column, mask=column < size, other=0.0)
        total += g * g
    tl.store(partial + member * splits + split, tl.sum(total))


@triton.jit(do_not_specialize=["size", "splits", "clip"])
def sgd_kernel(
    parameters, gradient, partial, loss, lrs, alive, died_at, step, size, splits, clip,
    CLIPS: tl.constexpr, SPLITS: tl.constexpr, SPLIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Update parameters (E, size) in place; `alive` and `died_at` (E,) too."""
    member, split = tl.program_id(0), tl.program_id(1)
    parts = tl.arange(0, SPLITS)
    norm = tl.sqrt(tl.sum(tl.load(partial + member * splits + parts, mask=parts < splits, other=0.0)))
    was_alive = tl.load(alive + member) != 0
    healthy = was_alive & finite(tl.load(loss + member)) & finite(norm)
    if split == 0:
        # Another program of this member may read `alive` before or after: both lead it to the same decision.
        tl.store(alive + member, healthy)
        if was_alive & (healthy == 0):
            tl.store(died_at + member, tl.load(step))
    if healthy:
        scale = clip / tl.maximum(norm, clip) if CLIPS else 1.0
        lr = tl.load(lrs + member)
        for start in range(0, SPLIT, BLOCK):
            column = split * SPLIT + start + tl.arange(0, BLOCK)
            at, inside = member.to(tl.int64) * size + column, column < size
            g = tl.load(gradient + at, mask=inside, other=0.0)
            tl.store(parameters + at, tl.load(parameters + at, mask=inside) - lr * (g * scale), mask=inside)


def fold_in(seed: Tensor, step: Tensor, sites: int) -> Tensor:
    """(sites, E) int64 from seed (E,): the same bits as `counter_rng.fold_in`."""
    out = seed.new_empty(sites, len(seed))
    with torch.cuda.device_of(seed):
        fold_in_kernel[(triton.cdiv(out.numel(), BLOCK),)](seed, step, out, out.numel(), len(seed), BLOCK=BLOCK)
    return out


def sgd_update(
    parameters: Tensor, gradient: Tensor, loss: Tensor, lrs: Tensor, alive: Tensor, died_at: Tensor, step: Tensor,
    clip: float | None,
) -> None:  # fmt: skip
    """Clip each member's gradient (E, P) on its own and update its parameters; freeze it where either is not finite."""
    members, size = parameters.shape
    splits: Any = triton.cdiv(size, SPLIT)
    clips: Any = clip is not None
    partial = gradient.new_empty(members, splits)
    with torch.cuda.device_of(parameters):
        sum_squares_kernel[(members, splits)](gradient, partial, size, splits, SPLIT=SPLIT, BLOCK=BLOCK)
        sgd_kernel[(members, splits)](
            parameters, gradient, partial, loss, lrs, alive, died_at, step, size, splits, clip or 0.0,
            CLIPS=clips, SPLITS=triton.next_power_of_2(splits), SPLIT=SPLIT, BLOCK=BLOCK,
        )  # fmt: skip
