"""Where tokens stand, as the model sees it: an encoding added to embeddings, a rotation, or a bias of scores.

    sine         sines and cosines (the paper's)                              any length
    learned      a vector for each position                                   as many positions as were learned
    none         nothing: a causal model tells positions by what it sees      any length
    alibi        scores fall with distance, each head by its own slope        any length
    rope         queries and keys are turned by angles that grow with position  any length
    randomized   sines at sorted positions drawn from a longer range          up to that range

Shapes: E members, B examples, L positions, d model width, H heads, w head width, R the range of random positions.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from semfocus.counter_rng import random_bits
from semfocus.errors import UsageError
from semfocus.spec import Spec

POSITION_STREAM = 0x3C6EF372  # sets the bits that draw positions apart from those of dropout
LATE = 2**31 - 1  # a rank behind all others


@lru_cache(maxsize=64)
def sinusoidal_encoding(
    length: int, width: int, device: torch.device, padding_end: int = 0, alignment_padding: int = 0
) -> Tensor:
    """(L, d) fixed sines and cosines, for any length. Cached: a captured GPU step cannot copy from the host.

    Positions from `padding_end` on are numbered as if there were no alignment padding.
    """
    with torch.inference_mode(False):  # the cached tensor must serve later callers outside of inference mode
        position = torch.arange(length, dtype=torch.float64).unsqueeze(-1)
        position = torch.where(position >= padding_end, position - alignment_padding, position)
        rate = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-math.log(10000.0) / width))
        encoding = torch.stack([(position * rate).sin(), (position * rate).cos()], dim=-1).flatten(-2)
        # torch.func wraps every tensor made inside of a transform; the cache outlives the transform.
        return torch.func.debug_unwrap(encoding[:, :width].float().to(device))


def positional_encoding(spec: Spec, device: torch.device) -> Tensor:
    """(L, d) what is added to the embeddings, where it is the same for all examples and members."""
    if spec.model.position_kind == "sine":
        padding_end = spec.padded_len + spec.alignment_padding
        return sinusoidal_encoding(spec.length, spec.model.d_model, device, padding_end, spec.alignment_padding)
    if spec.model.position_kind in ("none", "alibi", "rope"):
        return torch.zeros(spec.length, spec.model.d_model, device=device)
    raise UsageError(
        f"model.positions = {spec.model.positions} differs from model to model or from example to example; sine, none, "
        "alibi and rope do not"
    )


def encoding(spec: Spec, table: Tensor | None, lengths: Tensor | None, seeds: Tensor | None, tokens: Tensor) -> Tensor:
    """(L, d), (E, 1, L, d) or (E, B, L, d): what is added to the embeddings of tokens (E, B, L).

    `table` (E, N, d) are learned positions; `seeds`, broadcastable to (E, B), draw randomized ones.
    """
    if table is not None:
        if spec.num_positions > table.shape[1]:
            raise UsageError(
                f"model.positions = learned: {table.shape[1]} positions were learned, and these sequences have "
                f"{spec.num_positions}; shorten them, or train with model.positions = learned:{spec.num_positions}"
            )
        return table[:, position_numbers(spec, tokens.device)].unsqueeze(1)
    if spec.model.position_kind == "randomized":
        if seeds is None:
            raise ValueError("randomized positions need seeds")
        sines = sinusoidal_encoding(spec.position_range, spec.model.d_model, tokens.device)
        return sines[random_positions(spec, lengths, seeds, tokens)]
    return positional_encoding(spec, tokens.device)


def position_numbers(spec: Spec, device: torch.device) -> Tensor:
    """(L,) the number of each position, as if there were no alignment padding."""
    return _numbers(spec.length, spec.padded_len, spec.alignment_padding, device)


def _numbers(length: int, padded_len: int, alignment_padding: int, device: torch.device) -> Tensor:
    index = torch.arange(length, device=device)
    return torch.where(index >= padded_len + alignment_padding, index - alignment_padding, index)


def random_positions(spec: Spec, lengths: Tensor | None, seeds: Tensor, tokens: Tensor) -> Tensor:
    """(E, B, L) int64: for each example as many positions as it has tokens, from 0 .. R - 1, in increasing order.

    Randomized positional encodings (Ruoss et al. 2023, arXiv 2305.16843). Extra tokens stand at the end of the range.
    """
    size = spec.position_range - spec.extra_tokens
    members, batch, length = tokens.shape
    columns = torch.arange(size, dtype=torch.int32, device=tokens.device)
    rows = torch.arange(batch, dtype=torch.int32, device=tokens.device).view(1, batch, 1)
    rows = torch.zeros_like(rows) if seeds.dim() > 1 else rows  # an example with a seed of its own needs no number
    seeds = seeds.view(members, -1, 1) ^ POSITION_STREAM
    drawn = random_bits(seeds, rows, columns).expand(members, batch, size)
    rank = drawn.argsort(dim=-1, stable=True).argsort(dim=-1)
    own = length - spec.extra_tokens
    count = lengths.unsqueeze(-1) if lengths is not None else torch.full((1, 1, 1), own, device=tokens.device)
    chosen = torch.where(rank < count, columns.long(), LATE).sort(dim=-1).values[..., :own]
    extra = torch.arange(size, spec.position_range, device=tokens.device).expand(members, batch, -1)
    return torch.cat([chosen.clamp(max=size - 1), extra], dim=-1)


def slopes(heads: int, device: torch.device) -> Tensor:
    """(H,) how fast scores fall with distance: 2^(-8 (h + 1) / H) at head h (Press et al. 2021, arXiv 2108.12409)."""
    return 2.0 ** (-8.0 * torch.arange(1, heads + 1, dtype=torch.float64, device=device) / heads)


def distance_bias(spec: Spec, device: torch.device, dtype: torch.dtype) -> Tensor:
    """(H, L, L): minus slope x distance, in both directions."""
    number = position_numbers(spec, device)
    distance = (number.unsqueeze(-1) - number).abs()
    return (-slopes(spec.model.heads, device).view(-1, 1, 1) * distance).to(dtype)


@torch.compiler.assume_constant_result  # a compiler would compute it anew, in float64, for every number of q and k
def _rotation(
    length: int, half: int, padded_len: int, alignment_padding: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """(L, w / 2) each: the cosine and sine of the angles."""
    return _cached_rotation(length, half, padded_len, alignment_padding, device, dtype)


@lru_cache(maxsize=64)
def _cached_rotation(
    length: int, half: int, padded_len: int, alignment_padding: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False):
        number = _numbers(length, padded_len, alignment_padding, torch.device("cpu"))
        rate = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = number.unsqueeze(-1) * rate
        unwrap = torch.func.debug_unwrap  # as in `sinusoidal_encoding`
        return unwrap(angle.cos().to(dtype).to(device)), unwrap(angle.sin().to(dtype).to(device))


def rotated(vectors: Tensor, spec: Spec) -> Tensor:
    """Queries or keys (E, B, H, L, w): channels i and i + w / 2 turned by position x 10000^(-2 i / w).

    Rotary embeddings (Su et al. 2021, arXiv 2104.09864): the product of a query and a key depends on their distance.
    """
    half = vectors.shape[-1] // 2
    border = spec.padded_len, spec.alignment_padding
    cos, sin = _rotation(spec.length, half, *border, vectors.device, vectors.dtype)
    first, second = vectors[..., :half], vectors[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
