"""Random ListOps trees: shapes are drawn first, one level of many trees at a time, then digits and operators.

A node at depth < max_depth is an operator with probability 1/4, with 2 .. max_args children, else a digit; a node at
max_depth is a digit. A digit is one token, an operator two (its name and `]`) besides those of its children. Trees with
max_length tokens or more are dropped. A tree stops growing once that is certain, which does not change the
distribution of the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from semfocus.randomness import Stream

OPERATOR_SHARE = 0.25
NUM_DIGITS, NUM_OPERATORS = 10, 4
Ints = NDArray[np.int64]


class _Level(NamedTuple):
    """The nodes of one depth: siblings are adjacent, in the order of their parents."""

    tree: Ints  # the index of each node's tree
    arity: Ints  # the number of children, 0 for a digit


@dataclass(frozen=True)
class Shape:
    """Trees without digits and operators: their levels, and the token count of each tree."""

    levels: list[_Level]
    sizes: Ints

    def take(self, trees: Ints) -> Shape:
        """Only the trees with these indices (in increasing order), with new indices."""
        number = np.full(len(self.sizes), -1)
        number[trees] = np.arange(len(trees))
        levels = []
        for level in self.levels:
            kept = number[level.tree] >= 0
            if kept.any():
                levels.append(_Level(number[level.tree[kept]], level.arity[kept]))
        return Shape(levels, self.sizes[trees])


def grow(trees: int, max_length: int, max_depth: int, max_args: int, rng: Stream) -> Shape:
    """Draw `trees` random trees and return those with fewer than `max_length` tokens."""
    sizes = np.zeros(trees, dtype=np.int64)
    too_large = np.zeros(trees, dtype=bool)
    tree = np.arange(trees)
    levels = []
    for depth in range(1, max_depth + 1):
        arity = np.zeros(len(tree), dtype=np.int64)
        if depth < max_depth:
            share = rng.uniform(len(tree)) / OPERATOR_SHARE
            # One draw decides both: a share below 1 is an operator, and its value gives the number of children.
            arity = np.where(share < 1, 2 + (share * (max_args - 1)).astype(np.int64), 0)
        levels.append(_Level(tree, arity))
        sizes += np.bincount(tree, weights=1 + (arity > 0), minlength=trees).astype(np.int64)
        children = np.repeat(tree, arity)
        # Every child adds at least one token.
        too_large |= sizes + np.bincount(children, minlength=trees) >= max_length
        alive = ~too_large[tree]
        tree = np.repeat(tree[alive], arity[alive])
        if not len(tree):
            break
    return Shape(levels, sizes).take(np.flatnonzero(~too_large))


def fill(shape: Shape, width: int, pad_id: int, rng: Stream) -> tuple[Ints, Ints]:
    """Draw digits and operators; return tokens (n, width) in prefix form, ids as in `listops`, and values (n,)."""
    tokens = np.full((len(shape.sizes), width), pad_id, dtype=np.int64)
    contents = [
        np.where(
            level.arity > 0,
            rng.integers(NUM_OPERATORS, len(level.arity)),
            rng.integers(NUM_DIGITS, len(level.arity)),
        )
        for level in shape.levels
    ]
    below_sizes = below_values = np.zeros(0, dtype=np.int64)
    sizes: list[Ints] = []
    for level, content in zip(reversed(shape.levels), reversed(contents), strict=True):
        inner = level.arity > 0
        size, value = np.ones(len(content), dtype=np.int64), content.copy()
        if inner.any():
            first = _first_child(level.arity)[inner]
            size[inner] = 2 + np.add.reduceat(below_sizes, first)
            value[inner] = _apply(content[inner], below_values, first, level.arity[inner])
        sizes.append(size)
        below_sizes, below_values = size, value
    _write(tokens, shape.levels, contents, sizes[::-1])
    return tokens, below_values


def _first_child(arity: Ints) -> Ints:
    return np.cumsum(arity) - arity


def _apply(operators: Ints, values: Ints, first: Ints, arity: Ints) -> Ints:
    """(nodes,) MIN, MAX, MED (rounded down) or sum modulo 10 of the values of each node's children."""
    places = np.arange(arity.max())
    children = values[np.minimum(first[:, None] + places, len(values) - 1)]
    ordered = np.sort(np.where(places < arity[:, None], children, NUM_DIGITS), axis=1)
    nodes = np.arange(len(arity))
    median = (ordered[nodes, (arity - 1) // 2] + ordered[nodes, arity // 2]) // 2
    total = np.add.reduceat(values, first) % NUM_DIGITS
    return np.choose(operators, [ordered[:, 0], ordered[nodes, arity - 1], median, total])


def _write(tokens: Ints, levels: list[_Level], contents: list[Ints], sizes: list[Ints]) -> None:
    """Write every node into `tokens` (n, width): a child follows its parent and its earlier siblings' subtrees."""
    place = np.zeros(len(tokens), dtype=np.int64)
    for depth, (level, content, size) in enumerate(zip(levels, contents, sizes, strict=True)):
        inner = level.arity > 0
        tokens[level.tree, place] = np.where(inner, NUM_DIGITS + content, content)
        tokens[level.tree[inner], (place + size - 1)[inner]] = NUM_DIGITS + NUM_OPERATORS
        if inner.any():
            below = sizes[depth + 1]
            before = np.cumsum(below) - below
            first = before[_first_child(level.arity)[inner]]
            place = np.repeat(place[inner] + 1 - first, level.arity[inner]) + before


@dataclass(frozen=True)
class TreeSizes:
    """The probability of each token count below the bound, and the number of trees that have it."""

    probability: NDArray[np.float64]
    count: NDArray[np.float64]  # inf where the number overflows: it is compared with small numbers only

    @staticmethod
    def of(max_length: int, max_depth: int, max_args: int) -> TreeSizes:
        probability = _sizes(max_length, max_depth, max_args, 1.0, 1 - OPERATOR_SHARE, OPERATOR_SHARE / (max_args - 1))
        count = _sizes(max_length, max_depth, max_args, NUM_DIGITS, NUM_DIGITS, NUM_OPERATORS)
        return TreeSizes(probability, count)


def _sizes(
    bound: int, max_depth: int, max_args: int, forced_leaf: float, leaf: float, node: float
) -> NDArray[np.float64]:
    """(bound,) the weight of each token count, from the leaves up: an operator convolves those of its children."""
    size = np.zeros(bound)
    size[1] = forced_leaf
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(max_depth - 1):
            children, total = size, np.zeros(bound)
            for _ in range(2, max_args + 1):
                children = np.nan_to_num(np.convolve(children, size)[:bound], nan=0.0, posinf=np.inf)
                total += children
            size = np.zeros(bound)
            size[2:] = node * total[: bound - 2]
            size[1] = leaf
    return size
