"""Where the paper's conditions hold, as grids over the plane c1 = delta_heavy/delta_full, c2 = separation/delta_full.

    region(delta_full=4.0, sink_ratio=2.0).x < 1      figures 21 (W) and 22 (X), one panel a call

Both dispersions of one and the same row of scores obey delta_heavy + separation <= delta_full, so that one model
can only be in the triangle c1 + c2 <= 1 (`reachable`). The paper takes them from two models, which need not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from semfocus.errors import UsageError
from semfocus.theory.arguments import number
from semfocus.theory.lipschitz import condition_w, condition_x

_STEPS = 201


@dataclass(frozen=True, eq=False)
class Region:
    """W and X over a grid: row i of `w`, `x` and `reachable` belongs to c2[i], column j to c1[j]."""

    delta_full: float
    sink_ratio: float
    c1: torch.Tensor
    c2: torch.Tensor
    w: torch.Tensor
    x: torch.Tensor
    reachable: torch.Tensor


def region(delta_full: float, sink_ratio: float = 1.0, *, c1: Any = None, c2: Any = None) -> Region:
    """W and X for one delta_full and one sink ratio, over the given axes (default: 0 to 1 in steps of 1/200)."""
    full, beta = _one("delta_full", delta_full), _one("sink_ratio", sink_ratio)
    across, up = _axis("c1", c1), _axis("c2", c2)
    heavy, gap = full * across[None, :], full * up[:, None]
    spread = torch.full_like(heavy, full)
    return Region(
        delta_full=full,
        sink_ratio=beta,
        c1=across,
        c2=up,
        w=torch.as_tensor(condition_w(spread, heavy, gap)),
        x=torch.as_tensor(condition_x(spread, heavy, gap, beta)),
        reachable=across[None, :] + up[:, None] <= 1,
    )


def _one(name: str, value: float) -> float:
    checked = number(name, value, at_least=0, finite=True)
    if checked.ndim:
        raise UsageError(f"{name} must be one number, not a tensor of shape {tuple(checked.shape)}: call once each")
    return checked.item()


def _axis(name: str, values: Any) -> torch.Tensor:
    if values is None:
        return torch.linspace(0, 1, _STEPS, dtype=torch.float64)
    axis = number(name, values, at_least=0, finite=True)
    if axis.ndim != 1 or not len(axis):
        raise UsageError(f"{name} must be a list of numbers, not of shape {tuple(axis.shape)}")
    return axis
