"""Data that were given from memory, kept as files beside the runs that are trained on them.

    stored:3f2a9c41d07be655/reviews.jsonl       the name in a run's configuration
    runs/data/3f2a9c41d07be655/reviews.jsonl    the file; the folder is the hash of its content

A run directory can so build its task again after the session that made it has ended, in worker processes and wherever
the whole folder of runs is moved. The same content is stored once.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from pathlib import Path

from semfocus.errors import UsageError
from semfocus.store.atomic import make_directories, write_bytes

FOLDER = "data"
_SCHEME = "stored:"
# Part of a path: nothing but a hash and a plain file name may get that far.
_NAME = re.compile(r"stored:([0-9a-f]{16})/(\w[\w.-]{0,59}\.(?:jsonl|safetensors))")


def is_stored(name: str) -> bool:
    """Whether a task's name means stored data."""
    return name.startswith(_SCHEME)


def stored_path(name: str, root: Path | None) -> Path:
    """The file of stored data in the store at `root`."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise UsageError(
            f"task.name = {name!r} is not the name of stored data, such as stored:3f2a9c41d07be655/a.jsonl"
        )
    if root is None:
        raise UsageError(f"{name} lies beside the runs that were trained on it; say where these are")
    # Runs that choose learning rates have a store of their own, one folder down.
    places = [folder / FOLDER / found[1] / found[2] for folder in (root, root.parent)]
    return next((path for path in places if path.is_file()), places[0])


def store(title: str, suffix: str, content: bytes, root: Path) -> str:
    """Keep a file's content in the store at `root` and return the name by which a configuration knows it."""
    stem = re.sub(r"[^\w-]+", "_", unicodedata.normalize("NFC", title)).strip("_-")[:60] or "data"
    name = f"{_SCHEME}{hashlib.sha256(content).hexdigest()[:16]}/{stem}{suffix}"
    folder, file = name.removeprefix(_SCHEME).split("/")
    path = root / FOLDER / folder / file
    if not path.is_file() or path.read_bytes() != content:
        make_directories(path.parent)
        write_bytes(path, content)
    return name
