"""Sightings examined together, as on a GPU, give what each gives alone, as on a CPU: every number, to the bit."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from semfocus import attend
from semfocus.diagnostics import diagnose
from semfocus.diagnostics.aggregate import Aggregate
from semfocus.diagnostics.diagnosing import Diagnosis, observe
from semfocus.diagnostics.scores import limited
from semfocus.diagnostics.sketch import EXACT
from semfocus.tasks.base import Batch
from tests.diagnostics.models import Calls, attention_layer, encoder, rows, sdpa_model, tokens
from tests.diagnostics.reference import Given, as_lists, assert_same, batched, draw, facts, pairs
from tests.integrations import tiny


@pytest.mark.parametrize("mechanism", ["full", "topk:3", "topk:2+1s+2w", "banded:3", "bottomk:2"])
@pytest.mark.parametrize("heads", [1, 2])
def test_batched_calls_of_our_models_give_the_same_diagnosis(mechanism: str, heads: int, examined: list[int]) -> None:
    lengths = torch.tensor([8, 8, 5, 8, 3])
    batches = [Batch(rows(seed=seed), torch.zeros(5), lengths.roll(seed)) for seed in range(4)]
    assert_same(encoder(mechanism, heads=heads, blocks=3), batches, rounding=1e-5)
    assert examined == [1] * 12 + [12]


@pytest.mark.parametrize("causal", [False, True])
def test_batched_calls_of_torch_models_give_the_same_diagnosis(causal: bool, examined: list[int]) -> None:
    assert_same(sdpa_model(causal), [tokens(seed=seed) for seed in range(3)])
    assert examined == [1] * 6 + [6]


@pytest.mark.parametrize("family", ["llama", "gpt2", "bert"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_batched_calls_of_transformers_models_give_the_same_diagnosis(family: str, implementation: str) -> None:
    model = tiny.FAMILIES[family](attn_implementation=implementation)
    batches = [
        {"input_ids": tiny.tokens(2, 12), "attention_mask": (torch.arange(12) < torch.tensor([[12], [n]])).long()}
        for n in (8, 12, 1)
    ]
    assert_same(model, batches)


@pytest.mark.parametrize(("room", "sizes"), [(1, [1] * 5), (2, [2, 2, 1]), (5, [5]), (9, [5])])
def test_batches_have_as_many_calls_as_fit_into_the_limit_of_scores(
    room: int, sizes: list[int], examined: list[int]
) -> None:
    batches = pairs(5, (1, 6, 7, 4), (1, 3, 9, 4))
    assert_same(Given("topk:3", enable_gqa=True), batches, scores=room * 6 * 7 * 9)
    assert examined == [1] * 5 + sizes


def test_copies_are_not_held_beyond_their_limit(examined: list[int]) -> None:
    two_calls = 2 * 2 * 2 * 6 * 4 * 4  # bytes of their queries and keys
    batches = [*pairs(1, (1, 2, 6, 4), (1, 2, 6, 4)), *pairs(4, (2, 6, 4), (2, 6, 4))]
    with limited(held_bytes=two_calls):
        assert_same(Given(), batches)
    assert examined == [1] * 5 + [1, 1, 2, 1]  # whatever waits is examined, also of another kind


def test_calls_of_different_lengths_are_batched_apart(examined: list[int]) -> None:
    assert_same(Calls("topk:2"), [tokens(length=length, seed=i) for i, length in enumerate((9, 7, 9, 5, 9))])
    assert sorted(examined[10:]) == [1, 1, 1, 1, 3, 3]


@pytest.mark.parametrize("shape", [(1, 1, 6, 6), (6, 6), (2, 1, 1, 6), (3, 6, 6), (2, 3, 6, 1)])
@pytest.mark.parametrize("floating", [False, True])
def test_calls_with_masks_of_any_shape_are_batched(shape: tuple[int, ...], floating: bool, examined: list[int]) -> None:
    batches = []
    for i, (q, k) in enumerate(pairs(3, (2, 3, 6, 4), (2, 3, 6, 4))):
        mask = draw(*shape, seed=50 + i) > -2
        batches.append((q, k, torch.where(mask, draw(*shape, seed=90 + i), -1e9) if floating else mask))
    assert_same(Given(), batches, k=2)
    assert examined == [1, 1, 1, 3]


def test_calls_with_broadcast_lengths_and_leading_dimensions_are_batched(examined: list[int]) -> None:
    lengths = Given("full", lengths=torch.tensor([6, 4]))
    assert_same(lengths, pairs(3, (2, 3, 6, 4), (2, 1, 6, 4)), k=2)
    assert_same(Given(), pairs(3, (1, 6, 4), (2, 3, 6, 4)), k=2)
    assert_same(Given("banded:3"), pairs(3, (6, 4), (6, 4)), k=2)
    padded = torch.tensor([[0, 1, 2, 3, -1, -1], [-1, 0, 1, -1, 2, 3]])
    placed = Given("banded:3", q_positions=padded, k_positions=padded)
    assert assert_same(placed, pairs(3, (2, 3, 6, 4), (2, 3, 6, 4)), k=2).whole.queries == 3 * 2 * 3 * 4

    class ManyValues(nn.Module):
        def forward(self, q: Tensor, k: Tensor) -> Tensor:
            return attend(q, k, k.expand(5, 2, 6, 4), "full")

    diagnosis = assert_same(ManyValues(), pairs(3, (1, 2, 6, 4), (1, 2, 6, 4)), k=2)
    assert diagnosis.whole.queries == 3 * 5 * 2 * 6
    assert examined == [1, 1, 1, 3] * 5


def test_calls_of_different_precision_are_batched_apart(examined: list[int]) -> None:
    single = [(q / 7, k / 7) for q, k in pairs(2, (1, 2, 6, 4), (1, 2, 6, 4))]
    assert_same(Given(), [*single, *((q.double(), k.double()) for q, k in single)], k=2)
    assert examined == [1] * 4 + [2, 2]


def test_a_batch_may_have_calls_with_masked_and_with_nan_queries(examined: list[int]) -> None:
    batches = [(*pair, torch.ones(6, 6, dtype=torch.bool)) for pair in pairs(5, (1, 2, 6, 4), (1, 2, 6, 4))]
    batches[1][2][2] = False
    batches[2][0][0, 1, 3] = math.nan
    batches[3][1][0, 0, 2] = -math.inf
    batches[4][0][...] = 1.0  # ties
    diagnosis = assert_same(Given(), batches, k=2)
    assert (diagnosis.whole.empty, diagnosis.whole.not_finite > 0) == (2, True)
    assert examined == [1] * 5 + [5]


def test_batches_of_nan_and_of_k_equal_to_the_length_give_the_same_diagnosis() -> None:
    assert_same(Given(), [(torch.full((1, 1, 4, 2), math.nan), draw(1, 1, 4, 2))] * 2)
    assert_same(sdpa_model(), [tokens(seed=seed) for seed in range(2)], k=9)


@pytest.mark.parametrize("mechanism", ["randomk:4", "randomk_replaced:4", "topk:4~0.5"])
def test_calls_with_random_choices_are_not_batched(mechanism: str, examined: list[int]) -> None:
    assert_same(Given(mechanism), pairs(3, (2, 3, 6, 4), (2, 3, 6, 4)), k=2)
    assert examined == [1] * 6


def test_batches_with_more_values_than_a_sketch_stores_give_the_same_diagnosis(examined: list[int]) -> None:
    seldom, often = (1, 1, 16, 4), (256, 1, 16, 4)

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.often, self.seldom = Given(), Given()

        def forward(self, q: Tensor, k: Tensor) -> None:
            (self.often if len(q) > 1 else self.seldom)(q, k)

    batches = [*pairs(4, often, often), *pairs(2, seldom, seldom)]
    diagnosis = assert_same(Two(), batches, scores=2 * 256 * 16 * 16)
    assert EXACT < 4 * 256 * 16
    assert [layer.whole.exact for layer in diagnosis.layers] == [False, True]
    assert examined == [1] * 6 + [2, 2, 2]
    same_shape = [draw(40, 16, 16, seed=i) for i in range(12)]
    diagnosis = assert_same(attention_layer("full"), same_shape, scores=5 * 40 * 4 * 16 * 16)
    assert not diagnosis.whole.exact
    assert examined[-3:] == [5, 5, 2]


class Writing(nn.Module):
    """A model that writes into its queries, keys and mask once they are used."""

    def __init__(self, inference: bool = False) -> None:
        super().__init__()
        self.inference = inference

    def forward(self, x: Tensor) -> Tensor:
        with torch.inference_mode(self.inference):
            q, k = x.clone(), x.flip(0).clone()
            mask = q[..., :1] > 0
            out = functional.scaled_dot_product_attention(q, k, k, attn_mask=mask | mask.mT)
            for tensor in (q, k, mask):
                tensor.zero_()
            return out


@pytest.mark.parametrize("inference", [False, True])
def test_tensors_that_a_model_overwrites_after_the_call_are_measured_as_they_were(
    inference: bool, examined: list[int]
) -> None:
    diagnosis = assert_same(Writing(inference), [draw(2, 1, 9, 4, seed=seed) for seed in range(3)])
    assert diagnosis.whole.at("delta_full") != 0
    assert examined == [1, 1, 1, 3]


def test_calls_held_at_an_exception_do_not_reach_the_next_diagnosis() -> None:
    model, good = sdpa_model(), tokens(seed=1)

    def interrupted() -> Diagnosis:
        with pytest.raises(RuntimeError):
            diagnose(model, [tokens(seed=2), torch.zeros(1, 2, 3)], k=3)
        return diagnose(model, [good], k=3)

    assert as_lists(batched(interrupted)) == as_lists(diagnose(model, [good], k=3))


def test_results_can_be_read_between_batches() -> None:
    batches = [tokens(300, seed=seed) for seed in range(4)]

    def read(*parts: list[Tensor]) -> Any:
        seen, summaries = Aggregate(3), None
        for part in parts:
            observe(sdpa_model(), part, seen.see)
            summaries = facts(seen.whole()), [facts(layer.whole) for layer in seen.layers()]
        return summaries

    assert batched(lambda: read(*([batch] for batch in batches))) == read(batches)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Given("full"), Given("topk:2")),
        (Given("topk:3"), Given("topk:2")),
        (Given("full"), Given("full", causal=True)),
        (Given("full"), Given("full", scale=2.0)),
        (Given("full"), Given("full", lengths=torch.tensor([5]))),
        (Given("full"), Given("full", mask=torch.ones(6, 6).tril())),
        (Given("full"), Given("full", mask=torch.ones(6, 6).tril() > 0)),
        (Given("full", mask=torch.ones(6, 6).tril()), Given("full", mask=torch.ones(6, 6).tril() > 0)),
        (Given("full", mask=torch.ones(6, 6).tril() > 0), Given("full", mask=torch.arange(6) < 4)),
    ],
)
def test_calls_that_differ_in_an_option_are_batched_apart(one: Given, other: Given, examined: list[int]) -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = one, other

        def forward(self, q: Tensor, k: Tensor) -> None:
            self.one(q, k)
            self.other(q, k)

    assert_same(Both(), pairs(3, (1, 2, 6, 4), (1, 2, 6, 4)), k=2)
    assert examined == [1] * 6 + [3, 3]


def test_empty_batches_are_ignored() -> None:
    empty = torch.empty(0, 2, 6, 4)
    assert_same(Given(), [(empty, empty), *pairs(2, (1, 2, 6, 4), (1, 2, 6, 4)), (empty, empty)], k=2)


def test_layers_keep_the_order_of_the_first_pass() -> None:
    class Uneven(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.long, self.short = Given(), Given()

        def forward(self, x: Tensor) -> None:
            self.long(x, x)
            self.short(x[..., :4, :], x)

    diagnosis = assert_same(Uneven(), [draw(1, 2, 9, 4, seed=seed) for seed in range(3)])
    assert [layer.name for layer in diagnosis.layers] == ["long", "short"]


def test_fifty_calls_take_few_operations_and_few_synchronisations() -> None:
    class Counting(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.all = self.waits = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.all += 1
            self.waits += func.__name__.split(".")[0] in ("_local_scalar_dense", "nonzero", "bincount", "unique")
            return func(*args, **(kwargs or {}))

    model, batches = encoder("topk:3", blocks=5), [rows(seed=seed) for seed in range(10)]
    with Counting() as forward, torch.no_grad():
        for batch in batches:
            model(batch)
    with Counting() as watched:
        seen = Aggregate(3)
        batched(lambda: (observe(model, batches, seen.see), seen.flush()))
    assert watched.all - forward.all < 20 * 50
    assert watched.waits - forward.waits < 20
