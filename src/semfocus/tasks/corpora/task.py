"""What tasks over a corpus share: the options that say which text, and how it is split and tokenised."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from semfocus.errors import UsageError, check_int, expanded, printable, unknown
from semfocus.randomness import Stream
from semfocus.tasks.base import Task
from semfocus.tasks.batch import SPLITS, DrawRequest, Rows, Span, Split, Windows
from semfocus.tasks.corpora.codecs import Bytes, Codec, check_name
from semfocus.tasks.corpora.documents import Corpus, Reading, checked_suffixes, open_path
from semfocus.tasks.corpora.named import NAMES, OF_PACKAGES, PYTHON, STANDARD_LIBRARY, open_named
from semfocus.tasks.corpora.sentences import Rule
from semfocus.tasks.corpora.streams import Streams, open_streams
from semfocus.tasks.rows import Shares
from semfocus.tasks.table import SHARED_SEED

if TYPE_CHECKING:
    import torch

MOST_MEGABYTES = 10**5
SAMPLE = 2**20  # tokens of which baselines are measured


@dataclass(frozen=True, kw_only=True)
class CorpusTask(Task):
    """A task over text. Its options alone do not decide the examples: the hash of the text is part of the fingerprint.

    corpus         python, docstrings, sotu, books; or a .txt, .jsonl or .parquet file, or a folder
    tokenizer      bytes, or bpe:4096
    heldout_share  of the documents (of a single text: its end)
    test_share     the same
    packages       of python and docstrings: stdlib, all, or names such as stdlib,torch
    megabytes      of their sources, at most (16 unless given)
    delimiter      the text that ends a document within a .txt file
    text_column    of .jsonl and .parquet
    suffixes       of a folder's files, such as .c,.h
    """

    reads_files = True
    other_spellings = {"tokeniser": "tokenizer"}
    tokenizers: ClassVar[tuple[str, ...]] = ("bytes", "bpe")

    corpus: str = PYTHON
    tokenizer: str = "bytes"
    heldout_share: float = 0.1
    test_share: float = 0.05
    packages: str = STANDARD_LIBRARY
    megabytes: int | None = None
    delimiter: str = ""
    text_column: str | None = None
    suffixes: str = ""

    def __post_init__(self) -> None:
        for name in ("corpus", "packages", "delimiter", "suffixes"):
            if not isinstance(getattr(self, name), str):
                raise UsageError(f"{name} = {getattr(self, name)!r} must be a text")
        if not self.corpus:
            raise UsageError(f"corpus = '' names nothing; known: {', '.join(NAMES)}; or give a file or folder")
        if any(0xD800 <= ord(c) < 0xE000 for c in self.delimiter):
            raise UsageError(f"delimiter = {self.delimiter!a} holds half of a character (a lone surrogate); remove it")
        if self.text_column is not None and not isinstance(self.text_column, str):
            raise UsageError(f"text_column = {self.text_column!r} must be the name of a column")
        shares = self.shares
        object.__setattr__(self, "heldout_share", shares.heldout_share)
        object.__setattr__(self, "test_share", shares.test_share)
        check_name(self.tokenizer, self.tokenizers)
        checked_suffixes(self.suffixes)
        if self.megabytes is not None:
            check_int("megabytes", self.megabytes, at_least=1, at_most=MOST_MEGABYTES)
        if self.corpus not in OF_PACKAGES and (self.packages != STANDARD_LIBRARY or self.megabytes is not None):
            raise UsageError(
                f"packages and megabytes are options of {' and '.join(OF_PACKAGES)}, not of corpus = {self.corpus!r}; "
                "leave them out"
            )
        _ = self.source  # an unknown corpus is refused at once; nothing is read yet

    @property
    def shares(self) -> Shares:
        return Shares(heldout_share=self.heldout_share, test_share=self.test_share)

    @cached_property
    def source(self) -> Corpus:
        """The corpus that the options name, not read yet."""
        if self.corpus in NAMES:
            return open_named(self.corpus, self.packages, self.megabytes)
        path = expanded(self.corpus)
        if not os.path.exists(path) and not path.suffix and len(path.parts) <= 1:
            raise unknown("corpus", self.corpus, NAMES, "; or a .txt, .jsonl or .parquet file, or a folder")
        return open_path(path, Reading(self.shares, self.delimiter, self.text_column, checked_suffixes(self.suffixes)))

    @property
    def sentence_rule(self) -> Rule:
        """What a separator ends: sentences by a rule, or whole documents."""
        return "none"

    @cached_property
    def streams(self) -> Streams:
        """The tokens of each split, mapped from the disk."""
        return open_streams(self.source, self.tokenizer, self.shares, self.sentence_rule)

    @cached_property
    def codec(self) -> Codec:
        return Bytes() if self.tokenizer == Bytes.name else self.streams.codec

    @abstractmethod
    def _successions(self, split: Split) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(m,) the last token that a model sees, and the one that is asked for, of at most `SAMPLE` cases."""

    @abstractmethod
    def starts_of(self, split: Split, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,) where these rows of a split begin in its stream; each needs the token behind it too."""

    def _decisive(self) -> dict[str, Any]:
        """The options that decide the examples beside the text itself."""
        return {name: self.options[name] for name in ("tokenizer", "heldout_share", "test_share")}

    def fingerprint(self) -> dict[str, Any]:
        """It depends on the text, not on where it lies: two copies of a folder are one task."""
        return {
            **super().fingerprint(),
            "options": self._decisive(),
            "sha256": self.streams.digest,
            "tokenizer_sha256": self.codec.digest,
        }

    def data_seed(self, run_seed: int) -> int:
        """One seed for all runs: they share the data, and differ only in initialisation and order."""
        return SHARED_SEED

    def _checked_span(self, lengths: Span) -> Span:
        raise UsageError(f"lengths = {lengths!r}: all rows of {self.name} have {self.seq_len} tokens; leave it out")

    def draw(self, request: DrawRequest, rng: Stream) -> Rows:
        return self._windows(request, rng).rows()

    def windows(self, n: int, *, seed: int, split: Split = "train") -> Windows | None:
        if type(self).draw is not CorpusTask.draw:  # a subclass that draws otherwise
            return None
        request = DrawRequest(n=n, seed=seed, split=split)
        return self._windows(request, self._draws(request))

    def _windows(self, request: DrawRequest, rng: Stream) -> Windows:
        rows = rng.permutation(self._check_number(request.n, request.split))[: request.n]
        starts = self.starts_of(request.split, rows)
        is_next_token = self.objective == "next_token"
        return Windows(np.asarray(self.streams.tokens[request.split]), starts, self.seq_len, is_next_token)

    def _check_number(self, n: int, split: Split) -> int:
        """The number of rows of a split; UsageError where it is below `n`."""
        count = self.size(split) or 0
        if n > count:
            raise UsageError(f"n = {n} is more than the {count} rows of split {split!r} of corpus {self.source.title}")
        return count

    @cached_property
    def _baselines(self) -> dict[str, float]:
        (before, after), (seen, asked) = (self._successions(split) for split in ("train", "heldout"))
        majority = np.bincount(after).argmax()
        # The commonest successor of each token: of pairs in the order of their counts, the last of each first token.
        pairs, counts = np.unique(before * self.vocab_size + after, return_counts=True)
        ordered = pairs[np.argsort(counts, kind="stable")]
        successor = np.full(self.vocab_size, majority)
        successor[ordered // self.vocab_size] = ordered % self.vocab_size
        right = {"majority": asked == majority, "shortcut": asked == successor[seen]}
        return {kind: round(float(each.mean()), 4) for kind, each in right.items()}

    @property
    def baselines(self) -> dict[str, float]:
        """Held-out accuracy of the commonest token, and of the commonest successor of the last one (`shortcut`)."""
        return {"chance": 1 / self.vocab_size, **self._baselines}

    @cached_property
    def _facts(self) -> dict[str, Any]:
        return {
            "corpus": printable(self.source.title),
            "rows": {split: self.size(split) for split in SPLITS},
            "documents": dict(self.streams.documents),
            "text_bytes": dict(self.streams.text_bytes),
            "duplicates": self.streams.duplicates,
            "tokenizer": self.tokenizer,
            "vocab_size": self.vocab_size,
            "seq_len": self.seq_len,
            "baselines": self.baselines,
        }

    @property
    def facts(self) -> dict[str, Any]:
        return dict(self._facts)

    def decode(self, ids: torch.Tensor | Sequence[int]) -> str:
        """The text of these ids, such as a model writes them: padding left out, a separator ends a line."""
        row = np.asarray(ids).astype(np.int64).reshape(-1)
        if ((row < 0) | (row > self.pad_id)).any():
            raise UsageError(f"ids of {self.name} are 0 .. {self.vocab_size - 1}, not {row.tolist()[:20]}")
        return self.codec.decode(row[row < self.pad_id].tolist())

    def render(self, row: torch.Tensor | Sequence[int], length: int | None = None) -> str:
        r"""A row on one line: ends of lines, control characters and what is no character stand as escapes."""
        ids = np.asarray(row)
        text = printable(self.decode((ids if length is None else ids[:length]).tolist()))
        return text.replace("\n", "\\n")

    def parse(self, text: str) -> torch.Tensor:
        """The ids of a text, as of a prompt; the inverse of `decode`."""
        import torch

        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"{text[error.start]!a} at {error.start} is half of a character; remove it") from None
        if b"\0" in data:
            raise UsageError("a text holds no NUL character; leave it out")
        pieces = [np.asarray(piece, dtype=np.int64) for piece in self.codec.encode(data)]
        return torch.from_numpy(np.concatenate([np.zeros(0, dtype=np.int64), *pieces]))
