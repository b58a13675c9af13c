"""The kernels beside the model: seeds to the bit, and updates as torch makes them, whatever diverges."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from semfocus import counter_rng
from semfocus.fused.step import SPLIT, fold_in, sgd_update
from tests.conformance.cases import DEVICE


@pytest.mark.parametrize(("sites", "members"), [(1, 1), (11, 7), (41, 150)])
def test_seeds_of_dropout_are_those_of_the_plain_generator(sites: int, members: int) -> None:
    seeds = torch.arange(members, device=DEVICE) * 0x9E3779B97F4A7C15 - 2**62
    for step in (0, 7, 2**33 + 5):
        count = torch.tensor(step, device=DEVICE)
        assert torch.equal(fold_in(seeds, count, sites), counter_rng.fold_in(seeds, count, sites))


def _updated(
    parameters: Tensor, gradient: Tensor, loss: Tensor, lrs: Tensor, alive: Tensor, clip: float | None
) -> Tensor:
    """What an update should give, in float64, one member after the other."""
    wanted = parameters.double().clone()
    for i in range(len(wanted)):
        norm = gradient[i].double().norm().item()
        if alive[i] and math.isfinite(loss[i].item()) and math.isfinite(norm):
            scale = 1.0 if clip is None else min(1.0, clip / norm) if norm else 1.0
            wanted[i] -= lrs[i].double() * scale * gradient[i].double()
    return wanted


@pytest.mark.parametrize("size", [1, 31, SPLIT - 1, SPLIT, 2 * SPLIT + 77])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_an_update_clips_each_member_by_its_own_norm(size: int, clip: float | None) -> None:
    generator = torch.Generator().manual_seed(size)
    parameters, gradient = (torch.randn(4, size, generator=generator).to(DEVICE) for _ in range(2))
    gradient *= torch.tensor([[1e-4], [1.0], [1e4], [0.0]], device=DEVICE)
    loss, lrs = torch.ones(4, device=DEVICE), torch.tensor([0.1, 1.0, 0.5, 0.1], device=DEVICE)
    alive, died_at = torch.ones(4, dtype=torch.bool, device=DEVICE), torch.full((4,), -1, device=DEVICE)
    wanted = _updated(parameters, gradient, loss, lrs, alive, clip)
    sgd_update(parameters, gradient, loss, lrs, alive, died_at, torch.tensor(3, device=DEVICE), clip)
    torch.testing.assert_close(parameters.double(), wanted, rtol=1e-5, atol=1e-6)
    assert alive.all()
    assert died_at.tolist() == [-1] * 4


@pytest.mark.parametrize("where", ["loss", "gradient", "dead before"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_member_that_diverges_is_frozen_and_its_siblings_go_on(where: str, value: float) -> None:
    size = SPLIT + 5
    generator = torch.Generator().manual_seed(1)
    parameters, gradient = (torch.randn(3, size, generator=generator).to(DEVICE) for _ in range(2))
    loss, lrs = torch.ones(3, device=DEVICE), torch.full((3,), 0.1, device=DEVICE)
    alive, died_at = torch.ones(3, dtype=torch.bool, device=DEVICE), torch.full((3,), -1, device=DEVICE)
    if where == "loss":
        loss[1] = value
    elif where == "gradient":
        gradient[1, -1] = value
    else:
        alive[1], died_at[1] = False, 2
    before = parameters.clone()
    wanted = _updated(parameters, gradient, loss, lrs, alive, 0.5)
    sgd_update(parameters, gradient, loss, lrs, alive, died_at, torch.tensor(9, device=DEVICE), 0.5)
    assert torch.equal(parameters[1], before[1])
    torch.testing.assert_close(parameters.double(), wanted, rtol=1e-5, atol=1e-6)
    assert not torch.equal(parameters[0], before[0])
    assert alive.tolist() == [True, False, True]
    assert died_at.tolist() == [-1, 2 if where == "dead before" else 9, -1]
