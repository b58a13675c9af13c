"""The groups of parameters of a certificate, and how close the gradients of a model come to it.

group_masks(spec)["blocks.0.query"]          (P,) bool: weights and biases of the queries' projection
looseness(spec, row, rows)["input"]          gradient norm / certified constant; 1 is tight
"""

from __future__ import annotations

import torch
from torch import Tensor

from semfocus.landscape.certificate import trace
from semfocus.model import EAGER, ForwardFns, embed, forward, positional_encoding
from semfocus.spec import Spec
from semfocus.theory import LossConstants
from semfocus.training.data import Rows

PROJECTIONS = ("query", "key", "value")
LAYERS = {"o": "output", "mlp_in": "mlp_in", "mlp_out": "mlp_out"}


def group_masks(spec: Spec) -> dict[str, Tensor]:
    """(P,) bool by group: the columns of its parameters, a weight together with its bias."""
    masks: dict[str, Tensor] = {}

    def mark(group: str, name: str, third: int | None = None) -> None:
        matrix = masks.setdefault(group, torch.zeros(1, spec.layout.size, dtype=torch.bool))
        view = spec.layout.split(matrix)[name]
        (view if third is None else view.chunk(3, dim=-1)[third]).fill_(True)

    mark("embedding", "embedding")
    for i in range(spec.model.blocks):
        for kind in ("weight", "bias"):
            for third, projection in enumerate(PROJECTIONS):
                mark(f"blocks.{i}.{projection}", f"blocks.{i}.qkv.{kind}", third)
            for layer, group in LAYERS.items():
                mark(f"blocks.{i}.{group}", f"blocks.{i}.{layer}.{kind}")
    for kind in ("weight", "bias"):
        mark("head", f"readout.{kind}")
    return {group: matrix[0] for group, matrix in masks.items()}


def constant_of(constants: LossConstants, group: str) -> float:
    """The certified constant of one of these groups, or of `input`."""
    if not group.startswith("blocks."):
        return getattr(constants, group)
    _, block, name = group.split(".")
    return getattr(constants.blocks[int(block)], name)


def looseness(spec: Spec, row: Tensor, rows: Rows) -> dict[str, float]:
    """For the input and each group: the largest ratio, over single examples, of the gradient to its certificate."""
    masks, ratios = group_masks(spec), {}
    for i in range(rows.count):
        one = rows.between(i, i + 1)
        constants = trace(spec, row, one).certify()
        by_input, parameters = gradients(spec, row, one)
        norms = {"input": by_input.norm().item()}
        norms |= {group: parameters[mask].norm().item() for group, mask in masks.items()}
        for group, norm in norms.items():
            ratios[group] = max(ratios.get(group, 0.0), norm / constant_of(constants, group))
    return ratios


def embedded(spec: Spec, row: Tensor, rows: Rows) -> Tensor:
    """(1, B, L, d) the embedded tokens that enter the first block, in float64."""
    table = spec.layout.split(row.detach().double().cpu().unsqueeze(0))["embedding"]
    return embed(table, rows.tokens.long().cpu(), positional_encoding(spec, table.device), spec, None)


def mean_loss(spec: Spec, matrix: Tensor, rows: Rows, x: Tensor | None = None) -> Tensor:
    """The mean loss of one model (1, P), on the CPU in its own precision; `x` replaces the embedded tokens."""
    parts = EAGER if x is None else ForwardFns(embed=lambda *given: x)
    tokens, lengths, targets = rows.every().cpu()
    logits = forward(spec.layout.split(matrix), tokens, lengths, spec, None, parts)
    return rows.objective.loss(logits, targets).mean()


def gradients(spec: Spec, row: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """The gradients of the mean loss in the embedded tokens (1, B, L, d) and the parameters (P,), in float64."""
    matrix = row.detach().double().cpu().unsqueeze(0).requires_grad_()
    x = embedded(spec, row, rows).requires_grad_()
    by_input = torch.autograd.grad(mean_loss(spec, matrix, rows, x), x)[0]
    return by_input, torch.autograd.grad(mean_loss(spec, matrix, rows), matrix)[0][0]
