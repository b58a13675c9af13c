"""The tokens of a corpus: one stream a split, mapped from files of a cache, so that they take no memory.

    a b c | d e |          three letters, a separator, two letters, a separator

The cache holds a folder for each corpus, codec and division (`semfocus.tasks.cache`). It is complete once it has its
name; a damaged one is made again. Without a cache the tokens are kept in memory.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semfocus.errors import MissingExtra, StorageError
from semfocus.store.atomic import move_directory, staging, write_chunks, write_json
from semfocus.tasks.batch import SPLITS, Split
from semfocus.tasks.cache import directory
from semfocus.tasks.corpora.codecs import Bytes, Codec, Fitted, load
from semfocus.tasks.corpora.division import Division, divide
from semfocus.tasks.corpora.documents import Corpus, check_utf8
from semfocus.tasks.corpora.sentences import Rule, cut
from semfocus.tasks.rows import Shares

VERSION = 2  # of what lies in the cache
MANIFEST = "manifest.json"
_MOST_OPEN = 8


@dataclass(frozen=True, eq=False)
class Streams:
    """The tokens of each split, and where they come from."""

    digest: str  # of the documents and their splits
    codec: Codec
    tokens: Mapping[Split, NDArray[Any]]  # (T,) uint8 or uint16 each, read-only
    documents: Mapping[Split, int]
    text_bytes: Mapping[Split, int]
    duplicates: int


_open: dict[str, Streams] = {}  # of this process, by the key of the cache


def open_streams(corpus: Corpus, tokenizer: str, shares: Shares, sentences: Rule = "none") -> Streams:
    """The tokens of a corpus, read from the cache if they are there; each sentence ends with a separator, if asked."""
    library = "" if tokenizer == Bytes.name else _version_of_library()
    key = [VERSION, corpus.title, corpus.stamp(), tokenizer, library, asdict(shares), repr(corpus), sentences]
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    if name not in _open:
        while len(_open) >= _MOST_OPEN:
            del _open[next(iter(_open))]
        _open[name] = _read_or_make(name, corpus, tokenizer, shares, sentences)
    return _open[name]


def _version_of_library() -> str:
    try:
        return version("tokenizers")
    except PackageNotFoundError:
        raise MissingExtra("tokenizers", "hf", "tokenizer = 'bpe'") from None


def _read_or_make(name: str, corpus: Corpus, tokenizer: str, shares: Shares, rule: Rule) -> Streams:
    cache = directory()
    if cache is not None and (stored := _read(cache / f"text-{name}", tokenizer)) is not None:
        return stored
    division = divide(corpus, shares)
    codec = _fit(division, tokenizer, rule)
    if cache is not None:
        with suppress(StorageError):  # a cache that cannot be written must not stop the work
            with staging(cache) as draft:
                _write(draft / name, division, codec, rule)
                with suppress(StorageError):  # another process was first
                    move_directory(draft / name, cache / f"text-{name}")
            if (stored := _read(cache / f"text-{name}", tokenizer)) is not None:
                return stored
    tokens = {split: np.concatenate([*_ids(division, codec, split, rule), _end(codec)[:0]]) for split in SPLITS}
    return _streams(division, codec, tokens)


def _fit(division: Division, tokenizer: str, rule: Rule) -> Codec:
    if tokenizer == Bytes.name:
        return Bytes()

    def train() -> Iterator[bytes]:
        for document, text in division.texts("train"):
            check_utf8(document, text, f"tokenizer = {tokenizer!r}")
            yield from cut(text, rule)

    return Fitted.fit(tokenizer, train(), counts_separator=rule == "none")


def _ids(division: Division, codec: Codec, split: Split, rule: Rule) -> Iterator[NDArray[Any]]:
    """The ids of a split, one document or sentence after the other, each with its separator."""
    for document, text in division.texts(split):
        if codec.needs_utf8:
            check_utf8(document, text, f"tokenizer = {codec.name!r}")
        for part in cut(text, rule):
            yield from codec.encode(part)
            yield _end(codec)


def _end(codec: Codec) -> NDArray[Any]:
    """(1,) the separator."""
    return np.array([codec.separator], dtype=codec.dtype)


def _streams(division: Division, codec: Codec, tokens: Mapping[Split, NDArray[Any]]) -> Streams:
    return Streams(division.digest, codec, tokens, division.documents, division.text_bytes, division.duplicates)


def _write(folder: Path, division: Division, codec: Codec, rule: Rule) -> None:
    """The files of a corpus; the manifest, which says what the others must be, comes last."""
    sums: dict[str, Any] = {}
    for split in SPLITS:
        total = hashlib.sha256()
        write_chunks(folder / f"{split}.bin", _summed(_ids(division, codec, split, rule), total.update))
        sums[split] = total.hexdigest()
    manifest = {
        "digest": division.digest,
        "documents": division.documents,
        "text_bytes": division.text_bytes,
        "duplicates": division.duplicates,
        "codec": codec.saved(),
        "sha256": sums,
    }
    write_json(folder / MANIFEST, manifest)


def _summed(ids: Iterator[NDArray[Any]], update: Callable[[bytes], None]) -> Iterator[bytes]:
    for piece in ids:
        data = piece.tobytes()
        update(data)
        yield data


def _read(folder: Path, tokenizer: str) -> Streams | None:
    """What lies in the cache; None where it is not there or damaged, which is then removed."""
    if not folder.is_dir():
        return None
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        codec = load(tokenizer, manifest["codec"])
        tokens = {split: _map(folder / f"{split}.bin", codec.dtype, manifest["sha256"][split]) for split in SPLITS}
        return Streams(
            manifest["digest"],
            codec,
            tokens,
            manifest["documents"],
            manifest["text_bytes"],
            manifest["duplicates"],
        )
    except (OSError, ValueError, KeyError, TypeError):
        with suppress(OSError):
            shutil.rmtree(folder)
        return None


def _map(path: Path, dtype: np.dtype, digest: str) -> NDArray[Any]:
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != digest:
            raise ValueError(f"{path} is damaged")
    if path.stat().st_size == 0:  # cannot be mapped
        return np.zeros(0, dtype)
    return np.memmap(path, dtype=dtype, mode="r")
