"""The JSON documents of a run directory, each of which carries the version of its format.

    write:  {"format": 1, "state": "done", ...}
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

FORMAT = 1
Document = dict[str, Any]
Migration = Callable[[str, Document], Document]  # (kind, document of version v) -> document of version v + 1
MIGRATIONS: dict[int, Migration] = {}


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
