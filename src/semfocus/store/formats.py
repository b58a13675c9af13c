"""Versions of the JSON documents in a run directory.

    write:  {"format": 2, "state": "done", ...}
    read:   the same; a document of an older version is migrated, one of a newer version is refused

A new version adds the migration from the version before it to `MIGRATIONS`. Documents are migrated in memory when
they are read; the files stay as they were written, so that the semfocus that wrote them can still read them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

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


MIGRATIONS: Mapping[int, Migration] = {1: _rename_config_fields}  # by the version that they start from
FORMAT = max(MIGRATIONS) + 1


def stamp(body: Mapping[str, Any]) -> Document:
    """Return `body` as a document of the current version."""
    return {"format": FORMAT, **body}


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


def read(path: Path, kind: str, decode: Callable[[bytes, str], Any] = safe_json.decode) -> Document | None:
    """Return the body of the document at `path` in the current version; None when there is no such file."""
    data = safe_json.read(path)
    return None if data is None else upgrade(decode(data, str(path)), kind, path)
