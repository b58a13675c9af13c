"""Versions and checksums of the JSON documents in a run directory.

    write:  {"format": 3, "sha256": "<of all other fields>", "state": "done", ...}
    read:   the same; a document of an older version is migrated, one of a newer version is refused

From version 3 on a document is sealed: it holds a checksum of its own content, so that a digit that was changed is
noticed. Documents of older versions have none, and what they say cannot be verified.

A new version adds the migration from the version before it to `MIGRATIONS`. Documents are migrated in memory when
they are read; the files stay as they were written, so that the semfocus that wrote them can still read them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from semfocus.errors import CorruptData, OtherFormat
from semfocus.store import safe_json

Document = dict[str, Any]
Migration = Callable[[str, Document], Document]  # (kind, document of version v) -> document of version v + 1

_RENAMED_IN_2 = {"training": {"until": "stop_accuracy"}, "sizes": {"num_symbols": "vocab_size", "width": "seq_len"}}


def _rename_config_fields(kind: str, document: Document) -> Document:
    """Version 1 to 2: config.json has new names and names the objective; the other documents are unchanged."""
    config = document.get("config")
    if kind != "config" or not isinstance(config, dict):
        return document
    sections = {
        section: {names.get(name, name): value for name, value in config[section].items()}
        for section, names in _RENAMED_IN_2.items()
        if isinstance(config.get(section), dict)
    }
    return document | {"config": {"objective": "classification"} | config | sections}


def _add_seal(kind: str, document: Document) -> Document:
    """Version 2 to 3: the same fields; documents are sealed, and logs have checksums."""
    return document


MIGRATIONS: Mapping[int, Migration] = {1: _rename_config_fields, 2: _add_seal}  # by the version that they start from
FORMAT = max(MIGRATIONS) + 1
FIRST_SEALED = 3
SEAL = "sha256"
RUN = "run"  # the field of a status and of a checkpoint's manifest with the run that they belong to


class Edited(CorruptData):
    """A document whose checksum is another; `body` is what it says now."""

    def __init__(self, path: Path, body: Document) -> None:
        super().__init__(f"{path} does not have its own SHA-256 sum: it was edited or damaged")
        self.body = body


class Read(NamedTuple):
    """A document in the current version, and whether its checksum was verified."""

    body: Document
    is_sealed: bool


def stamp(body: Mapping[str, Any]) -> Document:
    """Return `body` as a document of the current version."""
    return {"format": FORMAT, **body}


def encode(body: Mapping[str, Any], what: str, indent: int | None = None) -> bytes:
    """Return `body` as a sealed document of the current version, with a line end."""
    document = stamp(body)
    safe_json.encode(document, what)  # refuses what cannot be read back, before the checksum is computed
    return safe_json.encode({"format": FORMAT, SEAL: checksum(document), **body}, what, indent) + b"\n"


def checksum(value: Any) -> str:
    """Return the SHA-256 sum of a JSON value, in which the order of keys does not count."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def check_run(body: Mapping[str, Any], run_id: str, path: Path) -> None:
    """Raise CorruptData where a document says that it is another run's; those written before did not say whose."""
    if body.get(RUN, run_id) != run_id:
        raise CorruptData(
            f"{path} is that of run {str(body[RUN])[:64]!r}, not of run {run_id}: a file of another run was put there"
        )


def upgrade(document: Any, kind: str, path: Path, migrations: Mapping[int, Migration] = MIGRATIONS) -> Document:
    """Return the body of a document of any readable version, migrated to the version that `migrations` lead to."""
    current = max(migrations) + 1
    if not isinstance(document, dict):
        raise CorruptData(f"{path} is not a JSON object")
    version = document.get("format")
    if type(version) is not int:
        raise CorruptData(f"{path} does not say its format version")
    if version > current:
        raise OtherFormat(f"{path} has format {version}; this semfocus reads up to {current}: upgrade semfocus")
    body = {name: value for name, value in document.items() if name != "format"}
    for step in range(version, current):
        if step not in migrations:
            raise OtherFormat(f"{path} has format {version}, which this semfocus (format {current}) no longer reads")
        body = migrations[step](kind, body)
    return body


def read(path: Path, kind: str) -> Read | None:
    """Return the document at `path` in the current version, its checksum verified; None when there is no such file."""
    data = safe_json.read(path)
    if data is None:
        return None
    document = safe_json.decode(data, str(path))
    body = upgrade(document, kind, path)
    is_sealed = document["format"] >= FIRST_SEALED or SEAL in document
    if is_sealed:
        content = {name: value for name, value in document.items() if name != SEAL}
        if document.get(SEAL) != checksum(content):
            raise Edited(path, body)
        body.pop(SEAL, None)
    return Read(body, is_sealed)
