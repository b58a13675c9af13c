"""A corpus as documents: what is read at once, and what a split never divides.

    notes.txt                 one document; or several, where a text such as `<|endoftext|>` ends each (`delimiter`)
    notes.jsonl, .parquet     one document a row, in a text column
    notes/                    every text file below the folder is a document, of .jsonl and .parquet every row

A `.txt` of one document is divided by place, because there is nothing else to divide:

    | train                                   | heldout | test |

Each piece ends with a line. Everything is read again and again rather than kept.
"""

from __future__ import annotations

import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from semfocus.errors import BadRow, DataError, UsageError
from semfocus.tasks.batch import Split
from semfocus.tasks.files import TEXT_NAMES, find_column
from semfocus.tasks.readers import open_source
from semfocus.tasks.rows import Shares, typed

RECORDS = (".jsonl", ".parquet")
TEXTS = (".txt", ".md", ".rst", ".tex", ".py")  # taken of a folder, unless `suffixes` says what else
MAX_DOCUMENT_BYTES = 2**31
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_OF_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


class Document(NamedTuple):
    """A text that is not read yet."""

    name: str  # where it is, for messages
    read: Callable[[], bytes]
    split: Split | None = None  # None: its content decides


class Corpus(ABC):
    """Documents in a fixed order."""

    @property
    @abstractmethod
    def title(self) -> str:
        """Its name for people."""

    @abstractmethod
    def stamp(self) -> list[Any]:
        """What changes whenever a document may have changed, as JSON, without reading one."""

    @abstractmethod
    def documents(self) -> Iterator[Document]:
        """Every document; the same ones in the same order each time, as long as `stamp` stays as it is."""


@dataclass(frozen=True)
class Reading:
    """How a user's own files are read."""

    shares: Shares = field(default_factory=Shares)
    delimiter: str = ""
    text_column: str | None = None
    suffixes: tuple[str, ...] = ()


def open_path(path: Path, reading: Reading) -> Corpus:
    """The corpus of a file or of a folder."""
    if os.path.isdir(path):
        return Folder(path, reading)
    if path.suffix.lower() in RECORDS:
        return Records(path, reading.text_column)
    return TextFile(path, reading, is_alone=True)


@dataclass(frozen=True)
class TextFile(Corpus):
    """A file of plain text, in any encoding without NUL bytes."""

    path: Path
    reading: Reading
    is_alone: bool = False  # nothing but this file: its one document is divided by place

    @property
    def title(self) -> str:
        return self.path.name

    def stamp(self) -> list[Any]:
        return [file_stamp(self.path, self.path.name)]

    def documents(self) -> Iterator[Document]:
        if self.reading.delimiter:
            end = self.reading.delimiter.encode()
            for number, piece in enumerate(read_file(self.path).split(end), start=1):
                yield Document(f"{self.path}, document {number}", lambda piece=piece: piece.strip(b"\r\n"))
        elif not self.is_alone:
            yield Document(str(self.path), lambda: read_file(self.path))
        else:
            text = read_file(self.path)
            for split, piece in _by_place(text, self.reading.shares):
                yield Document(str(self.path), lambda piece=piece: piece, split)


@dataclass(frozen=True)
class Records(Corpus):
    """The rows of a JSON lines or Parquet file."""

    path: Path
    text_column: str | None = None

    @property
    def title(self) -> str:
        return self.path.name

    def stamp(self) -> list[Any]:
        return [file_stamp(self.path, self.path.name)]

    def documents(self) -> Iterator[Document]:
        source = open_source(self.path)
        column = find_column(source, "text", self.text_column, TEXT_NAMES)
        for pair in source.pairs(column, column):
            if isinstance(pair, BadRow):
                raise pair
            number, text = pair.number, pair.text
            if text is None:
                continue
            if not isinstance(text, str):
                raise source.origin.error(number, f"column {column!r} holds a {type(text).__name__}, not a text")
            try:
                data = text.encode()
            except UnicodeEncodeError as error:
                half = ascii(text[error.start])
                raise source.origin.error(
                    number, f"the text holds {half}, half of a character (a lone surrogate); remove it"
                ) from None
            _check_text(source.origin.at(number), data)
            yield Document(source.origin.at(number), lambda data=data: data)


@dataclass(frozen=True)
class Folder(Corpus):
    """The text files below a folder, in the order of their paths. Links to folders and hidden files are left out."""

    path: Path
    reading: Reading

    @property
    def title(self) -> str:
        return self.path.name or str(self.path)

    def stamp(self) -> list[Any]:
        return [file_stamp(path, path.relative_to(self.path).as_posix()) for path in self.files]

    def documents(self) -> Iterator[Document]:
        for path in self.files:
            if path.suffix.lower() in RECORDS:
                yield from Records(path, self.reading.text_column).documents()
            else:
                yield from TextFile(path, self.reading).documents()

    @cached_property
    def files(self) -> list[Path]:
        """The files, listed once: what comes later is of another task."""
        wanted = self.reading.suffixes or (*TEXTS, *RECORDS)
        every = list(files_below(self.path))
        files = [path for path in every if path.suffix.lower() in wanted]
        if files:
            return files
        others = sorted({path.suffix.lower() for path in every} - {""})[:10]
        there = f"it has files ending in {', '.join(others)}" if others else "it has no files with an ending"
        raise DataError(
            f"{self.path} has no file that ends in {', '.join(wanted)}: {there}; "
            f"choose with {typed('suffixes', (others or ['.txt'])[0])}"
        )


def files_below(folder: Path, left_out: Collection[str] = ()) -> Iterator[Path]:
    """The regular files below a folder in the order of their paths, without hidden ones, caches and these folders."""
    try:
        for where, folders, names in os.walk(folder, onerror=_cannot_read):
            folders[:] = sorted(name for name in folders if name[0] != "." and name not in ("__pycache__", *left_out))
            for name in sorted(names):
                path = Path(where, name)
                if not name.startswith(".") and path.is_file():
                    yield path
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error.strerror or error}") from None


def _cannot_read(error: OSError) -> None:
    raise error


def file_stamp(path: Path, name: str) -> list[Any]:
    """The name, size and times of a file: they change when its content does."""
    try:
        about = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{path} is not there; check the path (the current directory is {Path.cwd()})") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if not stat.S_ISREG(about.st_mode):
        raise DataError(f"{path} is not a regular file; give the path of one, or of a folder")
    if about.st_size > MAX_DOCUMENT_BYTES and path.suffix.lower() not in RECORDS:
        raise DataError(
            f"{path} has {about.st_size} bytes; a text file may have {MAX_DOCUMENT_BYTES}: split it, or write .jsonl"
        )
    return [name, about.st_size, about.st_mtime_ns, about.st_ctime_ns]


def read_file(path: Path) -> bytes:
    """The bytes of a text file without a byte-order mark; DataError where it is binary."""
    file_stamp(path, path.name)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    _check_text(str(path), data)
    return data.removeprefix(_BYTE_ORDER_MARK)


def _check_text(name: str, data: bytes) -> None:
    """Raise DataError where data hold the byte that separates documents, as all binary files do."""
    place = data.find(b"\0")
    if place >= 0:
        is_wide = data[:2] in _OF_UTF_16
        advice = "it is UTF-16: save it as UTF-8" if is_wide else "a corpus is text; leave what is binary out"
        raise DataError(f"{name} holds a NUL byte at offset {place}: {advice}")


def check_utf8(document: Document, data: bytes, purpose: str) -> None:
    """Raise DataError where a text is not UTF-8, which `purpose` needs."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{document.name}: byte 0x{data[error.start]:02x} at offset {error.start} is not UTF-8, which {purpose} "
            f"needs; save it as UTF-8, or take {typed('tokenizer', 'bytes')}"
        ) from None


def checked_suffixes(text: str) -> tuple[str, ...]:
    """`.c,.h` as a tuple."""
    suffixes = tuple(piece.strip().lower() for piece in text.split(",") if piece.strip())
    for suffix in suffixes:
        if not suffix.startswith(".") or "/" in suffix:
            raise UsageError(f"suffixes = {text!r} must be endings of file names such as '.c,.h'")
    return suffixes


def _by_place(text: bytes, shares: Shares) -> list[tuple[Split, bytes]]:
    """One text in three pieces, each of which ends with a line where lines are not too long."""
    ends = [1 - shares.heldout_share - shares.test_share, 1 - shares.test_share, 1.0]
    names: list[Split] = ["train", "heldout", "test"]
    pieces, start = [], 0
    for name, share in zip(names, ends, strict=True):
        end = len(text) if share == 1 else _end_of_line(text, max(start, round(share * len(text))))
        pieces.append((name, text[start:end]))
        start = end
    return pieces


def _end_of_line(text: bytes, place: int) -> int:
    """The end of the line at a place; of a character, where the line goes on for long."""
    end = text.find(b"\n", place, place + min(4096, len(text) // 100))
    if end >= 0:
        return end + 1
    while place < len(text) and text[place] & 0xC0 == 0x80:  # inside a character of UTF-8
        place += 1
    return place
