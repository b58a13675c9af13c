"""ListOps: the value of nested MIN, MAX, MED and SM operators over digits, e.g. `[MAX 2 [MIN 7 4 ] 3 ] -> 4`.

The distribution is that of Long Range Arena's generator (Tay et al. 2021); `listops_trees` draws the trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from semfocus.errors import UsageError, check_int
from semfocus.randomness import Stream, stream
from semfocus.tasks.base import Task
from semfocus.tasks.batch import SPLITS, DrawRequest, Rows, Split
from semfocus.tasks.listops_trees import Shape, TreeSizes, fill, grow
from semfocus.tasks.registry import register_task

OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
FIRST_OPERATOR, CLOSE = 10, 14
SHARED_SEED = 250614095  # all runs share one data set, as in the paper
MAX_TRIES = 1e6  # random trees drawn for one kept example: about a second
TREES_AT_ONCE = 16384
MAX_REDRAWS = 64  # (2/3)^64: a tree with examples in the split is dropped with probability 10^-11
LIMITS = (("min_length", 0, 4095), ("max_length", 2, 4096), ("max_depth", 1, 64), ("max_args", 2, 64))


@register_task
@dataclass(frozen=True, kw_only=True)
class ListOps(Task):
    """Trees of operators over digits in prefix form, min_length < tokens < max_length; the class is the value.

    SM is the sum modulo 10, MED the median rounded down. No example occurs twice in a split, nor in two splits of one
    seed: a hash of its tokens decides its split.
    """

    name = "listops"
    summary = "what does a nest of MIN, MAX, MED and SM (sum modulo 10) over digits evaluate to?"
    symbols = (*"0123456789", *OPERATORS, "]")
    num_classes = 10
    published_baselines = {"majority": 0.165, "shortcut": 0.36}
    cached_by_default = True

    min_length: int = 500
    max_length: int = 600
    max_depth: int = 10
    max_args: int = 10

    def __post_init__(self) -> None:
        for name, least, most in LIMITS:
            object.__setattr__(self, name, check_int(name, getattr(self, name), at_least=least, at_most=most))
        low, high = self.min_length + 1, self.max_length - 1
        if low > high or not self._sizes.probability[low : high + 1].any():
            raise UsageError(
                f"no ListOps tree has min_length < tokens < max_length for min_length = {self.min_length}, "
                f"max_length = {self.max_length}, max_depth = {self.max_depth}, max_args = {self.max_args}; "
                f"widen the bounds or raise max_depth or max_args"
            )
        self._check_effort(self._sizes.probability[low : high + 1].sum(), f"{low} to {high}")

    @property
    def seq_len(self) -> int:
        return self.max_length - 1

    def data_seed(self, run_seed: int) -> int:
        return SHARED_SEED

    @cached_property
    def _sizes(self) -> TreeSizes:
        return TreeSizes.of(self.max_length, self.max_depth, self.max_args)

    def draw(self, request: DrawRequest, rng: Stream) -> Rows:
        n, wanted = request.n, self._wanted_lengths(request, rng)
        self._check_supply(n, wanted)
        # How many examples of each length are still to be drawn; without a range, any length counts.
        open_lengths = np.zeros(self.max_length, dtype=np.int64)
        if wanted is None:
            open_lengths[self.min_length + 1 :] = n
        else:
            np.add.at(open_lengths, wanted, 1)
        split_filter = _SplitFilter(request.seed, request.split, self.seq_len)
        parts: list[Rows] = []
        seen: set[bytes] = set()
        idle = 0
        while len(seen) < n:
            before = len(seen)
            shape = grow(TREES_AT_ONCE, self.max_length, self.max_depth, self.max_args, rng)
            shape = shape.take(np.flatnonzero(open_lengths[shape.sizes] > 0))
            part = _new_rows(split_filter.fill(shape, rng), seen, open_lengths, n)
            if wanted is not None:
                np.subtract.at(open_lengths, part.lengths, 1)
            parts.append(part)
            idle = idle + 1 if len(seen) == before else 0
            if idle * TREES_AT_ONCE > 100 * MAX_TRIES:
                raise self._too_many(n)
            if request.progress is not None:
                request.progress(len(seen), n)
        empty = Rows(np.zeros((0, self.seq_len), np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))
        rows = Rows(*(np.concatenate(columns) for columns in zip(empty, *parts, strict=True)))
        if wanted is None:
            return rows
        # Common lengths are drawn first: put each example where its length is wanted.
        order = np.empty(n, dtype=np.int64)
        order[np.argsort(wanted, kind="stable")] = np.argsort(rows.lengths, kind="stable")
        return Rows(*(column[order] for column in rows))

    def label_rows(self, tokens: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        rows = zip(tokens.tolist(), lengths.tolist(), strict=True)
        return np.array([_value(row[:length]) for row, length in rows], dtype=np.int64)

    def _wanted_lengths(self, request: DrawRequest, rng: Stream) -> NDArray[np.int64] | None:
        if request.lengths is None:
            return None
        low, high = max(request.lengths[0], self.min_length + 1), request.lengths[1]
        legal = low + np.flatnonzero(self._sizes.probability[low : high + 1])
        if not len(legal):
            legal = f"{self.min_length + 1} .. {self.seq_len}"
            raise UsageError(
                f"lengths = {request.lengths}: no tree of {self.name} has such a length; choose among {legal}"
            )
        self._check_effort(self._sizes.probability[legal].min(), f"exactly {legal[-1]}")
        return legal[request.choose(len(legal), rng)]

    def _check_effort(self, probability: float, lengths: str) -> None:
        if probability * MAX_TRIES < 1:
            raise UsageError(
                f"only one random ListOps tree in {1 / probability:.1g} has {lengths} tokens with "
                f"max_depth = {self.max_depth}, max_args = {self.max_args}; widen the bounds"
            )

    def _check_supply(self, n: int, wanted: NDArray[np.int64] | None) -> None:
        """Refuse to draw more distinct examples than exist; a third of all belong to each split."""
        supply = self._sizes.count / len(SPLITS)
        if wanted is None:
            missing = n > 0.5 * supply[self.min_length + 1 :].sum()
        else:
            missing = bool((np.bincount(wanted, minlength=self.max_length) > 0.5 * supply).any())
        if missing:
            raise self._too_many(n)

    def _too_many(self, n: int) -> UsageError:
        return UsageError(
            f"n = {n} rows are too many: too few distinct ListOps trees have such lengths "
            f"(min_length = {self.min_length}, max_length = {self.max_length}); ask for fewer or widen the bounds"
        )


class _SplitFilter:
    """Draws examples of one split. A hash of the tokens, keyed by the seed, assigns a third of all to each split."""

    def __init__(self, seed: int, split: Split, width: int) -> None:
        self._weights = stream(seed, "tasks/listops/partition").words(width) | np.uint64(1)
        self._split = SPLITS.index(split)

    def fill(self, shape: Shape, rng: Stream) -> Rows:
        """Draw digits and operators for these trees, again and again until every example belongs to the split.

        A tree so small that perhaps none of its few examples does is dropped after `MAX_REDRAWS` rounds.
        """
        width = len(self._weights)
        tokens = np.empty((len(shape.sizes), width), dtype=np.int64)
        labels = np.empty(len(shape.sizes), dtype=np.int64)
        pending = np.arange(len(shape.sizes))
        for _ in range(MAX_REDRAWS):
            if not len(pending):
                break
            tokens[pending], labels[pending] = fill(shape.take(pending), width, pad_id=CLOSE + 1, rng=rng)
            pending = pending[~self._contains(tokens[pending])]
        kept = np.setdiff1d(np.arange(len(shape.sizes)), pending)
        return Rows(tokens[kept], labels[kept], shape.sizes[kept])

    def _contains(self, tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
        words = (tokens.astype(np.uint64) + np.uint64(1)) @ self._weights
        return (words >> np.uint64(40)) % np.uint64(len(SPLITS)) == self._split


def _new_rows(part: Rows, seen: set[bytes], open_lengths: NDArray[np.int64], n: int) -> Rows:
    """The examples of `part` that are new and still wanted; they are added to `seen`."""
    room = open_lengths.copy()
    chosen = []
    keys = part.tokens.astype(np.uint8)
    for i, length in enumerate(part.lengths):
        key = keys[i].tobytes()
        if len(seen) < n and room[length] > 0 and key not in seen:
            seen.add(key)
            room[length] -= 1
            chosen.append(i)
    return Rows(*(column[chosen] for column in part))


def _value(tokens: Sequence[int]) -> int:
    """The value of one expression in prefix form, by a stack of open operators."""
    stack: list[tuple[int, list[int]]] = [(-1, [])]
    for place, token in enumerate(tokens):
        if FIRST_OPERATOR <= token < CLOSE:
            stack.append((token - FIRST_OPERATOR, []))
        elif token < FIRST_OPERATOR:
            stack[-1][1].append(token)
        elif len(stack) > 1 and stack[-1][1]:
            operator, arguments = stack.pop()
            stack[-1][1].append(_apply(operator, arguments))
        else:
            raise UsageError(f"not a ListOps row: ']' at position {place} closes nothing")
    if len(stack) != 1 or len(stack[0][1]) != 1:
        raise UsageError(f"not a ListOps row: {len(tokens)} tokens are not one complete expression")
    return stack[0][1][0]


def _apply(operator: int, arguments: list[int]) -> int:
    if operator == 2:
        ordered = sorted(arguments)
        return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) // 2
    return min(arguments) if operator == 0 else max(arguments) if operator == 1 else sum(arguments) % 10
