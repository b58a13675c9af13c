"""Stack manipulation: what lies on top after the actions?  `1 POP POP PUSH0 -> 0`, `1 POP POP POP -> 2` (empty)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semfocus.errors import UsageError
from semfocus.randomness import Stream, stream
from semfocus.tasks.base import LengthTask, within
from semfocus.tasks.registry import register_task

POP, PUSH = 2, 3  # PUSH + bit
EMPTY = 2


@register_task
@dataclass(frozen=True, kw_only=True)
class StackManipulation(LengthTask):
    """s bits (the stack, bottom first), s uniform on 1 .. L-1, then L - s uniform actions; the class is the final top.

        0 1 1 | POP PUSH0 POP      0 1 1 -> 0 1 -> 0 1 0 -> 0 1: class 1

    POP on an empty stack does nothing; class 2 is an empty stack (0.03 % of rows of length 40).
    """

    name = "stack_manipulation"
    summary = "what lies on top of a stack of bits after some POP, PUSH0, PUSH1?"
    symbols = ("0", "1", "POP", "PUSH0", "PUSH1")
    num_classes = 3
    published_baselines = {"majority": 0.5, "shortcut": 0.834}

    shuffle: bool = False  # one fixed order of positions for all rows: labels stay, neighbours do not

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.shuffle, bool):
            raise UsageError(f"shuffle = {self.shuffle!r} must be true or false")

    @property
    def baselines(self) -> dict[str, float]:
        # What a shortcut reads of a row stands elsewhere in a shuffled one, and is there all the same.
        return replace(self, shuffle=False).baselines if self.shuffle else super().baselines

    def fingerprint(self) -> dict[str, Any]:
        """As before there was a choice, where rows are not shuffled: runs keep their ids."""
        whole = super().fingerprint()
        options = {name: value for name, value in whole["options"].items() if name != "shuffle" or value}
        return {**whole, "options": options}

    def generate(self, lengths: NDArray[np.int64], rng: Stream) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        n = len(lengths)
        content = np.where(lengths > 1, 1 + rng.integers(np.maximum(lengths - 1, 1), n), 1)
        bits = rng.integers(2, (n, self.seq_len))
        actions = POP + rng.integers(3, (n, self.seq_len))
        tokens = np.where(np.arange(self.seq_len) < content[:, None], bits, actions)
        labels = _run_stack(tokens, lengths)
        return (np.take_along_axis(tokens, _order(lengths, self.seq_len), axis=1) if self.shuffle else tokens), labels

    def label_rows(self, tokens: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        if self.shuffle:
            shuffled, tokens = tokens, np.empty_like(tokens)
            np.put_along_axis(tokens, _order(lengths, tokens.shape[1]), shuffled, axis=1)
        # From the right, the top is the first push that no later POP has used up.
        labels = np.full(len(tokens), EMPTY)
        unused_pops = np.zeros(len(tokens), dtype=np.int64)
        undecided = np.ones(len(tokens), dtype=bool)
        for j in reversed(range(tokens.shape[1])):
            token = tokens[:, j]
            active = undecided & (j < lengths)
            pops, pushes = active & (token == POP), active & (token != POP)
            decided = pushes & (unused_pops == 0)
            labels[decided] = np.where(token >= PUSH, token - PUSH, token)[decided]
            unused_pops += pops
            unused_pops -= pushes & ~decided
            undecided &= ~decided
        return labels


def _order(lengths: NDArray[np.int64], seq_len: int) -> NDArray[np.int64]:
    """(n, L) the position that each place of a shuffled row is filled from; the same for all rows of a length.

    A shorter row has the order of a longer one without the positions that it lacks; padding stays behind the row.
    """
    ranks = np.argsort(stream(0, "tasks/stack_manipulation/shuffle").permutation(seq_len))
    return np.argsort(np.where(within(lengths, seq_len), ranks, seq_len), axis=1, kind="stable")


def _run_stack(tokens: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The top of each row's stack after all its tokens, by pushing and popping them in order."""
    rows = np.arange(len(tokens))
    stack = np.full((len(tokens), tokens.shape[1] + 1), EMPTY)  # column 0 is the floor
    height = np.zeros(len(tokens), dtype=np.int64)
    for token, inside in zip(tokens.T, within(lengths, tokens.shape[1]).T, strict=True):
        is_pop = token == POP
        height += np.where(inside, np.where(is_pop, -1, 1), 0)
        np.maximum(height, 0, out=height)
        pushed = inside & ~is_pop
        stack[rows[pushed], height[pushed]] = np.where(token >= PUSH, token - PUSH, token)[pushed]
    return stack[rows, height]
