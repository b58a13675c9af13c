"""One writer a run directory: a lock that names its holder and vanishes with it.

The lock is the operating system's (`flock`) on the file `lock`, which holds who has it. The kernel drops it when
the process ends, however it ends, so that the lock of a dead process needs no clean-up, no clock and no guess about
process numbers. The file itself stays: deleting it would let two processes hold two files of one name.

Some network file systems turn `flock` into a lock of the whole process: a second descriptor in the same process
gets it too, and closing any descriptor of the file drops it. So what this process holds is also kept in a table,
and a lock file that is in the table is never opened a second time. On a network mount whose locks stay on each host
(NFS with `nolock` or `local_lock=flock`) two hosts do not see each other. Then the later one takes the file over,
and the earlier one is refused at its next write, because the token in the file is no longer its own.
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
_TRIES, _PAUSE_S = 10, 0.05  # somebody who only looks (`holder`) has the lock for microseconds

Identity = tuple[int, int]  # device and inode
_held: dict[Identity, HeldLock] = {}
_table = threading.Lock()


@dataclass(frozen=True)
class Holder:
    """Who has a lock; `since` is that process's wall clock, for people to read and nothing else."""

    pid: int | None
    host: str
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}" if self.pid else "a process that left no name"


class HeldLock:
    """A lock while this process has it."""

    def __init__(self, path: Path, handle: int) -> None:
        self.path = path
        self.token = os.urandom(16).hex()
        self.identity = _identity(os.fstat(handle))
        self._handle: int | None = handle
        self.holder = Holder(os.getpid(), os.uname().nodename, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        record = {**asdict(self.holder), "token": self.token}
        with atomic.refusals(path):
            os.ftruncate(handle, 0)
            os.pwrite(handle, safe_json.encode(record, "the lock"), 0)

    def check(self) -> None:
        """Refuse to go on when the run directory is gone or somebody else has taken the lock over."""
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
        record = _record(self._handle)
        if record.get("token") != self.token:
            raise Locked(f"{self.path.parent} was taken over by {_named(record)}; nothing more is written to it")

    def release(self) -> None:
        """Give the lock back."""
        with _table:
            _held.pop(self.identity, None)
        handle, self._handle = self._handle, None
        if handle is None:
            return
        try:
            if _record(handle).get("token") == self.token:
                os.ftruncate(handle, 0)
        except OSError:  # the name stays behind; without the lock it means nothing
            pass
        finally:
            os.close(handle)

    def forget(self) -> None:
        """In a forked child: close the copy, so that the child does not keep its parent's lock alive."""
        handle, self._handle = self._handle, None
        if handle is not None:
            with suppress(OSError):
                os.close(handle)


@contextmanager
def hold(path: Path) -> Iterator[HeldLock]:
    """Hold the lock file `path`, or raise Locked with the name of the process that has it."""
    with _table:
        lock = _acquire(path)
        _held[lock.identity] = lock
    try:
        yield lock
    finally:
        lock.release()


def holder(path: Path) -> Holder | None:
    """Who has the lock file `path` right now; None when nobody has. Changes nothing, needs no right to write."""
    with _table:
        own = _own(path)
        if own is not None:
            return own.holder
        try:
            handle = safe_json.open_plain(path)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _named(_record(handle))
        except OSError:  # no locks on this file system: nobody can hold one
            return None
        finally:
            os.close(handle)
    return None


def _acquire(path: Path) -> HeldLock:
    own = _own(path)
    if own is not None:
        raise _locked(path, own.holder)
    handle = atomic.open_lock(path)
    try:
        if not _lock_exclusively(handle, path):
            raise _locked(path, _named(_record(handle)))
        with atomic.refusals(path):
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


def _own(path: Path) -> HeldLock | None:
    try:
        return _held.get(_identity(os.lstat(path)))
    except OSError:
        return None


def _locked(path: Path, by: Holder) -> Locked:
    return Locked(f"run {path.parent.name} is held by {by}; wait until it ends, or stop it")


def _record(handle: int) -> dict[str, Any]:
    try:
        record = safe_json.decode(os.pread(handle, _MAX_RECORD, 0), "the lock")
    except CorruptData:  # the holder has not written it yet
        return {}
    return record if isinstance(record, dict) else {}


def _named(record: dict[str, Any]) -> Holder:
    pid, host, since = (record.get(name) for name in ("pid", "host", "since"))
    known = type(pid) is int and isinstance(host, str) and isinstance(since, str)
    if not known or not (host.isprintable() and since.isprintable()):
        return Holder(None, "", "")
    return Holder(pid, host[:255], since[:40])


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino


def _forget_all() -> None:
    global _table
    _table = threading.Lock()  # another thread of the parent may have held it
    for lock in _held.values():
        lock.forget()
    _held.clear()


os.register_at_fork(after_in_child=_forget_all)
