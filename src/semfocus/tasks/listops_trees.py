"""How ListOps trees are drawn: shapes first, whole levels of many trees at once, then digits and operators.

A node at depth < max_depth is an operator with probability 1/4, with 2 .. max_args children, else a digit; at
max_depth it is a digit. A tree is kept if its token count (a digit 1, an operator 2 + its children's) is below
the bound: growing stops as soon as it cannot be, which does not change the distribution of what is kept.
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
    """The nodes of one depth, siblings side by side, in the order of their parents."""

    tree: Ints
    arity: Ints  # 0 for a digit


@dataclass(frozen=True)
class Shape:
    """Trees without content: their levels, and the token count of each."""

    levels: list[_Level]
    sizes: Ints

    def take(self, trees: Ints) -> Shape:
        """Only these trees (given in increasing order), numbered anew."""
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
            # One draw decides both: below 1 it is an operator, and how far below says how many children.
            arity = np.where(share < 1, 2 + (share * (max_args - 1)).astype(np.int64), 0)
        levels.append(_Level(tree, arity))
        sizes += np.bincount(tree, weights=1 + (arity > 0), minlength=trees).astype(np.int64)
        children = np.repeat(tree, arity)
        # Every child brings at least one token more.
        too_large |= sizes + np.bincount(children, minlength=trees) >= max_length
        alive = ~too_large[tree]
        tree = np.repeat(tree[alive], arity[alive])
        if not len(tree):
            break
    return Shape(levels, sizes).take(np.flatnonzero(~too_large))


def fill(shape: Shape, width: int, pad_id: int, rng: Stream) -> tuple[Ints, Ints]:
    """Draw digits and operators; the rows in prefix form (n, width), ids as in `listops`, and their values."""
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
    """MIN, MAX, MED (rounded down) or sum modulo 10 over each node's children."""
    places = np.arange(arity.max())
    children = values[np.minimum(first[:, None] + places, len(values) - 1)]
    ordered = np.sort(np.where(places < arity[:, None], children, NUM_DIGITS), axis=1)
    nodes = np.arange(len(arity))
    median = (ordered[nodes, (arity - 1) // 2] + ordered[nodes, arity // 2]) // 2
    total = np.add.reduceat(values, first) % NUM_DIGITS
    return np.choose(operators, [ordered[:, 0], ordered[nodes, arity - 1], median, total])


def _write(tokens: Ints, levels: list[_Level], contents: list[Ints], sizes: list[Ints]) -> None:
    """Put every node at its place: a child stands after its parent and its elder siblings' subtrees."""
    place = np.zeros(len(tokens), dtype=np.int64)
    for depth, (level, content, size) in enumerate(zip(levels, contents, sizes, strict=True)):
        inner = level.arity > 0
        tokens[level.tree, place] = np.where(inner, NUM_DIGITS + content, content)
        tokens[level.tree[inner], (place + size - 1)[inner]] = NUM_DIGITS + NUM_OPERATORS
        if inner.any():
            below = sizes[depth + 1]
            before = np.cumsum(below) - below
            eldest = before[_first_child(level.arity)[inner]]
            place = np.repeat(place[inner] + 1 - eldest, level.arity[inner]) + before


@dataclass(frozen=True)
class TreeSizes:
    """For each token count below the bound: how probable it is, and how many trees have it."""

    probability: NDArray[np.float64]
    count: NDArray[np.float64]  # may overflow to inf, which is as good as any large number here

    @staticmethod
    def of(max_length: int, max_depth: int, max_args: int) -> TreeSizes:
        probability = _sizes(max_length, max_depth, max_args, 1.0, 1 - OPERATOR_SHARE, OPERATOR_SHARE / (max_args - 1))
        count = _sizes(max_length, max_depth, max_args, NUM_DIGITS, NUM_DIGITS, NUM_OPERATORS)
        return TreeSizes(probability, count)


def _sizes(
    bound: int, max_depth: int, max_args: int, forced_leaf: float, leaf: float, node: float
) -> NDArray[np.float64]:
    """Weights of the token counts 0 .. bound-1, from the leaves up: a node's is the convolution of its children's."""
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
