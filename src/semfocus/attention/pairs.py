"""Which mechanism goes with which normaliser, and what layers have learned for the two."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from semfocus.attention.base import Mechanism
from semfocus.attention.normalisers import Normaliser, Softmax
from semfocus.errors import UsageError


def own_normaliser(mechanism: Mechanism, normaliser: Normaliser, causal: bool = False) -> Normaliser:
    """The normaliser of a call: the mechanism's own if it has one. UsageError where the pair has no meaning."""
    own = mechanism.normaliser
    if own is not None:
        if normaliser not in (Softmax(), own):
            raise UsageError(
                f"{mechanism} weighs keys by itself and cannot serve the normaliser {normaliser}; leave the normaliser "
                f"out, or choose another mechanism: normaliser='{own}' goes with each"
            )
        return own
    if causal and not normaliser.serves_causal:
        raise UsageError(
            f"normaliser {normaliser} with causal=True: it sums over queries, so that a query would learn of later "
            "ones; use it without causal, or choose another normaliser, for example softmax"
        )
    return normaliser


def check_learned(
    learned: Mapping[str, Tensor] | None, mechanism: Mechanism, normaliser: Normaliser, lead: torch.Size, queries: int
) -> dict[str, Tensor]:
    """What `attend` was given as `learned`, in the form that backends take.

    A normaliser's numbers (..., H, Lq or 1) become (..., H, Lq or 1, 1); a mechanism's vectors stay (..., H, C, D).
    """
    prepared = {}
    for name, tensor in (learned or {}).items():
        if name in normaliser.learns:
            wanted, fits = "(..., H, Lq or 1)", broadcasts(tensor.shape, (*lead, queries))
            prepared[name] = tensor.unsqueeze(-1)
        elif name in mechanism.learns:
            wanted, fits = "(..., H, C, D)", tensor.dim() >= 2 and broadcasts(tensor.shape[:-2], lead)
            prepared[name] = tensor
        else:
            known = ", ".join((*mechanism.learns, *normaliser.learns)) or "none"
            raise UsageError(f"learned[{name!r}]: {mechanism} and {normaliser} have no such parameter; theirs: {known}")
        if not fits:
            raise UsageError(
                f"learned[{name!r}] has shape {tuple(tensor.shape)} and must be {wanted}, where batch, heads and "
                f"queries are {(*lead, queries)}"
            )
    return prepared


def broadcasts(shape: torch.Size, target: tuple[int, ...]) -> bool:
    """Whether a tensor of this shape broadcasts to the target without making it larger."""
    pairs = zip(reversed(shape), reversed(target), strict=False)
    return len(shape) <= len(target) and all(size in (1, wanted) for size, wanted in pairs)
