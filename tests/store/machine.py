"""Injected faults: calls of `os` that fail or race with another process, and training steps that fail.

    with Machine() as machine:              # records the calls that change the file system
        ...
    with Machine(die_at=17) as machine:     # the 17th call and all later ones do not happen; a write is done by half
        ...
    with before_call("rename", act):        # another process acts just before a call
        ...

`power_cut(root, image)` rebuilds what is on the disk in the worst case: what was synced, under names that were synced.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

from semfocus.store import locks
from semfocus.training.step import TrainStep

TAKE_SPACE = ("write", "pwrite", "fsync", "mkdir", "open")
CHANGES = ("write", "pwrite", "fsync", "rename", "replace", "mkdir", "unlink", "rmdir", "ftruncate", "open")


class Killed(BaseException):
    """The process has ended; not an Exception, so that the code under test does not handle it."""


class Machine:
    """Wraps the functions of `os`; syncs are recorded and not executed, because they take most of the time."""

    def __init__(self, die_at: int | None = None, full_at: int | None = None) -> None:
        self.die_at, self.full_at = die_at, full_at
        self.events: list[tuple[str, str]] = []
        self._synced_bytes: dict[int, bytes] = {}  # by inode
        self._synced_names: dict[int, dict[str, int]] = {}
        self._open: list[int] = []  # a descriptor of each synced inode, so that no inode number is reused
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
            locks.forget_all()  # the kernel does this for a process that ends

    def calls_taking_space(self) -> list[int]:
        """Return the numbers of the calls that a full disk can refuse."""
        return [number for number, (name, _) in enumerate(self.events, 1) if name in TAKE_SPACE]

    def power_cut(self, directory: Path, image: Path) -> None:
        """Create `image` with the part of `directory` that a power cut leaves in the worst case."""
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
        self.events.append((name, _path(args[0])))
        if self.die_at is not None and len(self.events) >= self.die_at:
            if len(self.events) == self.die_at and name == "write":
                self._real["write"](args[0], bytes(args[1])[: len(args[1]) // 2])
            raise Killed
        if len(self.events) == self.full_at and name in TAKE_SPACE:
            if name == "write":
                self._real["write"](args[0], bytes(args[1])[: len(args[1]) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if name == "fsync":
            return self._sync(args[0])
        return self._real[name](*args, **options)

    def _sync(self, handle: int) -> None:
        status = os.fstat(handle)
        path = f"/proc/self/fd/{handle}"
        self._open.append(self._real["open"](path, os.O_RDONLY))
        if not os.path.isdir(path):
            with open(path, "rb") as file:
                self._synced_bytes[status.st_ino] = file.read()
            return
        names: dict[str, int] = {}
        for name in os.listdir(path):
            child = os.lstat(f"{path}/{name}")
            names[name] = child.st_ino
            with suppress(OSError):
                self._open.append(self._real["open"](f"{path}/{name}", os.O_RDONLY))
        self._synced_names[status.st_ino] = names


@contextmanager
def before_call(name: str, act: Callable[[], object], path: str = "") -> Iterator[None]:
    """Call `act` once, just before the first call of `os.<name>` on a path that contains `path`."""
    real = getattr(os, name)
    done = False

    def call(target: Any, *args: Any, **options: Any) -> Any:
        nonlocal done
        if not done and path in str(target):
            done = True  # set first: `act` makes such calls too
            act()
        return real(target, *args, **options)

    with mock.patch.object(os, name, call):
        yield
    assert done, f"os.{name} was not called on {path!r}"


@contextmanager
def before_each_step(act: Callable[[TrainStep], None]) -> Iterator[None]:
    """Call `act` before each training step of any cohort in this process; what it raises, the step raises."""
    real = TrainStep.step

    def step(self: TrainStep) -> None:
        act(self)
        real(self)

    with mock.patch.object(TrainStep, "step", step):
        yield


@contextmanager
def directory_for_everybody() -> Iterator[Path]:
    """Yield a directory that any user may enter, which pytest's own is not. What is in it may become read-only."""
    directory = Path(tempfile.mkdtemp())
    directory.chmod(0o777)
    try:
        yield directory
    finally:
        set_mode(directory, 0o777)
        shutil.rmtree(directory)


def set_mode(directory: Path, mode: int) -> None:
    """Change the mode of a directory and of all directories in it."""
    for path in (*directory.rglob("*"), directory):
        if path.is_dir():
            path.chmod(mode)


def give_up_superuser() -> None:
    """Become a user without rights: a superuser may write anywhere."""
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)


def _path(target: Any) -> str:
    return os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else str(target)
