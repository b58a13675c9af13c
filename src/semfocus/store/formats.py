"""The JSON documents of a run directory, each of which carries the version of its format.

    write:  {"format": 2, "state": "done", ...}
    read:   the same, brought up to date when an older semfocus wrote it, refused when a newer one did

A change of format raises `FORMAT` and adds the step from the version before to `MIGRATIONS`. Documents are migrated
in memory when read; what is on disk stays as it was written, so that the semfocus that wrote it can still read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from semfocus.errors import CorruptData, OtherFormat
from semfocus.store import safe_json

FORMAT = 2
Document = dict[str, Any]
Migration = Callable[[str, Document], Document]  # (kind, document of version v) -> document of version v + 1

# Names that config.json had in format 1, by section.
_RENAMED = {"training": {"until": "stop_accuracy"}, "sizes": {"num_symbols": "vocab_size", "width": "seq_len"}}


def _rename_fields(kind: str, document: Document) -> Document:
    """Format 2 has other names in config.json, and names the objective; other documents are the same."""
    config = document.get("config")
    if kind != "config" or not isinstance(config, dict):
        return document
    renamed = {
        section: {names.get(name, name): value for name, value in config[section].items()}
        for section, names in _RENAMED.items()
        if isinstance(config.get(section), dict)
    }
    return document | {"config": {"objective": "classification"} | config | renamed}


MIGRATIONS: dict[int, Migration] = {1: _rename_fields}


def stamp(body: Mapping[str, Any]) -> Document:
    """`body` as a document of the present format."""
    return {"format": FORMAT, **body}


def upgrade(document: Any, kind: str, path: Path) -> Document:
    """The body of a document of any format we know, as the present one has it."""
    if not isinstance(document, dict):
        raise CorruptData(f"{path} is not a JSON object")
    version = document.get("format")
    if type(version) is not int:
        raise CorruptData(f"{path} does not say its format version")
    if version > FORMAT:
        raise OtherFormat(f"{path} has format {version}; this semfocus reads up to {FORMAT}: upgrade semfocus")
    body = {name: value for name, value in document.items() if name != "format"}
    for step in range(version, FORMAT):
        if step not in MIGRATIONS:
            raise OtherFormat(f"{path} has format {version}, which this semfocus (format {FORMAT}) no longer reads")
        body = MIGRATIONS[step](kind, body)
    return body


def read(path: Path, kind: str, decode: Callable[[bytes, str], Any] = safe_json.decode) -> Document | None:
    """The body of the document at `path`; None when there is no such file."""
    data = safe_json.read(path)
    return None if data is None else upgrade(decode(data, str(path)), kind, path)
