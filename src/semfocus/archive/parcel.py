"""Runs from one process to another: an archive in memory, not compressed because it is read at once.

    data = wrap({run.id: read_files(run, "last")}, {run.id: "interrupted"})
    for run_id, files in unwrap(data): ...

The same manifest, members and checks as in a file: what comes over a network is trusted no more
than what lies on a disk.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping

from semfocus.archive import manifest
from semfocus.archive.contents import Files
from semfocus.archive.manifest import PackedRun
from semfocus.archive.pack import END, member
from semfocus.archive.unpack import MAX_BYTES, runs_in
from semfocus.errors import CorruptData


def wrap(runs: Mapping[str, Files], states: Mapping[str, str]) -> bytes:
    """These runs as one archive; `states` are done, diverged, interrupted or failed."""
    listed = {run_id: PackedRun.of(states[run_id], files) for run_id, files in runs.items()}
    members = [member(manifest.NAME, manifest.encode(listed, {}))]
    members += [member(f"{run_id}/{name}", data) for run_id, files in runs.items() for name, data in files.items()]
    return b"".join([*members, END])


def unwrap(data: bytes, name: str = "the parcel", max_bytes: int = MAX_BYTES) -> Iterator[tuple[str, Files]]:
    """Each run of an archive with its files, after a check of names, sizes and checksums."""
    return runs_in(_InMemory(data, name), max_bytes)


class _InMemory:
    def __init__(self, data: bytes, name: str) -> None:
        self.name, self._file = name, io.BytesIO(data)

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) < size:
            raise CorruptData(f"{self.name} is cut off")
        return data

    def read_at_most(self, size: int) -> bytes:
        return self._file.read(size)
