"""Texts packed one behind the other into one row of tokens, each attending to itself alone.

    q, k, v   (..., H, 12, D)          cu_seqlens_q = [0, 5, 5, 12]: texts of 5, 0 and 7 tokens

Texts with as many queries and keys as each other are computed as one batch by an ordinary call, others by calls of
their own. So every backend serves packed texts, each with its own reasons to refuse, and no score between texts is
computed. The boundaries are read on the host before anything else: a GPU is waited for, unless they lie on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from semfocus.attention.base import Mechanism
from semfocus.attention.inspection import AttentionInfo
from semfocus.attention.seeding import draw_seed
from semfocus.counter_rng import fold_in
from semfocus.errors import UsageError


@dataclass(frozen=True)
class PackedCall:
    """One call for several texts of the same size."""

    texts: list[int]  # their numbers
    tensors: tuple[Tensor, Tensor, Tensor]  # q, k, v with the texts as first dimension
    options: dict[str, Any]


def check_boundaries(
    q: Tensor, k: Tensor, cu_seqlens_q: Tensor | None, cu_seqlens_k: Tensor | None
) -> tuple[list[int], list[int]]:
    """Where texts begin among queries and keys, and where the last one ends; an error for what is no such list."""
    if cu_seqlens_q is None:
        raise UsageError(
            "cu_seqlens_k is given and cu_seqlens_q is not; packed texts need the boundaries of the queries"
        )
    of_queries = _read("cu_seqlens_q", cu_seqlens_q, "queries", q.shape[-2])
    if cu_seqlens_k is not None:
        of_keys = _read("cu_seqlens_k", cu_seqlens_k, "keys", k.shape[-2])
    elif q.shape[-2] == k.shape[-2]:
        of_keys = of_queries
    else:
        raise UsageError(f"{q.shape[-2]} queries over {k.shape[-2]} keys: give cu_seqlens_k as well as cu_seqlens_q")
    if len(of_queries) != len(of_keys):
        raise UsageError(
            f"cu_seqlens_q has {len(of_queries)} entries and cu_seqlens_k {len(of_keys)}; both hold one entry more "
            "than there are texts, and queries and keys have the same number of texts"
        )
    return of_queries, of_keys


def _read(name: str, boundaries: Tensor, kind: str, tokens: int) -> list[int]:
    if not isinstance(boundaries, Tensor) or boundaries.dtype not in (torch.int32, torch.int64):
        given = boundaries.dtype if isinstance(boundaries, Tensor) else type(boundaries).__name__
        raise TypeError(f"{name} has dtype {given}; it must be an int32 or int64 tensor, [0, end of text 1, ...]")
    if boundaries.dim() != 1 or not len(boundaries):
        raise UsageError(f"{name} has shape {tuple(boundaries.shape)}; it must be (texts + 1,), beginning with 0")
    if boundaries.is_meta:
        raise UsageError(f"{name} is on the device meta, where it has no values; give it on the CPU")
    values = boundaries.tolist()
    if values[0] != 0:
        raise UsageError(f"{name}[0] = {values[0]} must be 0: the first text begins at the first token")
    for number, (start, end) in enumerate(pairwise(values)):
        if end < start:
            raise UsageError(
                f"{name}[{number + 1}] = {end} is below {name}[{number}] = {start}: text {number} would end before it "
                "begins, and overlap others; boundaries never decrease"
            )
    if values[-1] != tokens:
        way = "beyond them" if values[-1] > tokens else "and the tokens behind it belong to no text; cut them off"
        raise UsageError(f"{name} ends at {values[-1]} of {tokens} {kind}, {way}: the last entry must be {tokens}")
    return values


def packed_calls(
    q: Tensor, k: Tensor, v: Tensor, mechanism: Mechanism, of_queries: list[int], of_keys: list[int],
    options: Mapping[str, Any],
) -> list[PackedCall]:  # fmt: skip
    """The calls of `attend` that packed texts come to, each for texts of one size."""
    if options.get("lengths") is not None:
        raise UsageError(
            "lengths with cu_seqlens_q: packed texts are as long as their boundaries say; leave lengths out"
        )
    if k.shape[-2] != v.shape[-2]:
        raise UsageError(f"k and v must have the same number of keys; they have {k.shape[-2]} and {v.shape[-2]}")
    texts = len(of_queries) - 1
    dims = max(q.dim(), k.dim(), v.dim())
    sizes_q, sizes_k = _sizes(of_queries), _sizes(of_keys)
    each_q, each_k, each_v = (
        _split(_raised(tensor, dims), sizes, -2) for tensor, sizes in ((q, sizes_q), (k, sizes_k), (v, sizes_k))
    )
    parts = {
        "mask": _parts_of_mask(options.get("mask"), dims, sizes_q, sizes_k),
        "q_positions": _parts_of_tokens(options.get("q_positions"), dims - 2 or 1, sizes_q),
        "k_positions": _parts_of_tokens(options.get("k_positions"), dims - 2 or 1, sizes_k),
    }
    seeds = _seeds(mechanism, options, dims, texts, q.device)
    alone = mechanism.is_stochastic and seeds is None  # what is drawn would depend on the other texts of a batch
    groups: dict[Any, list[int]] = {}
    for text, size in enumerate(zip(sizes_q, sizes_k, strict=True)):
        groups.setdefault((size, text if alone else None), []).append(text)
    calls = []
    for members in groups.values():
        tensors = _stacked(each_q, members), _stacked(each_k, members), _stacked(each_v, members)
        stacked = {name: None if each is None else _stacked(each, members) for name, each in parts.items()}
        own = {name: value for name, value in options.items() if name not in ("lengths", "generator")} | stacked
        own["learned"] = _learned(options.get("learned"), mechanism, members, dims, sizes_q)
        if seeds is not None:
            own["seed"] = seeds[members]
        if not sizes_q[members[0]] or not sizes_k[members[0]]:
            own["backend"] = None  # zeros or nothing, which some backends refuse to compute
        calls.append(PackedCall(members, tensors, own))
    return calls


def _sizes(boundaries: list[int]) -> list[int]:
    return [end - start for start, end in pairwise(boundaries)]


def _raised(tensor: Tensor, dims: int) -> Tensor:
    """With leading dimensions of size 1, so that texts can become the first dimension."""
    return tensor[(None,) * (dims - tensor.dim())]


def _split(tensor: Tensor, sizes: list[int], dim: int) -> list[Tensor]:
    # One split, whose gradient is one concatenation; a slice for each text would write a whole gradient each.
    return list(tensor.split(sizes, dim=dim)) if sizes else []


def _parts_of_mask(mask: Any, dims: int, sizes_q: list[int], sizes_k: list[int]) -> list[Tensor] | None:
    """The part of each text of a mask (..., Lq or 1, Lk or 1)."""
    if mask is None:
        return None
    _check_tokens("mask", mask)
    given = tuple(mask.shape)
    mask = _raised(mask[(None,) * max(2 - mask.dim(), 0)], dims)
    shape = (sum(sizes_q), sum(sizes_k))
    if any(size not in (1, wanted) for size, wanted in zip(mask.shape[-2:], shape, strict=True)):
        raise UsageError(f"mask has shape {given}, which does not broadcast to (..., {shape[0]}, {shape[1]})")
    by_query = [mask] * len(sizes_q) if mask.shape[-2] == 1 != shape[0] else _split(mask, sizes_q, -2)
    if mask.shape[-1] == 1 != shape[1]:
        return by_query
    starts = accumulate(sizes_k, initial=0)
    return [part[..., s : s + n] for part, s, n in zip(by_query, starts, sizes_k, strict=False)]


def _parts_of_tokens(positions: Any, dims: int, sizes: list[int]) -> list[Tensor] | None:
    """The part of each text of positions (..., L)."""
    if positions is None:
        return None
    _check_tokens("positions", positions)
    if positions.shape[-1] != sum(sizes):
        raise UsageError(f"positions have shape {tuple(positions.shape)}, and there are {sum(sizes)} tokens")
    return _split(_raised(positions, dims), sizes, -1)


def _check_tokens(name: str, given: Any) -> None:
    if not isinstance(given, Tensor) or not given.dim():
        raise TypeError(f"{name} must be a tensor with an entry for each token, not {given!r}")


def _stacked(parts: list[Tensor], members: list[int]) -> Tensor:
    return torch.stack([parts[text] for text in members])


def _seeds(mechanism: Mechanism, options: Mapping[str, Any], dims: int, texts: int, device: torch.device):
    """(texts, ..., H or 1) int64: a seed of its own for each text, from the seed or generator of the call; or None."""
    seed, generator = options.get("seed"), options.get("generator")
    if seed is not None and generator is not None:
        raise UsageError("give seed or generator, not both: they are two ways to say where randomness comes from")
    if seed is None:
        if generator is None and (mechanism.is_stochastic or not options.get("dropout_p")):
            return None
        seed = draw_seed(generator, device)
    if not isinstance(seed, Tensor) or seed.dtype != torch.int64:
        raise UsageError(f"seed = {seed!r} must be an int64 tensor that broadcasts to (..., H)")
    zero = torch.zeros((), dtype=torch.int64, device=seed.device)
    return fold_in(_raised(seed, dims - 2), zero, texts)


def _learned(learned: Any, mechanism: Mechanism, members: list[int], dims: int, sizes: list[int]):
    """What is learned by query is cut up as the queries are; the rest holds for all texts."""
    if learned is None:
        return None
    cut = {}
    for name, tensor in learned.items():
        by_query = name not in mechanism.learns and tensor.dim() and tensor.shape[-1] == sum(sizes) != 1
        cut[name] = _stacked(_split(_raised(tensor, dims - 1), sizes, -1), members) if by_query else tensor
    return cut


def joined(results: list[tuple[list[int], Tensor]], dim: int) -> Tensor:
    """What several calls gave, (texts, ...) each, in the order of the texts."""
    parts = {text: part for members, tensor in results for text, part in zip(members, tensor.unbind(0), strict=True)}
    return torch.cat([parts[text] for text in range(len(parts))], dim=dim)


def joined_info(calls: list[PackedCall], infos: list[AttentionInfo], of_keys: list[int]) -> AttentionInfo:
    """What is known of each text, with keys numbered as in the whole row."""
    most = max(info.indices.shape[-1] for info in infos)
    moved = []
    for call, info in zip(calls, infos, strict=True):
        starts = torch.tensor([of_keys[text] for text in call.texts], device=info.indices.device)
        starts = starts.view(-1, *[1] * (info.indices.dim() - 1))
        room = (0, most - info.indices.shape[-1])
        indices = torch.where(info.indices >= 0, info.indices + starts, -1)
        moved.append(replace(info, indices=pad(indices, room, value=-1), weights=pad(info.weights, room)))

    def whole(name: str, dim: int) -> Tensor:
        return joined([(call.texts, getattr(info, name)) for call, info in zip(calls, moved, strict=True)], dim)

    return AttentionInfo(whole("indices", -2), whole("weights", -2), whole("lse", -1), whole("in_degree", -1))
