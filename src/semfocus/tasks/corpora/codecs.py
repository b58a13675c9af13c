"""From text to token ids and back: bytes, or pieces that are fitted to the train documents.

    bytes           256 ids; NUL, which no text has, separates documents
    bpe:4096        byte pairs and a separator, the last id
    unigram:4096    pieces of words, as SentencePiece has them, and a separator

The separator counts where it is to be predicted: behind documents, not behind sentences, which are cut apart.
Bytes and byte pairs restore a text to the byte; a unigram model does not know rare characters.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semfocus.errors import UsageError, printable
from semfocus.tasks.tokenisers import SMALLEST_BPE, UNKNOWN_WORD, BytePairs

SEPARATOR = "<end>"
MOST_SYMBOLS = 2**16 - 1  # with a separator beside them, what two bytes hold
_STEPS = 64  # of a score of a unigram model, which is a log-probability
_PIECE = 2**20  # bytes that are encoded at once: a list of ids takes thirty times as much
_SIZED = re.compile(r"(bpe|unigram):([1-9][0-9]{0,5})")


class Codec(ABC):
    """Text to ids and back."""

    needs_utf8: bool
    dtype: np.dtype

    @property
    @abstractmethod
    def name(self) -> str:
        """As it is asked for: `bpe:4096`."""

    @property
    @abstractmethod
    def separator(self) -> int:
        """The id that ends a document."""

    @property
    @abstractmethod
    def symbols(self) -> tuple[str, ...]:
        """The text of each id, printable."""

    @abstractmethod
    def encode(self, text: bytes) -> Iterator[NDArray[Any]]:
        """The ids of a document, in pieces."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of these ids; a separator ends a line, and what is no character is a backslash escape."""

    @abstractmethod
    def saved(self) -> str:
        """What `load` makes the same codec from."""

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.saved().encode()).hexdigest()


@dataclass(frozen=True)
class Bytes(Codec):
    """One id a byte."""

    name = "bytes"
    separator = 0
    needs_utf8 = False
    dtype = np.dtype("u1")

    @cached_property
    def symbols(self) -> tuple[str, ...]:  # type: ignore[override]
        shown = [chr(i) if chr(i).isprintable() and i < 128 else repr(chr(i))[1:-1] for i in range(256)]
        shown = [text if len(text) == 1 or i < 128 else f"\\x{i:02x}" for i, text in enumerate(shown)]
        return (SEPARATOR, *shown[1:])

    def encode(self, text: bytes) -> Iterator[NDArray[Any]]:
        yield np.frombuffer(text, dtype=np.uint8)

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).replace(b"\0", b"\n").decode(errors="backslashreplace")

    def saved(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class Fitted(Codec):
    """Byte-level BPE or a unigram model; fewer symbols than asked for where the texts do not have more."""

    asked: str
    pieces: BytePairs
    needs_utf8 = True
    dtype = np.dtype("<u2")

    @staticmethod
    def fit(name: str, train: Iterable[bytes], counts_separator: bool = True) -> Fitted:
        """Fit to the train documents."""
        kind, size = _sized(name)
        texts = (piece for text in train for piece in _pieces(text))
        fit = BytePairs.fit if kind == "bpe" else _fit_unigram
        return Fitted(name, fit(texts, size - counts_separator))

    @property
    def name(self) -> str:
        return self.asked

    @property
    def separator(self) -> int:
        return len(self.pieces.symbols)

    @cached_property
    def symbols(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*(printable(symbol).replace("\n", "\\n") for symbol in self.pieces.symbols), SEPARATOR)

    def encode(self, text: bytes) -> Iterator[NDArray[Any]]:
        for piece in _pieces(text):
            yield np.array(self.pieces.encode(piece), dtype=self.dtype)

    def decode(self, ids: Sequence[int]) -> str:
        texts, part = [], []
        for i in ids:
            if i == self.separator:
                texts.append(self.pieces.decode(part))
                part = []
            else:
                part.append(i)
        return "\n".join([*texts, self.pieces.decode(part)])

    def saved(self) -> str:
        return self.pieces.model.to_str()


def _fit_unigram(train: Iterable[str], size: int) -> BytePairs:
    """Pieces of words by their probabilities (arXiv 1804.10959); the first stands for what is unknown."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    model = Tokenizer(models.Unigram())
    model.pre_tokenizer = pre_tokenizers.Metaspace()
    model.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=size, show_progress=False, special_tokens=[UNKNOWN_WORD], unk_token=UNKNOWN_WORD
    )
    model.train_from_iterator(train, trainer)
    saved = json.loads(model.to_str())
    saved["model"]["vocab"] = _canonical(saved["model"]["vocab"])
    return BytePairs(Tokenizer.from_str(json.dumps(saved)))


def _canonical(vocabulary: list[list[Any]]) -> list[list[Any]]:
    """Pieces in the order of their texts, with coarse scores: the library reads words and adds up in any order.

    Characters that are there only so that every text has pieces get one score below all others. What this does not
    mend is which pieces are kept where many are as good: the hash of the whole is part of a task's fingerprint.
    """
    unknown, *others = vocabulary
    lowest = min((score for piece, score in others if len(piece) > 1), default=0.0)
    scores = {piece: score if len(piece) > 1 or score >= lowest else lowest - 1 for piece, score in others}
    return [unknown, *([piece, round(scores[piece] * _STEPS) / _STEPS] for piece in sorted(scores))]


def check_name(name: Any, kinds: Collection[str] = ("bytes", "bpe")) -> str:
    """The name of a codec of one of these kinds, or UsageError."""
    kind, size = _sized(name) if isinstance(name, str) else ("", 0)
    if kind not in kinds or not SMALLEST_BPE < size <= MOST_SYMBOLS:
        sized = ("bytes, or " if Bytes.name in kinds else "") + " or ".join(sorted({*kinds} - {Bytes.name}))
        raise UsageError(
            f"tokenizer = {name!r} must be {sized} and a number of symbols "
            f"from {SMALLEST_BPE + 1} to {MOST_SYMBOLS}, such as bpe:4096"
        )
    return name


def _sized(name: str) -> tuple[str, int]:
    """The kind and the number of symbols: `bpe`, 4096."""
    match = _SIZED.fullmatch(name)
    if match is None:
        return ("bytes", MOST_SYMBOLS) if name == "bytes" else ("", 0)
    return match[1], int(match[2])


def load(name: str, saved: str) -> Codec:
    """The codec that `saved` describes; ValueError where it does not."""
    if name == Bytes.name:
        return Bytes()
    from tokenizers import Tokenizer

    try:
        return Fitted(name, BytePairs(Tokenizer.from_str(saved)))
    except Exception as error:  # the library raises bare exceptions
        raise ValueError(str(error)) from None


def _pieces(text: bytes) -> Iterator[str]:
    """A text in pieces of whole lines, so that little is in memory at once; only a very long line is cut."""
    start = 0
    while start < len(text):
        end = len(text) if len(text) - start <= _PIECE else text.rfind(b"\n", start, start + _PIECE) + 1
        if end <= start:
            end = start + _PIECE
            while end < len(text) and text[end] & 0xC0 == 0x80:  # inside a character
                end += 1
        yield text[start:end].decode()
        start = end
