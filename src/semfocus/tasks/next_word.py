"""Next word: which token follows these? One answer a row, as the paper asks of the Penn Treebank (figures 19 and 20).

    the story moved me to tears .            a sentence of 7 tokens; windows of 5
    the story moved me to  -> tears
    story moved me to tears -> .

A model may look at the whole window and pools it: nothing is causal. The window is as long as a mean sentence of the
train split, so that shorter sentences give nothing. The Penn Treebank itself is not free to hand on; any corpus of
`text` serves, and who has the Treebank gives its file with `sentences=lines`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import NDArray

from semfocus.errors import DataError, UsageError, check_int, unknown
from semfocus.tasks.base import MAX_LENGTH
from semfocus.tasks.batch import SPLITS, Split
from semfocus.tasks.corpora.named import DOCSTRINGS
from semfocus.tasks.corpora.sentences import Rule
from semfocus.tasks.corpora.task import SAMPLE, CorpusTask
from semfocus.tasks.registry import register_task

if TYPE_CHECKING:
    pass

RULES = tuple(rule for rule in get_args(Rule) if rule != "none")


@register_task
@dataclass(frozen=True, kw_only=True)
class NextWord(CorpusTask):
    """The token after a window of a sentence; of the corpus see `CorpusTask`.

    tokenizer   bpe:10000 as in figure 20; unigram:4096 as in figure 19, which is not always fitted the same way again
    length      tokens of a window; without it, the mean length of a train sentence
    sentences   marks (full stops and the like end one) or lines
    """

    name = "next_word"
    summary = "which token follows a window of a sentence?"
    tokenizers = ("bpe", "unigram")

    corpus: str = DOCSTRINGS
    tokenizer: str = "bpe:4096"
    length: int | None = None
    sentences: Rule = "marks"

    def __post_init__(self) -> None:
        if self.length is not None:
            object.__setattr__(self, "length", check_int("length", self.length, at_least=1, at_most=MAX_LENGTH))
        if self.sentences not in RULES:
            raise unknown("sentences", self.sentences, RULES)
        super().__post_init__()

    @property
    def sentence_rule(self) -> Rule:
        return self.sentences

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        return self.codec.symbols[:-1]  # the separator is in no window

    @property
    def num_classes(self) -> int:
        return self.vocab_size

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.symbols

    @cached_property
    def seq_len(self) -> int:
        if self.length is not None:
            return self.length
        lengths = self._sentence_lengths("train")
        return max(1, int(lengths.sum()) // max(1, len(lengths)))

    def _sentence_lengths(self, split: Split) -> NDArray[np.int64]:
        """(sentences,) the tokens of each."""
        ends = np.flatnonzero(self.streams.tokens[split] == self.streams.codec.separator)
        return np.diff(ends, prepend=-1) - 1

    @cached_property
    def starts(self) -> Mapping[Split, NDArray[np.int64]]:
        """(N,) of each split: where each window begins in the stream."""
        starts: dict[Split, NDArray[np.int64]] = {}
        for split in SPLITS:
            lengths = self._sentence_lengths(split)
            begins = np.cumsum(lengths + 1) - lengths - 1
            windows = np.maximum(lengths - self.seq_len, 0)
            within = np.arange(windows.sum()) - np.repeat(np.cumsum(windows) - windows, windows)
            starts[split] = np.repeat(begins, windows) + within
        return starts

    def _decisive(self) -> dict[str, Any]:
        return {"length": self.length, "sentences": self.sentences, **super()._decisive()}

    def size(self, split: Split) -> int:
        """The windows of a split."""
        rows = len(self.starts[split])
        if rows or (split == "test" and not self.test_share):
            return rows
        raise DataError(
            f"corpus {self.source.title}: no sentence of the split {split!r} has more than {self.seq_len} tokens; "
            "choose a smaller length, add text, or say how sentences end (sentences = marks or lines)"
        )

    def starts_of(self, split: Split, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.starts[split][rows]

    def label_rows(self, tokens: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        raise UsageError(
            f"{self.name} has no rule that labels a row: what follows a window stands in the corpus alone; read it "
            "from the labels of a sample"
        )

    def _successions(self, split: Split) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        self.size(split)
        stream, ends = self.streams.tokens[split], self.starts[split][:SAMPLE] + self.seq_len
        return stream[ends - 1].astype(np.int64), stream[ends].astype(np.int64)
