"""What an archive says of itself: its first member, manifest.json.

    {"format": 1, "semfocus": "0.2.0", "commit": "6b13da9",
     "runs": {"118dc014c0e74d2f": {"state": "done", "files": {"config.json": [1503, "<SHA-256>"], ...}}}}

The members follow in the manifest's order. Everything in it is checked before anything else of the archive is read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from semfocus.archive.contents import CORE, ENDED, UNFINISHED, Files, limit_of
from semfocus.errors import CorruptData, OtherFormat
from semfocus.store import is_run_id, safe_json

FORMAT = 1
NAME = "manifest.json"
MAX_BYTES = 32 * 2**20
MAX_RUNS = 50_000


@dataclass(frozen=True)
class PackedFile:
    """A file's size and checksum."""

    bytes: int
    sha256: str

    @staticmethod
    def of(data: bytes) -> PackedFile:
        return PackedFile(len(data), hashlib.sha256(data).hexdigest())

    def check(self, data: bytes, what: str) -> None:
        """CorruptData when these are not the bytes that were packed."""
        if PackedFile.of(data) != self:
            raise CorruptData(f"{what} does not have the SHA-256 sum that the manifest gives: the file was damaged")


@dataclass(frozen=True)
class PackedRun:
    """One run of an archive."""

    state: str
    files: dict[str, PackedFile]

    @staticmethod
    def of(state: str, files: Files) -> PackedRun:
        return PackedRun(state, {name: PackedFile.of(data) for name, data in files.items()})


def encode(runs: Mapping[str, PackedRun], about: Mapping[str, str]) -> bytes:
    """The manifest of these runs; `about` tells what packed them."""
    listed = {
        run_id: {"state": run.state, "files": {name: [file.bytes, file.sha256] for name, file in run.files.items()}}
        for run_id, run in runs.items()
    }
    return json.dumps({"format": FORMAT, **about, "runs": listed}, separators=(",", ":")).encode() + b"\n"


def decode(data: bytes, what: str, max_bytes: int) -> dict[str, PackedRun]:
    """The runs of a manifest, in order, after a check of every field."""
    document = safe_json.decode(data, f"the manifest of {what}")
    version = document.get("format") if isinstance(document, dict) else None
    if type(version) is not int:
        raise CorruptData(f"the manifest of {what} does not say its format version")
    if version != FORMAT:
        raise OtherFormat(f"{what} has format {version}; this semfocus reads {FORMAT}: use the semfocus that packed it")
    listed = document.get("runs")
    if not isinstance(listed, dict) or len(listed) > MAX_RUNS:
        raise CorruptData(f"the manifest of {what} does not list its runs, or more than {MAX_RUNS}")
    runs = {run_id: _run(run_id, entry, what) for run_id, entry in listed.items()}
    total = sum(file.bytes for run in runs.values() for file in run.files.values())
    if total > max_bytes:
        raise CorruptData(
            f"{what} holds {total} bytes, more than the limit of {max_bytes}; raise --max-gib if you trust it"
        )
    return runs


def _run(run_id: str, entry: Any, what: str) -> PackedRun:
    if not is_run_id(run_id):
        raise CorruptData(f"the manifest of {what} names {run_id[:80]!r}, which is not a run id")
    fields = entry if isinstance(entry, dict) else {}
    state, files = str(fields.get("state")), fields.get("files")
    if state not in (*ENDED, *UNFINISHED) or not isinstance(files, dict):
        raise CorruptData(f"the manifest of {what} has no valid entry of run {run_id}")
    absent = [name for name in CORE if name not in files and not (name == "status.json" and state in UNFINISHED)]
    if absent:
        raise CorruptData(f"the manifest of {what} has run {run_id} without {', '.join(absent)}")
    return PackedRun(state, {name: _file(name, value, f"{what}: {run_id}") for name, value in files.items()})


def _file(name: str, value: Any, what: str) -> PackedFile:
    limit = limit_of(name)
    if limit is None:
        raise CorruptData(f"{what} has a file {name[:80]!r}, which no run directory has")
    size, digest = value if isinstance(value, list) and len(value) == 2 else (None, None)
    if type(size) is not int or not 0 <= size <= limit:
        raise CorruptData(f"{what}/{name} has {str(size)[:40]} bytes; at most {limit} are allowed")
    if not isinstance(digest, str) or len(digest) != 64:
        raise CorruptData(f"{what}/{name} has no SHA-256 sum")
    return PackedFile(size, digest)
