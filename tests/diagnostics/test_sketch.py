"""Quantiles of a stream: exact while there are few values, within the stated error afterwards, in fixed memory."""

from __future__ import annotations

import math

import pytest
import torch

from semfocus.diagnostics.scores import limited
from semfocus.diagnostics.sketch import ADDRESSES, EXACT, Sketch, add_to_all, extremes
from semfocus.errors import UsageError

LEVELS = (0.0, 0.05, 0.25, 0.5, 0.9, 0.99, 1.0)


def values(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).mul(3).exp()


def zeros(n: int) -> torch.Tensor:
    return torch.zeros(n, dtype=torch.int64)


def test_few_values_give_exact_quantiles() -> None:
    sketch, given = Sketch(1), values(1001)
    for part in given.split(100):
        sketch.add(zeros(len(part)), part)
    assert sketch.is_exact
    assert sketch.quantiles(LEVELS) == pytest.approx(
        given.quantile(torch.tensor(LEVELS, dtype=torch.float64)).tolist(), rel=1e-12
    )


@pytest.mark.parametrize("error", [0.01, 0.001])
def test_many_values_give_quantiles_within_the_stated_error(error: float) -> None:
    sketch, given = Sketch(1, error), values(5 * EXACT)
    for part in given.split(999):
        sketch.add(zeros(len(part)), part)
    assert not sketch.is_exact
    ordered = given.sort().values
    for level, estimate in zip(LEVELS, sketch.quantiles(LEVELS), strict=True):
        rank = math.floor(level * (len(given) - 1))
        assert estimate == pytest.approx(float(ordered[rank]), rel=error * 1.0001)
    assert sketch.quantiles((0.0, 1.0)) == [float(ordered[0]), float(ordered[-1])]
    assert sketch.count() == len(given)


def test_memory_does_not_grow_with_the_values() -> None:
    sketch = Sketch(2)
    sizes = set()
    for i in range(12):
        sketch.add(torch.arange(EXACT) % 2, values(EXACT, seed=i))
        if not sketch.is_exact:
            sizes.add(sketch._counts.numel())
            assert sketch._kept is None
    assert len(sizes) == 1


def test_groups_do_not_mix() -> None:
    for n in (100, 4 * EXACT):
        sketch, given = Sketch(3), values(n)
        group = torch.arange(n) % 3
        sketch.add(group, given + 10.0 * group)
        for g in range(3):
            own = (given + 10.0 * group)[group == g]
            assert sketch.count(g) == len(own)
            assert sketch.quantiles((0.0, 1.0), g) == pytest.approx([float(own.min()), float(own.max())])


def test_zero_and_infinity_are_quantiles_too() -> None:
    sketch = Sketch(1)
    given = torch.cat([torch.zeros(EXACT), torch.ones(EXACT), torch.full((EXACT,), math.inf)])
    sketch.add(zeros(len(given)), given)
    assert sketch.quantiles((0.1, 0.9, 1.0)) == [0.0, math.inf, math.inf]
    assert sketch.quantiles((0.5,))[0] == pytest.approx(1.0, rel=0.01)


def test_an_empty_sketch_has_no_quantiles() -> None:
    sketch = Sketch(2)
    assert sketch.quantiles((0.5, 1.0)) == [None, None]
    sketch.add(zeros(3 * EXACT), values(3 * EXACT))
    assert sketch.quantiles((0.5,), group=1) == [None]


@pytest.mark.parametrize("sizes", [(50, 60), (50, 9000), (9000, 50), (9000, 9000)])
def test_pooled_sketches_equal_the_sketch_of_all_values(sizes: tuple[int, int]) -> None:
    sketches, given = [], []
    for i, n in enumerate(sizes):
        sketches.append(Sketch(2))
        given.append(values(n, seed=i))
        sketches[-1].add(torch.arange(n) % 2, given[-1])
    pooled, ordered = Sketch.pooled(sketches), torch.cat(given).sort().values
    assert pooled.count() == sum(sizes)
    for level, estimate in zip(LEVELS, pooled.quantiles(LEVELS), strict=True):
        place = level * (len(ordered) - 1)
        low, high = float(ordered[math.floor(place)]), float(ordered[math.ceil(place)])
        assert low * 0.99 <= estimate <= high * 1.0101


def test_an_error_of_zero_is_refused() -> None:
    with pytest.raises(UsageError, match="error"):
        Sketch(1, 0.0)


def test_extremes_of_groups_do_not_depend_on_the_number_of_addresses() -> None:
    groups = torch.tensor([0, 2, 0, 2, 2]).repeat(ADDRESSES)
    given = torch.tensor([[3.0, 1, 5, math.inf, 0.5], [1, 2, 3, 4, 5]]).repeat(1, ADDRESSES)
    alone = extremes(groups, given, 4)
    with limited(launch_bound=frozenset({"cpu"})):
        assert torch.equal(extremes(groups, given, 4), alone)
    assert alone[0].tolist() == [[3.0, math.inf, 0.5, math.inf], [1.0, math.inf, 2.0, math.inf]]
    assert (-alone[1]).tolist() == [[5.0, -math.inf, math.inf, -math.inf], [3.0, -math.inf, 5.0, -math.inf]]


@pytest.mark.parametrize("sizes", [(100, 90), (100, 4 * EXACT), (4 * EXACT, 4 * EXACT), (0, 50), (0, 4 * EXACT)])
@pytest.mark.parametrize("launch_bound", [frozenset(), frozenset({"cpu"})])
def test_sketches_filled_together_equal_sketches_filled_one_by_one(
    sizes: tuple[int, int], launch_bound: frozenset[str]
) -> None:
    together = [Sketch(3, rows=2) for _ in sizes]
    alone = [[Sketch(3) for _ in range(2)] for _ in sizes]
    shuffled = torch.randperm(sum(sizes), generator=torch.Generator().manual_seed(1))
    for seed in range(2):
        parts = [torch.stack([values(n, seed + i), values(n, seed + i + 9)]) for i, n in enumerate(sizes)]
        owners = [torch.arange(n) % 3 for n in sizes]
        on = torch.cat([3 * i + owner for i, owner in enumerate(owners)])
        with limited(launch_bound=launch_bound):
            add_to_all(together, on[shuffled], torch.cat(parts, dim=1)[:, shuffled], sizes)
        for sketches, owner, part in zip(alone, owners, parts, strict=True):
            for sketch, row in zip(sketches, part, strict=True):
                sketch.add(owner, row)
    for sketch, rows, n in zip(together, alone, sizes, strict=True):
        assert sketch.is_exact == (n <= 100)
        for i, row in enumerate(rows):
            assert sketch.is_exact == row.is_exact
            for group in (None, 0, 2):
                assert sketch.quantiles(LEVELS, group, i) == row.quantiles(LEVELS, group)
                assert sketch.count(group) == row.count(group)


def test_stored_values_do_not_keep_larger_tensors_alive() -> None:
    sketches = [Sketch(1), Sketch(1)]
    n = 4 * EXACT
    groups = (torch.arange(n) >= 10).long()
    add_to_all(sketches, groups, values(n).unsqueeze(0), [10, n - 10])
    assert [sketch.is_exact for sketch in sketches] == [True, False]
    assert sum(tensor.untyped_storage().nbytes() for tensor in sketches[0]._kept) == 2 * 10 * 8


def test_values_as_large_as_float32_goes_are_counted_and_not_infinite() -> None:
    sketch, given = Sketch(1), values(3 * EXACT).log().abs() * 1e37
    sketch.add(zeros(len(given)), given)
    assert not sketch.is_exact
    ordered = given.sort().values
    assert sketch.quantiles((0.5,))[0] == pytest.approx(float(ordered[(len(given) - 1) // 2]), rel=0.0101)
