"""A request for labelled sequences, the batch that answers it (in numpy, in torch, unread), and next-token labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from semfocus.errors import UsageError, check_int
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", check_int("n", self.n, at_least=0))
        object.__setattr__(self, "seed", check_int("seed", self.seed))
        if self.split not in SPLITS:
            raise UsageError(f"split = {self.split!r} is not one of {', '.join(SPLITS)}")
        if self.per not in ("row", "batch"):
            raise UsageError(f"per = {self.per!r} is not one of row, batch")

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


@dataclass(frozen=True, eq=False)
class Windows:
    """Examples that lie in a stream of tokens, such as a map of a file, and are read when they are asked for.

    length 3    ... a b c d ...    tokens a b c, and the labels b c d, or d alone
    """

    stream: NDArray[Any]  # (T,) of any integer type
    starts: NDArray[np.int64]  # (n,) where each begins
    length: int
    predicts_positions: bool

    def __len__(self) -> int:
        return len(self.starts)

    def between(self, first: int, last: int | None) -> Windows:
        """The examples `first` .. `last` - 1."""
        return replace(self, starts=self.starts[first:last])

    def rows(self, chosen: NDArray[np.int64] | slice = slice(None)) -> Rows:
        """The chosen examples, all of them by default."""
        starts, width = self.starts[chosen], self.length + 1
        # Of no window there may be a stream too short for one.
        every = sliding_window_view(self.stream, width) if len(starts) else np.zeros((0, width), self.stream.dtype)
        windows = every[starts]
        labels = windows[:, 1:] if self.predicts_positions else windows[:, -1]
        tokens, labels = (part.astype(np.int64) for part in (windows[:, :-1], labels))
        return Rows(tokens, labels, np.full(len(starts), self.length, dtype=np.int64))


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
