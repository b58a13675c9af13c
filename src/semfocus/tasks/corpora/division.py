"""Documents without duplicates, each in one split: no byte of a held-out document is in training.

Documents are taken in the order of the hashes of their contents, first for the test split, then for the held-out one,
each as long as that brings the split nearer to its share of the bytes; the others are for training. Neither names nor
places decide. Equal documents count once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from semfocus.errors import DataError
from semfocus.tasks.batch import SPLITS, Split
from semfocus.tasks.corpora.documents import Corpus, Document
from semfocus.tasks.rows import Shares, typed


@dataclass(frozen=True)
class Division:
    """What is known of a corpus once it was read: the hash and the split of each document."""

    corpus: Corpus
    plan: tuple[tuple[bytes, Split | None], ...]  # of each document, SHA-256 and split; None: left out
    documents: dict[Split, int]
    text_bytes: dict[Split, int]
    duplicates: int

    @property
    def digest(self) -> str:
        """The hash of all documents in their splits; neither names nor paths enter it."""
        total = hashlib.sha256()
        for digest, split in self.plan:
            if split is not None:
                total.update(split.encode() + digest)
        return total.hexdigest()

    def texts(self, split: Split) -> Iterator[tuple[Document, bytes]]:
        """The documents of a split, one in memory at a time."""
        for planned, document in zip_longest(self.plan, self.corpus.documents()):
            if planned is None or document is None:
                raise self._changed(self.corpus.title)
            digest, its_split = planned
            if its_split != split:
                continue
            data = document.read()
            if hashlib.sha256(data).digest() != digest:
                raise self._changed(document.name)
            yield document, data

    def _changed(self, name: str) -> DataError:
        return DataError(f"{name} changed while it was read; begin again once nothing writes to it")


def divide(corpus: Corpus, shares: Shares) -> Division:
    """Read a corpus and give each document its split."""
    read: list[tuple[bytes, Split | None]] = []  # the hash of each document, and its split where that is given
    sizes: dict[bytes, int] = {}
    duplicates = 0
    for document in corpus.documents():
        data = document.read()
        digest = hashlib.sha256(data).digest()
        is_new = bool(data) and digest not in sizes
        duplicates += bool(data) and not is_new
        read.append((digest, document.split) if is_new else (b"", None))
        if is_new:
            sizes[digest] = len(data)
    if not sizes:
        raise DataError(f"corpus {corpus.title} is empty: it holds no text; add some, or take another corpus")
    given = {digest: split for digest, split in read if split is not None}
    split_of = given or _by_hash(sizes, shares)
    documents, text_bytes = dict.fromkeys(SPLITS, 0), dict.fromkeys(SPLITS, 0)
    for digest, split in split_of.items():
        documents[split] += 1
        text_bytes[split] += sizes[digest]
    plan = tuple((digest, split_of.get(digest)) for digest, _ in read)
    division = Division(corpus, plan, documents, text_bytes, duplicates)
    _check(division, shares)
    return division


def _by_hash(sizes: dict[bytes, int], shares: Shares) -> dict[bytes, Split]:
    """The split of each document, by the hashes and sizes of all."""
    split_of: dict[bytes, Split] = {}
    parts: list[tuple[Split, float]] = [("test", shares.test_share), ("heldout", shares.heldout_share)]
    for split, share in parts:
        missing = share * sum(sizes.values())
        for digest in sorted(sizes):
            if digest not in split_of and sizes[digest] < 2 * missing:
                split_of[digest] = split
                missing -= sizes[digest]
        left = [digest for digest in sizes if digest not in split_of]
        if share and left and split not in split_of.values():  # documents are few and long
            split_of[min(left, key=lambda digest: (sizes[digest], digest))] = split
    return {digest: split_of.get(digest, "train") for digest in sizes}


def _check(division: Division, shares: Shares) -> None:
    count = sum(division.documents.values())
    for split in SPLITS:
        if not division.documents[split] and (split != "test" or shares.test_share):
            raise DataError(
                f"corpus {division.corpus.title}: none of its {count} documents is left for the split {split!r}; add "
                f"documents (two at least, three with a test split), lower {typed('test_share', 0)}, or give one text "
                "as the path of a .txt file, which is divided by place"
            )
