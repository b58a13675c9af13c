"""A certified Lipschitz constant of the loss, from the norms of a model's parts.

    embedding -> blocks (attention, MLP, LayerNorm, residuals; pre-norm or post-norm) -> mean pool -> head
              -> cross-entropy of one example (the mean loss of a batch has no larger constant)

    constants = certify(blocks, pooled=40, head=..., features=...)
    constants.input, constants.embedding, constants.blocks[0].query, constants.head

Certified means: for any two points (two inputs, or two values of one group of parameters) at both of which the given
norms hold, dropout off, the loss differs by at most the constant times their distance. Attention masks must be the
same at both points, unless the heads carry a separation, which then must hold at both. docs/theory.md proves it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from semfocus.errors import UsageError
from semfocus.theory.arguments import check_fields, pick, plain, times
from semfocus.theory.layers import CROSS_ENTROPY_SLOPE, Gains, HeadNorms, NormRows, activation_constant, mlp_constant

Norms = TypeVar("Norms", "BlockNorms", HeadNorms, NormRows)


@dataclass(frozen=True, kw_only=True)
class BlockNorms:
    """Upper bounds (and, in NormRows, lower ones) on one block, at all points of a certificate.

    pre:   y = x + attention(LN1 x),   out = y + mlp(LN2 y)        LN1 takes x, LN2 takes y
    post:  y = LN1(x + attention x),   out = LN2(y + mlp y)        LN1 takes x + attention x, LN2 y + mlp y
    """

    heads: tuple[HeadNorms, ...]
    tokens: float  # norm of a token that enters the projections
    first: NormRows
    second: NormRows
    mlp_tokens: float  # norm of a token that enters the MLP
    mlp_in: float  # spectral norms
    mlp_out: float
    hidden: float  # norm of a token after the activation
    activation: str = "relu"
    order: Literal["pre", "post"] = "pre"

    def __post_init__(self) -> None:
        check_fields(self, "tokens", "mlp_tokens", "mlp_in", "mlp_out", "hidden")
        activation_constant(self.activation)
        pick("order", self.order, {"pre": True, "post": True})
        if not self.heads:
            raise UsageError("heads is empty: a block has at least one attention head")


@dataclass(frozen=True)
class GroupConstants:
    """One number per group of a block's parameters, each weight together with its bias (Frobenius norm)."""

    query: float
    key: float
    value: float
    output: float
    mlp_in: float
    mlp_out: float

    def scaled(self, factor: float) -> GroupConstants:
        """All of them times `factor`."""
        return GroupConstants(*(times(factor, value) for value in dataclasses.astuple(self)))


@dataclass(frozen=True)
class BlockConstants:
    """Constants of a block: its output in its input, and the largest change of an output token for each group."""

    tokens: Gains
    groups: GroupConstants


@dataclass(frozen=True)
class LossConstants:
    """Lipschitz constants of the loss."""

    input: float  # with respect to the embedded tokens, Frobenius norm
    input_tokens: float  # ... in the largest change of a token
    embedding: float  # the table of embeddings, Frobenius norm
    blocks: tuple[GroupConstants, ...]
    head: float

    @property
    def parameters(self) -> float:
        """With respect to all parameters at once, where the loss is differentiable: a bound on its gradient."""
        inner = (value for group in self.blocks for value in dataclasses.astuple(group))
        return math.hypot(self.embedding, self.head, *inner)


def block_constants(block: BlockNorms) -> BlockConstants:
    """The constants of one block."""
    mlp = mlp_constant(block.mlp_in, block.mlp_out, block.activation)
    first, second = block.first.slope, block.second.slope
    attention = _sum_gains(head.gains for head in block.heads)
    near = _group_constants(block)
    if block.order == "pre":
        after_attention, after_mlp = 1 + times(mlp, second), 1.0
        stretch = [times(1 + times(gain, first), after_attention) for gain in dataclasses.astuple(attention)]
    else:
        after_attention, after_mlp = times(first, 1 + mlp, second), second
        stretch = [times(1 + gain, after_attention) for gain in dataclasses.astuple(attention)]
    of_attention, of_mlp = near.scaled(after_attention), near.scaled(after_mlp)
    groups = dataclasses.replace(of_attention, mlp_in=of_mlp.mlp_in, mlp_out=of_mlp.mlp_out)
    return BlockConstants(Gains(*stretch), groups)


def certify(
    blocks: Sequence[BlockNorms],
    *,
    pooled: int,
    head: float,
    features: float,
    final: NormRows | None = None,
    embedding_scale: float = 1.0,
    repeats: int | None = None,
) -> LossConstants:
    """The constants of the loss of one example, whose `pooled` tokens are averaged before the head.

    `head` is the spectral norm of that layer, `features` bounds the norm of the average. `final` is a LayerNorm
    before the pool. Embeddings are multiplied by `embedding_scale`; `repeats` is how often the most frequent
    token occurs in an example (default: `pooled`, which always holds).
    """
    count = _count("pooled", pooled)
    times_seen = count if repeats is None else _count("repeats", repeats)
    head = times(CROSS_ENTROPY_SLOPE, plain("head", head), 1.0 if final is None else final.slope)
    each = [block_constants(block) for block in blocks]

    groups, after = [], head
    for block in reversed(each):
        groups.append(block.groups.scaled(after))
        after = times(after, block.tokens.max)
    # The mean of n tokens changes by at most 1/sqrt(n) of the Frobenius norm, but the constants of blocks in that norm
    # are larger.
    spread_out = times(head / math.sqrt(count), *(block.tokens.frobenius for block in each))
    scale = plain("embedding_scale", embedding_scale)
    return LossConstants(
        input=min(after, spread_out),
        input_tokens=after,
        embedding=times(scale, min(after, times(math.sqrt(times_seen), spread_out))),
        blocks=tuple(reversed(groups)),
        head=CROSS_ENTROPY_SLOPE * math.hypot(plain("features", features), 1.0),
    )


def covering(first: Norms, *others: Norms) -> Norms:
    """Norms that hold at all of the measured points; a certificate between two points needs them."""
    merged = {}
    for field in dataclasses.fields(first):
        values = [getattr(norms, field.name) for norms in (first, *others)]
        merged[field.name] = _cover(field.name, values)
    return dataclasses.replace(first, **merged)


def _cover(name: str, values: list[Any]) -> object:
    if isinstance(values[0], str) or values[0] is None:
        if any(value != values[0] for value in values):
            raise UsageError(f"{name} differs between the norms to cover: {', '.join(map(str, values))}")
        return values[0]
    if isinstance(values[0], tuple):
        return tuple(covering(*heads) for heads in zip(*values, strict=True))
    if isinstance(values[0], NormRows):
        return covering(*values)
    return min(values) if name in ("std", "epsilon", "separation") else max(values)


def _group_constants(block: BlockNorms) -> GroupConstants:
    """The largest change of an output token of attention or the MLP, per unit change of each group, bias included.

    A weight and its bias act on (token, 1), hence the hypot. The bias of the keys changes all scores of a query alike.
    """
    row = math.hypot(block.tokens, 1.0)
    return GroupConstants(
        query=math.hypot(*(times(head.spread, head.keys, row, head.jump) for head in block.heads)),
        key=math.hypot(*(times(head.spread, head.queries, block.tokens, head.jump) for head in block.heads)),
        value=math.hypot(*(times(head.output, row) for head in block.heads)),
        output=math.hypot(1.0, *(head.values for head in block.heads)),
        mlp_in=times(block.mlp_out, activation_constant(block.activation), math.hypot(block.mlp_tokens, 1.0)),
        mlp_out=math.hypot(block.hidden, 1.0),
    )


def _sum_gains(gains: Iterable[Gains]) -> Gains:
    every = list(gains)
    largest, summed = sum(g.max for g in every), sum(g.sum for g in every)
    return Gains(largest, math.sqrt(times(largest, summed)), summed)


def _count(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"{name} = {value!r} must be a whole number >= 1")
    return value
