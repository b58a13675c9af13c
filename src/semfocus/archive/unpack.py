"""Archives back into a store. An archive may come from anybody: nothing in it is trusted.

    merged = unpack([Path("runs-1.tar.xz"), Path("runs-2.tar.xz")], RunStore("runs"))
    merged.fates["118dc014c0e74d2f"]          # added, same, completed, replaced, older or refused

The manifest comes first and says every path, size and checksum; the members must follow exactly so. Only regular files
that a run directory has are accepted, so that links, devices, absolute paths and `..` have no place. Every archive is
read to its end and every run is checked before the first one gets its place: a damaged archive changes nothing. Then
they are merged one after the other, so that a run that several hold ends as far as any of them goes.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from semfocus.archive import manifest
from semfocus.archive.contents import Files
from semfocus.archive.merge import Arrivals, Merged
from semfocus.archive.xz import Reader
from semfocus.errors import CorruptData, StorageError, UsageError, expanded
from semfocus.store import RunStore

MAX_BYTES = 4 * 2**30  # that an archive may unpack to, unless the caller allows more
_BLOCK = tarfile.BLOCKSIZE


class Content(Protocol):
    """What an archive holds once it is not compressed."""

    name: str

    def read(self, size: int) -> bytes: ...
    def read_at_most(self, size: int) -> bytes: ...


def unpack(paths: Sequence[Path], store: RunStore, max_bytes: int = MAX_BYTES, *, replace: bool = False) -> Merged:
    """Put the runs of these archives into a store, merged with those that are there.

    An ended run that was trained apart from ours is refused, or with `replace` takes its place.
    """
    with ExitStack() as stack:
        sources = []
        for path in paths:  # a run may be in several: packed at one sitting, and further on at the next
            arrivals = stack.enter_context(Arrivals(store))
            for run_id, files in read_archive(path, max_bytes):
                arrivals.add(run_id, files)
            sources.append(arrivals)
        return Merged.of([arrivals.place(replace) for arrivals in sources])


def read_archive(path: Path, max_bytes: int = MAX_BYTES) -> Iterator[tuple[str, Files]]:
    """Each run of an archive with its files, after a check of sizes and checksums; one run is in memory at a time."""
    try:
        file = expanded(path).open("rb")
    except FileNotFoundError:
        raise UsageError(f"{path} is not there; give an archive that `semfocus pack` has written") from None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
    with file:
        # Headers and padding take less than two blocks a file; the limit is for the content.
        reader = Reader(file, str(path), 2 * max_bytes + manifest.MAX_BYTES)
        yield from runs_in(reader, max_bytes)


def runs_in(reader: Content, max_bytes: int) -> Iterator[tuple[str, Files]]:
    """Each run of an archive's content, which must be exactly what its manifest says."""
    name = reader.name
    runs = manifest.decode(_member(reader, manifest.NAME, manifest.MAX_BYTES), name, max_bytes)
    for run_id, run in runs.items():
        files: Files = {}
        for path, packed in run.files.items():
            files[path] = _member(reader, f"{run_id}/{path}", packed.bytes)
            packed.check(files[path], f"{name}: {run_id}/{path}")
        yield run_id, files
    end = reader.read(2 * _BLOCK)
    if any(end) or reader.read_at_most(1):
        raise CorruptData(f"{name} holds more than its manifest lists, and is refused")


def _member(reader: Content, name: str, limit: int) -> bytes:
    """The content of the next member, which must be a regular file of this name and of at most `limit` bytes."""
    try:
        info = tarfile.TarInfo.frombuf(reader.read(_BLOCK), "utf-8", "strict")
    except (tarfile.HeaderError, UnicodeDecodeError) as error:
        raise CorruptData(f"{reader.name} has no member {name} where it should be: {error}") from None
    if info.type != tarfile.REGTYPE or info.name != name:
        raise CorruptData(f"{reader.name} has {info.name[:80]!r} in the place of the plain file {name!r}")
    if not 0 <= info.size <= limit:
        raise CorruptData(f"{reader.name}: {name} has {info.size} bytes; at most {limit} are allowed")
    data = reader.read(info.size)
    reader.read(-info.size % _BLOCK)
    return data
