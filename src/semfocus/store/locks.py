"""The lock of a run directory: one writer at a time, known by name, released when its process ends.

The lock is an `flock` on the file `lock`, whose content names the holder. The kernel releases it when the process
ends for any reason, so that the lock of a dead process needs no clean-up, no clock and no check of process ids. The
file is never deleted: otherwise two processes could lock two files of the same name.

Some network file systems implement `flock` as a lock of the whole process: a second descriptor in the same process
acquires it too, and closing any descriptor of the file releases it. Therefore the locks of this process are also in
a table, and a lock file in the table is not opened again. On a network mount whose locks are local to each host (NFS
with `nolock` or `local_lock=flock`) two hosts do not see each other's locks. Then the later one overwrites the file,
and the earlier one is refused at its next write because the token in the file is not its own.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from semfocus.errors import CorruptData, Locked, StorageError
from semfocus.store import atomic, safe_json

_MAX_RECORD = 4096
_TRIES, _PAUSE_S = 10, 0.05  # a reader (`holder`) has the lock for microseconds

Identity = tuple[int, int]  # device and inode
_held: dict[Identity, HeldLock] = {}
_table = threading.Lock()


@dataclass(frozen=True)
class Holder:
    """The process that has a lock; `since` is its wall clock, for display only."""

    pid: int | None
    host: str
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}" if self.pid else "a process that left no name"


class HeldLock:
    """A lock that this process holds."""

    def __init__(self, path: Path, handle: int) -> None:
        self.path = path
        self.token = os.urandom(16).hex()
        self.identity = _identity(os.fstat(handle))
        self._handle: int | None = handle
        self.holder = Holder(os.getpid(), os.uname().nodename, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        record = {**asdict(self.holder), "token": self.token}
        with atomic.storage_errors(path):
            os.ftruncate(handle, 0)
            os.pwrite(handle, safe_json.encode(record, "the lock"), 0)

    def check(self) -> None:
        """Raise StorageError when the run directory is gone, Locked when another process has taken the lock over."""
        if self._handle is None:
            raise StorageError(f"the lock {self.path} was given back, or belongs to the process that forked this one")
        try:
            present = _identity(os.lstat(self.path))
        except OSError as error:
            raise StorageError(
                f"the run directory {self.path.parent} was deleted or moved while it was written to ({error.strerror})"
            ) from error
        if present != self.identity:
            raise StorageError(f"the run directory {self.path.parent} was replaced by another while it was written to")
        record = _read_record(self._handle)
        if record.get("token") != self.token:
            raise Locked(f"{self.path.parent} was taken over by {_holder_in(record)}; nothing more is written to it")

    def release(self) -> None:
        """Release the lock."""
        with _table:
            _held.pop(self.identity, None)
        handle, self._handle = self._handle, None
        if handle is None:
            return
        try:
            if _read_record(handle).get("token") == self.token:
                os.ftruncate(handle, 0)
        except OSError:  # the holder's name stays in the file; without the lock it has no meaning
            pass
        finally:
            os.close(handle)

    def forget(self) -> None:
        """Close the descriptor without releasing: in a forked child, which must not keep its parent's lock alive."""
        handle, self._handle = self._handle, None
        if handle is not None:
            with suppress(OSError):
                os.close(handle)


@contextmanager
def hold(path: Path) -> Iterator[HeldLock]:
    """Hold the lock file `path` within the block; raise Locked, which names the holder, when another has it."""
    with _table:
        lock = _acquire(path)
        _held[lock.identity] = lock
    try:
        yield lock
    finally:
        lock.release()


def holder(path: Path) -> Holder | None:
    """Return who holds the lock file `path` now; None when nobody does. Read-only."""
    with _table:
        own = _held_here(path)
        if own is not None:
            return own.holder
        try:
            handle = safe_json.open_plain(path)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _holder_in(_read_record(handle))
        except OSError:  # this file system has no locks: nobody can hold one
            return None
        finally:
            os.close(handle)
    return None


def _acquire(path: Path) -> HeldLock:
    own = _held_here(path)
    if own is not None:
        raise _locked(path, own.holder)
    handle = atomic.open_lock(path)
    try:
        if not _lock_exclusively(handle, path):
            raise _locked(path, _holder_in(_read_record(handle)))
        with atomic.storage_errors(path):
            if _identity(os.lstat(path)) != _identity(os.fstat(handle)):
                raise StorageError(f"{path.parent} was removed by another process just now")
        return HeldLock(path, handle)
    except BaseException:
        os.close(handle)
        raise


def _lock_exclusively(handle: int, path: Path) -> bool:
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_PAUSE_S)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise StorageError(
                    f"cannot lock {path}: {error.strerror}; its file system has no locks, choose another place for runs"
                ) from error
    return False


def _held_here(path: Path) -> HeldLock | None:
    try:
        return _held.get(_identity(os.lstat(path)))
    except OSError:
        return None


def _locked(path: Path, by: Holder) -> Locked:
    return Locked(f"run {path.parent.name} is held by {by}; wait until it ends, or stop it")


def _read_record(handle: int) -> dict[str, Any]:
    try:
        record = safe_json.decode(os.pread(handle, _MAX_RECORD, 0), "the lock")
    except CorruptData:  # not written yet
        return {}
    return record if isinstance(record, dict) else {}


def _holder_in(record: dict[str, Any]) -> Holder:
    pid, host, since = (record.get(name) for name in ("pid", "host", "since"))
    valid = type(pid) is int and isinstance(host, str) and isinstance(since, str)
    if not valid or not (host.isprintable() and since.isprintable()):
        return Holder(None, "", "")
    return Holder(pid, host[:255], since[:40])


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino


def forget_all() -> None:
    """Drop every lock of this process from the table, as in a forked child."""
    global _table
    _table = threading.Lock()  # another thread of the parent may have held it
    for lock in _held.values():
        lock.forget()
    _held.clear()


os.register_at_fork(after_in_child=forget_all)
