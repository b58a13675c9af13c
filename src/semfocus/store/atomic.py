"""Files that are there whole or not at all. The only module that opens a file for writing.

    with replacing(Path("table.csv")) as draft:
        draft.write_text(...)

The draft is a uniquely named neighbour; on success it is synced, renamed over the target, and the
directory is synced, in that order, so that a crash or a power cut leaves the old file or the new one.
`publish` does the same for whole directories, many at a time. Whatever the file system refuses is a
StorageError that names the place. A symbolic link inside a run directory is neither written through nor deleted.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from semfocus.errors import StorageError

DRAFT = ".tmp-"  # how the names of unfinished things begin; what is found later under such a name is a leftover
_PLAIN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # no link is followed, no pipe is waited for
_SYNC_THREADS = 16


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A path to write to, which becomes `target` when the block ends without an error."""
    draft = target.with_name(f"{_draft_name()}-{target.name}")
    try:
        with refusals(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            yield draft
            _sync(draft)
            os.replace(draft, target)
            _sync(target.parent)
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


def replace_all(contents: Mapping[Path, bytes]) -> None:
    """Replace many files, each in one step, in directories that exist; one link in the way refuses them all."""
    drafts = {target: target.with_name(f"{_draft_name()}-{target.name}") for target in contents}
    try:
        for target, draft in drafts.items():
            with refusals(target):
                if target.is_symlink():
                    raise StorageError(f"{target} is a symbolic link and is left alone; remove it by hand")
                _write_new(draft, contents[target])
        sync_all(drafts.values())
        for target, draft in drafts.items():
            with refusals(target):
                os.replace(draft, target)
        sync_all({target.parent for target in contents})
    finally:
        for draft in drafts.values():
            with suppress(OSError):
                draft.unlink(missing_ok=True)


def publish(contents: Iterable[tuple[Path, Mapping[str, bytes | None]]], also_sync: Iterable[Path] = ()) -> None:
    """Make new directories, each there whole or not at all, together with what has to be safe before them.

    Of each directory the files are written in the order given (None makes an empty folder). `contents` may be a
    generator: one directory's bytes are in memory at a time. A target that is there and not empty is refused.
    """
    drafts: dict[Path, Path] = {}
    try:
        written = list(also_sync)
        for target, files in contents:
            with refusals(target):
                draft = drafts[target] = target.with_name(_draft_name())
                os.mkdir(draft)
                for name, data in files.items():
                    if data is None:
                        os.mkdir(draft / name)
                    else:
                        _write_new(draft / name, data)
            written += [*(draft / name for name in files), draft]
        sync_all(written)
        for target, draft in drafts.items():
            with refusals(target):
                os.rename(draft, target)
        sync_all({target.parent for target in drafts})
    finally:
        for draft in drafts.values():
            shutil.rmtree(draft, ignore_errors=True)


def append(path: Path, data: bytes, at: int) -> None:
    """Add `data` to a file of `at` bytes, which is not made if missing. When that fails the file is cut back."""
    with refusals(path):
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | _PLAIN)
        try:
            size = os.fstat(handle).st_size
            if size != at:
                raise StorageError(f"{path} has {size} bytes where {at} were written: another program changed it")
            try:
                _write_all(handle, data)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(handle, at)
                raise
        finally:
            os.close(handle)


def cut(path: Path, size: int) -> None:
    """Shorten a file to `size` bytes."""
    with refusals(path):
        handle = os.open(path, os.O_WRONLY | _PLAIN)
        try:
            os.ftruncate(handle, size)
        finally:
            os.close(handle)


def open_lock(path: Path) -> int:
    """A descriptor of a lock file, made if missing; whoever holds the lock may write to it."""
    with refusals(path):
        return os.open(path, os.O_RDWR | os.O_CREAT | _PLAIN, 0o644)


def make_directories(path: Path) -> None:
    """Make a directory and those above it, where missing."""
    with refusals(path):
        path.mkdir(parents=True, exist_ok=True)


def ensure_writable(directory: Path) -> None:
    """Fail now, and not after an hour of work, where nothing can be written."""
    probe = directory / _draft_name()
    with refusals(directory):
        if directory.is_symlink():
            raise StorageError(f"{directory} is a symbolic link; nothing is written through it")
        try:
            _write_new(probe, b"\n")
        finally:
            probe.unlink(missing_ok=True)


def move(source: Path, target: Path) -> None:
    """Rename within one directory, for good."""
    with refusals(source):
        os.rename(source, target)
    sync_all([source.parent])


def discard(directory: Path) -> None:
    """Delete a directory and all in it. It is renamed away first: a crash leaves a leftover, never half of it."""
    link = link_below(directory)
    if link is not None:
        raise StorageError(f"{link} is a symbolic link and is not deleted; remove it by hand, then {directory}")
    grave = directory.with_name(_draft_name())
    with refusals(directory):
        os.rename(directory, grave)
        shutil.rmtree(grave)


def sweep(directory: Path) -> None:
    """Delete what an interrupted write or deletion has left in `directory`."""
    with refusals(directory):
        for entry in list(os.scandir(directory)):
            if not entry.name.startswith(DRAFT) or entry.is_symlink():
                continue
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
            elif link_below(Path(entry.path)) is None:
                shutil.rmtree(entry.path)


def link_below(directory: Path) -> Path | None:
    """The first symbolic link at or below `directory`; links are not followed to find more."""
    if directory.is_symlink():
        return directory
    for place, folders, files in os.walk(directory):
        for name in sorted(folders + files):
            if os.path.islink(os.path.join(place, name)):
                return Path(place, name)
    return None


def sync_all(paths: Iterable[Path]) -> None:
    """Sync many files and directories. From several threads at once, since a file system then merges its commits."""
    from concurrent.futures import ThreadPoolExecutor  # here, since light commands import this module and never sync

    paths = list(paths)
    with refusals(Path(os.path.commonpath(paths)) if paths else Path()):
        if len(paths) < 2:
            for path in paths:
                _sync(path)
            return
        with ThreadPoolExecutor(min(len(paths), _SYNC_THREADS)) as pool:
            list(pool.map(_sync, paths))


@contextmanager
def refusals(path: Path) -> Iterator[None]:
    """Turn what the operating system refuses inside the block into a StorageError that names `path`."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from error


def _draft_name() -> str:
    return f"{DRAFT}{os.urandom(16).hex()}"


def _write_new(path: Path, data: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _PLAIN, 0o644)
    try:
        _write_all(handle, data)
    finally:
        os.close(handle)


def _write_all(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:  # a nearly full disk takes a part, and refuses the rest on the next call
        view = view[os.write(handle, view) :]


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
