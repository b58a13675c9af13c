"""Transformers models that compute their weights themselves: checked against a plain softmax, and refused by layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from semfocus.diagnostics import diagnose
from semfocus.errors import UsageError
from tests.diagnostics.models import eager_mistral
from tests.integrations import tiny


def test_the_registry_of_transformers_is_restored_after_an_exception() -> None:
    from transformers import AttentionInterface

    before = AttentionInterface.__dict__["get_interface"]
    model = tiny.gpt2()
    with pytest.raises((IndexError, RuntimeError)):
        diagnose(model, [torch.full((1, 4), 10**6)], k=2)
    assert AttentionInterface.__dict__["get_interface"] is before


def test_a_model_that_changes_its_scores_is_refused() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    def capped(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **options):
        scores = (3 * torch.tanh(query @ key.mT / 3)).softmax(-1)
        return (scores @ value).transpose(1, 2), scores

    AttentionInterface.register("of_a_test", capped)
    AttentionMaskInterface.register("of_a_test", eager_mask)
    model = tiny.gpt2(attn_implementation="of_a_test")
    with pytest.raises(UsageError, match=r"of_a_test.*set_attn_implementation"):
        diagnose(model, [tiny.tokens(1, 6)], k=2)
    from transformers.models.gpt2 import modeling_gpt2

    model = tiny.gpt2(attn_implementation="eager")
    original = modeling_gpt2.eager_attention_forward
    modeling_gpt2.eager_attention_forward = capped
    try:
        with pytest.raises(UsageError, match=r"transformer\.h\.0\.attn .*not the softmax of what is seen: query"):
            diagnose(model, [tiny.tokens(1, 6)], k=2)
    finally:
        modeling_gpt2.eager_attention_forward = original


def gemma2(cap: float | None) -> Any:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    size = tiny.SHAPE | {"num_hidden_layers": 1, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 8}
    config = Gemma2Config(**size, pad_token_id=0, attn_logit_softcapping=cap, attn_implementation="eager")
    return tiny.build(lambda: Gemma2ForCausalLM(config))


def gpt_oss(sink: float) -> Any:
    from transformers import GptOssConfig, GptOssForCausalLM

    size = tiny.SHAPE | {"num_hidden_layers": 1, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 8}
    config = GptOssConfig(**size, num_local_experts=2, num_experts_per_tok=1, attn_implementation="eager")
    model = tiny.build(lambda: GptOssForCausalLM(config))
    with torch.no_grad():
        model.model.layers[0].self_attn.sinks.fill_(sink)
    return model


def t5(**options: Any) -> Any:
    from transformers import T5Config, T5EncoderModel

    size = {"d_model": 16, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 4}
    return tiny.build(lambda: T5EncoderModel(T5Config(**size, vocab_size=tiny.SHAPE["vocab_size"], **options)))


def weights_of(model: Any, ids: Tensor) -> Tensor:
    """(H, Q, K): the weights that the model itself gives, of its first layer."""
    with torch.no_grad():
        return model(ids, output_attentions=True).attentions[0][0]


@pytest.mark.parametrize(
    "make",
    [*((lambda cap=cap: gemma2(cap)) for cap in (0.01, 5.0, 1e6)), *((lambda sink=sink: gpt_oss(sink)) for sink in
     (3.0, -30.0)), lambda: t5(attn_implementation="eager")],
    ids=["cap 0.01", "cap 5", "cap 1e6", "sink 3", "sink -30", "bias"],
)  # fmt: skip
@pytest.mark.parametrize("focused", [False, True], ids=["eager", "focused"])
def test_caps_sinks_and_biases_passed_by_name_are_measured_as_the_model_has_them(make: Any, focused: bool) -> None:
    from semfocus.integrations.transformers import focus

    model, ids = make(), tiny.tokens(1, 60)
    own = weights_of(model, ids)
    own = own / own.sum(-1, keepdim=True)  # among the keys: a sink is none
    if focused:
        focus(model, "full")
    measured = diagnose(model, [ids], k=4).whole
    entropies = torch.special.entr(own.double()).sum(-1).flatten().sort().values
    for percent in ("50", "95"):
        place = round(int(percent) / 100 * (len(entropies) - 1))
        near = entropies[max(place - 2, 0) : place + 3]
        assert near[0] - 1e-4 <= measured.at("entropy", percent) <= near[-1] + 1e-4


@pytest.mark.parametrize("name", ["softcap", "s_aux", "position_bias"])
def test_an_option_that_a_model_passes_and_does_not_follow_is_found_in_the_weights(monkeypatch: Any, name: str) -> None:
    from transformers.models.gpt2 import modeling_gpt2

    own = modeling_gpt2.eager_attention_forward
    model = tiny.gpt2(attn_implementation="eager")
    value = {"softcap": 0.01, "s_aux": torch.full((4,), 3.0), "position_bias": torch.arange(60.0).expand(1, 4, 60, 60)}

    def telling(*args, **options):
        return own(*args, **{key: option for key, option in options.items() if key != name})

    monkeypatch.setattr(modeling_gpt2, "eager_attention_forward", telling)
    with pytest.raises(UsageError, match=r"transformer\.h\.0\.attn .*its weights are not the softmax of what is seen"):
        diagnose(model, [{"input_ids": tiny.tokens(1, 60), name: value[name]}], k=4)


@pytest.mark.parametrize(("sink", "why"), [(None, "gives a key"), (3.0, "sum to 1 only within")])
def test_caps_and_sinks_that_no_option_names_are_found_in_the_weights(monkeypatch: Any, sink: Any, why: str) -> None:
    from transformers.models.gpt2 import modeling_gpt2

    def changed(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **options):
        scores = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        scores = (0.01 * torch.tanh(scores / 0.01)) if sink is None else scores
        scores = scores if attention_mask is None else scores + attention_mask
        extra = torch.full((*scores.shape[:-1], 0 if sink is None else 1), sink or 0.0)
        weights = torch.cat([scores, extra], dim=-1).softmax(-1)[..., : scores.shape[-1]]
        return (weights @ value).transpose(1, 2), weights

    monkeypatch.setattr(modeling_gpt2, "eager_attention_forward", changed)
    with pytest.raises(UsageError, match=rf"transformer\.h\.0\.attn .*{why}"):
        diagnose(tiny.gpt2(attn_implementation="eager"), [tiny.tokens(1, 60)], k=4)


def test_attention_that_drops_weights_in_training_is_refused() -> None:
    model = gemma2(None).train()
    model.model.layers[0].self_attn.attention_dropout = 0.1
    with pytest.raises(UsageError, match=r"model\.layers\.0\.self_attn .*call model\.eval\(\) first"):
        diagnose(model, [tiny.tokens(1, 60)], k=4)
    assert diagnose(gemma2(None).train(), [tiny.tokens(1, 60)], k=4).whole.queries


def test_nan_weights_of_a_model_are_reported_as_such() -> None:
    mask = torch.ones(2, 12, dtype=torch.int64)
    mask[1, :4] = 0
    model = tiny.llama(attn_implementation="eager").double()
    with pytest.raises(UsageError, match="the model's own weights of query 4 are not finite") as refused:
        diagnose(model, [{"input_ids": tiny.tokens(2, 12), "attention_mask": mask}], k=3)
    assert "a cap" not in str(refused.value)


def test_a_position_bias_is_measured_alike_under_both_implementations() -> None:
    eager, sdpa = (t5(attn_implementation=name) for name in ("eager", "sdpa"))
    batches = [{"input_ids": tiny.tokens(2, 12), "attention_mask": (torch.arange(24).view(2, 12) < 20).long()}]
    ours, theirs = (diagnose(model, batches, k=3).whole.at("entropy") for model in (eager, sdpa))
    assert ours == pytest.approx(theirs, rel=1e-5)


EAGER = {
    "llama": lambda: tiny.llama(attn_implementation="eager"),
    "gpt2": lambda: tiny.gpt2(attn_implementation="eager"),
    "bert": lambda: tiny.bert(attn_implementation="eager"),
    "mistral": eager_mistral,
    "gemma2": lambda: gemma2(None),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", EAGER)
def test_eager_models_of_any_precision_are_accepted(family: str, dtype: torch.dtype) -> None:
    mask = torch.ones(2, 40, dtype=torch.int64)
    mask[1, :7] = 0
    diagnosis = diagnose(EAGER[family]().to(dtype), [{"input_ids": tiny.tokens(2, 40), "attention_mask": mask}], k=4)
    assert diagnosis.whole.queries


def test_models_under_autocast_are_checked_with_the_tolerance_of_their_precision() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert diagnose(EAGER["llama"](), [tiny.tokens(1, 40)], k=4).whole.queries
