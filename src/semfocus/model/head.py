"""From the last block to logits, and from logits to the loss of each member."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from semfocus.model.inputs import valid_mask
from semfocus.model.layers import NORM_EPSILON, linear, norm
from semfocus.spec import Spec


def head_parameters(parameters: dict[str, Tensor], spec: Spec) -> tuple[Tensor, Tensor | None]:
    """The parameters that the head reads: its own weight, or all embeddings, and its bias."""
    return parameters["embedding" if spec.model.tied_head else "readout.weight"], parameters.get("readout.bias")


def logits_of(
    x: Tensor, lengths: Tensor | None, weight: Tensor, bias: Tensor | None, spec: Spec, head: Callable[..., Tensor]
) -> Tensor:
    """What `head` makes of x (E, B, L, d), the last block's, after the last norm; see `head_parameters`."""
    if spec.model.final_norm:
        x = norm(x, NORM_EPSILON, spec)
    if spec.model.tied_head:  # the vectors of the tokens that can be predicted
        weight = weight[:, : spec.num_classes].mT
    return head(x, lengths, weight, bias, spec)  # weight (E, d, C)


def apply_head(x: Tensor, lengths: Tensor | None, weight: Tensor, bias: Tensor | None, spec: Spec) -> Tensor:
    """Logits of x (E, B, L, d): (E, B, C) of the pooled positions, or (E, B, seq_len, C), one set a position."""
    if spec.predicts_positions:
        return linear(x[:, :, : spec.seq_len], weight, bias)
    logits = _pool(x, lengths, spec) @ weight
    return logits if bias is None else logits + bias.unsqueeze(1)


def _pool(x: Tensor, lengths: Tensor | None, spec: Spec) -> Tensor:
    """(E, B, d): the CLS token, or the mean over valid positions; global tokens count only where padding does."""
    if spec.model.pooling == "cls":
        return x[:, :, spec.padded_len + spec.alignment_padding]
    if not spec.model.padding_visible:
        x = x[:, :, : spec.padded_len]
    if lengths is None:
        return x.mean(dim=2)
    valid = valid_mask(lengths, spec)[:, :, : x.shape[2], None].to(x.dtype)
    return (x * valid).sum(dim=2) / valid.sum(dim=2)


def weighted_loss(
    objective_loss: Callable[[Tensor, Tensor], Tensor], logits: Tensor, targets: Tensor, weights: Tensor, total: Tensor
) -> Tensor:
    """(E,): the losses (E, B) of an objective, summed over examples with weights (B,), over `total`."""
    return (objective_loss(widened(logits), targets) * weights).sum(dim=1) / total


def head_loss(
    x: Tensor,
    lengths: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    spec: Spec,
    objective_loss: Callable[[Tensor, Tensor], Tensor],
    targets: Tensor,
    weights: Tensor,
    total: Tensor,
    head: Callable[..., Tensor] = apply_head,
) -> Tensor:
    """(E,): `weighted_loss` of what the last block gives, x (E, B, L, d)."""
    logits = logits_of(x, lengths, weight, bias, spec, head)
    with torch.autocast(x.device.type, enabled=False):  # products of an objective's own keep their type
        return weighted_loss(objective_loss, logits, targets, weights, total)


def widened(logits: Tensor) -> Tensor:
    """Logits in 32 bits at least: a loss sums over many."""
    return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
