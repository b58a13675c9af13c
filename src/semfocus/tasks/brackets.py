"""Fully bracketed expressions modulo 5: a generator, and a parser that shares no code with it.

E(1) = d     E(2) = -d     E(3) = (d)     E(4) = (-d)     E(L) = (E(l) op E(L-3-l)), l uniform on 1 .. L-4

(1 + (-3 * -3))        every binary operator has its own brackets, so that no precedence is needed
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from semfocus.errors import UsageError
from semfocus.randomness import Stream

MODULUS = 5
Ints = NDArray[np.int64]
Value = TypeVar("Value")


@dataclass(frozen=True)
class Alphabet:
    """The ids of brackets and operators (in the order + - *); ids 0 .. 4 are the digits."""

    operators: tuple[int, ...]
    opening: int
    closing: int

    @property
    def minus(self) -> int:
        return self.operators[1]


class _Level(NamedTuple):
    """The segments of one nesting depth: atoms (a digit, perhaps with minus and brackets) and binary operations."""

    is_atom: NDArray[np.bool_]
    values: Ints  # of the atoms, 0 for operations
    operators: Ints  # of the operations: 0, 1, 2 for + - *


def draw_expressions(lengths: Ints, width: int, alphabet: Alphabet, rng: Stream) -> tuple[Ints, Ints]:
    """Expressions of these lengths as tokens (n, width), and their values modulo 5.

    All expressions are drawn together, one level of brackets at a time: an iteration splits every open segment once.
    """
    tokens = np.zeros((len(lengths), width), dtype=np.int64)
    example, start, size = np.arange(len(lengths)), np.zeros(len(lengths), dtype=np.int64), lengths
    levels: list[_Level] = []
    while len(size):
        is_atom = size <= 4
        values = np.zeros(len(size), dtype=np.int64)
        values[is_atom] = _write_atoms(tokens, example[is_atom], start[is_atom], size[is_atom], alphabet, rng)
        example, start, size = example[~is_atom], start[~is_atom], size[~is_atom]
        left = 1 + rng.integers(size - 4, len(size))
        operators = rng.integers(len(alphabet.operators), len(size))
        tokens[example, start] = alphabet.opening
        tokens[example, start + 1 + left] = np.asarray(alphabet.operators)[operators]
        tokens[example, start + size - 1] = alphabet.closing
        levels.append(_Level(is_atom, values, operators))
        example = np.repeat(example, 2)
        start = np.stack([start + 1, start + 2 + left], axis=1).ravel()
        size = np.stack([left, size - 3 - left], axis=1).ravel()
    return tokens, _fold(levels)


def _write_atoms(tokens: Ints, example: Ints, start: Ints, size: Ints, alphabet: Alphabet, rng: Stream) -> Ints:
    digits = rng.integers(MODULUS, len(size))
    bracketed, negative = size >= 3, size % 2 == 0
    tokens[example[bracketed], start[bracketed]] = alphabet.opening
    tokens[example[bracketed], (start + size - 1)[bracketed]] = alphabet.closing
    place = start + bracketed
    tokens[example[negative], place[negative]] = alphabet.minus
    tokens[example, place + negative] = digits
    return np.where(negative, -digits, digits) % MODULUS


def _fold(levels: Sequence[_Level]) -> Ints:
    """The values of the first level, from the leaves up: the next level holds the operands of this one in pairs."""
    below = np.zeros(0, dtype=np.int64)
    for level in reversed(levels):
        left, right = below[0::2], below[1::2]
        results = np.choose(level.operators, [left + right, left - right, left * right])
        below = level.values.copy()
        below[~level.is_atom] = results % MODULUS
    return below


def evaluate(
    tokens: Sequence[int],
    alphabet: Alphabet,
    atom: Callable[[int], Value],
    negate: Callable[[Value], Value],
    combine: Callable[[int, Value, Value], Value],
) -> Value:
    """The value of one expression, by a shift-reduce parser without recursion; `atom` turns a leaf's id into a value.

    Raises UsageError where the tokens are not a bracketed expression.
    """
    frames: list[list] = [[]]  # one for each open bracket: [value], [value, operator], or [value, operator, value]
    minus_pending = False
    for place, token in enumerate(tokens):
        frame = frames[-1]
        if token == alphabet.opening and not minus_pending and len(frame) in (0, 2):
            frames.append([])
        elif token == alphabet.minus and not minus_pending and len(frame) in (0, 2):
            minus_pending = True
        elif token in alphabet.operators and len(frame) == 1 and len(frames) > 1:
            frame.append(alphabet.operators.index(token))
        elif token == alphabet.closing and len(frames) > 1 and len(frame) in (1, 3) and not minus_pending:
            value = frame[0] if len(frame) == 1 else combine(frame[1], frame[0], frame[2])
            frames.pop()
            frames[-1].append(value)
        elif token not in (alphabet.opening, alphabet.closing, *alphabet.operators) and len(frame) in (0, 2):
            frame.append(negate(atom(token)) if minus_pending else atom(token))
            minus_pending = False
        else:
            raise UsageError(f"not an expression: the id {token} cannot stand at position {place}")
    if len(frames) != 1 or len(frames[0]) != 1:
        raise UsageError(f"not an expression: {len(tokens)} tokens leave brackets open or nothing to evaluate")
    return frames[0][0]


def render_expression(symbols: Sequence[str]) -> str:
    """The symbols as text, with a space around each binary operator: `((-3 + 4) * 2)`."""
    pieces: list[str] = []
    for symbol in symbols:
        follows_value = bool(pieces) and (pieces[-1].isalnum() or pieces[-1] == ")")
        is_binary = symbol in "+-*=" and follows_value
        pieces.append(f" {symbol} " if is_binary else symbol)
    return "".join(pieces)
