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
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from semfocus.errors import DataError, UsageError, check_int, printable
from semfocus.randomness import Stream
from semfocus.tasks.base import MAX_LENGTH
from semfocus.tasks.batch import NO_TARGET, SPLITS, DrawRequest, Rows, Split, next_tokens
from semfocus.tasks.corpora.codecs import Bytes, Codec
from semfocus.tasks.corpora.streams import Streams, open_streams
from semfocus.tasks.corpora.task import CorpusTask
from semfocus.tasks.registry import register_task
from semfocus.tasks.rows import typed

if TYPE_CHECKING:
    import torch

_SAMPLE = 2**20  # tokens of which baselines are measured
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

    @cached_property
    def streams(self) -> Streams:
        """The tokens of each split, mapped from the disk."""
        return open_streams(self.source, self.tokenizer, self.shares)

    @cached_property
    def codec(self) -> Codec:
        return Bytes() if self.tokenizer == Bytes.name else self.streams.codec

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

    @property
    def digest(self) -> str:
        return self.streams.digest

    @property
    def tokenizer_digest(self) -> str:
        return self.codec.digest

    def _decisive(self) -> dict[str, Any]:
        return {"length": self.length, **super()._decisive()}

    def size(self, split: Split) -> int:
        """The rows of a split: (tokens - 1) // length, since each row also needs the token after it."""
        tokens = len(self.streams.tokens[split])
        rows = max(0, tokens - 1) // self.length
        if rows or (split == "test" and not self.test_share):
            return rows
        longest = f"choose length <= {tokens - 1}, as in {typed('length', tokens - 1)}, " if tokens > 2 else ""
        raise DataError(
            f"corpus {self.source.title}: the {tokens} tokens of the split {split!r} are fewer than a row and one more "
            f"(length = {self.length}); {longest}add text, or change heldout_share or test_share"
        )

    def rows(self, split: Split) -> tuple[NDArray[Any], NDArray[Any]]:
        """Tokens and labels (N, L) of all rows of a split in their order, as views of the mapped stream."""
        stream, used = self.streams.tokens[split], self.size(split) * self.length
        return stream[:used].reshape(-1, self.length), stream[1 : used + 1].reshape(-1, self.length)

    def draw(self, request: DrawRequest, rng: Stream) -> Rows:
        count = self._check_number(request.n, request.split)
        chosen = rng.permutation(count)[: request.n]
        tokens, labels = (part[chosen].astype(np.int64) for part in self.rows(request.split))
        return Rows(tokens, labels, np.full(request.n, self.length, dtype=np.int64))

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

    @cached_property
    def _baselines(self) -> dict[str, float]:
        train, heldout = (np.asarray(self.streams.tokens[split][:_SAMPLE], np.int64) for split in ("train", "heldout"))
        majority = np.bincount(train).argmax()
        # The commonest successor of each token: of pairs in the order of their counts, the last of each first token.
        pairs, counts = np.unique(train[:-1] * self.vocab_size + train[1:], return_counts=True)
        ordered = pairs[np.argsort(counts, kind="stable")]
        successor = np.full(self.vocab_size, majority)
        successor[ordered // self.vocab_size] = ordered % self.vocab_size
        right = heldout[1:] == successor[heldout[:-1]]
        shares = {"majority": float((heldout == majority).mean()), "shortcut": float(right.mean())}
        return {kind: round(share, 4) for kind, share in shares.items()}

    @property
    def baselines(self) -> dict[str, float]:
        """Held-out accuracy of the commonest token, and of the commonest successor of each token (`shortcut`)."""
        return {"chance": 1 / self.vocab_size, **self._baselines}

    @cached_property
    def _facts(self) -> dict[str, Any]:
        streams = self.streams
        rows = {split: self.size(split) for split in SPLITS}
        return {
            "corpus": printable(self.source.title),
            "rows": rows,
            "documents": dict(streams.documents),
            "text_bytes": dict(streams.text_bytes),
            "bytes_per_token": dict(self.bytes_per_token),
            "duplicates": streams.duplicates,
            "tokenizer": self.tokenizer,
            "vocab_size": self.vocab_size,
            "seq_len": self.length,
            "baselines": self.baselines,
        }

    @property
    def facts(self) -> dict[str, Any]:
        return dict(self._facts)

    def decode(self, ids: torch.Tensor | Sequence[int]) -> str:
        """The text of these ids, such as a model writes them: padding left out, a separator ends a line."""
        row = np.asarray(ids).astype(np.int64).reshape(-1)
        if ((row < 0) | (row > self.vocab_size)).any():
            raise UsageError(f"ids of text are 0 .. {self.vocab_size - 1}, not {row.tolist()[:20]}")
        return self.codec.decode(row[row < self.vocab_size].tolist())

    def render(self, row: torch.Tensor | Sequence[int], length: int | None = None) -> str:
        r"""A row on one line: ends of lines, control characters and what is no character stand as escapes."""
        ids = np.asarray(row)
        text = printable(self.decode(ids if length is None else ids[:length]))
        return text.replace("\n", "\\n")

    def render_label(self, label: int | Sequence[int]) -> str:
        """The last of the labels: the others stand in the row itself."""
        ids = [label] if isinstance(label, int) else [i for i in label if i != NO_TARGET]
        return ("..." if len(ids) > _SHOWN else "") + self.render(ids[-_SHOWN:])

    def parse(self, text: str) -> torch.Tensor:
        """The ids of a text, as of a prompt; the inverse of `decode`."""
        import torch

        data = text.encode(errors="surrogatepass")
        if b"\0" in data:
            raise UsageError("a text holds no NUL character; leave it out")
        pieces = [np.asarray(piece, dtype=np.int64) for piece in self.codec.encode(data)]
        return torch.from_numpy(np.concatenate([np.zeros(0, dtype=np.int64), *pieces]))
