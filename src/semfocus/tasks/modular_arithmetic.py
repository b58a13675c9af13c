"""Modular arithmetic with brackets: what is the value modulo 5?  `(-3 + (-3 * -3)) -> 1`."""

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

ALPHABET = Alphabet(operators=(5, 6, 7), opening=8, closing=9)


@register_task
@dataclass(frozen=True, kw_only=True)
class ModularArithmetic(LengthTask):
    """A random bracketed expression over + - *; the class is its value modulo 5. `x` has an id but never occurs."""

    name = "modular_arithmetic"
    summary = "what is the value of a bracketed expression over + - * modulo 5?"
    symbols = ("0", "1", "2", "3", "4", "+", "-", "*", "(", ")", "x")
    num_classes = MODULUS
    published_baselines = {"majority": 0.292}

    def generate(self, lengths: NDArray[np.int64], rng: Stream) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return draw_expressions(lengths, self.seq_len, ALPHABET, rng)

    def label_rows(self, tokens: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        rows = zip(tokens.tolist(), lengths.tolist(), strict=True)
        return np.array([_value(row[:length]) for row, length in rows], dtype=np.int64)

    def render(self, row: torch.Tensor | Sequence[int], length: int | None = None) -> str:
        return render_expression(super().render(row, length))


def _value(tokens: Sequence[int]) -> int:
    def digit(token: int) -> int:
        if token >= MODULUS:
            raise UsageError("not an expression of modular_arithmetic: it contains 'x' (id 10)")
        return token

    def combine(operator: int, left: int, right: int) -> int:
        if operator == 0:
            return left + right
        return left - right if operator == 1 else left * right

    return evaluate(tokens, ALPHABET, digit, lambda value: -value, combine) % MODULUS
