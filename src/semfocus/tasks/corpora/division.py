"""Documents without duplicates, each in one split: no byte of a held-out document is in training.

The content of a document decides its split, so that adding others moves none. Equal documents count once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from semfocus.errors import DataError
from semfocus.tasks.batch import SPLITS, Split
from semfocus.tasks.corpora.documents import Corpus, Document
from semfocus.tasks.rows import Shares, typed


@dataclass(frozen=True)
class Division:
    """What is known of a corpus once it was read: the hash and the split of each document."""

    corpus: Corpus
    plan: tuple[tuple[bytes, Split | None], ...]  # of each document, SHA-256 and split; None: empty or a duplicate
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
        documents = self.corpus.documents()
        for (digest, its_split), document in zip(self.plan, documents, strict=True):
            if its_split != split:
                continue
            data = document.read()
            if hashlib.sha256(data).digest() != digest:
                raise DataError(f"{document.name} changed while it was read; begin again once nothing writes to it")
            yield document, data


def divide(corpus: Corpus, shares: Shares) -> Division:
    """Read a corpus and give each document its split."""
    plan: list[tuple[bytes, Split | None]] = []
    seen: set[bytes] = set()
    documents, text_bytes = dict.fromkeys(SPLITS, 0), dict.fromkeys(SPLITS, 0)
    duplicates = 0
    for document in corpus.documents():
        data = document.read()
        digest = hashlib.sha256(data).digest()
        if not data or digest in seen:
            duplicates += bool(data)
            plan.append((digest, None))
            continue
        seen.add(digest)
        split = document.split or shares.split_at(digest)
        plan.append((digest, split))
        documents[split] += 1
        text_bytes[split] += len(data)
    if not seen:
        raise DataError(f"corpus {corpus.title} is empty: it holds no text")
    division = Division(corpus, tuple(plan), documents, text_bytes, duplicates)
    _check(division, shares)
    return division


def _check(division: Division, shares: Shares) -> None:
    count = sum(division.documents.values())
    for split in SPLITS:
        if division.documents[split] or (split == "test" and not shares.test_share):
            continue
        held = f"heldout_share = {shares.heldout_share}, test_share = {shares.test_share}"
        advice = (
            f"lower heldout_share or test_share, as in {typed('heldout_share', 0.05)}"
            if split == "train"
            else f"raise {split}_share, as in {typed(f'{split}_share', 0.3)}"
        )
        none = " (or leave it out: test_share=0)" if split == "test" else ""
        raise DataError(
            f"corpus {division.corpus.title}: none of its {count} documents falls into the split {split!r} ({held}); "
            f"{advice}{none}, or add text (the content of a document decides its split)"
        )
