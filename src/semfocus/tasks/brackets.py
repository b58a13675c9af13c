"""Fully bracketed expressions modulo 5: how they are drawn, and, apart from that, how they are read.

E(1) = d     E(2) = -d     E(3) = (d)     E(4) = (-d)     E(L) = (E(l) op E(L-3-l)), l uniform on 1 .. L-4

(1 + (-3 * -3))        every binary operator has its brackets, so that there is no precedence to know
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
    """Which ids stand for brackets and operators; ids 0 .. 4 are the digits. Operators come in the order + - *."""

    operators: tuple[int, ...]
    opening: int
    closing: int

    @property
    def minus(self) -> int:
        return self.operators[1]


class _Level(NamedTuple):
    is_atom: NDArray[np.bool_]
    values: Ints  # of the atoms; of the rest once their children are known
    operators: Ints  # of the rest: 0, 1, 2 for + - *


def draw_expressions(lengths: Ints, width: int, alphabet: Alphabet, rng: Stream) -> tuple[Ints, Ints]:
    """Expressions of these lengths as tokens (n, width), and their values modulo 5.

    All rows grow together, one level of brackets at a time: an iteration splits every open segment once.
    """
    tokens = np.zeros((len(lengths), width), dtype=np.int64)
    row, start, size = np.arange(len(lengths)), np.zeros(len(lengths), dtype=np.int64), lengths
    levels: list[_Level] = []
    while len(size):
        is_atom = size <= 4
        values = np.zeros(len(size), dtype=np.int64)
        values[is_atom] = _write_atoms(tokens, row[is_atom], start[is_atom], size[is_atom], alphabet, rng)
        row, start, size = row[~is_atom], start[~is_atom], size[~is_atom]
        left = 1 + rng.integers(size - 4, len(size))
        operators = rng.integers(len(alphabet.operators), len(size))
        tokens[row, start] = alphabet.opening
        tokens[row, start + 1 + left] = np.asarray(alphabet.operators)[operators]
        tokens[row, start + size - 1] = alphabet.closing
        levels.append(_Level(is_atom, values, operators))
        row = np.repeat(row, 2)
        start = np.stack([start + 1, start + 2 + left], axis=1).ravel()
        size = np.stack([left, size - 3 - left], axis=1).ravel()
    return tokens, _fold(levels)


def _write_atoms(tokens: Ints, row: Ints, start: Ints, size: Ints, alphabet: Alphabet, rng: Stream) -> Ints:
    digits = rng.integers(MODULUS, len(size))
    bracketed, negative = size >= 3, size % 2 == 0
    tokens[row[bracketed], start[bracketed]] = alphabet.opening
    tokens[row[bracketed], (start + size - 1)[bracketed]] = alphabet.closing
    place = start + bracketed
    tokens[row[negative], place[negative]] = alphabet.minus
    tokens[row, place + negative] = digits
    return np.where(negative, -digits, digits) % MODULUS


def _fold(levels: Sequence[_Level]) -> Ints:
    """The values of the first level, from the leaves up: the children of a level are the next one, two by two."""
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
    """Read one expression by shifting and reducing; `atom` turns a leaf's id into a value.

    Works for any nesting depth, and refuses what is not a bracketed expression.
    """
    frames: list[list] = [[]]  # one per open bracket: [value], [value, operator], or [value, operator, value]
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
    """Symbols with a space around each binary operator: `((-3 + 4) * 2)`."""
    pieces: list[str] = []
    for symbol in symbols:
        follows_value = bool(pieces) and (pieces[-1].isalnum() or pieces[-1] == ")")
        is_binary = symbol in "+-*=" and follows_value
        pieces.append(f" {symbol} " if is_binary else symbol)
    return "".join(pieces)
