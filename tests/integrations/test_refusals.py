"""What a focused model refuses instead of computing something else: a lost mask, unknown arguments, wrong positions."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor
from transformers import (
    AriaConfig,
    AriaForConditionalGeneration,
    AriaTextConfig,
    AttentionMaskInterface,
    BartConfig,
    BartForConditionalGeneration,
    BloomConfig,
    BloomForCausalLM,
    BridgeTowerConfig,
    BridgeTowerModel,
    BridgeTowerTextConfig,
    BridgeTowerVisionConfig,
    GitConfig,
    GitForCausalLM,
    LongT5Config,
    LongT5ForConditionalGeneration,
    SiglipVisionConfig,
    SiglipVisionModel,
)

from semfocus.errors import UsageError
from semfocus.integrations.transformers import focus, register
from semfocus.integrations.transformers.attention import focused_attention, focused_mask
from tests.integrations.tiny import VOCABULARY, bert, build, gpt2, leaks, llama, logits, mistral, padded, tokens

LENGTH = 7
KEEP = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()[None, None]


def attention(model, **options) -> tuple[Tensor, Tensor | None]:
    """The registered function, called as the first layer of a Llama calls it."""
    generator = torch.Generator().manual_seed(5)
    query, key, value = (torch.randn(2, heads, LENGTH, 8, generator=generator) for heads in (4, 2, 2))
    arguments = {"attention_mask": KEEP, "scaling": 0.3} | options
    return focused_attention(model.model.layers[0].self_attn, query, key, value, **arguments)


def test_the_leak_test_catches_a_mask_that_reveals_later_tokens(monkeypatch):
    model = llama()
    focus(model, "topk:3")
    assert leaks(model) == []

    def everything(*args, **kwargs) -> Tensor:
        kwargs["allow_is_causal_skip"] = False
        return torch.ones_like(focused_mask(*args, **kwargs))

    monkeypatch.setitem(AttentionMaskInterface._global_mapping, "semfocus_topk", everything)
    assert leaks(model) == list(range(1, 9))


def test_a_missing_mask_is_an_error_and_does_not_reveal_later_tokens(monkeypatch):
    for model in (llama(), gpt2()):
        focus(model, "topk:3")
        monkeypatch.setitem(AttentionMaskInterface._global_mapping, "semfocus_topk", lambda *args, **kwargs: None)
        assert leaks(model) == []


def test_the_mask_function_omits_a_plain_causal_mask_and_returns_others_that_transformers_would_omit(monkeypatch):
    for queries in (1, 5):
        sizes = {"batch_size": 2, "q_length": queries, "kv_length": 5, "q_offset": 5 - queries}
        assert focused_mask(**sizes, allow_is_causal_skip=True) is None
        mask = focused_mask(**sizes, allow_is_bidirectional_skip=True)
        assert mask.dtype == torch.bool
        assert torch.equal(mask, torch.ones(5, 5, dtype=torch.bool).tril()[-queries:].expand(2, 1, queries, 5))
    prefill = focused_mask(batch_size=2, q_length=3, kv_length=5, allow_is_causal_skip=True)  # of a static cache
    assert torch.equal(prefill, torch.ones(3, 5, dtype=torch.bool).tril().expand(2, 1, 3, 5))
    monkeypatch.setattr("semfocus.integrations.transformers.attention.sdpa_mask", lambda *args, **kwargs: None)
    with pytest.raises(UsageError, match="made no attention mask"):
        focused_mask(batch_size=2, q_length=5, kv_length=5)


@pytest.mark.parametrize("hidden", [-1e4, -1e9, torch.finfo(torch.float32).min, float("-inf")])
@pytest.mark.parametrize("mechanism", ["topk:3", "bottomk:2", "randomk:2", "banded:3", "topk:1+1s+2w"])
def test_a_float_mask_hides_what_the_same_bool_mask_hides(mechanism, hidden):
    model, ids = llama(), tokens(2, LENGTH)
    focus(model, mechanism)
    keep = KEEP.expand(2, 1, LENGTH, LENGTH).clone()
    keep[1, :, :, :3] = False
    keep[1, :, :3] = False  # queries without keys, as with left padding
    by_bool = logits(model, ids, attention_mask=keep)
    by_float = logits(model, ids, attention_mask=torch.where(keep, 0.0, hidden))
    assert by_bool.isfinite().all()
    assert torch.equal(by_float, by_bool)


def test_a_float_mask_takes_part_in_the_choice_of_keys():
    model = llama()
    focus(model, "topk:1")
    bias = torch.where(KEEP, 0.0, float("-inf")).clone()
    bias[..., 2] += 50.0
    _, weights = attention(model, attention_mask=bias, output_attentions=True)
    assert weights[:, :, 2:, 2].eq(1).all()


def test_heads_may_have_masks_of_their_own():
    model = llama()
    focus(model, "topk:2")
    keep = KEEP.expand(2, 4, LENGTH, LENGTH).clone()
    keep[:, 3, :, 1:] = False
    _, weights = attention(model, attention_mask=keep, output_attentions=True)
    assert weights[:, 3, :, 0].eq(1).all()
    assert not weights[:, :3, -1, 0].eq(1).all()


def test_the_output_is_contiguous_with_heads_beside_their_width():
    model = llama()
    focus(model, "topk:2")
    out, weights = attention(model)
    assert out.shape == (2, LENGTH, 4, 8)
    assert out.is_contiguous()
    assert weights is None


def test_the_scaling_of_the_layer_is_used():
    model = llama()
    focus(model, "topk:4")
    assert not torch.allclose(attention(model, scaling=0.3)[0], attention(model, scaling=0.1)[0])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("indices", torch.zeros(2, LENGTH, 2, dtype=torch.long)),
        ("block_indices", torch.zeros(2, 1, dtype=torch.long)),
        ("max_length_q", 4),
        ("max_length_k", 4),
        ("seq_idx", torch.zeros(2, LENGTH)),
        ("cache", object()),
        ("mystery", False),
    ],
)
def test_an_argument_that_would_change_the_answer_is_refused_by_name(name, value):
    model = llama()
    focus(model, "topk:2")
    with pytest.raises(UsageError, match=f"LlamaAttention passes {name}"):
        attention(model, **{name: value})
    attention(model, **{name: None})


def test_an_unknown_argument_of_the_model_reaches_the_refusal():
    model = llama()
    focus(model, "topk:2")
    with pytest.raises(UsageError, match="passes mystery"):
        logits(model, tokens(1, 4), mystery=torch.ones(1))


def test_arguments_without_effect_are_accepted_and_have_none():
    model, ids = llama(), tokens(2, LENGTH)
    focus(model, "topk:2")
    plain = logits(model, ids)
    harmless = {"num_items_in_batch": torch.tensor(9), "output_hidden_states": True, "use_cache": True}
    assert torch.equal(logits(model, ids, cache_position=torch.arange(LENGTH), **harmless), plain)


def test_a_position_bias_of_another_shape_is_refused():
    model = llama()
    focus(model, "topk:2")
    attention(model, position_bias=torch.zeros(1, 4, LENGTH, LENGTH))
    with pytest.raises(UsageError, match=r"LlamaAttention passes a position_bias of shape \(4, 7\)"):
        attention(model, position_bias=torch.zeros(4, LENGTH))
    with pytest.raises(UsageError, match="a position_bias of bool"):
        attention(model, position_bias=True)


def test_a_model_outside_the_registry_is_refused():
    model = build(lambda: BloomForCausalLM(BloomConfig(hidden_size=32, n_layer=1, n_head=4, vocab_size=VOCABULARY)))
    with pytest.raises(
        UsageError, match="BloomForCausalLM does not take its attention from transformers' AttentionInterface"
    ):
        focus(model, "topk:2")


def test_a_model_partly_outside_the_registry_is_refused_and_the_part_inside_is_accepted():
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    ends = {"bos_token_id": 1, "eos_token_id": 2}
    config = GitConfig(vision_config=small | {"image_size": 8, "patch_size": 4}, **small, **ends, vocab_size=VOCABULARY)
    model = build(lambda: GitForCausalLM(config))
    with pytest.raises(
        UsageError,
        match=r"only part of its attention.*: GitSelfAttention would stay.*\(model\.git\.image_encoder\).*partial=True",
    ):
        focus(model, "topk:2")
    focus(model.git.image_encoder, "topk:2")


def partly_torch(family: str):
    """Models that hold torch's own multi-head attention besides attention from the registry."""
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    if family == "bridgetower":
        small = small | {"hidden_size": 64}  # of which torch's attention inside makes one head
        text = BridgeTowerTextConfig(**small, vocab_size=VOCABULARY, max_position_embeddings=20)
        vision = BridgeTowerVisionConfig(hidden_size=64, num_hidden_layers=2, image_size=8, patch_size=4)
        return build(
            lambda: BridgeTowerModel(
                BridgeTowerConfig(**small, text_config=text.to_dict(), vision_config=vision.to_dict())
            )
        )
    return build(
        lambda: AriaForConditionalGeneration(
            AriaConfig(
                vision_config={**small, "image_size": 8, "patch_size": 4, "model_type": "idefics3_vision"},
                text_config=AriaTextConfig(
                    **small, vocab_size=VOCABULARY, num_key_value_heads=2, moe_num_experts=2, moe_topk=1,
                    moe_num_shared_experts=1, pad_token_id=0,
                ),
                projector_patch_to_query_dict={4: 4},
                image_token_index=5,
            )
        )
    )  # fmt: skip


@pytest.mark.parametrize("family", ["bridgetower", "aria"])
def test_torchs_own_multihead_attention_inside_a_model_is_named_and_asks_for_partial(family):
    model = partly_torch(family)
    with pytest.raises(UsageError, match=r"only part of its attention.*MultiheadAttention.* would stay.*partial=True"):
        focus(model, "topk:2")
    assert not hasattr(model.config, "semfocus")
    focus(model, "topk:2", partial=True)
    assert model.config.semfocus == "topk:2"


def test_a_part_is_suggested_only_where_there_is_one():
    size = {"d_model": 16, "d_kv": 4, "d_ff": 16, "num_layers": 2, "num_heads": 4, "vocab_size": VOCABULARY}
    for kind in ("local", "transient-global"):
        model = build(
            lambda kind=kind: LongT5ForConditionalGeneration(LongT5Config(**size, encoder_attention_type=kind))
        )
        with pytest.raises(UsageError, match=r"partial=True") as refused:
            focus(model, "topk:2")
        assert "vision" not in str(refused.value)
        for path in re.findall(r"\(model\.([\w.]+)\)", str(refused.value)):
            focus(model.get_submodule(path), "topk:2")


def test_heads_that_pool_a_sequence_stay_as_they_are_and_are_not_refused():
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = build(lambda: SiglipVisionModel(SiglipVisionConfig(**small, image_size=8, patch_size=4)))
    assert any(isinstance(module, torch.nn.MultiheadAttention) for module in model.modules())
    focus(model, "topk:2")


def test_a_mask_that_is_not_four_dimensional_is_refused():
    model = llama()
    focus(model, "topk:2")
    with pytest.raises(UsageError, match=r"a mask of shape \(2, 7\)"):
        attention(model, attention_mask=torch.ones(2, LENGTH, dtype=torch.bool))
    with pytest.raises(UsageError, match="a mask of list"):
        attention(model, attention_mask=[True])
    with pytest.raises(TypeError, match="int64"):
        attention(model, attention_mask=KEEP.long())


def test_a_call_without_a_mask_is_refused_where_a_query_could_see_later_keys():
    model = llama()
    focus(model, "topk:2")
    layer = model.model.layers[0].self_attn
    masked, unmasked = attention(model)[0], attention(model, attention_mask=None)[0]
    torch.testing.assert_close(unmasked, masked)
    assert not torch.allclose(attention(model, attention_mask=None, is_causal=False)[0], masked)
    with pytest.raises(UsageError, match="sliding_window = 3 without a mask"):
        attention(model, attention_mask=None, sliding_window=3)
    query, longer = torch.zeros(1, 4, 3, 8), torch.zeros(1, 2, 5, 8)
    with pytest.raises(UsageError, match="no mask for 3 queries and 5 keys"):
        focused_attention(layer, query, longer, longer, None)
    del layer.is_causal
    with pytest.raises(UsageError, match="does not say whether it is causal"):
        attention(model, attention_mask=None)


def test_positions_are_refused_where_a_static_cache_is_filled_by_queries_that_see_later_keys():
    model = llama()
    focus(model, "banded:3")
    layer = model.model.layers[0].self_attn
    query, key = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 9, 8)
    keep = torch.ones(5, 9, dtype=torch.bool).tril().expand(2, 1, 5, 9).clone()
    focused_attention(layer, query, key, key, keep)
    keep[..., :3, :3] = True  # a prefix whose tokens all see each other
    for position_ids in (None, torch.arange(5)[None]):
        with pytest.raises(UsageError, match="lets queries see later keys"):
            focused_attention(layer, query, key, key, keep, position_ids=position_ids)


@pytest.mark.parametrize("mechanism", ["block_local:3", "topk:2+1s"])
def test_counting_from_the_first_key_is_refused_where_the_mask_hides_it_again(mechanism):
    windowed = mistral(window=4)
    focus(windowed, mechanism)
    with pytest.raises(UsageError, match=r"counts from the first key.*sliding"):
        logits(windowed, tokens(1, 3))
    packed = llama()
    focus(packed, mechanism)
    positions = torch.cat([torch.arange(4), torch.arange(3)])[None]
    with pytest.raises(UsageError, match=r"counts from the first key.*packed"):
        logits(packed, tokens(1, 7), position_ids=positions, use_cache=False)


def test_positions_are_refused_where_a_causal_layer_is_shown_later_keys():
    model, ids = llama(), tokens(1, LENGTH)
    model.set_attn_implementation("eager")
    keep = KEEP.clone()
    keep[..., :3, :3] = True  # a prefix whose tokens all see each other
    prefix = logits(model, ids, attention_mask=torch.where(keep, 0.0, float("-inf")))
    focus(model, "topk:64")
    torch.testing.assert_close(logits(model, ids, attention_mask=keep), prefix, rtol=1e-5, atol=1e-5)
    focus(model, "banded:64")
    with pytest.raises(UsageError, match="lets queries see later keys"):
        logits(model, ids, attention_mask=keep)


def test_a_decoder_that_is_told_not_to_be_causal_uses_a_centred_window():
    model, ids = llama(is_causal=False), tokens(1, LENGTH)
    focus(model, "banded:3")
    with torch.no_grad():
        weights = model(ids, output_attentions=True, use_cache=False).attentions[0]
    assert (weights[0, 0, 3] > 0).tolist() == [False, False, True, True, True, False, False]


def test_positions_are_refused_between_two_texts():
    size = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 32}
    ends = {
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
        "forced_eos_token_id": None,
    }
    model = build(lambda: BartForConditionalGeneration(BartConfig(**size, **heads, **ends, vocab_size=VOCABULARY)))
    model.set_attn_implementation("eager")
    ids, target = tokens(2, 9), tokens(2, 5)
    before = logits(model, ids, decoder_input_ids=target)
    for mechanism in ("banded:3", "block_local:3", "topk:2+1s", "topk:2+2w"):
        with pytest.raises(UsageError, match="attends from one text to another"):
            focus(model, mechanism)
    with pytest.raises(UsageError, match="several stacks"):
        focus(model, ["topk:2"])
    focus(model, "topk:64")
    torch.testing.assert_close(logits(model, ids, decoder_input_ids=target), before, rtol=1e-5, atol=1e-5)


def test_positions_are_refused_over_other_keys_and_where_causality_is_unknown():
    model = bert()
    focus(model, "banded:3")
    layer = model.bert.encoder.layer[0].attention.self
    query, key = torch.zeros(1, 4, 3, 8), torch.zeros(1, 4, 5, 8)
    with pytest.raises(UsageError, match="3 queries over 5 other keys"):
        focused_attention(layer, query, key, key, None)
    del layer.is_causal
    with pytest.raises(UsageError, match="does not say whether it is causal"):
        focused_attention(layer, key, key, key, torch.ones(1, 1, 5, 5, dtype=torch.bool))


def test_global_tokens_are_refused_in_a_decoder():
    model = llama()
    focus(model, "banded:3+1g")
    with pytest.raises(UsageError, match="causal"):
        logits(model, tokens(1, 5))


def test_a_query_without_any_key_gives_no_nan():
    model = llama()
    register()
    for mechanism in ("topk:2", "block_local:3", "topk:1+1s+1w"):
        focus(model, mechanism)
        batch = padded([tokens(1, 4)[0]], "left")
        batch["attention_mask"] = torch.zeros_like(batch["attention_mask"])
        assert logits(model, batch["ids"], attention_mask=batch["attention_mask"]).isfinite().all()
