"""Text: the next token at every position of a corpus.

    task = get_task("text", corpus="notes.txt", length=256)

    tokens    d e f   g e t _   t a s k        a row: `length` tokens of the stream of a split
    labels    e f   g e t _ t   a s k (        the token after each, the last one's too

Documents follow each other, a separator between them, and are cut into rows without overlap: each token is predicted
once an epoch. What is left at the end of a split, less than a row, is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semfocus.errors import DataError, check_int
from semfocus.tasks.base import MAX_LENGTH
from semfocus.tasks.batch import NO_TARGET, SPLITS, Split, next_tokens
from semfocus.tasks.corpora.task import SAMPLE, CorpusTask
from semfocus.tasks.registry import register_task
from semfocus.tasks.rows import typed

_SHOWN = 12  # tokens of a label


@register_task
@dataclass(frozen=True, kw_only=True)
class Text(CorpusTask):
    """The next token at every position of a corpus; of its options see `CorpusTask`."""

    name = "text"
    summary = "which token comes next in a text?"
    objective = "next_token"
    language_size = "tiny"

    length: int = 256

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", check_int("length", self.length, at_least=2, at_most=MAX_LENGTH))
        super().__post_init__()

    @property
    def symbols(self) -> tuple[str, ...]:
        return self.codec.symbols

    @property
    def num_classes(self) -> int:
        return self.vocab_size

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.symbols

    @property
    def seq_len(self) -> int:
        return self.length

    def _decisive(self) -> dict[str, Any]:
        return {"length": self.length, **super()._decisive()}

    def size(self, split: Split) -> int:
        """The rows of a split: (tokens - 1) // length, since each row also needs the token after it."""
        tokens = len(self.streams.tokens[split])
        rows = max(0, tokens - 1) // self.length
        if rows or (split == "test" and not self.test_share):
            return rows
        fewest = min(len(self.streams.tokens[own]) for own in SPLITS if own != "test" or self.test_share)
        longest = f"choose length <= {fewest - 1}, as in {typed('length', fewest - 1)}, " if fewest > 2 else ""
        raise DataError(
            f"corpus {self.source.title}: the {tokens} tokens of the split {split!r} are fewer than a row and one more "
            f"(length = {self.length}); {longest}add text, or change heldout_share or test_share"
        )

    def rows(self, split: Split) -> tuple[NDArray[Any], NDArray[Any]]:
        """Tokens and labels (N, L) of all rows of a split in their order, as views of the mapped stream."""
        stream, used = self.streams.tokens[split], self.size(split) * self.length
        return stream[:used].reshape(-1, self.length), stream[1 : used + 1].reshape(-1, self.length)

    def starts_of(self, split: Split, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return rows * self.length

    def label_rows(self, tokens: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """The next token within a row; what follows the last one is known of rows of the corpus alone."""
        return next_tokens(tokens, lengths)

    @property
    def bytes_per_token(self) -> dict[Split, float]:
        """How many bytes of text a token stands for, by split; separators are tokens without a byte."""
        lengths = {split: len(self.streams.tokens[split]) for split in SPLITS}
        return {split: self.streams.text_bytes[split] / count for split, count in lengths.items() if count}

    def bits_per_byte(self, loss: float, split: Split = "heldout") -> float:
        """A loss (nats a token) as bits a byte of text, which compares between tokenisers."""
        return loss / math.log(2) / self.bytes_per_token[split]

    @property
    def facts(self) -> dict[str, Any]:
        return {**super().facts, "bytes_per_token": self.bytes_per_token}

    def _successions(self, split: Split) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        ids = self.streams.tokens[split][:SAMPLE].astype(np.int64)
        return ids[:-1], ids[1:]

    def render_label(self, label: int | Sequence[int]) -> str:
        """The last of the labels: the others stand in the row itself."""
        ids = [label] if isinstance(label, int) else [i for i in label if i != NO_TARGET]
        return ("..." if len(ids) > _SHOWN else "") + self.render(ids[-_SHOWN:])
