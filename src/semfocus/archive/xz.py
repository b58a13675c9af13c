"""Compressed streams: written in independent pieces on several cores, read without trust.

An .xz file may consist of several streams; every reader takes them for one. Pieces are compressed side by side, and
the bytes do not depend on the number of cores. A reader of a hostile file has limits for its memory and its output.
"""

from __future__ import annotations

import lzma
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

from semfocus.errors import CorruptData

PRESET = 6  # a window of 8 MiB; smaller ones miss what neighbouring runs have in common
MAX_MEMORY = 64 * 2**20  # that a decoder may ask for; preset 6 needs 9 MiB
_BLOCK = 2**18


def compress(data: bytes) -> bytes:
    """One stream."""
    return lzma.compress(data, preset=PRESET)


def compress_all(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """A stream for each piece, in order; a few pieces at a time are in memory."""
    workers = min(8, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool:  # the compressor releases the interpreter's lock
        waiting = []
        for piece in pieces:
            waiting.append(pool.submit(compress, piece))
            if len(waiting) > workers:
                yield waiting.pop(0).result()
        for future in waiting:
            yield future.result()


class Reader:
    """Reads the streams of a file as one; refuses more than `limit` bytes, and whatever is no such file."""

    def __init__(self, file: BinaryIO, name: str, limit: int) -> None:
        self.name, self._limit = name, limit
        self._blocks = self._decoded(file)
        self._rest = b""

    def read(self, size: int) -> bytes:
        """Exactly `size` bytes; CorruptData where the file ends before."""
        data = self.read_at_most(size)
        if len(data) < size:
            raise CorruptData(f"{self.name} is cut off; copy or pack it again")
        return data

    def read_at_most(self, size: int) -> bytes:
        """`size` bytes, or all that are left."""
        parts, missing = [], size
        while missing:
            if not self._rest:
                self._rest = next(self._blocks, b"")
                if not self._rest:
                    break
            parts.append(self._rest[:missing])
            self._rest = self._rest[missing:]
            missing -= len(parts[-1])
        return b"".join(parts)

    def _decoded(self, file: BinaryIO) -> Iterator[bytes]:
        total = 0
        data = file.read(_BLOCK)
        while data:
            decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MAX_MEMORY)
            while not decoder.eof:
                if decoder.needs_input and not data:
                    data = file.read(_BLOCK)
                    if not data:
                        raise CorruptData(f"{self.name} is cut off; copy or pack it again")
                try:
                    block, data = decoder.decompress(data, _BLOCK), b""
                except lzma.LZMAError as error:
                    raise CorruptData(f"{self.name} is not an intact .xz file: {error}") from None
                total += len(block)
                if total > self._limit:
                    raise CorruptData(f"{self.name} unpacks to more than {self._limit} bytes, and is refused")
                if block:
                    yield block
            data = decoder.unused_data or file.read(_BLOCK)
