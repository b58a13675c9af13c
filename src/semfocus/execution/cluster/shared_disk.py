"""Whether a directory is fit to be written by several machines: the same everywhere, with locks that all of them see.

    shares_disk((path, token))           on a worker: the driver's file is here
    lock_problem(Path("/shared/runs"))   why locks there do not hold between machines, by how it is mounted
    unseen_lock(board)                   on a worker: the same by trial, of any file system

Both say nothing where all is well. A lock that another machine does not see would let two of them write one run. Such a
directory is refused.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from semfocus.store import locks
from semfocus.store.board import BOARD, BOARD_SECONDS
from semfocus.store.directory import LOCK

MOUNTS = Path("/proc/self/mountinfo")
PATIENCE = 5 * BOARD_SECONDS
OTHERWISE = "choose another place with --out, or use --executor ray:shared=no"


def shares_disk(probe: tuple[str, str]) -> bool:
    """Whether the file that a driver has written is here, and says what it wrote."""
    try:
        return Path(probe[0]).read_text() == probe[1]
    except OSError:
        return False


def lock_problem(directory: Path, mounts: Path = MOUNTS) -> str:
    """Why this directory's locks do not hold between machines, and what to do about it."""
    place, kind, options = _mount_of(directory, mounts)
    if kind.startswith("nfs"):
        local = {"nolock", "local_lock=all", "local_lock=flock"} & options
        fix = "mount it without that option"
    elif kind == "lustre":
        local = {"localflock", "noflock"} & options or ({"no flock option"} if "flock" not in options else set())
        fix = "mount it with the option flock"
    else:
        return ""
    if not local:
        return ""
    return (
        f"locks in {directory} do not hold between machines ({kind} at {place}: {', '.join(sorted(local))}), so that "
        f"two of them could write one run; {fix}, {OTHERWISE}"
    )


def unseen_lock(board: Path, patience: float = PATIENCE) -> str:
    """Why a driver that lives holds no lock as far as this machine can see: `board` is its folder in the store.

    It lives if it goes on writing its board; once it may do so because it ends.
    """
    if locks.holder(board / LOCK) is not None:
        return ""
    stamps, end = {_stamp(board / BOARD)}, time.monotonic() + patience
    while None not in stamps and len(stamps) < 3 and time.monotonic() < end:
        time.sleep(patience / 100)
        stamps.add(_stamp(board / BOARD))
    if None in stamps or len(stamps) < 3:
        return ""
    return (
        f"locks in {board.parent.parent} do not hold between machines: the driver of this study holds one that is not "
        f"seen here, so that two machines could write one run; {OTHERWISE}"
    )


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        with open(path, "rb") as file:  # opened, because network file systems look anew then
            status = os.fstat(file.fileno())
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _mount_of(directory: Path, mounts: Path) -> tuple[str, str, set[str]]:
    """Where the file system of a directory is mounted, of which kind it is, and its options."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:  # not Linux
        return "/", "", set()
    found: tuple[str, str, set[str]] = ("/", "", set())
    for line in lines:
        before, _, after = line.partition(" - ")
        place = before.split()[4].replace("\\040", " ")
        if directory.absolute().is_relative_to(place) and len(place) >= len(found[0]):
            kind, _, superblock = after.split(maxsplit=2)
            found = place, kind, {*before.split()[5].split(","), *superblock.split(",")}
    return found
