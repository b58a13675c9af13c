"""Random bits without state: the same seed, row and column give the same bit on every device and in every batch.

    keep = bernoulli_keep(seed, row_ids(lead, queries), torch.arange(keys), drop=0.1)

A 32-bit integer hash (two rounds of multiply and xor-shift) of the row, then of the row's hash and the column.
int32 products wrap as unsigned ones do, so that numpy, torch and Triton agree to the bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

GOLDEN = -1640531527  # 0x9E3779B9 as int32: spreads consecutive columns apart
FIRST, SECOND = 2146121005, -2073254261  # 0x7FEB352D and 0x846CA68B


def mix(x: Tensor) -> Tensor:
    """A bijection of the 32-bit integers whose every output bit depends on every input bit."""
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * FIRST
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * SECOND
    return x ^ ((x >> 16) & 0xFFFF)


def random_bits(seed: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """int32 hashes for `rows` and `columns` (int32, broadcast together); `seed` is an int64 scalar tensor."""
    low = (seed & 0xFFFFFFFF).to(torch.int32)
    high = ((seed >> 32) & 0xFFFFFFFF).to(torch.int32)
    return mix(mix(mix(rows ^ low) + high) + columns * GOLDEN)


def bernoulli_keep(seed: Tensor, rows: Tensor, columns: Tensor, drop: float) -> Tensor:
    """True with probability 1 - drop."""
    bits = random_bits(seed, rows, columns)
    return bits >= int(drop * 2**32) - 2**31


def random_order(seed: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """A random float32 in 0 .. 2^24 - 1, exact: the largest ones of a row are a random subset of it."""
    return ((random_bits(seed, rows, columns) >> 8) & 0xFFFFFF).to(torch.float32)


def row_ids(lead: torch.Size | tuple[int, ...], rows: int, device: torch.device, first: int, total: int) -> Tensor:
    """(*lead, rows, 1) int32: the number of each row, when the rows `first` .. of `total` are looked at."""
    batch = torch.arange(_product(lead), dtype=torch.int64, device=device).view(*lead, 1, 1)
    row = torch.arange(first, first + rows, dtype=torch.int64, device=device).view(rows, 1)
    return ((batch * total + row) & 0x7FFFFFFF).to(torch.int32)


def _product(sizes: torch.Size | tuple[int, ...]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total
