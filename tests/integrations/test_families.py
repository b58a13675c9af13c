"""What docs/huggingface.md promises: its code runs as printed, it names every argument that the code refuses or
accepts, and the families that it lists work, each built tiny and compared with its own eager attention.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM

from semfocus.integrations.transformers import focus, unfocus
from semfocus.integrations.transformers.attention import HARMLESS, HONOURED, REFUSED
from tests.integrations.tiny import VOCABULARY, build, logits, tokens

GUIDE = Path(__file__).parents[2] / "docs" / "huggingface.md"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CAUSAL = [
    *("cohere2", "deepseek_v3", "gemma", "gemma2", "gemma3_text", "glm4", "gpt2", "gpt_neox", "gpt_oss", "granite"),
    *(
        "llama",
        "mistral",
        "mixtral",
        "olmo2",
        "opt",
        "phi",
        "phi3",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "qwen3_next",
        "smollm3",
    ),
    *("stablelm", "starcoder2"),
]
MASKED = ["albert", "bert", "camembert", "distilbert", "electra", "modernbert", "roberta", "xlm-roberta"]
SEQ2SEQ = ["bart", "m2m_100", "marian", "mbart", "mt5", "pegasus", "t5"]
HEADS = {
    **dict.fromkeys(CAUSAL, AutoModelForCausalLM),
    **dict.fromkeys(MASKED, AutoModelForMaskedLM),
    **dict.fromkeys(SEQ2SEQ, AutoModelForSeq2SeqLM),
}
# Every family has its own names for the same sizes; those that a config does not know are left out.
SIZES = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embedding_size", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_dim", "hidden_dim", "d_ff"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(
        ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads"),
        4,
    ),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "head_dim", "d_kv"), 8),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace", "bos_token_id", "decoder_start_token_id"), 1),
    **dict.fromkeys(("num_key_value_heads", "num_experts_per_tok", "eos_token_id"), 2),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 64),
    "vocab_size": VOCABULARY,
    "pad_token_id": 0,
    "sliding_window": 4,
}


def tiny(family: str):
    default = AutoConfig.for_model(family)
    options = {name: size for name, size in SIZES.items() if isinstance(getattr(default, name, None), int)}
    kinds = list(dict.fromkeys(getattr(default, "layer_types", None) or []))
    if kinds:
        options["layer_types"] = [kinds[0], kinds[-1]]  # one layer of each kind: sliding and full, linear and full
    if "qk_rope_head_dim" in options:  # compressed keys: no grouping, and the width of a head follows from its parts
        options["num_key_value_heads"] = 4
        del options["head_dim"]
    return build(lambda: HEADS[family].from_config(type(default)(**options)))


@pytest.mark.parametrize("family", HEADS)
def test_a_family_keeps_its_answer_with_every_key_and_gets_it_back_after_few(family):
    model = tiny(family)
    model.set_attn_implementation("eager")
    ids, mask = tokens(2, 9), torch.ones(2, 9, dtype=torch.long)
    mask[1, 6:] = 0
    inputs = {"attention_mask": mask} | ({"decoder_input_ids": ids} if family in SEQ2SEQ else {})
    seen = torch.ones_like(mask, dtype=torch.bool) if family in SEQ2SEQ else mask.bool()
    eager = logits(model, ids, **inputs)[seen]
    focus(model, "topk:64")
    torch.testing.assert_close(logits(model, ids, **inputs)[seen], eager, rtol=1e-4, atol=1e-4)
    focus(model, "topk:1")
    assert (logits(model, ids, **inputs)[seen] - eager).abs().max() > 1e-3
    unfocus(model)
    assert torch.equal(logits(model, ids, **inputs)[seen], eager)


def test_the_guide_lists_the_families_that_are_tested_and_no_others():
    listed = re.search(r"^Tested families: (.*?)\.$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert listed is not None
    assert sorted(re.findall(r"`([^`]+)`", listed[1])) == sorted(HEADS)


def test_the_guide_runs_prints_what_it_shows_and_counts_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = GUIDE.read_text(encoding="utf-8")
    blocks = BLOCK.findall(text)
    Path("guide.py").write_text("".join(code for language, code in blocks if language == "python"), encoding="utf-8")
    names = runpy.run_path("guide.py")
    assert capsys.readouterr().out == "".join(shown for language, shown in blocks if language == "text")
    if f"In transformers {transformers.__version__} there are" in text:
        assert f"{transformers.__version__} there are {names['counts']}." in text


def test_the_guide_names_every_argument_that_is_refused_accepted_or_honoured():
    text = GUIDE.read_text(encoding="utf-8")
    for name in (*REFUSED, *HARMLESS, *HONOURED):
        assert f"`{name}`" in text, f"{name} is not in {GUIDE.name}"
