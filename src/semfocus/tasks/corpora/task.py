"""What tasks over a corpus share: the options that say which text, and how it is split and tokenised."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from semfocus.errors import UsageError, check_int, unknown
from semfocus.tasks.base import Task
from semfocus.tasks.batch import Span, Split
from semfocus.tasks.corpora import codecs
from semfocus.tasks.corpora.documents import Corpus, Reading, checked_suffixes, open_path
from semfocus.tasks.corpora.named import NAMES, PYTHON, STANDARD_LIBRARY, open_named
from semfocus.tasks.rows import Shares
from semfocus.tasks.table import SHARED_SEED

MOST_MEGABYTES = 10**5


@dataclass(frozen=True, kw_only=True)
class CorpusTask(Task):
    """A task over text. Its options alone do not decide the examples: the hash of the text is part of the fingerprint.

    corpus         python, sotu, books; or a .txt, .jsonl or .parquet file, or a folder
    tokenizer      bytes, or bpe:4096
    heldout_share  of the documents (of a single text: its end)
    test_share     the same
    packages       of corpus python: stdlib, all, or names such as stdlib,torch
    megabytes      of corpus python, at most (16 unless given)
    delimiter      the text that ends a document within a .txt file
    text_column    of .jsonl and .parquet
    suffixes       of a folder's files, such as .c,.h
    """

    reads_files = True
    other_spellings: ClassVar[dict[str, str]] = {"tokeniser": "tokenizer"}

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
        if self.text_column is not None and not isinstance(self.text_column, str):
            raise UsageError(f"text_column = {self.text_column!r} must be the name of a column")
        shares = self.shares
        object.__setattr__(self, "heldout_share", shares.heldout_share)
        object.__setattr__(self, "test_share", shares.test_share)
        self._check_tokenizer()
        checked_suffixes(self.suffixes)
        if self.megabytes is not None:
            check_int("megabytes", self.megabytes, at_least=1, at_most=MOST_MEGABYTES)
        if self.corpus != PYTHON and (self.packages != STANDARD_LIBRARY or self.megabytes is not None):
            raise UsageError(
                f"packages and megabytes are of corpus = {PYTHON!r}, not of {self.corpus!r}; leave them out"
            )
        _ = self.source  # an unknown corpus is refused at once; nothing is read yet

    def _check_tokenizer(self) -> None:
        codecs.check_name(self.tokenizer)

    @property
    def shares(self) -> Shares:
        return Shares(heldout_share=self.heldout_share, test_share=self.test_share)

    @cached_property
    def source(self) -> Corpus:
        """The corpus that the options name, not read yet."""
        if self.corpus in NAMES:
            return open_named(self.corpus, self.packages, self.megabytes)
        path = Path(self.corpus).expanduser()
        if not path.exists() and not path.suffix and len(path.parts) <= 1:
            raise unknown("corpus", self.corpus, NAMES, "; or a .txt, .jsonl or .parquet file, or a folder")
        return open_path(path, Reading(self.shares, self.delimiter, self.text_column, checked_suffixes(self.suffixes)))

    @property
    @abstractmethod
    def digest(self) -> str:
        """The hash of the documents and their splits."""

    @property
    @abstractmethod
    def tokenizer_digest(self) -> str:
        """The hash of all that turns text into ids."""

    def _decisive(self) -> dict[str, Any]:
        """The options that decide the examples beside the text itself."""
        return {name: self.options[name] for name in ("tokenizer", "heldout_share", "test_share")}

    def fingerprint(self) -> dict[str, Any]:
        """It depends on the text, not on where it lies: two copies of a folder are one task."""
        return {
            **super().fingerprint(),
            "options": self._decisive(),
            "sha256": self.digest,
            "tokenizer_sha256": self.tokenizer_digest,
        }

    def data_seed(self, run_seed: int) -> int:
        """One seed for all runs: they share the data, and differ only in initialisation and order."""
        return SHARED_SEED

    def _checked_span(self, lengths: Span) -> Span:
        raise UsageError(f"lengths = {lengths!r}: all rows of {self.name} have {self.seq_len} tokens; leave it out")

    def _check_number(self, n: int, split: Split) -> int:
        """The number of rows of a split; UsageError where it is below `n`."""
        count = self.size(split) or 0
        if n > count:
            raise UsageError(f"n = {n} is more than the {count} rows of split {split!r} of corpus {self.source.title}")
        return count
