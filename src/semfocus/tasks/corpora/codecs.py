"""From text to token ids and back: bytes, or byte pairs fitted to the train documents.

    bytes        256 ids; NUL, which no text has, separates documents
    bpe:4096     4095 byte pairs and a separator, the last id

Both restore a text to the byte.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semfocus.errors import UsageError
from semfocus.tasks.tokenisers import SMALLEST_BPE, BytePairs

SEPARATOR = "<end>"
MOST_SYMBOLS = 2**16  # what two bytes hold
_PIECE = 2**20  # bytes that are encoded at once: a list of ids takes thirty times as much
_BPE = re.compile(r"bpe:([1-9][0-9]{0,5})")


class Codec(ABC):
    """Text to ids and back."""

    name: str
    separator: int  # the id that ends a document
    symbols: tuple[str, ...]  # the text of each id, printable
    needs_utf8: bool
    dtype: np.dtype

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
class Pairs(Codec):
    """Byte-level BPE."""

    name: str
    pairs: BytePairs
    needs_utf8 = True
    dtype = np.dtype("<u2")

    @staticmethod
    def fit(name: str, train: Iterable[bytes]) -> Pairs:
        """Fit to the train documents; fewer symbols than asked for where no pair occurs twice."""
        return Pairs(name, BytePairs.fit((piece for text in train for piece in _pieces(text)), bpe_size(name) - 1))

    @property
    def separator(self) -> int:  # type: ignore[override]
        return len(self.pairs.symbols)

    @cached_property
    def symbols(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*self.pairs.symbols, SEPARATOR)

    def encode(self, text: bytes) -> Iterator[NDArray[Any]]:
        for piece in _pieces(text):
            yield np.array(self.pairs.encode(piece), dtype=self.dtype)

    def decode(self, ids: Sequence[int]) -> str:
        texts, part = [], []
        for i in ids:
            if i == self.separator:
                texts.append(self.pairs.decode(part))
                part = []
            else:
                part.append(i)
        return "\n".join([*texts, self.pairs.decode(part)])

    def saved(self) -> str:
        return self.pairs.model.to_str()


def check_name(name: Any) -> str:
    """The name of a codec, or UsageError."""
    size = bpe_size(name) if isinstance(name, str) and name != "bytes" else MOST_SYMBOLS
    if not isinstance(name, str) or not SMALLEST_BPE < size <= MOST_SYMBOLS:
        raise UsageError(
            f"tokenizer = {name!r} must be bytes, or bpe and a number of symbols from {SMALLEST_BPE + 1} to "
            f"{MOST_SYMBOLS}, such as bpe:4096"
        )
    return name


def bpe_size(name: str) -> int:
    """4096 of `bpe:4096`; 0 where it is no such name."""
    match = _BPE.fullmatch(name)
    return 0 if match is None else int(match[1])


def load(name: str, saved: str) -> Codec:
    """The codec that `saved` describes; ValueError where it does not."""
    if name == Bytes.name:
        return Bytes()
    from tokenizers import Tokenizer

    try:
        return Pairs(name, BytePairs(Tokenizer.from_str(saved)))
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
