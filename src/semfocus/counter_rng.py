"""A counter-based random generator: the same seed, row and column give the same bits on every device, in every batch.

    keep = bernoulli_keep(seed, rows, columns, drop=0.1)      # rows (..., Q, 1), columns (K,), both int32

A row is an entry of the leading dimensions, a column one of the last. The bits are a 32-bit integer hash (two rounds of
multiply and xor-shift) of the row, then of the row's hash and the column. int32 products wrap as unsigned ones do, so
that numpy, torch and Triton agree to the bit. On a CPU numpy computes the hash where possible: it has unsigned shifts
in place, and needs a third of the time.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

GOLDEN = -1640531527  # 0x9E3779B9 as int32: separates consecutive columns
FIRST, SECOND = 2146121005, -2073254261  # 0x7FEB352D and 0x846CA68B
CHUNK = 2**16  # hashes that numpy computes at a time: they stay in a cache


def mix(x: Tensor) -> Tensor:
    """A bijection of the 32-bit integers whose every output bit depends on every input bit."""
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * FIRST
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * SECOND
    return x ^ ((x >> 16) & 0xFFFF)


def _last_mix(x: Tensor) -> Tensor:
    """`mix` without its last step, which changes unused low bits only: it runs for every entry."""
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * FIRST
    return (x ^ ((x >> 15) & 0x1FFFF)) * SECOND


def random_bits(seed: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """int32 hashes, best in their high bits, of `rows` and `columns` (int32) under `seed` (int64); all broadcast."""
    if _suits_numpy(seed, rows, columns):
        return _random_bits_by_numpy(seed, rows, columns)
    # "& -1" changes no bit. Without it Inductor folds a product of an arange into an index expression, whose constants
    # do not wrap: of columns from 2^16 on they exceed int32, and Triton refuses them.
    return _last_mix(row_hash(seed, rows) + (columns & -1) * GOLDEN)


def row_hash(seed: Tensor, rows: Tensor) -> Tensor:
    """int32: the part of `random_bits` that all columns of a row share; kernels compute the last round themselves."""
    low, high = _halves(seed)
    return mix(mix(rows + low) ^ high)


def in_functorch() -> bool:
    """Whether a torch.func transform (vmap, grad, jvp) is active: then only plain tensor operations are correct."""
    return not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None


def is_traced() -> bool:
    """Whether operations are recorded or transformed: the data at hand are then an example, or not there at all."""
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or in_functorch()
        or torch.autograd.forward_ad._current_level >= 0  # tangents that only torch's own operations carry on
        or torch._C._len_torch_dispatch_stack() > 0  # fake tensors, make_fx
    )


def _suits_numpy(*tensors: Tensor) -> bool:
    """Whether these are ordinary CPU tensors, and nothing traces the operations on them."""
    return not is_traced() and all(type(tensor) is Tensor and tensor.device.type == "cpu" for tensor in tensors)


def _random_bits_by_numpy(seed: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    shape = torch.broadcast_shapes(seed.shape, rows.shape, columns.shape)
    hashed, spread = _hashes_by_numpy(seed, rows, columns)
    return torch.from_numpy(_mix_array(hashed + spread, last=True).view(np.int32)).view(shape)


def _hashes_by_numpy(seed: Tensor, rows: Tensor, columns: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The terms of each row and of each column, whose sum the last round takes."""
    keys = np.atleast_1d(seed.numpy()).view(np.uint64)  # an array: numpy warns when a scalar wraps
    first = _mix_array(keys.astype(np.uint32) ^ np.uint32(GOLDEN & 0xFFFFFFFF))
    second = _mix_array((keys >> np.uint64(32)).astype(np.uint32) + first)
    hashed = _mix_array(_mix_array(rows.numpy().view(np.uint32) + _mix_array(first ^ second)) ^ second)
    return hashed, np.atleast_1d(columns.numpy()).view(np.uint32) * np.uint32(GOLDEN & 0xFFFFFFFF)


def _shares_columns(rows: Tensor, columns: Tensor) -> bool:
    """Whether all rows have the same columns."""
    return columns.numel() == columns.shape[-1] and rows.shape[-1] == 1


def _pieces_by_numpy(seed: Tensor, rows: Tensor, columns: Tensor) -> Iterator[tuple[slice, np.ndarray]]:
    """The hashes as a matrix (all rows, columns), int32, some rows at a time, each with its slice of rows."""
    hashed, spread = _hashes_by_numpy(seed, rows, columns)
    flat, step = hashed.reshape(-1, 1), max(1, CHUNK // max(spread.size, 1))
    spread = spread.reshape(-1)
    buffer, spare = np.empty((2, step, spread.size), np.uint32)
    for start in range(0, len(flat), step):
        part = slice(start, min(start + step, len(flat)))
        bits = np.add(flat[part], spread, out=buffer[: part.stop - start])
        yield part, _mix_array(bits, spare[: len(bits)], last=True).view(np.int32)


def _mix_array(x: np.ndarray, spare: np.ndarray | None = None, last: bool = False) -> np.ndarray:
    """`mix` of uint32, in place, with a buffer `spare` of the same size; with `last`, `_last_mix`."""
    spare = np.right_shift(x, np.uint32(16), out=spare)
    x ^= spare
    x *= np.uint32(FIRST)
    np.right_shift(x, np.uint32(15), out=spare)
    x ^= spare
    x *= np.uint32(SECOND & 0xFFFFFFFF)
    if not last:
        np.right_shift(x, np.uint32(16), out=spare)
        x ^= spare
    return x


def fold_in(seed: Tensor, step: Tensor, sites: int) -> Tensor:
    """(sites, *seed.shape) int64: an independent seed for each random operation of a training step, from one seed."""
    low, high = _halves(seed)
    site = torch.arange(sites, dtype=torch.int32, device=seed.device).view(sites, *[1] * seed.dim())
    first = mix(mix(low + step.to(torch.int32)) ^ (site * GOLDEN))
    second = mix(mix(high + first) ^ site)
    return (first.to(torch.int64) << 32) | (second.to(torch.int64) & 0xFFFFFFFF)


def dropout(x: Tensor, seed: Tensor, p: float) -> Tensor:
    """x (E, ..., D) with entries dropped by each member's own `seed` (E,), so that the cohort has no influence."""
    rows = row_ids(x.shape[1:-2], x.shape[-2], x.device, 0, x.shape[-2]).unsqueeze(0)
    columns = torch.arange(x.shape[-1], dtype=torch.int32, device=x.device)
    return dropped(x, seed.view(-1, *[1] * (x.dim() - 1)), rows, columns, p)


def dropped(x: Tensor, seed: Tensor, rows: Tensor, columns: Tensor, p: float) -> Tensor:
    """x with entries set to zero with probability p, by `random_bits`, and the others scaled up."""
    if not _suits_numpy(seed, rows, columns) or not _shares_columns(rows, columns):
        # x * 0, not 0: NaN stays, as in the product below.
        return torch.where(bernoulli_keep(seed, rows, columns, p), x * (1 / (1 - p)), x * 0.0)
    # One product forward and one backward; `where` takes several passes over memory.
    kind = np.float64 if x.dtype == torch.float64 else np.float32
    shape = torch.broadcast_shapes(seed.shape, rows.shape, columns.shape)
    factors = np.empty((shape[:-1].numel(), shape[-1]), kind)
    for part, bits in _pieces_by_numpy(seed, rows, columns):
        np.multiply(bits >= np.int32(_limit(p)), kind(1 / (1 - p)), out=factors[part])
    return x * torch.from_numpy(factors).view(shape).to(x.dtype)


def bernoulli_keep(seed: Tensor, rows: Tensor, columns: Tensor, drop: float) -> Tensor:
    """True with probability 1 - drop."""
    bits, limit = random_bits(seed, rows, columns), _limit(drop)
    return torch.from_numpy(bits.numpy() >= np.int32(limit)) if _suits_numpy(bits) else bits >= limit


def _limit(drop: float) -> int:
    """Of the 2^32 hashes, read as signed numbers, the share `drop` lies below."""
    return int(drop * 2**32) - 2**31


def random_order(seed: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Random whole float32 in 0 .. 2^24 - 1: the largest ones of a row are a random subset of its columns."""
    return ((random_bits(seed, rows, columns) >> 8) & 0xFFFFFF).to(torch.float32)


def standard_normal(seed: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Standard normal float32, by the inverse of the distribution function at 2^24 places, symmetric about 0."""
    # Odd multiples of 2^-24: float32 holds each exactly, and none is -1 or 1, where erfinv is infinite.
    places = ((random_bits(seed, rows, columns) >> 8).to(torch.float32) + 0.5) * 2.0**-23
    return torch.erfinv(places) * 2.0**0.5


def row_ids(lead: torch.Size | tuple[int, ...], rows: int, device: torch.device, first: int, total: int) -> Tensor:
    """(*lead, rows, 1) int32: the number of each row, for the rows `first` .. `first + rows - 1` of `total`."""
    if first == 0 and rows == total and _product(lead) * rows < 2**31:
        return torch.arange(_product(lead) * rows, dtype=torch.int32, device=device).view(*lead, rows, 1)
    batch = torch.arange(_product(lead), dtype=torch.int64, device=device).view(*lead, 1, 1)
    row = torch.arange(first, first + rows, dtype=torch.int64, device=device).view(rows, 1)
    return ((batch * total + row) & 0x7FFFFFFF).to(torch.int32)


def _halves(seed: Tensor) -> tuple[Tensor, Tensor]:
    """Two well mixed 32-bit keys: the bits of seeds 0 and 1 must not be equal up to a permutation of rows."""
    low, high = (seed & 0xFFFFFFFF).to(torch.int32), ((seed >> 32) & 0xFFFFFFFF).to(torch.int32)
    first = mix(low ^ GOLDEN)
    second = mix(high + first)
    return mix(first ^ second), second


def _product(sizes: torch.Size | tuple[int, ...]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total
