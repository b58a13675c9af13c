"""A task's tokens as the model reads them, and which of its positions are padding."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from semfocus.spec import Spec


def build_inputs(tokens: Tensor, lengths: Tensor, spec: Spec) -> tuple[Tensor, Tensor]:
    """A task's tokens (..., seq_len) as the model reads them, (..., L) int64, and the lengths (...) that it sees.

    Positions from a length on are padding, except for the extra tokens at the end.
    """
    pad = spec.vocab_size
    ids = functional.pad(tokens.long(), (0, spec.padded_len + spec.alignment_padding - spec.seq_len), value=pad)
    extra = torch.arange(pad + 1, pad + 1 + spec.extra_tokens, device=tokens.device)
    ids = torch.cat([ids, extra.expand(*ids.shape[:-1], -1)], dim=-1)
    return ids, torch.full_like(lengths, spec.padded_len) if spec.model.padding_visible else lengths


def valid_mask(lengths: Tensor, spec: Spec) -> Tensor:
    """(..., L) bool: False at padding, given the lengths (...) of `build_inputs`."""
    position = torch.arange(spec.length, device=lengths.device)
    return (position < lengths.unsqueeze(-1)) | (position >= spec.padded_len + spec.alignment_padding)


class Padding(NamedTuple):
    """Padding as `attend` takes it: lengths, which kernels skip, or a mask where extra tokens stand behind it."""

    lengths: Tensor | None = None
    mask: Tensor | None = None

    @staticmethod
    def of(lengths: Tensor | None, spec: Spec) -> Padding:
        """Of lengths (E, B); None: no example has padding."""
        if lengths is None:
            return Padding()
        if spec.extra_tokens:
            return Padding(mask=valid_mask(lengths, spec)[:, :, None, None, :])
        return Padding(lengths=lengths)

    def only(self, members: slice) -> Padding:
        """Of these members alone."""
        # A mask of distances is the same for all members.
        return Padding(*(part if part is None or part.dim() == 3 else part[members] for part in self))
