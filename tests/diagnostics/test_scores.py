"""Statistics of an attention call agree with a plain float64 computation from all its scores."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from semfocus import attend
from semfocus.attention import parse_mechanism
from semfocus.attention.inputs import AttentionInputs
from semfocus.attention.inspection import observing
from semfocus.diagnostics.attention_stats import PER_QUERY, Measured, Values, examine
from semfocus.diagnostics.scores import limited
from tests.diagnostics.reference import plain_statistics


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def inputs_of(*args: object, **options: object) -> tuple[AttentionInputs, bool]:
    """The inputs that a call of attend reports."""
    seen: list[tuple[AttentionInputs, bool]] = []
    with observing(lambda inputs, grouped: seen.append((inputs, grouped))):
        attend(*args, **options)
    return seen[0]


def of_queries(measured: Measured) -> dict[str, Tensor]:
    return dict(zip(PER_QUERY, measured.queries.rows, strict=True))


def of_head(measured: Measured, head: int) -> dict[str, list[float]]:
    def own(values: Values, row: int = 0) -> list[float]:
        column = values.rows[row, values.groups == head].tolist()
        assert len(column) == values.sizes[head]
        return column

    statistics = {name: own(measured.queries, row) for row, name in enumerate(PER_QUERY)}
    return statistics | {"in_degree": own(measured.in_degree), "sink_share": own(measured.sink_share)}


def assert_same(actual: dict[str, list[float]], expected: dict[str, list[float]]) -> None:
    for name, values in expected.items():
        assert sorted(actual[name]) == pytest.approx(sorted(values), rel=2e-5, abs=2e-5), name


@pytest.mark.parametrize(
    "mechanism", ["full", "topk:3", "topk:2+1s+2w", "banded:5", "bottomk:4", "randomk:4", "topk:4~0.5", "shifted:3+2a"]
)
@pytest.mark.parametrize("chunk", [1, 40, 10**6])
def test_every_statistic_agrees_with_a_plain_computation(mechanism: str, chunk: int) -> None:
    q, k, v = (3 * draw(2, 11, 4, seed=i) for i in range(3))
    value = parse_mechanism(mechanism)
    inputs, grouped = inputs_of(q, k, v, value)
    with limited(scores_in_caches=chunk * 22):
        measured = examine(inputs, grouped, 3)
    scores = (q.double() @ k.double().mT) / 2
    keep = value.keep(scores.float(), None, seed=inputs.choice_seed)
    for head in range(2):
        valid = torch.ones(11, 11, dtype=torch.bool)
        assert_same(of_head(measured, head), plain_statistics(scores[head], valid, 3, keep[head]))


@pytest.mark.parametrize("kind", ["causal", "mask", "bias", "huge bias", "lengths", "fewer queries"])
def test_hidden_keys_do_not_count(kind: str) -> None:
    q, k, v = (2 * draw(3, 2, 9, 4, seed=i) for i in range(3))
    options: dict[str, object] = {}
    valid = torch.ones(3, 1, 9, 9, dtype=torch.bool)
    bias: Tensor | float = 0.0
    if kind == "fewer queries":
        q, valid = q[:, :, :4], valid[:, :, :4]
    if kind == "causal":
        options["causal"], valid = True, valid.tril()
    elif kind == "lengths":
        options["lengths"] = torch.tensor([9, 5, 1])
        inside = torch.arange(9) < torch.tensor([9, 5, 1])[:, None]
        valid = inside[:, None, None, :] & inside[:, None, :, None]
    elif kind == "mask":
        valid = draw(3, 1, 9, 9, seed=9) > 0
        valid[..., 0] = True
        options["mask"] = valid
    elif "bias" in kind:
        hidden = draw(3, 1, 9, 9, seed=9) > 1
        bias = draw(3, 1, 9, 9, seed=8)
        least = torch.finfo(torch.float32).min if kind == "huge bias" else -math.inf
        options["mask"] = torch.where(hidden, least, bias)
        valid = ~hidden
    measured = examine(*inputs_of(q, k, v, "topk:2", **options), 2)
    scores = (q.double() @ k.double().mT) / 2 + bias
    for head in range(2):
        parts = [plain_statistics(scores[row, head], valid[row, 0], 2) for row in range(3)]
        expected = {name: [value for part in parts for value in part[name]] for name in parts[0] if name != "delta"}
        if kind in ("mask", "bias", "huge bias"):  # a key that nobody sees makes a padding query of its position
            assert all(valid.any(-2).flatten(1).all(-1))
        assert_same(of_head(measured, head), expected)


def test_grouped_heads_are_counted_as_the_heads_of_the_queries() -> None:
    q, k, v = draw(2, 6, 8, 4), draw(2, 3, 8, 4, seed=1), draw(2, 3, 8, 4, seed=2)
    grouped = examine(*inputs_of(q, k, v, "full", enable_gqa=True), 2)
    repeated = examine(*inputs_of(q, *(part.repeat_interleave(2, 1) for part in (k, v)), "full"), 2)
    assert len(grouped.queries.sizes) == 6
    for head in range(6):
        assert_same(of_head(grouped, head), of_head(repeated, head))


def test_ties_go_to_the_lowest_index_as_in_the_selection() -> None:
    q, k = torch.ones(1, 5, 1), torch.tensor([1.0, 2.0, 1.0, 1.0, 2.0]).view(1, 5, 1)
    inputs, grouped = inputs_of(q, k, k, "topk:3")
    measured = examine(inputs, grouped, 3)
    assert measured.in_degree.rows[0].tolist() == [5, 5, 0, 0, 5]
    keep = inputs.mechanism.keep(q @ k.mT)
    assert measured.in_degree.rows[0].tolist() == keep[0].sum(0).tolist()


def test_constant_scores_have_separation_zero_and_no_nan() -> None:
    q = torch.ones(1, 4, 2)
    measured = examine(*inputs_of(q, q, q, "full"), 2)
    assert of_queries(measured)["separation"].tolist() == [0.0] * 4
    assert of_queries(measured)["delta_full"].tolist() == [0.0] * 4
    assert of_queries(measured)["entropy"].tolist() == pytest.approx([math.log(4)] * 4)
    assert not any(values.isnan().any() for values in measured.queries.rows)


def test_one_query_and_one_key_can_be_measured() -> None:
    q = torch.ones(1, 1, 2)
    measured = examine(*inputs_of(q, q, q, "full"), 1)
    assert of_queries(measured)["separation"].tolist() == [math.inf]
    assert of_queries(measured)["k95"].tolist() == [1.0]
    assert measured.in_degree.rows[0].tolist() == [1]


def test_fully_masked_queries_are_counted_and_left_out() -> None:
    q, k, v = (draw(1, 4, 3, seed=i) for i in range(3))
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[2] = False
    measured = examine(*inputs_of(q, k, v, "full", mask=mask), 2)
    assert measured.empty.tolist() == [1]
    assert len(of_queries(measured)["delta_full"]) == 3
    assert all(values.isfinite().all() for values in measured.queries.rows)


def test_queries_with_scores_that_are_not_finite_are_counted_and_left_out() -> None:
    q, k, v = (draw(2, 5, 3, seed=i) for i in range(3))
    clean = examine(*inputs_of(q, k, v, "full"), 2)
    q[1, 3] = math.nan
    q[0, 2] = math.inf
    measured = examine(*inputs_of(q, k, v, "full"), 2)
    assert measured.not_finite.tolist() == [1, 1]
    for name, values in of_queries(measured).items():
        assert values.isfinite().all(), name
        expected = of_queries(clean)[name].view(2, 5)
        left = torch.cat([expected[0, [0, 1, 3, 4]], expected[1, [0, 1, 2, 4]]])
        torch.testing.assert_close(values, left)


def test_a_key_with_a_score_of_minus_infinity_counts_as_hidden() -> None:
    q, k, v = (draw(1, 5, 3, seed=i) for i in range(3))
    q[..., 0] = 1.0
    mask = torch.ones(5, 5, dtype=torch.bool)
    mask[:, 3] = False
    hidden = examine(*inputs_of(q, k, v, "full", mask=mask), 2)
    k[0, 3, 0] = -math.inf
    measured = examine(*inputs_of(q, k, v, "full"), 2)
    assert measured.most_seen.tolist() == [4]
    assert measured.in_degree.rows.sum() == 5 * 2
    for name in ("delta_full", "delta_heavy", "separation", "entropy", "k95"):
        torch.testing.assert_close(of_queries(measured)[name][:3], of_queries(hidden)[name][:3])
        assert of_queries(measured)[name].isfinite().all(), name


def test_lengths_and_a_float_mask_hide_together() -> None:
    q, k, v = (draw(2, 1, 6, 4, seed=i) for i in range(3))
    past, inside = torch.ones(6, 6, dtype=torch.bool).tril(), torch.arange(6) < torch.tensor([6, 4]).view(2, 1, 1, 1)
    both = inputs_of(q, k, v, "full", mask=torch.where(past, 0.0, -1e9), lengths=torch.tensor([6, 4]))
    assert torch.equal(
        examine(*both, 2).queries.rows, examine(*inputs_of(q, k, v, "full", mask=past & inside), 2).queries.rows
    )


def test_half_precision_inputs_are_scored_in_float32() -> None:
    q, k, v = (draw(1, 6, 4, seed=i).bfloat16() for i in range(3))
    measured = examine(*inputs_of(q, k, v, "full"), 2)
    expected = plain_statistics((q[0].double() @ k[0].double().mT) / 2, torch.ones(6, 6, dtype=torch.bool), 2)
    assert_same(of_head(measured, 0), expected)


def test_memory_is_that_of_a_chunk_and_not_of_all_scores() -> None:
    class Largest(TorchDispatchMode):
        """The size of the largest tensor that an operation returns."""

        numel = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            tensors = result if isinstance(result, (tuple, list)) else [result]
            self.numel = max([self.numel, *(part.numel() for part in tensors if isinstance(part, Tensor))])
            return result

    q = draw(2, 300, 4)
    call = inputs_of(q, q, q, "full")
    with limited(scores_in_caches=2**13), Largest() as largest:
        examine(*call, 4)
    assert largest.numel <= 2**13 < 2 * 300 * 300


@pytest.mark.parametrize("chunk", [1, 40, 10**6])
def test_sequences_whose_queries_see_different_keys_are_uneven_for_any_chunk_size(chunk: int) -> None:
    q = draw(3, 2, 11, 4)
    lengths = torch.tensor([11, 5, 1])
    one_key_less = torch.ones(11, 11, dtype=torch.bool)
    one_key_less[7, 4] = False
    for options, expected in (
        ({}, 0),
        ({"lengths": lengths}, 0),
        ({"causal": True}, 3),
        ({"causal": True, "lengths": lengths}, 2),  # one token sees itself, under a causal mask too
        ({"mask": one_key_less}, 3),
    ):
        with limited(scores_in_caches=chunk * 22):
            assert examine(*inputs_of(q, q, q, **options), 3).uneven.tolist() == [expected] * 2
