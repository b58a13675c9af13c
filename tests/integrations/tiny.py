"""Tiny randomly initialised models and the helpers that the tests of the transformers integration share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
)

VOCABULARY = 61
PAD = 0
SHAPE = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": VOCABULARY}


def build(make: Callable[[], PreTrainedModel], seed: int = 0) -> PreTrainedModel:
    """A model whose weights are large enough for attention to be far from uniform."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make().eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() > 1:
                    parameter.mul_(
                        4 if any(part in name for part in ("q_proj", "k_proj", "c_attn", "query", "key")) else 2
                    )
    return model


def llama(**options: Any) -> PreTrainedModel:
    size = SHAPE | {"num_key_value_heads": 2, "intermediate_size": 48, "pad_token_id": PAD}
    return build(lambda: LlamaForCausalLM(LlamaConfig(**(size | options))))


def mistral(window: int) -> PreTrainedModel:
    config = MistralConfig(
        **SHAPE, num_key_value_heads=2, intermediate_size=48, pad_token_id=PAD, sliding_window=window
    )
    return build(lambda: MistralForCausalLM(config))


def gpt2(**options: Any) -> PreTrainedModel:
    size = {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": VOCABULARY, "n_positions": 64}
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": PAD}
    return build(lambda: GPT2LMHeadModel(GPT2Config(**size, **ends, **options)))


def bert(**options: Any) -> PreTrainedModel:
    config = BertConfig(**SHAPE, intermediate_size=48, max_position_embeddings=64, pad_token_id=PAD, **options)
    return build(lambda: BertForMaskedLM(config))


FAMILIES: dict[str, Callable[..., PreTrainedModel]] = {"llama": llama, "gpt2": gpt2, "bert": bert}
DECODERS = ["llama", "gpt2"]


def tokens(batch: int, length: int, seed: int = 1) -> Tensor:
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def logits(model: PreTrainedModel, ids: Tensor, **inputs: Any) -> Tensor:
    with torch.no_grad():
        return model(input_ids=ids, **inputs).logits


def padded(sequences: list[Tensor], side: str) -> dict[str, Tensor]:
    """Sequences of different lengths as one batch, with the mask and the positions that generate() would make."""
    longest = max(len(sequence) for sequence in sequences)
    ids = torch.full((len(sequences), longest), PAD)
    mask = torch.zeros_like(ids)
    for i, sequence in enumerate(sequences):
        own = slice(longest - len(sequence), longest) if side == "left" else slice(0, len(sequence))
        ids[i, own], mask[i, own] = sequence, 1
    return {"ids": ids, "attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}


def unpadded(out: Tensor, sequences: list[Tensor], side: str) -> list[Tensor]:
    return [out[i, -len(own) :] if side == "left" else out[i, : len(own)] for i, own in enumerate(sequences)]


def leaks(model: PreTrainedModel, length: int = 9) -> list[int]:
    """The positions from which on a change of the tokens changes the output at earlier positions."""
    ids = tokens(2, length)
    whole = logits(model, ids)
    leaking = []
    for cut in range(1, length):
        changed = ids.clone()
        changed[:, cut:] = (changed[:, cut:] + 7) % (VOCABULARY - 3) + 3
        if not torch.equal(logits(model, changed)[:, :cut], whole[:, :cut]):
            leaking.append(cut)
    return leaking
