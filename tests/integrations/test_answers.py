"""A focused model equals eager attention where every key is kept, and never sees later tokens or padding."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import DynamicCache, StaticCache

from semfocus.attention.base import size_fields
from semfocus.attention.mechanisms import mechanism_class, mechanism_names, parse_mechanism
from semfocus.integrations.transformers import focus
from tests.integrations.tiny import (
    DECODERS,
    FAMILIES,
    bert,
    gpt2,
    leaks,
    llama,
    logits,
    mistral,
    padded,
    tokens,
    unpadded,
)

CAUSAL = [
    "topk:3", "bottomk:3", "randomk:3", "banded:4", "block_local:4", "topk:2+1s+2w", "full", "lsh:3", "routing:3+1c",
    "fast:2",
]  # fmt: skip
BY_POSITION = ["banded:4", "block_local:3", "topk:2+2s", "topk:2+2w", "topk:1+2s+2w"]
SEQUENCES = [tokens(1, length, seed=10 + i)[0] for i, length in enumerate((9, 4, 1, 4, 6))]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mechanism", ["full", "topk:64", "bottomk:64", "randomk:64", "topk:60+2s+2w"])
def test_a_mechanism_that_keeps_every_key_is_no_further_from_float64_than_twice_eager(family, mechanism):
    model = FAMILIES[family]()
    model.set_attn_implementation("eager")
    ids = tokens(2, 19)
    exact = logits(copy.deepcopy(model).double(), ids)
    eager = logits(model, ids)
    focus(model, mechanism)
    ours = logits(model, ids)
    unit = torch.finfo(torch.float32).eps * exact.abs().max()
    assert (ours - exact).abs().max() <= 2 * (eager - exact).abs().max() + unit


@pytest.mark.parametrize("family", FAMILIES)
def test_a_mechanism_that_drops_keys_changes_the_logits(family):
    model, ids = FAMILIES[family](), tokens(2, 19)
    before = logits(model, ids)
    focus(model, "topk:2")
    assert (logits(model, ids) - before).abs().max() > 1e-3


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("mechanism", CAUSAL)
def test_a_future_token_never_changes_a_past_output(family, mechanism):
    model = FAMILIES[family]()
    focus(model, mechanism)
    assert leaks(model) == []


@pytest.mark.parametrize("mechanism", [each for each in CAUSAL if not each.startswith("randomk")])
def test_cached_generation_agrees_with_a_full_forward_over_the_same_prefix(mechanism):
    for model in (llama(), gpt2()):
        focus(model, mechanism)
        ids = tokens(2, 6)
        made = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False, eos_token_id=None
        )
        full = logits(model, made[:, :-1]).argmax(-1)
        assert torch.equal(made[:, 6:], full[:, 5:])


@pytest.mark.parametrize("family", DECODERS)
def test_greedy_generation_equals_eager_where_every_key_is_kept(family):
    model, ids = FAMILIES[family](), tokens(2, 6)
    model.set_attn_implementation("eager")
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    before = model.generate(ids, **options)
    focus(model, "topk:64")
    assert torch.equal(model.generate(ids, **options), before)


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("mechanism", ["topk:3", "banded:4", "block_local:3", "topk:2+2s+2w"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_batch_of_a_decoder_gives_what_its_sequences_give_alone(family, mechanism, side):
    model = FAMILIES[family]()
    focus(model, mechanism)
    batch = padded(SEQUENCES, side)
    out = logits(model, batch.pop("ids"), **batch)
    assert out.isfinite().all()
    for sequence, got in zip(SEQUENCES, unpadded(out, SEQUENCES, side), strict=True):
        torch.testing.assert_close(got, logits(model, sequence[None])[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "mechanism", ["topk:3", "bottomk:3", "banded:4", "block_local:3", "banded:3+1g", "topk:2+1s+2w"]
)
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_batch_of_an_encoder_gives_what_its_sequences_give_alone(mechanism, side):
    model = bert()
    focus(model, mechanism)
    batch = padded(SEQUENCES, side)
    out = logits(model, batch.pop("ids"), **batch)
    for sequence, got in zip(SEQUENCES, unpadded(out, SEQUENCES, side), strict=True):
        torch.testing.assert_close(got, logits(model, sequence[None])[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mechanism", ["topk:3", "banded:4", "block_local:3", "topk:2+2s+2w"])
def test_a_left_padded_batch_generates_what_its_sequences_generate_alone(mechanism):
    model = llama()
    focus(model, mechanism)
    batch = padded(SEQUENCES, "left")
    options = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None}
    made = model.generate(batch["ids"], attention_mask=batch["attention_mask"], **options)
    for sequence, got in zip(SEQUENCES, made, strict=True):
        alone = model.generate(sequence[None], attention_mask=torch.ones(1, len(sequence), dtype=torch.long), **options)
        assert torch.equal(got[-5:], alone[0, -5:])


@pytest.mark.parametrize("mechanism", ["topk:3", "banded:4"])
def test_sequences_packed_by_position_ids_do_not_see_each_other(mechanism):
    model = llama()
    focus(model, mechanism)
    first, second = tokens(1, 7, seed=2), tokens(1, 5, seed=3)
    positions = torch.cat([torch.arange(7), torch.arange(5)])[None]
    packed = logits(model, torch.cat([first, second], dim=1), position_ids=positions, use_cache=False)
    apart = torch.cat([logits(model, first), logits(model, second)], dim=1)
    torch.testing.assert_close(packed, apart, rtol=1e-5, atol=1e-5)


def test_a_long_padded_text_is_neither_leaked_nor_changed_by_the_backend_for_many_keys():
    model = llama()
    model.set_attn_implementation("eager")
    batch = padded([tokens(1, length, seed=length)[0] for length in (560, 90)], "left")
    ids, inputs, real = batch.pop("ids"), batch, batch["attention_mask"].bool()
    eager = logits(model, ids, **inputs)
    focus(model, "topk:600")
    torch.testing.assert_close(logits(model, ids, **inputs)[real], eager[real], rtol=1e-5, atol=1e-5)
    focus(model, "topk:3")
    past, ids[:, 500:] = logits(model, ids, **inputs)[:, :500], 7
    assert torch.equal(logits(model, ids, **inputs)[:, :500], past)


def test_a_sliding_window_of_the_model_stays_in_force():
    model, ids = mistral(window=4), tokens(2, 11)
    model.set_attn_implementation("eager")
    before = logits(model, ids)
    focus(model, "topk:64")
    torch.testing.assert_close(logits(model, ids), before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mechanism", ["topk:2", "banded:3", "topk:1+2w"])
def test_generation_behind_a_sliding_window_agrees_with_a_full_forward(mechanism):
    model, ids = mistral(window=4), tokens(2, 6)
    focus(model, mechanism)
    made = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False, eos_token_id=None
    )
    assert torch.equal(made[:, 6:], logits(model, made[:, :-1]).argmax(-1)[:, 5:])


@pytest.mark.parametrize("mechanism", ["topk:3", *BY_POSITION])
@pytest.mark.parametrize("side", ["left", None])
def test_generation_with_a_static_cache_agrees_with_the_growing_one(mechanism, side):
    model = llama()
    focus(model, mechanism)
    batch = padded(SEQUENCES, side) if side else {"ids": tokens(2, 6), "attention_mask": torch.ones(2, 6).long()}
    options = {"attention_mask": batch["attention_mask"], "max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    growing = model.generate(batch["ids"], **options, return_dict_in_generate=True, output_scores=True)
    static = model.generate(
        batch["ids"], cache_implementation="static", disable_compile=True, **options,
        return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    assert torch.equal(static.sequences, growing.sequences)
    for ours, theirs in zip(static.scores, growing.scores, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("mechanism", "pieces", "static"),  # each of two with each
    [
        (mechanism, pieces, (i + j) % 2 == 0)
        for i, mechanism in enumerate(["topk:3", *BY_POSITION])
        for j, pieces in enumerate([(3,), (1, 1, 1), (2, 1)])
    ],
    ids=str,
)
def test_text_that_goes_on_behind_padding_in_the_cache_gives_what_it_gives_alone(mechanism, pieces, static):
    model = llama()
    focus(model, mechanism)
    batch = padded(SEQUENCES, "right")
    more = tokens(len(SEQUENCES), 3, seed=77)
    cache = StaticCache(config=model.config, max_cache_len=20) if static else DynamicCache(config=model.config)
    mask, last = batch["attention_mask"], batch["position_ids"].amax(dim=-1, keepdim=True)
    logits(model, batch["ids"], attention_mask=mask, position_ids=batch["position_ids"], past_key_values=cache)
    outs, done = [], 0
    for count in pieces:
        mask = torch.cat([mask, torch.ones(len(mask), count, dtype=mask.dtype)], dim=1)
        ids, positions = more[:, done : done + count], last + 1 + torch.arange(done, done + count)
        outs.append(logits(model, ids, attention_mask=mask, position_ids=positions, past_key_values=cache))
        done += count
    for sequence, rest, got in zip(SEQUENCES, more, torch.cat(outs, dim=1), strict=True):
        alone = logits(model, torch.cat([sequence, rest])[None])[0, -3:]
        torch.testing.assert_close(got, alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mechanism", ["topk:3", "bottomk:3", *BY_POSITION])
def test_padding_within_a_row_changes_no_other_token(family, mechanism):
    model, ids = FAMILIES[family](), tokens(2, 11)
    focus(model, mechanism)
    mask = torch.ones(2, 11, dtype=torch.long)
    mask[0, [0, 3, 4, 8]] = 0
    mask[1, [5, 9, 10]] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    out = logits(model, ids, attention_mask=mask, position_ids=positions)
    for row, own in enumerate(mask.bool()):
        torch.testing.assert_close(out[row, own], logits(model, ids[row : row + 1, own])[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_weights_are_those_of_the_kept_keys(family):
    model, ids = FAMILIES[family](), tokens(2, 9)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        eager = model(ids, output_attentions=True).attentions
        focus(model, "topk:64")
        whole = model(ids, output_attentions=True).attentions
        focus(model, "topk:2")
        few = model(ids, output_attentions=True).attentions
    assert len(eager) == len(whole) == len(few) == 3
    for theirs, ours, sparse in zip(eager, whole, few, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(sparse.sum(-1), torch.ones_like(sparse.sum(-1)))
        assert (sparse > 0).sum(-1).max() == 2


def test_weights_of_a_padded_batch_stand_at_the_keys_of_each_sequence():
    model = llama()
    focus(model, "topk:1+1s+1w")
    sequences = [tokens(1, length, seed=length)[0] for length in (5, 3)]
    batch = padded(sequences, "left")
    with torch.no_grad():
        both = model(batch.pop("ids"), **batch, output_attentions=True).attentions
        alone = model(sequences[1][None], output_attentions=True).attentions
    for together, apart in zip(both, alone, strict=True):
        torch.testing.assert_close(together[1, :, 2:, 2:], apart[0], rtol=1e-5, atol=1e-6)
        assert not together[1, :, :, :2].any()


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("mechanism", ["topk:3", "randomk:3", "topk:2+1s+1w"])
def test_gradient_checkpointing_does_not_change_gradients(mechanism, dropout):
    model, ids = llama(attention_dropout=dropout).train(), tokens(2, 9)
    focus(model, mechanism)

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            model(ids, labels=ids, use_cache=False).loss.backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    plain = gradients()
    model.gradient_checkpointing_enable()
    for ours, theirs in zip(gradients(), plain, strict=True):
        assert ours.isfinite().all()
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


def test_dropout_acts_in_training_and_not_in_evaluation():
    model, ids = llama(attention_dropout=0.5), tokens(2, 9)
    focus(model, "topk:3")
    assert torch.equal(logits(model, ids), logits(model, ids))
    model.train()
    with torch.random.fork_rng(devices=[]):
        assert not torch.equal(logits(model, ids), logits(model, ids))


EVERY_MECHANISM = [
    parse_mechanism(f"{name}:3" if size_fields(mechanism_class(name)) else name) for name in mechanism_names()
]


@pytest.mark.parametrize(
    ("family", "mechanism"),
    [
        pytest.param(family, mechanism, id=f"{mechanism}-{family}")
        for mechanism in EVERY_MECHANISM
        for family in FAMILIES
        if mechanism.serves_causal or family not in DECODERS
    ],
)
def test_training_memorises_a_batch_with_finite_gradients(family, mechanism):
    model = FAMILIES[family]().train()
    focus(model, mechanism)
    batch = padded([tokens(1, length, seed=length)[0] for length in (8, 5)], "left")
    ids, mask = batch["ids"], batch["attention_mask"]
    labels = ids.masked_fill(mask == 0, -100)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(4):
        optimiser.zero_grad()
        loss = model(ids, attention_mask=mask, labels=labels).loss
        loss.backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_compiling_a_focused_model_leaves_one_graph_and_the_same_answer():
    model, ids = llama(num_hidden_layers=2), tokens(2, 9)
    focus(model, ["topk:3", "full"])
    expected = logits(model, ids)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(logits(compiled, ids, use_cache=False), expected)
