"""One member of a cohort as an ordinary module."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from semfocus.attention.selection import can_sync
from semfocus.errors import UsageError
from semfocus.model.forward import forward
from semfocus.model.inputs import build_inputs
from semfocus.spec import Spec


class Encoder(nn.Module):
    """One member as an ordinary module: `Encoder(spec, row)(tokens, lengths) -> logits (B, C)`, without dropout.

    `row` (P,) are its parameters. A spec that predicts positions gives logits (B, L, C).
    """

    def __init__(self, spec: Spec, row: Tensor) -> None:
        super().__init__()
        self.spec = spec
        for name, value in spec.layout.split(row.unsqueeze(0)).items():
            self.register_parameter(name.replace(".", "__"), nn.Parameter(value[0].clone()))

    def forward(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Examples may have any length: positions extend. An example ends at its length, or at the last column.

        What is drawn at random (keys, positions) follows from the whole row, padding included: give rows one width.
        """
        spec = replace(self.spec, seq_len=tokens.shape[-1])
        if can_sync(tokens) and tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) <= spec.vocab_size:
            wrong = int(tokens.min()) if int(tokens.min()) < 0 else int(tokens.max())
            raise UsageError(
                f"tokens hold the id {wrong}, and this model knows {spec.vocab_size}: 0 .. {spec.vocab_size - 1}, and "
                f"{spec.vocab_size} for padding; take the tokens of the task that it was trained on"
            )
        if lengths is None:
            lengths = torch.full(tokens.shape[:1], tokens.shape[-1], device=tokens.device)
        ids, lengths = build_inputs(tokens, lengths, spec)
        parameters = {name.replace("__", "."): value.unsqueeze(0) for name, value in self.named_parameters()}
        return forward(parameters, ids.unsqueeze(0), lengths.unsqueeze(0), spec)[0]

    @torch.no_grad()
    def predict(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The most probable class (B,) of each example, or (B, L) of each position."""
        return self(tokens, lengths).argmax(dim=-1)

    def row(self) -> Tensor:
        """(P,) the parameters as a row of a cohort's matrix."""
        return self.spec.layout.join(value.detach().unsqueeze(0) for value in self.parameters())[0]
