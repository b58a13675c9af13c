"""Random bits without state: one stream, whoever computes it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._inductor.utils import run_and_get_code

from semfocus import counter_rng

SEEDS = torch.tensor([0, 1, -1, 2**63 - 1, -(2**63), 123456789012345])


def _by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counter_rng, "_suits_numpy", lambda *tensors: False)


@pytest.mark.parametrize(
    ("seed", "rows", "columns"),
    [
        (SEEDS.view(-1, 1, 1), torch.arange(7, dtype=torch.int32).view(7, 1), torch.arange(5, dtype=torch.int32)),
        (SEEDS[3], torch.tensor(9, dtype=torch.int32), torch.tensor(4, dtype=torch.int32)),
        (SEEDS[::2].view(3, 1), torch.tensor(2**31 - 1, dtype=torch.int32), torch.arange(6, dtype=torch.int32)[::3]),
        (SEEDS.view(-1, 1, 1), torch.zeros(0, 1, dtype=torch.int32), torch.arange(5, dtype=torch.int32)),
    ],
    ids=["broadcast", "scalars", "strided", "empty"],
)
def test_numpy_draws_the_bits_that_torch_draws(
    monkeypatch: pytest.MonkeyPatch, seed: Tensor, rows: Tensor, columns: Tensor
) -> None:
    before = seed.clone(), rows.clone(), columns.clone()
    fast = counter_rng.random_bits(seed, rows, columns)
    _by_torch(monkeypatch)
    assert torch.equal(fast, counter_rng.random_bits(seed, rows, columns))
    assert all(torch.equal(*pair) for pair in zip(before, (seed, rows, columns), strict=True))


def test_the_stream_is_the_one_that_committed_results_were_drawn_from() -> None:
    """Golden values: a change here is a change of every run with dropout."""
    rows, columns = torch.arange(2, dtype=torch.int32).view(2, 1), torch.arange(3, dtype=torch.int32)
    bits = counter_rng.random_bits(torch.tensor(153476998), rows, columns)
    assert bits.tolist() == [[200771236, -1683802369, -451852566], [1839508163, 1388327124, 1376541749]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dropout_and_its_gradient_are_the_same_by_either_way(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    def both() -> tuple[Tensor, Tensor]:
        x = torch.linspace(-1, 1, 3 * 4 * 5 * 6, dtype=dtype).view(3, 4, 5, 6).requires_grad_()
        out = counter_rng.dropout(x, SEEDS[:3], 0.3)
        return out.detach(), torch.autograd.grad(out, x, torch.ones_like(out))[0]

    fast = both()
    _by_torch(monkeypatch)
    slow = both()
    assert torch.equal(fast[0], slow[0])
    assert torch.equal(fast[1], slow[1])
    assert 0.15 < (fast[0] == 0).double().mean() < 0.45


def test_dropout_hides_no_nan_by_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.full((1, 1, 2, 9), float("nan"))
    assert counter_rng.dropout(x, SEEDS[:1], 0.5).isnan().all()
    _by_torch(monkeypatch)
    assert counter_rng.dropout(x, SEEDS[:1], 0.5).isnan().all()


def test_what_traces_or_vectorises_gets_plain_tensor_operations() -> None:
    rows, columns = torch.arange(4, dtype=torch.int32).view(4, 1), torch.arange(3, dtype=torch.int32)
    mapped = torch.func.vmap(lambda seed: counter_rng.random_bits(seed, rows, columns))(SEEDS)
    assert torch.equal(mapped, counter_rng.random_bits(SEEDS.view(-1, 1, 1), rows, columns))
    assert counter_rng.random_bits(SEEDS.to("meta").view(-1, 1, 1), rows.to("meta"), columns.to("meta")).is_meta


def test_rows_have_the_same_numbers_whether_all_are_looked_at_or_some() -> None:
    every = counter_rng.row_ids((2, 3), 5, torch.device("cpu"), 0, 5)
    assert every.flatten().tolist() == list(range(30))
    assert every.dtype == torch.int32
    assert torch.equal(every[..., 2:4, :], counter_rng.row_ids((2, 3), 2, torch.device("cpu"), 2, 5))


@pytest.mark.slow
def test_dual_numbers_count_as_traced() -> None:
    """Kernels called without torch's dispatcher would drop a tangent without a word."""
    assert not counter_rng.is_traced()
    with torch.autograd.forward_ad.dual_level():
        assert counter_rng.is_traced()
    assert not counter_rng.is_traced()


@pytest.mark.filterwarnings("ignore")  # of torch, about itself
def test_compiled_hash_multiplies_columns_as_numbers_of_32_bits() -> None:
    """As part of an index expression their product would not wrap: Triton refuses constants beyond int32."""

    def bits(seed: Tensor, rows: Tensor) -> Tensor:
        return counter_rng.random_bits(seed, rows, torch.arange(8, dtype=torch.int32) + 2**16)

    arguments = torch.tensor([[2**40 + 5]]), torch.arange(4, dtype=torch.int32)[:, None]
    compiled, programs = run_and_get_code(torch.compile(bits, dynamic=False), *arguments)
    assert torch.equal(compiled, bits(*arguments))
    source = "\n".join(programs)
    assert str(counter_rng.GOLDEN) in source
    assert str(abs(counter_rng.GOLDEN * 2**16)) not in source
