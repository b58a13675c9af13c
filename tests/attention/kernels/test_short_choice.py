"""The k best keys of longer sequences, by guess or by search, are the oracle's wherever they are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.attention.kernels.short_cases import by_kernel, check
from tests.conftest import DEVICE

KEYS, WIDTH = 300, 16


def kept(rank: Tensor, mechanism: str, **options) -> Tensor:
    """The keys kept for these scores (queries, keys), which the first coordinate of q and k produces."""
    queries, keys = rank.shape
    q, k = torch.eye(queries, WIDTH), torch.zeros(keys, WIDTH)
    k[:, :queries] = rank.T
    q, k = (tensor.to(DEVICE) for tensor in (q, k))
    _, mine = by_kernel(q, k, k, mechanism=mechanism, scale=1.0, return_info=True, **options)
    return mine.indices.cpu()


def wanted(rank: Tensor, k: int) -> Tensor:
    return rank.sort(dim=-1, descending=True, stable=True).indices[:, :k].sort(dim=-1).values


@pytest.mark.parametrize("k", [1, 5, 16])
@pytest.mark.parametrize("period", [1, 16, 32, 64, 128])
def test_the_best_keys_may_all_stand_in_one_column_of_the_tiles(period: int, k: int) -> None:
    rank = torch.randperm(KEYS, generator=torch.Generator().manual_seed(period)).float() + 1.0
    high = rank.clone()
    high[3::period] += 1000.0
    rows = torch.stack([rank, high, high.flip(0), -rank])
    assert torch.equal(kept(rows, f"topk:{k}"), wanted(rows, k))
    assert torch.equal(kept(rows, f"bottomk:{k}"), wanted(-rows, k))


@pytest.mark.parametrize("k", [1, 5, 16])
def test_of_equals_the_lowest_indices_are_kept_and_what_is_above_them(k: int) -> None:
    generator = torch.Generator().manual_seed(k)
    few = torch.randint(0, 4, (3, KEYS), generator=generator).float()  # many equals at every border
    few[0] = 7.0
    few[1, 250:253] = 9.0
    assert torch.equal(kept(few, f"topk:{k}"), wanted(few, k))


def test_rows_with_fewer_keys_than_k_keep_them_all() -> None:
    rank = torch.randperm(KEYS, generator=torch.Generator().manual_seed(0)).float()[None]
    mask = torch.zeros(1, KEYS, dtype=torch.bool)
    mask[0, [0, 70, 299]] = True
    assert kept(rank, "topk:5", mask=mask.to(DEVICE)).tolist() == [[0, 70, 299, -1, -1]]
    assert kept(rank, "topk:5", lengths=torch.tensor(3).to(DEVICE)).tolist() == [[0, 1, 2, -1, -1]]


def test_one_key_that_every_query_keeps_gets_the_gradients_of_all() -> None:
    generator = torch.Generator().manual_seed(0)
    q = torch.randint(1, 4, (130, WIDTH), generator=generator).float()
    k = torch.randint(-3, 0, (KEYS, WIDTH), generator=generator).float()
    k[[5, 200]] = 2.0
    v, grad = torch.randn(KEYS, WIDTH, generator=generator), torch.randn(130, WIDTH, generator=generator)
    check(
        [tensor.to(DEVICE) for tensor in (q, k, v, grad)],
        mechanism="topk:3",
        dropout_p=0.2,
        seed=torch.tensor(1, device=DEVICE),
    )
