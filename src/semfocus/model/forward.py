"""From tokens to logits, and what is random on the way outside of training."""

from __future__ import annotations

import torch
from torch import Tensor

from semfocus import counter_rng
from semfocus.encodings import encoding
from semfocus.model.block import block_parameters
from semfocus.model.forward_fns import EAGER, ForwardFns
from semfocus.model.head import head_parameters, logits_of
from semfocus.model.inputs import Padding
from semfocus.model.layers import NORM_EPSILON
from semfocus.spec import Spec


def forward(
    parameters: dict[str, Tensor],
    tokens: Tensor,
    lengths: Tensor | None,
    spec: Spec,
    seeds: Tensor | None = None,
    parts: ForwardFns | None = None,
) -> Tensor:
    """Logits (E, B, C), or (E, B, seq_len, C) of a spec that predicts positions, of tokens (E, B, L).

    `tokens` and `lengths` (E, B) are those of `build_inputs`; None: no example has padding. `seeds` (sites, E) decide
    the dropout of a training step; None: evaluation.
    """
    parts = parts or EAGER
    x = hidden(parameters, tokens, lengths, spec, seeds, parts)
    return logits_of(x, lengths, *head_parameters(parameters, spec), spec, parts.apply_head)


def hidden(
    parameters: dict[str, Tensor],
    tokens: Tensor,
    lengths: Tensor | None,
    spec: Spec,
    seeds: Tensor | None,
    parts: ForwardFns,
) -> Tensor:
    """(E, B, L, d): what the last block gives."""
    own_positions = _position_seeds(spec, tokens) if seeds is None else seeds[0]
    pos_enc = encoding(spec, parameters.get("positions"), lengths, own_positions, tokens)
    x = parts.embed(parameters["embedding"], tokens, pos_enc, spec, None if seeds is None else seeds[0])
    own_seeds = _evaluation_seeds(spec, tokens) if seeds is None else seeds[1:].unflatten(0, (spec.model.blocks, -1))
    padding = Padding.of(lengths, spec)
    for i in range(spec.model.blocks):
        weights = [parameters[f"blocks.{i}.{name}"] for name in block_parameters(spec)]
        epsilon = 0.0 if spec.model.first_norm_exact and i == 0 else NORM_EPSILON
        block_seeds = None if own_seeds is None else own_seeds[i]
        x = parts.block(x, weights, padding, block_seeds, spec.of_block(i), epsilon, seeds is not None)
    return x


def _position_seeds(spec: Spec, tokens: Tensor) -> Tensor | None:
    """(E, B) what draws randomized positions in evaluation: an example's own tokens, as for other random choices."""
    return _content(spec, tokens) if spec.model.position_kind == "randomized" else None


def _evaluation_seeds(spec: Spec, tokens: Tensor) -> Tensor | None:
    """Seeds (blocks, 4, E, B) of what is random in evaluation: dropout as a quirk, and random choices of keys.

    They follow from an example's own tokens, so that its logits depend neither on its batch nor on its cohort. In a
    causal model they follow from its first token alone: no position may learn anything of the tokens after it.
    """
    if not spec.model.dropout_in_evaluation and not spec.chooses_at_random:
        return None
    zero = torch.zeros((), dtype=torch.int64, device=tokens.device)
    content = _content(spec, tokens)
    return counter_rng.fold_in(content, zero, spec.num_dropout_sites)[1:].unflatten(0, (spec.model.blocks, -1))


def _content(spec: Spec, tokens: Tensor) -> Tensor:
    """(E, B) int64: a hash of each example's tokens, or of its first token in a causal model."""
    first = getattr(spec.mechanism, "seed", 0)
    seen = tokens[..., :1] if spec.is_causal else tokens
    seed = torch.full((), first, dtype=torch.int64, device=tokens.device)
    position = torch.arange(seen.shape[-1], dtype=torch.int32, device=tokens.device)
    return counter_rng.random_bits(seed, seen.to(torch.int32), position).to(torch.int64).sum(dim=-1)
