"""Atomic file writes: a file exists completely or not at all. The only module that opens files for writing.

    with replacing(Path("table.csv")) as draft:
        draft.write_text(...)

A draft is a temporary file with a unique name in the target's directory. On success it is synced, renamed over the
target, and the directory is synced, in that order: a crash or a power cut leaves the old file or the new one.
`create_directories` does the same for whole directories, many at a time. An error of the operating system becomes a
StorageError that names the path. Symbolic links inside a run directory are neither written through nor deleted.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from semfocus.errors import StorageError

DRAFT = ".tmp-"  # the prefix of temporary names; an entry with this prefix is left over from an interrupted write
_SAFE_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # follows no link, waits for no pipe
_SYNC_THREADS = 16
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of renameat2
_OWNER = re.compile(re.escape(DRAFT) + "([0-9a-f]{8})([0-9a-f]{8})")
_MOST_ENDING = 100  # bytes of the target's name in a draft's


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a path to write to; it replaces `target` when the block ends without an error."""
    with storage_errors(target):
        is_directory = target.is_dir() or not target.name
        is_special = target.exists() and not target.is_file()
    if is_directory:
        raise StorageError(f"{target} is a directory; give the name of a file to write")
    if is_special:  # replaced, it would be gone for every other program
        raise StorageError(
            f"{target} is a device or a pipe, which cannot be replaced; give the name of a file to write"
        )
    draft = _draft_for(target)
    try:
        with storage_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            yield draft
            _sync(draft)
            os.replace(draft, target)
            _sync(target.parent)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def write_bytes(target: Path, data: bytes) -> None:
    """Replace the content of `target` atomically."""
    with replacing(target) as draft:
        draft.write_bytes(data)


def write_text(target: Path, text: str) -> None:
    """Replace the content of `target` atomically, as UTF-8 with Unix line ends."""
    write_bytes(target, text.encode())


def write_json(target: Path, value: object) -> None:
    """Replace the content of `target` atomically by `value` as indented JSON."""
    write_text(target, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_chunks(target: Path, chunks: Iterable[bytes]) -> None:
    """Replace the content of `target` atomically by these pieces, one in memory at a time."""
    with replacing(target) as draft, draft.open("wb") as file:
        for chunk in chunks:
            file.write(chunk)


def replace_all(contents: Mapping[Path, bytes]) -> None:
    """Replace many files in existing directories, each atomically; a symbolic link among them refuses all."""
    drafts = {target: _draft_for(target) for target in contents}
    try:
        for target, draft in drafts.items():
            with storage_errors(target):
                if target.is_symlink():
                    raise StorageError(f"{target} is a symbolic link and is left alone; remove it by hand")
                _write_new(draft, contents[target])
        sync_all(drafts.values())
        _rename_all(drafts, os.replace)
    finally:
        for draft in drafts.values():
            with suppress(OSError):
                draft.unlink(missing_ok=True)


def create_directories(
    contents: Iterable[tuple[Path, Mapping[str, bytes | None]]], also_sync: Iterable[Path] = ()
) -> None:
    """Create directories with their files, each atomically; `also_sync` is synced before any of them appears.

    The files of a directory are written in the given order; None creates an empty subdirectory. `contents` may be a
    generator, so that only one directory's bytes are in memory. A target that exists and is not empty is refused.
    """
    drafts: dict[Path, Path] = {}
    try:
        written = list(also_sync)
        for target, files in contents:
            with storage_errors(target):
                draft = drafts[target] = target.with_name(_draft_name())
                os.mkdir(draft)
                for name, data in files.items():
                    if data is None:
                        os.mkdir(draft / name)
                    else:
                        _write_new(draft / name, data)
            written += [*(draft / name for name in files), draft]
        sync_all(written)
        _rename_all(drafts, os.rename)
    finally:
        for draft in drafts.values():
            shutil.rmtree(draft, ignore_errors=True)


def append(path: Path, data: bytes, at: int) -> None:
    """Append `data` to an existing file of `at` bytes; truncate the file to `at` bytes when that fails."""
    with _opened(path, os.O_APPEND) as handle:
        size = os.fstat(handle).st_size
        if size != at:
            raise StorageError(f"{path} has {size} bytes where {at} were written: another program changed it")
        try:
            _write_all(handle, data)
        except OSError:
            with suppress(OSError):
                os.ftruncate(handle, at)
            raise


def truncate(path: Path, size: int) -> None:
    """Shorten a file to `size` bytes."""
    with _opened(path) as handle:
        os.ftruncate(handle, size)


def open_lock(path: Path) -> int:
    """Return a descriptor of a lock file, created if missing; the holder of the lock may write to it."""
    with storage_errors(path):
        return os.open(path, os.O_RDWR | os.O_CREAT | _SAFE_OPEN, 0o644)


def make_directories(path: Path) -> None:
    """Create a directory and its parents where missing."""
    with storage_errors(path):
        path.mkdir(parents=True, exist_ok=True)


def ensure_writable(directory: Path) -> None:
    """Raise a StorageError where nothing can be written, before work is spent on it."""
    probe = directory / _draft_name()
    with storage_errors(directory):
        if directory.is_symlink():
            raise StorageError(f"{directory} is a symbolic link; nothing is written through it")
        try:
            _write_new(probe, b"\n")
        finally:
            probe.unlink(missing_ok=True)


def rename(source: Path, target: Path) -> None:
    """Rename within one directory and sync the directory."""
    with storage_errors(source):
        os.rename(source, target)
    sync_all([source.parent])


@contextmanager
def staging(directory: Path) -> Iterator[Path]:
    """Yield an empty directory inside `directory` in which to prepare others; it is removed when the block ends."""
    make_directories(directory)
    draft = directory / _draft_name()
    with storage_errors(draft):
        os.mkdir(draft)
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def move_directory(source: Path, target: Path) -> None:
    """Give a complete directory its place; one that is there already is removed in its favour."""
    if os.path.lexists(target):
        link = find_symlink(target)
        if link is not None:
            raise StorageError(f"{link} is a symbolic link and is not replaced; remove it by hand, then {target}")
        with storage_errors(target):
            if _exchange(source, target):
                old = source
            else:
                old = target.with_name(_draft_name())
                os.rename(target, old)
                os.rename(source, target)
            shutil.rmtree(old)
    else:
        with storage_errors(target):
            os.rename(source, target)
    sync_all([target.parent])


def link(source: Path, target: Path) -> None:
    """Give a file a second name in another directory of the same file system."""
    with storage_errors(target):
        os.link(source, target)


def open_to_append(path: Path) -> int:
    """Return a descriptor to the end of a file, created if missing: for the output of a process."""
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _SAFE_OPEN, 0o644)


def remove_directory(directory: Path) -> None:
    """Delete a directory tree. It gets a temporary name first, so that a crash leaves no half of it."""
    link = find_symlink(directory)
    if link is not None:
        raise StorageError(f"{link} is a symbolic link and is not deleted; remove it by hand, then {directory}")
    draft = directory.with_name(_draft_name())
    with storage_errors(directory):
        os.rename(directory, draft)
        shutil.rmtree(draft)


def remove_leftovers(directory: Path) -> None:
    """Delete what interrupted writes and deletions left in `directory`."""
    with storage_errors(directory):
        for entry in list(os.scandir(directory)):
            if not entry.name.startswith(DRAFT) or entry.is_symlink():
                continue
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
            elif find_symlink(Path(entry.path)) is None:
                shutil.rmtree(entry.path)


def find_symlink(directory: Path) -> Path | None:
    """Return the first symbolic link at or below `directory`, without following any; None when there is none."""
    if directory.is_symlink():
        return directory
    for parent, folders, files in os.walk(directory):
        for name in sorted(folders + files):
            if os.path.islink(os.path.join(parent, name)):
                return Path(parent, name)
    return None


def sync_all(paths: Iterable[Path]) -> None:
    """Sync many files and directories, from several threads because the file system then merges the commits."""
    from concurrent.futures import ThreadPoolExecutor  # imported here: light commands use this module, never sync

    paths = list(paths)
    with storage_errors(Path(os.path.commonpath(paths)) if paths else Path()):
        if len(paths) < 2:
            for path in paths:
                _sync(path)
            return
        with ThreadPoolExecutor(min(len(paths), _SYNC_THREADS)) as pool:
            list(pool.map(_sync, paths))


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn an OSError inside the block into a StorageError that names `path`."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error


def _exchange(one: Path, other: Path) -> bool:
    """Swap two directories in one step, so that a crash finds either in each place; False where that is not offered."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    return rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0


def sweep(directory: Path) -> None:
    """Delete the drafts in `directory` whose process on this machine has died; those of living ones are in use."""
    with suppress(OSError):
        for entry in list(os.scandir(directory)):
            if not _is_abandoned(entry.name) or entry.is_symlink():
                continue
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
            elif find_symlink(Path(entry.path)) is None:
                shutil.rmtree(entry.path, ignore_errors=True)


def _draft_name() -> str:
    """A unique name that says who writes: 8 digits for this machine, 8 for this process, and 16 random ones."""
    return f"{DRAFT}{_machine()}{os.getpid():08x}{os.urandom(8).hex()}"


@cache
def _machine() -> str:
    """Eight digits by which processes that see each other's ids know each other: machine, boot and namespace."""
    parts = [os.uname().nodename]
    with suppress(OSError):
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text(), str(os.stat("/proc/self/ns/pid").st_ino)]
    return hashlib.sha256("/".join(parts).encode()).hexdigest()[:8]


def _is_abandoned(name: str) -> bool:
    """Whether this is a draft of a process of this machine that is there no more."""
    owner = _OWNER.match(name)
    if owner is None or owner[1] != _machine():
        return False
    try:
        os.kill(int(owner[2], 16), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # somebody else's process, or no process id at all
        return False
    return False


def _draft_for(target: Path) -> Path:
    ending = target.name.encode(errors="surrogateescape")[-_MOST_ENDING:].decode(errors="ignore")
    return target.with_name(f"{_draft_name()}-{ending}")  # its suffix may say the format; no name may be too long


def _rename_all(drafts: Mapping[Path, Path], rename: Callable[[Path, Path], None]) -> None:
    """Give each draft its target's name, then sync the directories that hold them."""
    for target, draft in drafts.items():
        with storage_errors(target):
            rename(draft, target)
    sync_all({target.parent for target in drafts})


@contextmanager
def _opened(path: Path, flags: int = 0) -> Iterator[int]:
    """Yield a descriptor that writes to an existing file."""
    with storage_errors(path):
        handle = os.open(path, os.O_WRONLY | flags | _SAFE_OPEN)
        try:
            yield handle
        finally:
            os.close(handle)


def _write_new(path: Path, data: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE_OPEN, 0o644)
    try:
        _write_all(handle, data)
    finally:
        os.close(handle)


def _write_all(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:  # a nearly full disk accepts a part and refuses the rest at the next call
        view = view[os.write(handle, view) :]


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
