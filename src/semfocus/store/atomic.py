"""Files that are there whole or not at all. The only module that opens a file for writing.

    with replacing(Path("table.csv")) as draft:
        draft.write_text(...)

The draft is a uniquely named neighbour; on success it is synced, renamed over the target, and the
directory is synced, in that order, so that a crash or a power cut leaves the old file or the new one.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from semfocus.errors import StorageError


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A path to write to, which becomes `target` when the block ends without an error."""
    draft = target.with_name(f".tmp-{uuid.uuid4().hex}-{target.name}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield draft
        _sync(draft)
        os.replace(draft, target)
        _sync(target.parent)
    except OSError as error:
        raise StorageError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def write_bytes(target: Path, data: bytes) -> None:
    """Replace the content of `target` in one step."""
    with replacing(target) as draft:
        draft.write_bytes(data)


def write_text(target: Path, text: str) -> None:
    """Replace the content of `target` in one step, as UTF-8 with unix line ends."""
    write_bytes(target, text.encode())


def write_json(target: Path, value: object) -> None:
    """Replace the content of `target` by `value` as indented JSON."""
    write_text(target, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
