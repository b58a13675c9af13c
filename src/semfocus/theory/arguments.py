"""Checks of arguments: formulas take numbers or tensors, compute in float64 and return the same kind."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, TypeVar

import torch

from semfocus.errors import UsageError, unknown

Number = float | torch.Tensor
T = TypeVar("T")


def number(
    name: str, value: Any, *, at_least: float | None = None, finite: bool = False, why: str = ""
) -> torch.Tensor:
    """`value` as a float64 tensor; an element below `at_least` is a UsageError that names it. NaN passes through."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        raise UsageError(f"{name} = {value!r} must be a number or a tensor of numbers")
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"{name} = {value!r} must be a number or a tensor of numbers") from error
    if tensor.dtype == torch.bool or tensor.is_complex():
        raise UsageError(f"{name} must hold real numbers, not {tensor.dtype}")
    # A Python float goes through float32 unless it is converted anew.
    tensor = torch.as_tensor(value, dtype=torch.float64)
    if at_least is not None and bool((tensor < at_least).any()):
        low = tensor[tensor < at_least].flatten()[0].item()
        raise UsageError(f"{name} = {low:g} must be at least {at_least:g}{why}")
    if finite and bool(torch.isinf(tensor).any()):
        raise UsageError(f"{name} = {tensor[torch.isinf(tensor)].flatten()[0].item():g} must be finite")
    return tensor


def fitting(**arguments: torch.Tensor) -> None:
    """Raise a UsageError that names the arguments and their shapes if these do not broadcast."""
    try:
        torch.broadcast_shapes(*(value.shape for value in arguments.values()))
    except RuntimeError as error:
        shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in arguments.items() if value.ndim)
        raise UsageError(f"the shapes do not broadcast: {shapes}; give tensors of one shape, or numbers") from error


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a * b with 0 * inf = 0: an input that cannot move is not moved by an infinite slope. NaN stays NaN."""
    result = a * b
    return torch.where(result.isnan() & ~(a.isnan() | b.isnan()), 0.0, result)


def like(result: torch.Tensor, *given: Any) -> Number:
    """`result` as a float if all given arguments are numbers, else as a tensor."""
    return result.item() if all(value is None or isinstance(value, Real) for value in given) else result


def plain(name: str, value: Any) -> float:
    """One number >= 0 (inf allowed, NaN not) as a float."""
    checked = number(name, value, at_least=0)
    if checked.numel() != 1 or bool(checked.isnan().any()):
        raise UsageError(f"{name} = {value!r} must be one number >= 0")
    return checked.item()


def check_fields(instance: Any, *names: str) -> None:
    """Replace the named fields of a frozen dataclass by `plain` of them."""
    for name in names:
        object.__setattr__(instance, name, plain(name, getattr(instance, name)))


def times(*factors: float) -> float:
    """`product` of plain numbers."""
    if 0.0 in factors:
        return 0.0
    # The product of the finite factors may underflow to 0, which would give NaN.
    return math.inf if math.inf in factors else math.prod(factors)


def norm_order(norm: Any) -> int:
    """1 or 2; anything else is a UsageError."""
    if isinstance(norm, bool) or norm not in (1, 2):
        raise UsageError(f"norm = {norm!r} must be 1 or 2")
    return int(norm)


def pick(kind: str, name: Any, known: dict[str, T]) -> T:
    """The entry called `name`, or the error that lists what is known."""
    if not isinstance(name, str) or name not in known:
        raise unknown(kind, name, known)
    return known[name]


def aligned(scores: torch.Tensor, **masks: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Scores (..., Lk) in float64, and each bool mask broadcast to their shape."""
    scores = number("scores", scores)
    if scores.ndim < 1 or scores.shape[-1] == 0:
        raise UsageError(f"scores has shape {tuple(scores.shape)}; it needs a last axis of at least one key")
    return scores, *(_fitted(name, mask, scores) for name, mask in masks.items())


def _fitted(name: str, mask: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    given = torch.as_tensor(mask)
    if given.dtype != torch.bool:
        raise UsageError(f"{name} must be a bool tensor (True = keep), not {given.dtype}")
    fits = given.ndim >= 1 and given.shape[-1] == scores.shape[-1] and given.ndim <= scores.ndim
    if fits:
        paired = zip(reversed(given.shape), reversed(scores.shape), strict=False)
        fits = all(mine in (1, theirs) for mine, theirs in paired)
    if not fits:
        raise UsageError(
            f"{name} has shape {tuple(given.shape)}, scores {tuple(scores.shape)}: "
            f"{name} must have the shape of scores, or broadcast to it with as many keys"
        )
    return given.to(scores.device).broadcast_to(scores.shape)
