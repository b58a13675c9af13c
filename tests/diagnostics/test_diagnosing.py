"""A diagnosis of anybody's model: the numbers of a plain computation, unchanged outputs, and clear refusals."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import semfocus
from semfocus.diagnostics import condition, diagnose
from semfocus.diagnostics.aggregate import NAMES, PERCENTS
from semfocus.errors import UsageError
from semfocus.integrations.transformers import focus
from semfocus.tasks.base import Batch
from semfocus.theory import condition_w, condition_x, lipschitz_x
from tests.diagnostics.models import (
    HEADS,
    HandMade,
    SdpaBlock,
    attention_layer,
    eager_mistral,
    encoder,
    rows,
    sdpa_model,
    seeded,
    tokens,
)
from tests.diagnostics.reference import plain_statistics, quantile
from tests.integrations import tiny


class Fixed(nn.Module):
    """Attention over given queries and keys (R, H, L, D)."""

    def __init__(self, q: Tensor, k: Tensor | None = None) -> None:
        super().__init__()
        self.q, self.k = q, q if k is None else k

    def forward(self, mask: Tensor | None = None) -> Tensor:
        return functional.scaled_dot_product_attention(self.q, self.k, self.k, attn_mask=mask, scale=1.0)


def expected_of(weights: Tensor, attentive: Tensor, k: int) -> dict[str, list[float]]:
    """The plain statistics of a head from the weights (R, L, L) that a model says it used."""
    parts = []
    for row, allowed in zip(weights, attentive, strict=True):
        parts.append(plain_statistics(row.double().log(), allowed, k))
    return {name: [value for part in parts for value in part[name]] for name in parts[0]}


@pytest.mark.parametrize("family", list(tiny.FAMILIES))
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("padded", [False, True])
def test_statistics_of_transformers_models_agree_with_the_weights_they_return(
    family: str, implementation: str, padded: bool
) -> None:
    model = tiny.FAMILIES[family](attn_implementation=implementation)
    ids = tiny.tokens(2, 12)
    batch: dict[str, Tensor] = {"input_ids": ids}
    lengths = [12, 8] if padded else [12, 12]
    if padded:
        batch["attention_mask"] = (torch.arange(12) < torch.tensor(lengths)[:, None]).long()
    with torch.no_grad():
        before = model(**batch).logits
        diagnosis = diagnose(model, [batch], k=3)
        assert torch.equal(before, model(**batch).logits)
    assert len(diagnosis.layers) == 3
    assert not diagnosis.unseen
    eager = tiny.FAMILIES[family](attn_implementation="eager")
    with torch.no_grad():
        attentions = eager(**batch, output_attentions=True).attentions
    inside = torch.arange(12) < torch.tensor(lengths)[:, None]
    allowed = inside[:, None, :] & inside[:, :, None]
    allowed = allowed & torch.ones(12, 12, dtype=torch.bool).tril() if family in tiny.DECODERS else allowed
    for layer, weights in zip(diagnosis.layers, attentions, strict=True):
        assert len(layer.heads) == 4
        for h, head in enumerate(layer.heads):
            plain = expected_of(weights[:, h], allowed, 3)
            assert head.queries == sum(lengths)
            for name in ("delta_full", "delta_heavy", "entropy", "in_degree", "top_share", "k95"):
                level = (lambda p: 1 - p) if name == "top_share" else (lambda p: p)
                for percent in PERCENTS:
                    value = quantile(plain[name], level(int(percent) / 100))
                    assert head.at(name, percent) == pytest.approx(value, rel=1e-3, abs=1e-3), (name, percent)


@pytest.mark.parametrize("mechanism", ["topk:3", "banded:5"])
def test_a_focused_model_is_measured_over_the_keys_it_keeps(mechanism: str) -> None:
    model, ids = tiny.llama(), tiny.tokens(2, 10)
    full = diagnose(model, [ids], k=3)
    focus(model, mechanism)
    before = tiny.logits(model, ids)
    diagnosis = diagnose(model, [ids], k=3)
    assert torch.equal(before, tiny.logits(model, ids))
    first, whole = diagnosis.layers[0].whole, full.layers[0].whole
    for percent in PERCENTS:  # the first layer is given the same tokens, and sees them the same way
        assert first.at("delta_full", percent) == pytest.approx(whole.at("delta_full", percent), rel=1e-4)
        assert (first.at("delta", percent) or 0) <= (whole.at("delta", percent) or 0) + 1e-6
    if mechanism == "topk:3":
        assert first.spreads["delta"] == first.spreads["delta_heavy"]


def test_conditions_take_the_fewest_keys_for_a_softmax_and_the_most_for_the_tokens() -> None:
    model, lengths = encoder("full", scale=1.0), torch.tensor([8, 8, 3, 2, 1])
    diagnosis = diagnose(model, [Batch(rows(), torch.zeros(5), lengths)], k=4)
    whole = diagnosis.whole
    assert (whole.keys, whole.fewest_keys, whole.uneven) == (8, 2, 0)  # each row is even for itself
    cell = diagnosis.conditions()["100"]
    numbers = cell.delta_full, cell.delta_heavy, cell.separation, cell.in_degree
    narrow, wide = condition(*numbers, k=2, length=2), condition(*numbers, k=4, length=8)
    assert cell.vacuous == narrow.vacuous
    assert cell.sharper.softmax == narrow.sharper.softmax
    assert (cell.sharper.x, cell.w, cell.x, cell.sinks_outside) == (wide.sharper.x, wide.w, wide.x, wide.sinks_outside)


def received(causal: bool, length: int) -> Tensor:
    """What each key receives from queries of equal scores."""
    seen = torch.ones(length, length).tril() if causal else torch.ones(length, length)
    return (seen / seen.sum(-1, keepdim=True)).sum(0)


@pytest.mark.parametrize("causal", [False, True])
def test_constants_in_the_tokens_are_certified_only_where_all_queries_see_the_same_keys(causal: bool) -> None:
    diagnosis = diagnose(sdpa_model(causal), [tokens()], k=4)
    assert diagnosis.whole.uneven == (2 * 3 * HEADS if causal else 0)
    assert diagnosis.layers[0].heads[0].to_dict()["uneven"] == (3 if causal else 0)
    assert (diagnosis.conditions()["100"].sharper.x is None) == causal
    # By the bound, a key receives no more than 1 from queries of equal scores.
    assert bool(received(causal, 9).max() <= lipschitz_x(0.0, gamma=0.0, xi=1.0, upsilon=1.0, k=9) + 1e-6) != causal


def test_a_sliding_window_is_uneven_and_more_queries_than_keys_are_too() -> None:
    assert diagnose(eager_mistral(), [tiny.tokens(1, 20)], k=4).conditions()["100"].sharper.x is None
    few, many = tokens()[:, None, :4], tokens()[:, None]
    assert diagnose(Fixed(many, few), [{}], k=2).whole.uneven == 3
    assert diagnose(Fixed(few, many), [{}], k=2).whole.uneven == 0
    around = (torch.arange(9).view(-1, 1) - torch.arange(9)) % 9 < 3  # three keys for every query, but not the same
    assert diagnose(Fixed(many), [{"mask": around}], k=2).whole.uneven == 3


@pytest.mark.parametrize(("size", "dtype"), [(1e10, torch.float32), (3e38, torch.float32), (1e300, torch.float64)])
def test_scores_of_any_finite_size_are_reported(size: float, dtype: torch.dtype) -> None:
    class Huge(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return functional.scaled_dot_product_attention(x, size * torch.sign(x), x, scale=1.0)

    wide = torch.linspace(-1, 1, 80, dtype=dtype).reshape(1, 1, 80, 1).expand(80, -1, -1, -1)
    diagnosis = diagnose(Huge(), [wide], k=3)
    assert diagnosis.whole.not_finite == 0
    if dtype is torch.float32:
        assert diagnosis.whole.at("delta_full", "100") == pytest.approx(2 * size, rel=1e-6)
        assert diagnosis.whole.at("delta_full", "95") == pytest.approx(2 * size, rel=0.1)
    else:
        assert diagnosis.conditions()["95"].w == math.inf
        assert "delta_full" in diagnosis.to_dict()["whole"]["conditions"]["95"]["infinite"]
    assert "nan" not in (str(diagnosis) + diagnosis.to_json()).lower()


def test_batches_of_length_zero_are_refused() -> None:
    with pytest.raises(UsageError, match="length 0"):
        diagnose(sdpa_model(), [tokens()[:, :0]], k=1)
    assert diagnose(sdpa_model(), [tokens()[:, :0], tokens()], k=1).whole.queries == 2 * 3 * 9 * HEADS


def test_our_encoder_and_a_plain_torch_model_give_the_numbers_of_their_scores() -> None:
    model, given = encoder("topk:3"), rows()
    lengths = torch.tensor([8, 8, 5, 8, 3])
    diagnosis = semfocus.diagnose(model, [Batch(given, torch.zeros(5), lengths)], k=3)
    assert [layer.name for layer in diagnosis.layers] == ["attention #0", "attention #1"]
    assert diagnosis.whole.queries == 2 * 2 * int(lengths.sum())
    assert diagnosis.layers[0].whole.spreads["delta"] == diagnosis.layers[0].whole.spreads["delta_heavy"]
    block = seeded(SdpaBlock)
    x = tokens()
    q, k, _ = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in block.qkv(x).chunk(3, -1))
    scores = 3 * q @ k.mT / 2
    seen = diagnose(block, [x], k=2)
    for h in range(4):
        every = torch.ones(9, 9, dtype=torch.bool)
        parts = [plain_statistics(scores[row, h].detach(), every, 2) for row in range(3)]
        for name in NAMES:
            values = [value for part in parts for value in part[name]]
            mirrored = name in ("separation", "top_share")
            for percent in PERCENTS:
                level = int(percent) / 100
                value = quantile(values, 1 - level if mirrored else level)
                assert seen.layers[0].heads[h].at(name, percent) == pytest.approx(value, rel=1e-4, abs=1e-5)


def test_batches_may_be_tensors_tuples_and_mappings() -> None:
    model, x = sdpa_model(), tokens(6)
    whole = diagnose(model, [x], k=3)
    split = diagnose(model, [x[:2], (x[2:4],), {"input": x[4:]}], k=3)
    assert split.whole.queries == whole.whole.queries
    for name in NAMES:
        for percent in PERCENTS:
            assert split.whole.at(name, percent) == pytest.approx(whole.whole.at(name, percent), rel=1e-4), name


def test_a_model_that_cannot_be_observed_is_refused_with_its_modules() -> None:
    with pytest.raises(UsageError, match=r"HandMade cannot be observed.*attention \(HandMadeAttention\)"):
        diagnose(HandMade(), [tokens()], k=2)
    module = seeded(lambda: nn.MultiheadAttention(16, 2))

    class Asking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x, x, x, need_weights=True)[0]

    with pytest.raises(UsageError, match="need_weights=True"):
        diagnose(Asking(), [tokens()], k=2)


def test_attention_modules_without_a_captured_call_are_named() -> None:
    model = seeded(lambda: nn.Sequential(SdpaBlock(), HandMade()))
    with pytest.raises(UsageError, match=r"only part.*1\.attention \(HandMadeAttention\); pass partial=True"):
        diagnose(model, [tokens()], k=2)
    diagnosis = diagnose(model, [tokens()], k=2, partial=True)
    assert diagnosis.unseen == ("1.attention (HandMadeAttention)",)
    assert any("1.attention" in line for line in diagnosis.sentences())


class Mixer(nn.Module):
    """Attention written out, in a class whose name does not say so; weights may be cast and dropped on the way."""

    def __init__(self, dropout: float = 0.0, half: bool = False, way: str = "") -> None:
        super().__init__()
        self.dropout, self.half, self.way = nn.Dropout(dropout), half, way

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "without a batch":
            return torch.stack([(row @ row.mT).softmax(-1) @ row for row in x])
        heads = x.unflatten(-1, (4, -1)).transpose(1, 2)
        scores = heads @ heads.mT
        if self.way == "exponentials":
            powers = (scores - scores.amax(-1, keepdim=True)).exp()
            return ((powers / powers.sum(-1, keepdim=True)) @ heads).transpose(1, 2).flatten(2)
        weights = self.dropout(scores.softmax(-1))
        if self.way == "cleaned":
            weights = weights.masked_fill(scores < -100, 0.0).nan_to_num()
        if self.half:
            return (weights.bfloat16() @ heads.bfloat16()).float().transpose(1, 2).flatten(2)
        return torch.einsum("bhqk,bhkd->bqhd", weights, heads).flatten(2)


class Router(nn.Module):
    """A softmax that is no attention: it weighs the outputs of two layers for each token on its own."""

    def __init__(self) -> None:
        super().__init__()
        self.choice = nn.Linear(16, 2)
        self.ways = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        share = self.choice(x).softmax(-1)
        return sum(share[..., i, None] * way(x) for i, way in enumerate(self.ways))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "make",
    [Mixer, lambda: Mixer(0.2), lambda: Mixer(half=True)]
    + [partial(Mixer, way=way) for way in ("without a batch", "exponentials", "cleaned")],
)
def test_attention_written_out_is_named_whatever_its_class_is_called(make: Any, training: bool) -> None:
    model = seeded(lambda: nn.Sequential(SdpaBlock(), make(), Router())).train(training)
    with pytest.raises(UsageError, match=r"only part.*way: 1 \(Mixer\); pass partial=True"):
        diagnose(model, [tokens()], k=2)
    assert diagnose(model, [tokens()], k=2, partial=True).unseen == ("1 (Mixer)",)
    with pytest.raises(UsageError, match=r"Mixer cannot be observed.*their own way: Mixer"):
        diagnose(make(), [tokens()], k=2)


def test_a_softmax_that_is_no_attention_and_attention_that_is_seen_are_not_named() -> None:
    model = seeded(lambda: nn.Sequential(SdpaBlock(), Router(), attention_layer("topk:3")))
    model[2].register_forward_hook(lambda module, inputs, out: out[0])
    alone = model(tokens())
    outs: list[Tensor] = []
    model.register_forward_hook(lambda module, inputs, out: outs.append(out.detach()))
    assert diagnose(model, [tokens(), tokens()], k=2).unseen == ()
    assert torch.equal(outs[0], alone)
    assert torch.equal(outs[1], alone)


def test_compiled_parts_are_refused_by_name() -> None:
    multihead = nn.MultiheadAttention(16, 2, batch_first=True)

    class Around(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x, x, x, need_weights=False)[0]

    wrapped = seeded(lambda: Around(torch.compile(multihead, backend="eager")))
    with pytest.raises(UsageError, match=r"inner \(OptimizedModule\) is compiled.*inner\._orig_mod"):
        diagnose(wrapped, [tokens()], k=2)
    in_place = seeded(lambda: Around(nn.MultiheadAttention(16, 2, batch_first=True)))
    in_place.inner.compile(backend="eager")
    with pytest.raises(UsageError, match=r"inner \(MultiheadAttention\) is compiled.*before \.compile"):
        diagnose(in_place, [tokens()], k=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 10}, r"k = 10 exceeds the longest sequence, 9 keys"),
        ({"k": 0}, "k = 0"),
        ({"k": 2.5}, "k = 2.5"),
        ({"batches": []}, "batches is empty"),
        ({"error": 2.0}, "error = 2.0"),
    ],
)
def test_invalid_arguments_are_refused_by_name(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        diagnose(**({"model": sdpa_model(), "batches": [tokens()], "k": 2} | arguments))
    with pytest.raises(TypeError, match="torch module"):
        diagnose("gpt2", [tokens()], k=2)


def test_k_equal_to_the_length_is_reported_to_drop_nothing() -> None:
    diagnosis = diagnose(sdpa_model(), [tokens()], k=9)
    assert diagnosis.whole.at("separation") == math.inf
    assert diagnosis.whole.at("top_share", "100") == pytest.approx(1.0)
    assert any("nothing would be dropped" in line for line in diagnosis.sentences())
    json.dumps(diagnosis.to_dict(), allow_nan=False)


def test_constant_scores_give_an_infinite_bound_and_never_nan() -> None:
    diagnosis = diagnose(Fixed(torch.ones(1, 1, 5, 2)), [()], k=2)
    cell = diagnosis.conditions()["100"]
    assert (cell.separation, cell.w, cell.x) == (0.0, math.inf, math.inf)
    described = diagnosis.to_dict()
    text = json.dumps(described, allow_nan=False)
    assert "NaN" not in text
    assert set(described["whole"]["conditions"]["100"]["infinite"]) == {"w", "x"}
    assert any("infinite" in line for line in diagnosis.sentences())
    assert "inf" in str(diagnosis)


def test_one_query_can_be_diagnosed() -> None:
    diagnosis = diagnose(Fixed(torch.ones(1, 1, 1, 2), torch.randn(1, 1, 6, 2)), [()], k=2)
    assert diagnosis.whole.queries == 1
    assert diagnosis.sentences()


def test_masked_queries_and_nan_scores_are_left_out_and_reported() -> None:
    q = torch.randn(1, 2, 6, 3, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(6, 6, dtype=torch.bool)
    mask[2] = False
    q[0, 1, 4] = math.nan
    diagnosis = diagnose(Fixed(q), [(mask,)], k=2)
    assert diagnosis.whole.empty == 2
    assert diagnosis.whole.not_finite == 1 + 5 - 1  # its own query, and every query that sees its key
    json.dumps(diagnosis.to_dict(), allow_nan=False)
    assert any("NaN or infinite" in line for line in diagnosis.sentences())
    assert any("may see no key" in line for line in diagnosis.sentences())


def test_a_model_of_nan_scores_is_reported_without_numbers() -> None:
    diagnosis = diagnose(Fixed(torch.full((1, 1, 4, 2), math.nan)), [()], k=2)
    assert diagnosis.whole.queries == 0
    assert diagnosis.whole.at("delta_full") is None
    assert any("No query could be counted" in line for line in diagnosis.sentences())
    json.dumps(diagnosis.to_dict(), allow_nan=False)
    assert str(diagnosis)


def test_sentences_distinguish_sharp_heads_from_flat_ones() -> None:
    sharp, flat = torch.eye(8) * 40, torch.zeros(8, 8)
    q = torch.stack([sharp, flat]).unsqueeze(0)
    k = torch.eye(8).expand(1, 2, 8, 8)
    lines = diagnose(Fixed(q, k), [()], k=2).sentences()
    assert any("change little in 1 of 2 heads" in line and "layer 0 (head 0)" in line for line in lines)
    assert any("bite in 1 of 2 heads" in line and "layer 0 (head 1)" in line for line in lines)
    assert any(line.startswith("95 % of the weight") and "k = 8" in line for line in lines)


def test_a_diagnosis_can_be_exported_as_rows_and_json() -> None:
    diagnosis = diagnose(attention_layer("full"), [tokens()], k=3)
    listed = diagnosis.rows()
    assert [(row["layer"], row["head"]) for row in listed] == [(0, h) for h in range(4)]
    assert listed[0]["delta_full_95"] == diagnosis.layers[0].heads[0].at("delta_full", "95")
    numbers = [listed[2][f"{name}_90"] for name in ("delta_full", "delta_heavy", "separation")]
    assert listed[2]["w_90"] == pytest.approx(condition_w(*numbers))
    assert listed[2]["x_90"] == pytest.approx(condition_x(*numbers, listed[2]["in_degree_90"] / 3))
    assert diagnosis.to_dict()["layers"][0]["heads"][2]["w"]["90"] == listed[2]["w_90"]
    assert json.loads(diagnosis.to_json())["k"] == 3


@pytest.mark.slow
def test_the_page_of_a_diagnosis_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    diagnosis = diagnose(attention_layer("full"), [tokens()], k=3)
    page = diagnosis.save(tmp_path / "page.html")
    text = page.read_text()
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "How Attention attends, and what keeping 3 keys" in text
    assert (tmp_path / "page-heads.svg").exists()


def test_memory_does_not_grow_with_the_data() -> None:
    model = sdpa_model()

    def kept(passes: int) -> int:
        from semfocus.diagnostics.aggregate import Aggregate
        from semfocus.diagnostics.diagnosing import observe

        tally = Aggregate(2)
        observe(model, (tokens(64, 16, seed=i) for i in range(passes)), tally.see)
        sketches = [sketch for record in tally._records.values() for sketch in record.sketches.values()]
        return sum(
            0 if sketch._counts is None else sketch._counts.numel()
            for sketch in sketches
            if sketch.count() > 4 * 4096 or not sketch.is_exact
        )

    assert kept(6) == kept(12) > 0
