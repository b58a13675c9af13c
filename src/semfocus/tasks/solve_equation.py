"""Solve equation: which digit is x?  `(x - 1) = 4 -> 0`, `(-3 + (x - 2)) = 3 -> 3`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from semfocus.errors import UsageError
from semfocus.randomness import Stream
from semfocus.tasks.base import LengthTask
from semfocus.tasks.brackets import MODULUS, Alphabet, draw_expressions, evaluate, render_expression
from semfocus.tasks.registry import register_task

if TYPE_CHECKING:
    import torch

ALPHABET = Alphabet(operators=(5, 6), opening=7, closing=8)
UNKNOWN, EQUALS = 9, 10


@register_task
@dataclass(frozen=True, kw_only=True)
class SolveEquation(LengthTask):
    """An expression over + - with one digit replaced by x, `=` and its value modulo 5; the class is the digit.

    A position is drawn uniformly and moved right (round the end) to the first digit, which becomes x: a digit
    after a long run of other symbols is hidden more often than its neighbours.
    """

    name = "solve_equation"
    summary = "which digit is x in a bracketed equation over + - modulo 5?"
    symbols = ("0", "1", "2", "3", "4", "+", "-", "(", ")", "x", "=")
    num_classes = MODULUS
    shortest = 3
    published_baselines = {"majority": 0.2, "shortcut": 0.2}

    def generate(self, lengths: NDArray[np.int64], rng: Stream) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        rows, sizes = np.arange(len(lengths)), lengths - 2
        tokens, values = draw_expressions(sizes, self.seq_len, ALPHABET, rng)
        place = rng.integers(sizes, len(sizes))
        while (blocked := tokens[rows, place] >= MODULUS).any():
            place = np.where(blocked, (place + 1) % sizes, place)
        labels = tokens[rows, place]
        tokens[rows, place] = UNKNOWN
        tokens[rows, sizes] = EQUALS
        tokens[rows, sizes + 1] = values
        return tokens, labels

    def label_rows(self, tokens: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        rows = zip(tokens.tolist(), lengths.tolist(), strict=True)
        return np.array([_solve(row[:length]) for row, length in rows], dtype=np.int64)

    def render(self, row: torch.Tensor | Sequence[int], length: int | None = None) -> str:
        return render_expression(super().render(row, length))


def _solve(tokens: Sequence[int]) -> int:
    """x from expr = value, with expr read as constant + coefficient * x."""
    if len(tokens) < 3 or tokens[-2] != EQUALS or tokens[-1] >= MODULUS or tokens[:-2].count(UNKNOWN) != 1:
        raise UsageError("not an equation: solve_equation rows are an expression with one x, '=' and a digit")

    def leaf(token: int) -> tuple[int, int]:
        if token == EQUALS:
            raise UsageError("not an equation: '=' (id 10) stands inside the expression")
        return (0, 1) if token == UNKNOWN else (token, 0)

    def combine(operator: int, left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
        sign = 1 if operator == 0 else -1
        return left[0] + sign * right[0], left[1] + sign * right[1]

    constant, coefficient = evaluate(tokens[:-2], ALPHABET, leaf, lambda pair: (-pair[0], -pair[1]), combine)
    return coefficient * (tokens[-1] - constant) % MODULUS
