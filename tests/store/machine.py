"""A machine that fails where a test wants it to: killed, out of space, or without power, at any one call.

    with Machine() as machine:              # counts the calls that change the file system
        ...
    with Machine(die_at=17) as machine:     # the 17th call and all later ones never happen; a write gets half done
        ...

`power_cut(root, image)` rebuilds what would surely be on the disk: what was synced, under names that were synced.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

from semfocus.store import locks

CHANGES = ("write", "pwrite", "fsync", "rename", "replace", "mkdir", "unlink", "rmdir", "ftruncate", "open")


class Killed(BaseException):
    """The process is no more: unlike any Exception, nothing in the code under test may handle this."""


class Machine:
    """Stands between the code and `os`; syncs are recorded and not carried out, since that is what takes time."""

    def __init__(self, die_at: int | None = None, full_at: int | None = None) -> None:
        self.die_at, self.full_at = die_at, full_at
        self.events: list[tuple[str, str]] = []
        self._synced_bytes: dict[int, bytes] = {}  # by inode
        self._synced_names: dict[int, dict[str, int]] = {}
        self._open: list[int] = []  # one descriptor of each synced inode, so that no number is used twice
        self._real: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in CHANGES}
        self._turn = threading.RLock()
        self._patches = [mock.patch.object(os, name, self._wrap(name)) for name in CHANGES]

    def __enter__(self) -> Machine:
        for patch in self._patches:
            patch.start()
        return self

    def __exit__(self, *details: object) -> None:
        for patch in self._patches:
            patch.stop()
        for handle in self._open:
            os.close(handle)
        if self.die_at is not None:
            locks._forget_all()  # the kernel does this for a process that ends

    def names(self) -> list[str]:
        return [name for name, _ in self.events]

    def power_cut(self, directory: Path, image: Path) -> None:
        """Make `image` the part of `directory` that a power cut now would leave in the worst case."""
        self._rebuild(os.stat(directory).st_ino, image)

    def _rebuild(self, inode: int, image: Path) -> None:
        self._real["mkdir"](image)
        for name, child in self._synced_names.get(inode, {}).items():
            if child in self._directories:
                self._rebuild(child, image / name)
            else:
                (image / name).write_bytes(self._synced_bytes.get(child, b""))

    @property
    def _directories(self) -> set[int]:
        return {os.fstat(handle).st_ino for handle in self._open if os.path.isdir(f"/proc/self/fd/{handle}")}

    def _wrap(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if name == "open" and not args[1] & os.O_CREAT:
                return self._real["open"](*args, **options)
            with self._turn:
                return self._change(name, args, options)

        return call

    def _change(self, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        self.events.append((name, _place(args[0])))
        if self.die_at is not None and len(self.events) >= self.die_at:
            if len(self.events) == self.die_at and name == "write":
                self._real["write"](args[0], bytes(args[1])[: len(args[1]) // 2])
            raise Killed
        if len(self.events) == self.full_at and name in ("write", "pwrite", "fsync", "mkdir", "open"):
            if name == "write":
                self._real["write"](args[0], bytes(args[1])[: len(args[1]) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if name == "fsync":
            return self._sync(args[0])
        return self._real[name](*args, **options)

    def _sync(self, handle: int) -> None:
        status = os.fstat(handle)
        place = f"/proc/self/fd/{handle}"
        self._open.append(self._real["open"](place, os.O_RDONLY))
        if not os.path.isdir(place):
            with open(place, "rb") as file:
                self._synced_bytes[status.st_ino] = file.read()
            return
        names: dict[str, int] = {}
        for name in os.listdir(place):
            child = os.lstat(f"{place}/{name}")
            names[name] = child.st_ino
            with suppress(OSError):
                self._open.append(self._real["open"](f"{place}/{name}", os.O_RDONLY))
        self._synced_names[status.st_ino] = names


def _place(target: Any) -> str:
    return os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else str(target)
