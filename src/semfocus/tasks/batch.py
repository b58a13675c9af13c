"""A batch of labelled sequences, as numpy arrays and as torch tensors, and the labels of next-token prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

NO_TARGET = -100  # the label of a position where nothing is predicted; torch's default for `ignore_index`


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
