"""A diagnosis of anybody's model: the numbers of a plain computation, and unchanged outputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

import semfocus
from semfocus.diagnostics import condition, diagnose
from semfocus.diagnostics.aggregate import NAMES, PERCENTS
from semfocus.integrations.transformers import focus
from semfocus.tasks.base import Batch
from semfocus.theory import condition_w, condition_x, lipschitz_x
from tests.diagnostics.models import (
    HEADS,
    Fixed,
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
