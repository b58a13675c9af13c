"""Run directories into archives: .tar.xz files whose bytes depend on the runs alone.

    packed = pack(RunStore("runs"), Path("runs.tar.xz"))
    packed = pack(store, Path("runs.tar.xz"), unfinished=True, part_mib=15)     # runs-1.tar.xz, runs-2.tar.xz, ...

Runs of one cohort lie side by side, because what they share (learning rates, the cohort's clock) is then stored once.
Each part is an archive of its own, with whole runs. Any `tar` can open one; `unpack` also verifies it.
"""

from __future__ import annotations

import tarfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from semfocus.archive import manifest, xz
from semfocus.archive.contents import ENDED, UNFINISHED, Checkpoints, Files, read_files
from semfocus.archive.manifest import PackedRun
from semfocus.archive.merge import by_reason, check_run
from semfocus.errors import SemfocusError, UsageError, expanded
from semfocus.store import Entry, RunDirectory, RunStore, atomic

SUFFIX = ".tar.xz"
MIB = 2**20
_PIECE_BYTES = 24 * MIB  # of runs that are compressed together
END = bytes(2 * tarfile.BLOCKSIZE)


@dataclass(frozen=True)
class Packed:
    """What was written, and what was left out."""

    paths: list[Path]
    runs: dict[str, PackedRun]
    left_out: dict[str, str]  # entry of the store -> why

    @property
    def bytes(self) -> int:
        return sum(path.stat().st_size for path in self.paths)


@dataclass(frozen=True)
class _Piece:
    """Some runs, compressed together."""

    runs: dict[str, PackedRun]
    data: bytes


def pack(
    store: RunStore,
    out: Path,
    *,
    ids: Collection[str] | None = None,
    tasks: Collection[str] | None = None,
    unfinished: bool = False,
    checkpoints: Checkpoints = "none",
    part_mib: float | None = None,
    about: Mapping[str, str] | None = None,
) -> Packed:
    """Write the ended runs of a store (or of these ids and tasks) into an archive, or into parts of `part_mib` MiB.

    With `unfinished` also interrupted and failed ones, always with their newest checkpoints, to go on elsewhere: two,
    or with `newest` the one from which all of their cohort can go on.
    `about` (versions, commit) goes into the manifest.
    """
    if not out.name.endswith(SUFFIX):
        raise UsageError(f"out = {str(out)!r} must end in {SUFFIX}, which is what it will be")
    if not store.root.is_dir():
        raise UsageError(f"{store.root} is not a directory of runs")
    entries = [entry for entry in store.entries() if _is_meant(entry, ids, tasks)]
    left_out = {entry.name: why for entry in entries if (why := _reason_to_stay(entry, unfinished))}
    chosen = sorted((entry for entry in entries if entry.name not in left_out), key=_neighbours)
    limit = None if part_mib is None else int(part_mib * MIB)
    # Checkpoints hardly shrink: a piece of fewer bytes than a part is sure to fit into one.
    piece_bytes = _PIECE_BYTES if limit is None else min(_PIECE_BYTES, limit * 9 // 10)
    pieces = list(_pieces(chosen, checkpoints, left_out, piece_bytes))
    if not pieces:
        reasons = "; ".join(by_reason(left_out)) or "no run is meant"
        raise UsageError(f"there is nothing to pack in {store.root}: {reasons}")
    about = about or {}
    parts = _parts(pieces, about, limit)
    paths = [out if len(parts) == 1 else _numbered(out, place) for place in range(1, len(parts) + 1)]
    for path, part in zip(paths, parts, strict=True):
        atomic.write_chunks(expanded(path).absolute(), _archive(part, about))
    return Packed(paths, {run_id: run for piece in pieces for run_id, run in piece.runs.items()}, left_out)


def _is_meant(entry: Entry, ids: Collection[str] | None, tasks: Collection[str] | None) -> bool:
    if ids is not None and entry.name not in ids:
        return False
    return tasks is None or (entry.config is not None and _task(entry) in tasks)


def _reason_to_stay(entry: Entry, unfinished: bool) -> str:
    if entry.config is None:
        return f"{entry.state}, {entry.why}"
    if entry.state in ENDED or (unfinished and entry.state in UNFINISHED):
        return ""
    if entry.state in UNFINISHED:
        return f"{entry.state}; give --unfinished to take it, with its last checkpoint"
    return f"{entry.state}, {entry.why}"


def _neighbours(entry: Entry) -> tuple[str, str, str]:
    """A sort key by which runs that have much in common lie side by side: members of a cohort share their clock."""
    cohort = (entry.status or {}).get("cohort")
    return _task(entry), str(min(map(str, cohort))) if isinstance(cohort, list) and cohort else "", entry.name


def _task(entry: Entry) -> str:
    task = (entry.config or {}).get("task")
    return str(task.get("name")) if isinstance(task, dict) else ""


def _pieces(
    entries: Sequence[Entry], checkpoints: Checkpoints, left_out: dict[str, str], piece_bytes: int
) -> Iterator[_Piece]:
    """The runs, compressed in pieces; a run that cannot be read is added to `left_out`."""
    groups: list[dict[str, PackedRun]] = []
    common = _common_steps(entries) if checkpoints == "newest" else {}

    def members() -> Iterator[bytes]:
        runs: dict[str, PackedRun] = {}
        data = bytearray()
        for entry in entries:
            try:
                files = _files(entry, checkpoints, common.get(entry.name))
            except SemfocusError as error:
                left_out[entry.name] = str(error)
                continue
            if data and len(data) + sum(map(len, files.values())) > piece_bytes:
                groups.append(runs)
                yield bytes(data)
                runs, data = {}, bytearray()
            runs[entry.name] = PackedRun.of(entry.state, files)
            for name, content in files.items():
                data += member(f"{entry.name}/{name}", content)
        if runs:
            groups.append(runs)
            yield bytes(data)

    for place, data in enumerate(xz.compress_all(members())):
        yield _Piece(groups[place], data)


def _common_steps(entries: Sequence[Entry]) -> dict[str, int]:
    """By run id, of unfinished members of a cohort: the newest checkpoint that all of them have.

    Killed between two saves, some are one save ahead of the others.
    """
    cohorts: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        if entry.state in UNFINISHED:
            ids = (entry.status or {}).get("cohort")
            cohorts.setdefault(tuple(map(str, ids)) if isinstance(ids, list) else (entry.name,), []).append(entry)
    steps: dict[str, int] = {}
    for own in cohorts.values():
        common = set.intersection(*({*RunDirectory(entry.path).checkpoint_steps()} for entry in own))
        if common:
            steps |= dict.fromkeys((entry.name for entry in own), max(common))
    return steps


def _files(entry: Entry, checkpoints: Checkpoints, newest: int | None) -> Files:
    run = RunDirectory(entry.path)
    wanted = "last" if entry.state in UNFINISHED and checkpoints == "none" else checkpoints
    check_run(run)
    files = read_files(run, wanted, newest)
    if run.holder() is not None:
        raise UsageError(f"a process ({run.holder()}) went on with it while it was packed")
    return files


def member(name: str, data: bytes) -> bytes:
    """A file as a member of a tar archive, without owner or time."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    padding = bytes(-len(data) % tarfile.BLOCKSIZE)
    return info.tobuf(tarfile.USTAR_FORMAT) + data + padding


def _parts(pieces: list[_Piece], about: Mapping[str, str], limit: int | None) -> list[list[_Piece]]:
    """The pieces in parts, each as large as the limit allows."""
    parts: list[list[_Piece]] = []
    for piece in pieces:
        if limit is not None and _size([piece], about) > limit:
            raise UsageError(
                f"--part-size is too small: {', '.join(list(piece.runs)[:3])} and {max(0, len(piece.runs) - 3)} more "
                f"take {_size([piece], about) / MIB:.1f} MiB; choose at least that"
            )
        if parts and (limit is None or _size([*parts[-1], piece], about) <= limit):
            parts[-1].append(piece)
        else:
            parts.append([piece])
    return parts


def _size(part: list[_Piece], about: Mapping[str, str]) -> int:
    return sum(map(len, _archive(part, about)))


def _archive(part: list[_Piece], about: Mapping[str, str]) -> list[bytes]:
    """The streams of one archive."""
    runs = {run_id: run for piece in part for run_id, run in piece.runs.items()}
    head = member(manifest.NAME, manifest.encode(runs, about))
    return [xz.compress(head), *(piece.data for piece in part), xz.compress(END)]


def _numbered(out: Path, place: int) -> Path:
    return out.with_name(f"{out.name.removesuffix(SUFFIX)}-{place}{SUFFIX}")
