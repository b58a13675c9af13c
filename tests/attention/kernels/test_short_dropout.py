"""Dropout of the short kernels uses the bits of `semfocus.counter_rng`; ordered integers sort as their scores do."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from semfocus import counter_rng
from semfocus.attention.kernels.shared import (
    dropout_threshold,
    float_to_ordered_int,
    ordered_int_to_float,
    row_hash,
    survives,
)
from semfocus.attention.kernels.short.arguments import row_id_steps
from semfocus.attention.operator import attend
from semfocus.attention.positions import Positions
from tests.attention.kernels.short_cases import by_kernel, close, inputs, run
from tests.conftest import DEVICE


@triton.jit
def draw_bits(seed, rows, columns, threshold, out, N: tl.constexpr):
    i = tl.arange(0, N)
    hashes = row_hash(tl.load(seed), tl.load(rows + i))
    bits = survives(hashes[:, None], tl.load(columns + i)[None, :], threshold)
    tl.store(out + i[:, None] * N + i[None, :], bits.to(tl.int8))


@triton.jit
def order_scores(scores, keys, again, N: tl.constexpr):
    i = tl.arange(0, N)
    integers = float_to_ordered_int(tl.load(scores + i))
    tl.store(keys + i, integers)
    tl.store(again + i, ordered_int_to_float(integers))


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63), 123456789123456789])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1 - 2**-33])
def test_the_bits_are_those_of_every_other_backend(seed, p) -> None:
    generator = torch.Generator().manual_seed(3)
    rows = torch.randint(0, 2**31 - 1, (16,), generator=generator, dtype=torch.int32).to(DEVICE)
    columns = torch.arange(16, dtype=torch.int32, device=DEVICE)
    source = torch.tensor([seed], device=DEVICE)
    out = torch.empty(16, 16, dtype=torch.int8, device=DEVICE)
    draw_bits[(1,)](source, rows, columns, dropout_threshold(p), out, N=16)
    assert torch.equal(out.bool(), counter_rng.bernoulli_keep(source, rows.unsqueeze(-1), columns, p))


def test_keys_order_scores_with_equal_zeros_and_nan_above_all() -> None:
    inf, nan = float("inf"), float("nan")
    scores = torch.tensor([-inf, -3.4e38, -1.0, -1e-45, -0.0, 0.0, 1e-45, 1.0, 3.4e38, inf, nan, -nan, 2, 3, 4, 5])
    scores = scores.to(DEVICE)
    keys, again = torch.empty(16, dtype=torch.int32, device=DEVICE), torch.empty(16, device=DEVICE)
    order_scores[(1,)](scores, keys, again, N=16)
    ordered = keys.tolist()
    assert ordered[:4] == sorted(set(ordered[:4]))
    assert ordered[4] == ordered[5] == 0
    assert ordered[6:11] == sorted(set(ordered[6:11]))
    assert ordered[10] == ordered[11]
    assert min(ordered) > -(2**31)
    assert torch.equal(again[:10], scores[:10])
    assert again[10:12].isnan().all()


SEEDS = [(), (1,), (2, 1, 1), (2, 3, 1), (1, 1, 2), (3, 1), (2, 3, 2)]


@pytest.mark.parametrize("shape", SEEDS)
def test_rows_are_numbered_as_places_numbers_them(shape) -> None:
    lead, queries = torch.Size((2, 3, 2)), 5
    seed = torch.zeros(shape, dtype=torch.int64)[..., None, None] if shape else torch.zeros((), dtype=torch.int64)
    numbers = Positions(queries, 7, torch.device("cpu"), 0, queries).row_ids(lead, seed).expand(*lead, -1, -1)
    steps = row_id_steps(lead, seed, queries)
    index = torch.cartesian_prod(*(torch.arange(size) for size in lead)).view(*lead, 3)
    mine = (index * torch.tensor(steps)).sum(dim=-1)
    assert torch.equal(mine[..., None, None] + torch.arange(queries).view(-1, 1), numbers.long())


@pytest.mark.parametrize("shape", SEEDS)
def test_each_weight_is_dropped_exactly_where_the_dense_backend_drops_it(shape) -> None:
    lead, length = (2, 3, 2), 9
    q = torch.zeros(*lead, length, 16, device=DEVICE)
    v = torch.eye(length, device=DEVICE).expand(*lead, -1, -1)  # the output is the matrix of weights
    generator = torch.Generator().manual_seed(8)
    seed = torch.randint(-(2**62), 2**62, shape, generator=generator).to(DEVICE)
    mine, dense = (
        function(q, q, v, mechanism="full", dropout_p=0.4, seed=seed)
        for function in (by_kernel, lambda *qkv, **options: attend(*qkv, backend="dense", **options))
    )
    assert torch.equal(mine == 0, dense == 0)
    torch.testing.assert_close(mine, dense)


@pytest.mark.parametrize(("queries", "keys"), [(9, 11), (9, 66)])
@pytest.mark.parametrize("mechanism", ["full", "block_local:7+1g", "topk:2"])
def test_gradients_with_dropout_equal_the_dense_backends(mechanism, queries, keys) -> None:
    q, k, v, grad = inputs(queries, keys, lead=(1, 4))
    seed = torch.tensor([[-(2**40), 11, 12, 13]], device=DEVICE)
    given = (q, k[:, :2], v[:, :2], grad)
    options = {"mechanism": mechanism, "enable_gqa": True, "dropout_p": 0.4, "seed": seed}
    for mine, wanted in zip(run(given, **options), run(given, backend="dense", **options), strict=True):
        close(mine, wanted)


def test_a_generator_draws_the_same_for_every_backend() -> None:
    given = inputs(9, 11)
    results = []
    for backend in ("short kernels", "dense"):
        generator = torch.Generator(DEVICE).manual_seed(4)
        results.append(run(given, backend=backend, mechanism="topk:4", dropout_p=0.5, generator=generator))
    for mine, wanted in zip(*results, strict=True):
        close(mine, wanted)
