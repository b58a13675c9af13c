"""The functions that a step consists of: eager, compiled or fused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from semfocus import counter_rng
from semfocus.model.block import block
from semfocus.model.head import apply_head, weighted_loss
from semfocus.model.inputs import Padding
from semfocus.model.layers import embed
from semfocus.spec import Spec

MOST_PROGRAMS = 64  # compiled of one function
LOGITS_BY_POSITION = 4  # axes of logits (E, B, L, C)


@dataclass(frozen=True)
class ForwardFns:
    """The functions that a step consists of: eager, compiled or fused."""

    embed: Callable[..., Tensor] = embed
    block: Callable[..., Tensor] = block
    apply_head: Callable[..., Tensor] = apply_head
    loss: Callable[..., Tensor] = weighted_loss
    fold_in: Callable[..., Tensor] = counter_rng.fold_in
    sgd_update: Callable[..., None] | None = None  # clips and updates in place; None: by torch, see `TrainStep`

    @staticmethod
    def compiled() -> ForwardFns:
        """Newly compiled. Every cohort has its own shapes; without the reset torch counts them as recompilations of one
        function and, after a few, silently stops compiling."""
        torch.compiler.reset()
        # A plan has a block compiled for each of its mechanisms, in training and in evaluation. Beyond torch's limit of
        # eight the others would run without a compiler, and without a word.
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, MOST_PROGRAMS)
        fast_embed, fast_block = torch.compile(embed, dynamic=False), torch.compile(block, dynamic=False)

        # On a CPU, functions with random numbers stay eager. There torch 2.13 writes the hash of `counter_rng` as C++
        # with signed overflow, which is undefined: g++ ran a loop past its end and read tokens out of bounds. Inductor
        # also inlines the hash, which uses each value twice, and takes minutes.
        def by_device_embed(table: Tensor, tokens: Tensor, pos_enc: Tensor, spec: Spec, seed: Tensor | None) -> Tensor:
            chosen = embed if seed is not None and table.device.type == "cpu" else fast_embed
            return chosen(table, tokens, pos_enc, spec, seed)

        def by_device_block(
            x: Tensor, weights: list[Tensor], padding: Padding, seeds: Tensor | None, *rest: Any
        ) -> Tensor:
            chosen = block if seeds is not None and x.device.type == "cpu" else fast_block
            return chosen(x, weights, padding, seeds, *rest)

        fast_fold_in = torch.compile(counter_rng.fold_in, dynamic=False)

        def by_device_fold_in(seed: Tensor, step: Tensor, sites: int) -> Tensor:
            return (counter_rng.fold_in if seed.device.type == "cpu" else fast_fold_in)(seed, step, sites)

        # Eager, a loss over a large vocabulary reads and writes logits of 32 bits several times.
        fast_loss = torch.compile(weighted_loss, dynamic=False)

        def by_size_loss(loss: Callable, logits: Tensor, *rest: Tensor) -> Tensor:
            is_worth_it = logits.is_cuda and logits.dim() == LOGITS_BY_POSITION
            return (fast_loss if is_worth_it else weighted_loss)(loss, logits, *rest)

        fast_head = torch.compile(apply_head, dynamic=False)
        return ForwardFns(by_device_embed, by_device_block, fast_head, by_size_loss, by_device_fold_in)


EAGER = ForwardFns()
