"""Sequences packed into one row by their boundaries, as collators for flash attention make them: each as on its own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import DataCollatorWithFlattening

from semfocus.errors import UsageError
from semfocus.integrations.transformers import focus
from tests.integrations.test_caps_and_sinks import gemma2, gpt_oss
from tests.integrations.tiny import llama, logits, mistral, tokens

LENGTHS = (7, 1, 4, 9)


def flattened() -> tuple[list[Tensor], dict]:
    """Texts, and the batch that transformers' own collator makes of them."""
    texts = [tokens(1, length, seed=length)[0] for length in LENGTHS]
    collate = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    batch = dict(collate([{"input_ids": text.tolist()} for text in texts]))
    del batch["labels"]
    return texts, batch | {"use_cache": False}


@pytest.mark.parametrize("mechanism", ["full", "topk:2", "banded:3", "block_local:3", "topk:1+1s+2w", "bottomk:2"])
def test_packed_texts_give_the_logits_of_each_alone(mechanism: str) -> None:
    model = llama().double()
    focus(model, mechanism)
    texts, batch = flattened()
    assert {"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx"} < set(batch)
    packed = logits(model, batch.pop("input_ids"), **batch)[0]
    for text, own in zip(texts, packed.split(LENGTHS), strict=True):
        torch.testing.assert_close(own, logits(model, text[None])[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", [lambda: mistral(window=4), gemma2, gpt_oss], ids=["mistral", "gemma2", "gpt_oss"])
def test_sliding_windows_caps_and_sinks_hold_within_each_text(make) -> None:
    model = make().double()
    focus(model, "topk:2+1w")
    texts, batch = flattened()
    packed = logits(model, batch.pop("input_ids"), **batch)[0]
    for text, own in zip(texts, packed.split(LENGTHS), strict=True):
        torch.testing.assert_close(own, logits(model, text[None])[0], rtol=1e-5, atol=1e-6)


def test_gradients_are_those_of_the_texts_one_by_one() -> None:
    model = llama().double()
    focus(model, "topk:2+1s")
    texts, batch = flattened()
    grads = []
    for parts in ([batch], [{"input_ids": text[None]} for text in texts]):
        model.zero_grad()
        sum(model(**part).logits.square().sum() for part in parts).backward()
        grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for ours, wanted in zip(*grads, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-5 * wanted.abs().max().item())


def test_boundaries_that_do_not_fit_the_row_are_refused() -> None:
    model = llama()
    focus(model, "topk:2")
    _, batch = flattened()
    ids = batch.pop("input_ids")
    short = batch | {"cu_seq_lens_q": batch["cu_seq_lens_q"][:-1], "cu_seq_lens_k": batch["cu_seq_lens_k"][:-1]}
    with pytest.raises(UsageError, match="cu_seqlens_q ends at 12 of 21 queries"):
        logits(model, ids, **short)
    with pytest.raises(UsageError, match=r"LlamaAttention passes seq_idx .*pass cu_seq_lens_q and cu_seq_lens_k"):
        logits(model, ids, **(batch | {"cu_seq_lens_q": None, "cu_seq_lens_k": None}))
