"""A request for labelled sequences, the batch that answers it (in numpy and in torch), and next-token labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from semfocus.randomness import Stream

if TYPE_CHECKING:
    import torch

Split = Literal["train", "heldout", "test"]
SPLITS: tuple[Split, ...] = ("train", "heldout", "test")
"""The parts into which a task's rows fall. No row is in two."""
Span = tuple[int, int]  # the shortest and the longest length, both included
Per = Literal["row", "batch"]
Progress = Callable[[int, int], None]  # examples drawn, examples requested
NO_TARGET = -100
"""The label of a position where nothing is predicted; torch's default for `ignore_index`."""


@dataclass(frozen=True, kw_only=True)
class DrawRequest:
    """The arguments of `Task.sample`, checked."""

    n: int
    seed: int
    split: Split
    lengths: Span | None = None  # None: the lengths that the task's options give
    per: Per = "row"  # "batch": one length for all examples
    progress: Progress | None = None

    def choose(self, count: int, rng: Stream) -> NDArray[np.int64]:
        """(n,) uniform in 0 .. count-1: one number for each example, or one for all (`per="batch"`)."""
        numbers = rng.integers(count, self.n if self.per == "row" else 1)
        return np.broadcast_to(numbers, (self.n,)).copy()


class Rows(NamedTuple):
    """A batch in numpy: tokens (n, L), labels (n,) or (n, L), lengths (n,), all int64."""

    tokens: NDArray[np.int64]
    labels: NDArray[np.int64]
    lengths: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Batch:
    """A batch in torch: tokens (n, L), labels (n,) or (n, L), lengths (n,), all int64."""

    tokens: torch.Tensor
    labels: torch.Tensor
    lengths: torch.Tensor

    def __len__(self) -> int:
        return self.tokens.shape[0]


def as_batch(rows: Rows) -> Batch:
    """The same batch as torch tensors."""
    import torch

    return Batch(*(torch.from_numpy(np.ascontiguousarray(column)) for column in rows))


def within(lengths: NDArray[np.int64], width: int) -> NDArray[np.bool_]:
    """(n, width): True at positions before the length."""
    return np.arange(width) < lengths[:, None]


def next_tokens(tokens: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """(n, L) the labels of a `next_token` task: token t + 1 at position t, NO_TARGET at the last one and in padding.

    a b c #  ->  b c -100 -100
    """
    labels = np.full_like(tokens, NO_TARGET)
    labels[:, :-1] = np.where(within(lengths - 1, tokens.shape[1] - 1), tokens[:, 1:], NO_TARGET)
    return labels
