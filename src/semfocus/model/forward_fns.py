"""The functions that a step consists of: eager, compiled or fused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from semfocus import counter_rng
from semfocus.model.block import block
from semfocus.model.head import apply_head, head_loss
from semfocus.model.inputs import Padding
from semfocus.model.layers import embed
from semfocus.spec import Spec

MOST_PROGRAMS = 64  # compiled of one function


@dataclass(frozen=True)
class ForwardFns:
    """The functions that a step consists of: eager, compiled or fused."""

    embed: Callable[..., Tensor] = embed
    block: Callable[..., Tensor] = block
    apply_head: Callable[..., Tensor] = apply_head
    head_loss: Callable[..., Tensor] = head_loss
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

        fast_head, fast_head_loss = (torch.compile(function, dynamic=False) for function in (apply_head, head_loss))

        # Eager, a loss over a large vocabulary reads and writes logits of 32 bits several times. Compiled apart from
        # the head, it gives their gradient in rows as long as the vocabulary; where that is odd, the head copies it
        # twice, for the two products that take it, into rows that suit a GPU.
        def by_size_head_loss(
            x: Tensor, lengths: Tensor | None, weight: Tensor, bias: Tensor | None, spec: Spec, *rest: Any
        ) -> Tensor:
            if x.is_cuda and spec.predicts_positions:
                return fast_head_loss(x, lengths, weight, bias, spec, *rest)
            return head_loss(x, lengths, weight, bias, spec, *rest, head=fast_head)

        return ForwardFns(by_device_embed, by_device_block, fast_head, by_size_head_loss, by_device_fold_in)


EAGER = ForwardFns()
