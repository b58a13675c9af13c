"""Tokenisers: from the content of a row to token ids, and back.

Pieces      characters, words between white space, or the items of a token list; the vocabulary holds the most frequent
            pieces of the train rows, and one unknown symbol, the last id, stands for all others
BytePairs   byte-level BPE trained on the train rows; it has no unknown symbol
Pretrained  a tokenizer.json of the tokenizers library, as Hugging Face models have one; nothing is fitted
Ids         rows of ids, which need no tokeniser
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from semfocus.errors import DataError, MissingExtra, UsageError
from semfocus.tasks.rows import Content

# These pieces count as unknown also where a text contains them. They never enter a vocabulary, so that a rendered row
# is parsed to the same ids.
UNKNOWN_CHARACTER = "\N{REPLACEMENT CHARACTER}"
UNKNOWN_WORD = "<unk>"
NAMES = ("auto", "char", "whitespace", "bpe", "tokens")
SMALLEST_BPE = 256  # one symbol for each byte
TOKENIZER_FILE = "tokenizer.json"


class Tokeniser(Protocol):
    """Maps a text or a token list to ids, and ids to text."""

    @property
    def name(self) -> str: ...

    @property
    def symbols(self) -> tuple[str, ...]: ...

    @property
    def unknown_id(self) -> int | None: ...

    def encode(self, content: Content) -> Sequence[int] | NDArray[np.int64]:
        """The ids of a row of the data."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of these ids."""
        ...

    def parse(self, text: str) -> list[int]:
        """The ids of a text, the inverse of `decode`."""
        ...


def is_path(name: object) -> bool:
    """Whether the option means a file or a folder rather than one of the names."""
    if not isinstance(name, str) or name in NAMES:
        return False
    return name.endswith(".json") or os.sep in name or os.path.isfile(os.path.join(name, TOKENIZER_FILE))


def fit_tokeniser(name: str, train: Iterable[Content], size: int) -> Tokeniser:
    """The tokeniser of this name (char, whitespace, tokens, bpe), fitted to the train rows; or the one at this path."""
    if is_path(name):
        return Pretrained.read(Path(name))
    if name == "bpe":
        return BytePairs.fit((str(content) for content in train), size)
    return Pieces.fit(name, train, size)


@dataclass(frozen=True)
class Pieces:
    """Splits a row into pieces with one id each; the last symbol stands for all unknown pieces."""

    name: str
    symbols: tuple[str, ...]

    @staticmethod
    def fit(name: str, train: Iterable[Content], size: int) -> Pieces:
        """A vocabulary of the `size` most frequent pieces (ties by text), numbered in sorted order."""
        counts: Counter[Any] = Counter()
        for content in train:
            counts.update(_cut(name, content))
        unknown = _unknown(name)
        counts.pop(unknown, None)
        ranked = sorted(counts, key=lambda piece: (-counts[piece], str(piece)))
        return Pieces(name, (*(str(piece) for piece in sorted(ranked[:size])), unknown))

    @property
    def unknown_id(self) -> int:
        return len(self.symbols) - 1

    def encode(self, content: Content) -> list[int]:
        return [self._ids.get(str(piece), self.unknown_id) for piece in _cut(self.name, content)]

    def decode(self, ids: Sequence[int]) -> str:
        joint = "" if self.name == "char" else " "
        return joint.join(self.symbols[i] for i in ids)

    def parse(self, text: str) -> list[int]:
        return self.encode(text if self.name == "char" else text.split())

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {symbol: i for i, symbol in enumerate(self.symbols)}


@dataclass(frozen=True, eq=False)
class BytePairs:
    """A byte-level BPE; decoding restores a text to the byte."""

    model: Any
    name = "bpe"
    unknown_id = None

    @staticmethod
    def fit(train: Iterable[str], size: int) -> BytePairs:
        """Merge the most frequent pairs of the train texts, up to `size` symbols or until no pair occurs twice."""
        try:
            from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
        except ImportError:
            raise MissingExtra("tokenizers", "hf", "tokenizer = 'bpe'") from None
        model = Tokenizer(models.BPE())
        model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        model.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            min_frequency=2,
            show_progress=False,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        )
        model.train_from_iterator(train, trainer)
        return BytePairs(model)

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        return tuple(self.model.id_to_token(i) for i in range(self.model.get_vocab_size()))

    def encode(self, content: Content) -> list[int]:
        return self.model.encode(str(content)).ids

    def decode(self, ids: Sequence[int]) -> str:
        return self.model.decode(list(ids))

    def parse(self, text: str) -> list[int]:
        return self.encode(text)


@dataclass(frozen=True, eq=False)
class Pretrained(BytePairs):
    """A tokeniser that was fitted elsewhere, without the special tokens that it may put around a text."""

    digest: str
    name = "pretrained"

    @staticmethod
    def read(path: Path) -> Pretrained:
        """Read a tokenizer.json, or the folder of a model that holds one."""
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise MissingExtra("tokenizers", "hf", "a pretrained tokeniser") from None
        file = path / TOKENIZER_FILE if os.path.isdir(path) else path
        try:
            data = file.read_bytes()
            model = Tokenizer.from_str(data.decode())
        except OSError as error:
            raise DataError(f"tokenizer = {str(path)!r} cannot be read: {error.strerror or error}") from None
        except Exception as error:  # the library raises bare exceptions
            raise DataError(
                f"tokenizer = {str(path)!r} is not a tokenizer.json of the tokenizers library: {error}"
            ) from None
        model.no_truncation()
        model.no_padding()
        return Pretrained(model, hashlib.sha256(data).hexdigest())

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        names = {i: text for text, i in self.model.get_vocab(with_added_tokens=True).items()}
        return tuple(names.get(i, f"<id {i}>") for i in range(max(names) + 1))  # ids may have gaps

    @cached_property
    def unknown_id(self) -> int | None:  # type: ignore[override]
        text = json.loads(self.model.to_str())["model"].get("unk_token")
        return None if text is None else self.model.token_to_id(text)

    def encode(self, content: Content) -> list[int]:
        return self.model.encode(str(content), add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        return self.model.decode(list(ids), skip_special_tokens=False)


@dataclass(frozen=True)
class Ids:
    """Rows of ids 0 .. size-1; the text of an id is its number."""

    size: int
    name = "tokens"
    unknown_id = None

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        return tuple(str(i) for i in range(self.size))

    def encode(self, content: Content) -> NDArray[np.int64]:
        return np.asarray(content, dtype=np.int64)

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(str(i) for i in ids)

    def parse(self, text: str) -> list[int]:
        pieces = text.split()
        for place, piece in enumerate(pieces):
            if piece not in self._ids:
                raise UsageError(f"{piece!r} at place {place} is not one of the ids 0 .. {self.size - 1}")
        return [self._ids[piece] for piece in pieces]

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {symbol: i for i, symbol in enumerate(self.symbols)}


def _cut(name: str, content: Content) -> Sequence[Any] | NDArray[np.int64]:
    return content.split() if name == "whitespace" and isinstance(content, str) else content


def _unknown(name: str) -> str:
    return UNKNOWN_CHARACTER if name == "char" else UNKNOWN_WORD
