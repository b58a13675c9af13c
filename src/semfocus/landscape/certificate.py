"""The norms that the theory's certificates need, measured on a model, and the certificate itself.

    constants = certify_model(spec, vector, rows)     of the loss at this model on these examples, for fixed masks
    constants.blocks[0].query, constants.input, constants.parameters

    here, there = trace(spec, vector, rows, masks_may_change=True), trace(spec, other, rows, masks_may_change=True)
    here.covering(there).certify()                    between the two models

    looseness(spec, vector, rows)["input"]            gradient norm / certified constant; 1 is tight

All norms are measured in float64. Top-k, windows and full attention have certificates. Models without one (bottom-k,
random keys, keys kept besides the top k, normalisers other than softmax, causal models) raise a UsageError.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from semfocus.encodings import positional_encoding
from semfocus.errors import UsageError
from semfocus.model.forward import forward
from semfocus.model.forward_fns import EAGER, ForwardFns
from semfocus.model.inputs import valid_mask
from semfocus.model.layers import ACTIVATIONS, NORM_EPSILON, embed
from semfocus.spec import Spec
from semfocus.theory import (
    BlockNorms,
    HeadNorms,
    LossConstants,
    NormRows,
    certify,
    covering,
    measure_head,
    separation,
    spectral_norm,
)
from semfocus.training.data import MappedRows, Rows

POSITIONS_AT_ONCE = 2**12  # the scores of each are stored in float64
PROJECTIONS = ("query", "key", "value")
LAYERS = {"o": "output", "mlp_in": "mlp_in", "mlp_out": "mlp_out"}


@dataclass(frozen=True)
class Trace:
    """Measurements of a model on some examples: norms of each block, kept keys (B, H, L, L), norms of the head."""

    spec: Spec
    blocks: tuple[BlockNorms, ...]
    masks: tuple[Tensor, ...]
    head: float
    features: float
    pooled: int
    repeats: int
    logits: Tensor  # (1, B, classes)

    def covering(self, other: Trace) -> Trace:
        """Norms that hold at both models. If all their masks are equal, masks count as fixed."""
        blocks = tuple(covering(a, b) for a, b in zip(self.blocks, other.blocks, strict=True))
        same = all(torch.equal(a, b) for a, b in zip(self.masks, other.masks, strict=True))
        return replace(
            self,
            blocks=tuple(map(_with_fixed_masks, blocks)) if same else blocks,
            head=max(self.head, other.head),
            features=max(self.features, other.features),
        )

    def certify(self) -> LossConstants:
        return certify(
            self.blocks,
            pooled=self.pooled,
            head=self.head,
            features=self.features,
            embedding_scale=math.sqrt(self.spec.model.d_model),
            repeats=self.repeats,
        )


def certify_model(spec: Spec, vector: Tensor, rows: Rows | MappedRows) -> LossConstants:
    """Bounds on the gradient of the loss on these examples at a model (P,), for fixed masks."""
    chunk = max(1, POSITIONS_AT_ONCE // spec.length)
    traces = [trace(spec, vector, rows.between(first, first + chunk)) for first in range(0, rows.count, chunk)]
    worst = replace(
        traces[0],
        blocks=tuple(covering(*blocks) for blocks in zip(*(each.blocks for each in traces), strict=True)),
        features=max(each.features for each in traces),
        pooled=min(each.pooled for each in traces),
        repeats=max(each.repeats for each in traces),
    )
    return worst.certify()


def trace(
    spec: Spec, vector: Tensor, rows: Rows | MappedRows, masks_may_change: bool = False, x: Tensor | None = None
) -> Trace:
    """Measure the model (P,) on examples (of one member), or on embedded tokens x (1, B, L, d) in their place."""
    _check(spec)
    parameters = spec.layout.split(vector.detach().double().cpu().unsqueeze(0))
    blocks: list[BlockNorms] = []
    masks: list[Tensor] = []
    features: list[Tensor] = []

    def embed(*args: Any) -> Tensor:
        return EAGER.embed(*args) if x is None else x.detach().double()

    def block(x: Tensor, weights: list[Tensor], padding: Any, seeds: Any, spec: Spec, epsilon: float, train: bool):
        norms, keep, out = _traced_block(x, weights, mask, spec, epsilon, masks_may_change)
        blocks.append(norms)
        masks.append(keep)
        return out

    def apply_head(x: Tensor, lengths: Tensor | None, weight: Tensor, bias: Tensor, spec: Spec) -> Tensor:
        # With the identity as its weight the head returns its input.
        eye = torch.eye(weight.shape[1], dtype=x.dtype).unsqueeze(0)
        features.append(EAGER.apply_head(x, lengths, eye, torch.zeros_like(eye[:, 0]), spec))
        return features[-1] @ weight + bias.unsqueeze(1)

    tokens, lengths, _ = rows.every().cpu()
    valid = torch.ones_like(tokens, dtype=torch.bool) if lengths is None else valid_mask(lengths, spec)
    mask = None if lengths is None else valid[:, :, None, None, :]
    with torch.no_grad():
        logits = forward(parameters, tokens, lengths, spec, None, ForwardFns(embed, block, apply_head))
    counts = torch.zeros(tokens.shape[1], spec.num_ids).scatter_add_(1, tokens[0], torch.ones(tokens[0].shape))
    return Trace(
        spec,
        tuple(blocks),
        tuple(masks),
        spectral_norm(parameters["readout.weight"][0]),
        _longest(features[0]),
        1 if spec.model.pooling == "cls" else int(valid[..., : spec.padded_len].sum(-1).min()),
        int(counts.max()),
        logits,
    )


def _traced_block(
    x: Tensor, weights: list[Tensor], mask: Tensor | None, spec: Spec, epsilon: float, masks_may_change: bool
) -> tuple[BlockNorms, Tensor, Tensor]:
    """The model's `block` again, without dropout, measuring its intermediate values; a test compares the two."""
    qkv_weight, qkv_bias, o_weight, o_bias, mlp_in_weight, mlp_in_bias, mlp_out_weight, mlp_out_bias = (
        weight[0] for weight in weights
    )
    pre = spec.model.norm == "pre"
    entering = _normed(x, epsilon) if pre else x
    attention_weights = qkv_weight, qkv_bias, o_weight, o_bias
    attn_out, keep, heads = _traced_attention(entering, attention_weights, mask, spec, masks_may_change)
    middle = x + attn_out if pre else _normed(x + attn_out, epsilon)
    into = _normed(middle, NORM_EPSILON) if pre else middle
    hidden = ACTIVATIONS[spec.model.activation](into @ mlp_in_weight + mlp_in_bias)
    out = middle + hidden @ mlp_out_weight + mlp_out_bias
    norms = BlockNorms(
        heads=heads,
        tokens=_longest(entering),
        first=_norm_rows(x if pre else x + attn_out, epsilon),
        second=_norm_rows(middle if pre else out, NORM_EPSILON),
        mlp_tokens=_longest(into),
        mlp_in=spectral_norm(mlp_in_weight),
        mlp_out=spectral_norm(mlp_out_weight),
        hidden=_longest(hidden),
        activation=spec.model.activation,
        order=spec.model.norm,
    )
    return norms, keep, out if pre else _normed(out, NORM_EPSILON)


def _traced_attention(
    x: Tensor, weights: tuple[Tensor, ...], mask: Tensor | None, spec: Spec, masks_may_change: bool
) -> tuple[Tensor, Tensor, tuple[HeadNorms, ...]]:
    qkv_weight, qkv_bias, o_weight, o_bias = weights
    width, count = spec.model.head_dim, spec.model.heads
    scale = spec.attention.inverse_temperature / math.sqrt(width)
    projected = (x @ qkv_weight + qkv_bias).chunk(3, dim=-1)
    q, k, v = (part.unflatten(-1, (count, width)).transpose(2, 3) for part in projected)  # (1, B, H, L, w)
    scores = scale * q @ k.mT
    keep = spec.mechanism.keep(scores, mask, queries=q, keys=k).broadcast_to(scores.shape)
    attn_out = torch.where(keep, scores, -math.inf).softmax(dim=-1) @ v
    valid = torch.ones_like(keep) if mask is None else mask.broadcast_to(scores.shape)
    may_change = masks_may_change and spec.mechanism.keeps_largest is not None
    matrices, biases = qkv_weight.chunk(3, dim=-1), qkv_bias.chunk(3)
    heads = []
    for h in range(count):
        own = slice(h * width, (h + 1) * width)
        query, key, value = ((matrices[i][:, own].T, biases[i][own]) for i in range(3))
        norms = measure_head(
            x[0], query=query, key=key, value=value, output=o_weight[own].T, scale=scale, keep=keep[0, :, h]
        )
        if may_change:
            gaps = separation(scores[0, :, h], keep[0, :, h], valid[0, :, h])
            norms = replace(norms, separation=gaps.min().item())
        heads.append(norms)
    return attn_out.transpose(2, 3).flatten(3) @ o_weight + o_bias, keep[0], tuple(heads)


def _with_fixed_masks(block: BlockNorms) -> BlockNorms:
    return replace(block, heads=tuple(replace(head, separation=None) for head in block.heads))


def _check(spec: Spec) -> None:
    mechanism = spec.plan.sole
    if mechanism is None or not (mechanism.keeps_all or mechanism.is_local or mechanism.keeps_largest is not None):
        raise UsageError(f"no certificate is known for {spec.plan}; it is for full, banded, block_local and topk:k")
    if spec.is_causal or spec.predicts_positions:
        raise UsageError("no certificate is known for causal models that predict every position, only for classifiers")
    if not spec.normaliser.is_softmax:
        raise UsageError(f"no certificate is known for attention.normaliser = {spec.attention.normaliser}; use softmax")
    if not spec.model.is_as_published:
        raise UsageError("no certificate is known for other norms, heads and layers than the paper's model has")
    if spec.model.dropout_in_evaluation:
        raise UsageError("model.dropout_in_evaluation draws at random in evaluation; no certificate covers that")


def _normed(x: Tensor, epsilon: float) -> Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], eps=epsilon)


def _norm_rows(x: Tensor, epsilon: float) -> NormRows:
    return NormRows(x.std(-1, correction=0).min().item(), epsilon)


def _longest(rows: Tensor) -> float:
    return rows.norm(dim=-1).max().item()


def group_masks(spec: Spec) -> dict[str, Tensor]:
    """(P,) bool by group: the positions of its parameters, a weight together with its bias."""
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


def looseness(spec: Spec, vector: Tensor, rows: Rows | MappedRows) -> dict[str, float]:
    """For the input and each group: the largest ratio, over single examples, of the gradient to its certificate."""
    masks, ratios = group_masks(spec), {}
    for i in range(rows.count):
        one = rows.between(i, i + 1)
        constants = trace(spec, vector, one).certify()
        by_input, parameters = gradients(spec, vector, one)
        norms = {"input": by_input.norm().item()}
        norms |= {group: parameters[mask].norm().item() for group, mask in masks.items()}
        for group, norm in norms.items():
            ratios[group] = max(ratios.get(group, 0.0), norm / constant_of(constants, group))
    return ratios


def embedded(spec: Spec, vector: Tensor, rows: Rows | MappedRows) -> Tensor:
    """(1, B, L, d) the embedded tokens that enter the first block, in float64."""
    table = spec.layout.split(vector.detach().double().cpu().unsqueeze(0))["embedding"]
    return embed(table, rows.every().tokens.cpu(), positional_encoding(spec, table.device), spec, None)


def mean_loss(spec: Spec, matrix: Tensor, rows: Rows | MappedRows, x: Tensor | None = None) -> Tensor:
    """The mean loss of one model (1, P), on the CPU in its own precision; `x` replaces the embedded tokens."""
    parts = EAGER if x is None else ForwardFns(embed=lambda *given: x)
    tokens, lengths, targets = rows.every().cpu()
    logits = forward(spec.layout.split(matrix), tokens, lengths, spec, None, parts)
    return rows.objective.loss(logits, targets).mean()


def gradients(spec: Spec, vector: Tensor, rows: Rows | MappedRows) -> tuple[Tensor, Tensor]:
    """The gradients of the mean loss in the embedded tokens (1, B, L, d) and the parameters (P,), in float64."""
    matrix = vector.detach().double().cpu().unsqueeze(0).requires_grad_()
    x = embedded(spec, vector, rows).requires_grad_()
    by_input = torch.autograd.grad(mean_loss(spec, matrix, rows, x), x)[0]
    return by_input, torch.autograd.grad(mean_loss(spec, matrix, rows), matrix)[0][0]
