"""Models that cap their scores (Gemma 2), give weight to a sink (gpt-oss) or add a position bias (T5), focused.

In float64 and with every key, logits and all gradients are those of the model's own eager attention; with few keys they
are those of the same eager attention over the k best of its own scores.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

from semfocus.integrations.transformers import focus
from tests.integrations.tiny import PAD, SHAPE, VOCABULARY, build, tokens

SMALL = SHAPE | {"num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 32}


def gemma2() -> PreTrainedModel:
    config = Gemma2Config(**SMALL, pad_token_id=PAD, attn_logit_softcapping=2.0, sliding_window=4)
    return build(lambda: Gemma2ForCausalLM(config))


def gpt_oss() -> PreTrainedModel:
    config = GptOssConfig(**SMALL, num_local_experts=2, num_experts_per_tok=1, pad_token_id=PAD, sliding_window=4)
    model = build(lambda: GptOssForCausalLM(config))
    model.set_experts_implementation("eager")  # the others take no float64
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.sinks.copy_(torch.tensor([-1.0, 0.0, 1.0, 2.0]))
    return model


def t5() -> PreTrainedModel:
    size = {"d_model": 32, "num_layers": 2, "num_heads": 4, "d_kv": 8, "d_ff": 32, "dropout_rate": 0.0}
    ends = {"pad_token_id": PAD, "eos_token_id": 1, "decoder_start_token_id": PAD}
    return build(lambda: T5ForConditionalGeneration(T5Config(**size, **ends, vocab_size=VOCABULARY)))


FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {"gemma2": gemma2, "gpt_oss": gpt_oss, "t5": t5}


def kept(scores: Tensor, mask: Tensor | None, k: int) -> Tensor:
    """Scores with the mask, -inf for all but the k best of each query."""
    scores = scores if mask is None else scores + mask
    return scores.masked_fill(scores < scores.topk(min(k, scores.shape[-1])).values[..., -1:], float("-inf"))


def by_hand(k: int) -> Callable[..., tuple[Tensor, Tensor]]:
    """Eager attention of all three families, over the k best keys."""

    def attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **options: Any):
        groups = query.shape[1] // key.shape[1]
        key, value = (tensor.repeat_interleave(groups, dim=1) for tensor in (key, value))
        scores = query @ key.mT * scaling
        if options.get("softcap") is not None:
            scores = options["softcap"] * torch.tanh(scores / options["softcap"])
        if options.get("position_bias") is not None:
            scores = scores + options["position_bias"]
        scores = kept(scores, attention_mask, k)
        if options.get("s_aux") is not None:
            sinks = options["s_aux"].view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
            weights = torch.cat([scores, sinks], dim=-1).softmax(-1)[..., :-1]
        else:
            weights = scores.softmax(-1)
        return (weights @ value).transpose(1, 2).contiguous(), weights

    return attention


def results(model: PreTrainedModel, family: str, ids: Tensor) -> dict[str, Tensor]:
    """Logits, and the gradient of every parameter."""
    model.zero_grad()
    given = {"decoder_input_ids": ids.flip(1)[:, :7]} if family == "t5" else {"use_cache": False}
    logits = model(input_ids=ids, **given).logits
    logits.square().mean().backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {"logits": logits.detach(), **grads}


def agree(ours: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert ours.keys() == wanted.keys()
    for name in wanted:
        largest = wanted[name].abs().max().clamp(min=1e-6)
        assert (ours[name] - wanted[name]).abs().max() <= 1e-5 * largest, name


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mechanism", ["full", "topk:64"])
def test_with_every_key_logits_and_gradients_are_those_of_eager_attention(family: str, mechanism: str) -> None:
    model, ids = FAMILIES[family]().double(), tokens(2, 9)
    model.set_attn_implementation("eager")
    wanted = results(model, family, ids)
    special = {"gemma2": "q_proj", "gpt_oss": "sinks", "t5": "relative_attention_bias"}[family]
    assert any(special in name and grad.any() for name, grad in wanted.items())
    focus(model, mechanism)
    agree(results(model, family, ids), wanted)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("k", [1, 3])
def test_with_few_keys_logits_and_gradients_are_those_of_eager_attention_over_the_best(monkeypatch, family, k) -> None:
    model, ids = FAMILIES[family]().double(), tokens(2, 9)
    model.set_attn_implementation("eager")
    full = results(model, family, ids)
    code = import_module(f"transformers.models.{family}.modeling_{family}")
    monkeypatch.setattr(code, "eager_attention_forward", by_hand(k))
    wanted = results(model, family, ids)
    assert (wanted["logits"] - full["logits"]).abs().max() > 1e-3
    focus(model, f"topk:{k}")
    agree(results(model, family, ids), wanted)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_text_is_continued_as_without_a_cache(family: str, cache: str) -> None:
    model, ids = FAMILIES[family]().double(), tokens(2, 6)
    focus(model, "topk:3")
    made = model.generate(ids, max_new_tokens=8, do_sample=False, cache_implementation=cache)
    plain = model.generate(ids, max_new_tokens=8, do_sample=False, use_cache=False)
    assert torch.equal(made, plain)


@pytest.mark.parametrize("family", ["gemma2", "gpt_oss"])
def test_windows_and_first_keys_go_with_caps_and_sinks(family: str) -> None:
    model, ids = FAMILIES[family]().double(), tokens(2, 9)
    focus(model, ["banded:64", "topk:64+2s"] if family == "gemma2" else ["topk:64+2w", "full"])
    own = model.config.layer_types
    assert own[0] == "sliding_attention"
    ours = results(model, family, ids)
    focus(model, "full")
    agree(ours, results(model, family, ids))


def test_weights_that_are_asked_for_leave_the_sink_its_part() -> None:
    model, ids = gpt_oss().double(), tokens(1, 9)
    model.set_attn_implementation("eager")
    wanted = model(ids, output_attentions=True).attentions[1]
    focus(model, "full")
    ours = model(ids, output_attentions=True).attentions[1]
    torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-7)
    assert (ours.sum(-1) < 0.99).any()
