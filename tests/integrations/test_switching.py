"""register, focus and unfocus: what is switched, what is saved, and what is restored."""

from __future__ import annotations

import copy
import importlib
import json
import sys
from pathlib import Path

import pytest
import torch
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoModelForCausalLM,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
)

from semfocus import Full, TopK
from semfocus.attention import mechanism_names
from semfocus.errors import MissingExtra, UsageError
from semfocus.integrations.transformers import focus, register, unfocus
from tests.integrations.tiny import FAMILIES, build, llama, logits, tokens


def implementations(model) -> set[str]:
    return {module.config._attn_implementation for module in model.modules() if hasattr(module, "config")}


def llava():
    """A model of two stacks, each with a config of its own."""
    vision = CLIPVisionConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, image_size=8, patch_size=4
    )
    text = LlamaConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=32,
        vocab_size=61,
    )
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_id=60, vision_feature_layer=-1)
    return build(lambda: LlavaForConditionalGeneration(config))


def see(model) -> torch.Tensor:
    """Logits for four image tokens and seven of text."""
    ids = torch.cat([torch.full((1, 4), 60), tokens(1, 7) % 60], dim=1)
    return logits(model, ids, pixel_values=torch.linspace(-1, 1, 192).view(1, 3, 8, 8))


def test_every_mechanism_is_registered_with_attention_and_mask_and_again_without_effect():
    register()
    names = ["semfocus", *(f"semfocus_{name}" for name in mechanism_names())]
    first = [(AttentionInterface()[name], AttentionMaskInterface()[name]) for name in names]
    register()
    assert [(AttentionInterface()[name], AttentionMaskInterface()[name]) for name in names] == first


def test_a_mechanism_whose_name_means_something_to_transformers_is_refused(monkeypatch):
    monkeypatch.setattr("semfocus.integrations.transformers.switching.mechanism_names", lambda: ["flashy"])
    with pytest.raises(UsageError, match=r"semfocus_flashy.*'flash'"):
        register()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("before", ["eager", "sdpa"])
def test_unfocus_gives_back_the_same_logits_to_the_bit(family, before):
    model, ids = FAMILIES[family](), tokens(2, 9)
    model.set_attn_implementation(before)
    fields = copy.deepcopy(model.config.to_dict())
    first = logits(model, ids)
    focus(model, "topk:2")
    focus(model, TopK(3, window=2))
    assert not torch.equal(logits(model, ids), first)
    unfocus(model)
    assert torch.equal(logits(model, ids), first)
    assert implementations(model) == {before}
    assert model.config.to_dict() == fields
    with pytest.raises(UsageError, match=r"not switched by focus\(\)"):
        unfocus(model)


def test_a_value_and_its_text_form_are_the_same_choice():
    one, other, ids = llama(), llama(), tokens(2, 9)
    focus(one, TopK(2, sinks=1, window=2))
    focus(other, " TOPK:2+2w+1s ")
    assert one.config.semfocus == other.config.semfocus == "topk:2+1s+2w"
    assert torch.equal(logits(one, ids), logits(other, ids))


def test_each_layer_keeps_as_many_keys_as_it_was_given():
    model, ids = llama(), tokens(2, 9)
    for wanted in ([TopK(1), "topk:2", TopK(4)], {2: "topk:4", 0: "topk:1", 1: TopK(2)}):
        focus(model, wanted)
        assert model.config.semfocus == ["topk:1", "topk:2", "topk:4"]
        assert implementations(model) == {"semfocus_topk"}
        with torch.no_grad():
            attentions = model(ids, output_attentions=True).attentions
        assert [int((each > 0).sum(-1).max()) for each in attentions] == [1, 2, 4]


def test_layers_of_different_kinds_each_use_their_own():
    model, ids = llama(), tokens(2, 9)
    focus(model, [Full(), "banded:2", "topk:3"])
    assert implementations(model) == {"semfocus"}
    with torch.no_grad():
        full, banded, topk = model(ids, output_attentions=True).attentions
    assert (full > 0).sum(-1)[0, 0].tolist() == list(range(1, 10))
    assert not banded.tril(-2).any()
    assert (topk > 0).sum(-1).max() == 3


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (["topk:1"], "lists 1 layers, and this model has 3"),
        ({0: "topk:1", 1: "topk:1"}, "names the layers 0, 1, and the attention layers of this model are 0, 1, 2"),
        ({0: "full", 1: "full", 2: "full", 3: "topk:1"}, "names the layers 0, 1, 2, 3"),
        (["topk:1", None, "topk:1"], "mechanism = None must be"),
        ("topkk:3", "did you mean 'topk'"),
        ("topk:0", "TopK.k = 0"),
        (8, "mechanism = 8 must be"),
        (None, r'name one: focus\(model, "topk:8"\)'),
    ],
)
def test_an_invalid_choice_is_refused_and_leaves_the_model_as_it_was(wanted, message):
    model, ids = llama(), tokens(2, 9)
    before = logits(model, ids)
    with pytest.raises(UsageError, match=message):
        focus(model, wanted)
    assert implementations(model) == {"sdpa"}
    assert not hasattr(model.config, "semfocus")
    assert torch.equal(logits(model, ids), before)


@pytest.mark.parametrize("choice", ["topk:2", ["topk:1", "full", "banded:3"]])
def test_a_saved_model_comes_back_focused_after_focus_without_a_mechanism(tmp_path: Path, choice):
    model, ids = llama(), tokens(2, 9)
    plain = logits(model, ids)
    focus(model, choice)
    focused = logits(model, ids)
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["semfocus"] == choice
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert implementations(again) == {"sdpa"}
    focus(again)
    assert torch.equal(logits(again, ids), focused)
    unfocus(again)
    assert torch.equal(logits(again, ids), plain)
    assert not hasattr(again.config, "semfocus")


def test_a_saved_choice_works_with_the_name_alone_and_survives_unfocus(tmp_path: Path):
    model, ids = llama(), tokens(2, 9)
    focus(model, "topk:2")
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="semfocus_topk")
    assert torch.equal(logits(again, ids), logits(model, ids))
    focus(again, "banded:2")
    unfocus(again)
    assert torch.equal(logits(again, ids), logits(model, ids))


def test_an_implementation_without_a_choice_names_focus():
    register()
    model = llama(attn_implementation="semfocus_topk")
    with pytest.raises(UsageError, match=r"semfocus_topk.*call focus\(model"):
        logits(model, tokens(1, 4))


def test_an_implementation_that_contradicts_the_choice_is_refused():
    model = llama()
    focus(model, "topk:2")
    model.set_attn_implementation("semfocus_banded")
    with pytest.raises(UsageError, match=r"semfocus_banded.*'topk:2' disagree"):
        logits(model, tokens(1, 4))


@pytest.mark.parametrize("damaged", [5, [], [None, None], {"0": "topk:2"}, "topk", ["topk:2", 3, "full"]])
def test_a_damaged_choice_in_a_config_is_refused_by_focus(damaged):
    model = llama()
    model.config.semfocus = damaged
    with pytest.raises(UsageError):
        focus(model)
    assert implementations(model) == {"sdpa"}


def test_a_list_shorter_than_the_model_is_refused_by_the_layer_that_it_leaves_out():
    model = llama()
    model.config.semfocus = ["topk:2", "topk:2"]
    with pytest.raises(UsageError, match="lists 2 layers and says nothing about LlamaAttention with layer_idx = 2"):
        focus(model)


def test_both_parts_of_a_composite_model_are_switched_saved_and_switched_back(tmp_path: Path):
    model = llava()
    plain = see(model)
    focus(model, "topk:2")
    assert implementations(model) == {"semfocus_topk"}
    assert model.config.semfocus == model.config.text_config.semfocus == model.config.vision_config.semfocus == "topk:2"
    focus(model.model.language_model, ["topk:1", "full"])
    assert implementations(model) == {"semfocus_topk", "semfocus"}
    mixed = see(model)
    model.save_pretrained(tmp_path)
    again = LlavaForConditionalGeneration.from_pretrained(tmp_path)
    focus(again)
    assert implementations(again) == {"semfocus_topk", "semfocus"}
    assert torch.equal(see(again), mixed)
    unfocus(again)
    assert torch.equal(see(again), plain)
    unfocus(model.model.language_model)
    assert model.config.text_config.semfocus == "topk:2"
    unfocus(model)
    assert torch.equal(see(model), plain)
    assert implementations(model) == {"sdpa"}


def test_unfocus_of_a_whole_model_also_unfocuses_parts_that_were_focused_after_it():
    model = llava()
    focus(model, "topk:2")
    focus(model.model.language_model, "topk:1")
    unfocus(model)
    with pytest.raises(UsageError, match=r"not switched by focus\(\)"):
        unfocus(model.model.language_model)


def test_unfocus_of_a_whole_model_leaves_a_part_that_was_focused_before_it():
    model = llava()
    plain = see(model)
    focus(model.model.language_model, "topk:1")
    part = see(model)
    focus(model, "topk:2")
    unfocus(model)
    assert torch.equal(see(model), part)
    unfocus(model.model.language_model)
    assert torch.equal(see(model), plain)


def test_a_list_by_layer_is_refused_where_numbers_do_not_identify_layers():
    with pytest.raises(UsageError, match="several stacks of layers"):
        focus(llava(), ["topk:1", "topk:2"])
    with pytest.raises(UsageError, match="carry no number"):
        focus(llava().model.vision_tower, ["topk:1", "topk:2"])


def test_a_copy_of_a_focused_model_is_switched_back_alone():
    model, ids = llama(), tokens(2, 9)
    focus(model, "topk:2")
    focused = logits(model, ids)
    twin = copy.deepcopy(model)
    unfocus(twin)
    assert implementations(twin) == {"sdpa"}
    assert torch.equal(logits(model, ids), focused)


def shared(make, count: int = 2) -> list:
    """Models with the same weights, made from one config object."""
    first = make()
    others = [type(first)(first.config).eval() for _ in range(count - 1)]
    for other in others:
        other.load_state_dict(first.state_dict())
    return [first, *others]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_made_from_the_same_config_object_stays_as_it_is(family, tmp_path: Path):
    student, teacher = shared(FAMILIES[family])
    config, ids = teacher.config, tokens(2, 9)
    before = logits(teacher, ids)
    focus(student, "topk:2")
    assert torch.equal(logits(teacher, ids), before)
    assert not torch.equal(logits(student, ids), before)
    assert implementations(teacher) == {"sdpa"}
    assert not hasattr(config, "semfocus")
    student.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["semfocus"] == "topk:2"
    focus(teacher, "banded:2")
    unfocus(student)
    assert torch.equal(logits(student, ids), before)
    assert implementations(teacher) == {"semfocus_banded"}


def test_a_part_that_is_focused_shares_its_config_with_the_whole_and_with_no_other(tmp_path: Path):
    model, other = shared(llava)
    plain = see(other)
    focus(model.model.language_model, "topk:1")
    assert torch.equal(see(other), plain)
    assert implementations(other) == {"sdpa"}
    assert model.config.text_config.semfocus == "topk:1"
    model.save_pretrained(tmp_path)
    again = LlavaForConditionalGeneration.from_pretrained(tmp_path)
    focus(again)
    assert torch.equal(see(again), see(model))


def test_a_student_and_a_teacher_inside_one_module_are_kept_apart():
    student, teacher = shared(llama)
    pair, ids = torch.nn.ModuleDict({"student": student, "teacher": teacher}), tokens(2, 9)
    before = logits(teacher, ids)
    focus(pair["student"], "topk:2")
    assert torch.equal(logits(teacher, ids), before)


def test_an_implementation_that_transformers_does_not_take_is_noticed(monkeypatch):
    model = llama()
    monkeypatch.setattr(type(model), "set_attn_implementation", lambda self, name: None)
    with pytest.raises(UsageError, match="did not take the implementation 'semfocus_topk' for its LlamaAttention"):
        focus(model, "topk:2")
    assert not hasattr(model.config, "semfocus")


@pytest.mark.parametrize("thing", [torch.nn.Linear(2, 2), "gpt2"])
def test_what_is_no_transformers_model_is_refused(thing):
    with pytest.raises(TypeError, match="must be a transformers PreTrainedModel"):
        focus(thing, "topk:2")
    with pytest.raises(TypeError, match="must be a transformers PreTrainedModel"):
        unfocus(thing)


def test_an_install_without_transformers_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "semfocus.integrations.transformers")
    with pytest.raises(MissingExtra, match=r"semfocus\[hf\]"):
        importlib.import_module("semfocus.integrations.transformers")
