"""Checkpoints and statuses of runs that train in lockstep, written together.

One sync costs milliseconds and many at once hardly more: saving a hundred members takes little more time than saving
one. Each member's checkpoint still exists completely or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from semfocus.errors import CorruptData, StorageError, UsageError, check_int, unknown
from semfocus.store import atomic, checkpoints, formats, safe_json
from semfocus.store.checkpoints import Checkpoint
from semfocus.store.directory import STATES, STATUS
from semfocus.store.tensors import Mismatch

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from semfocus.store.writer import RunWriter


class Save(NamedTuple):
    """One member's checkpoint to save."""

    writer: RunWriter
    step: int
    tensors: Mapping[str, torch.Tensor]
    meta: Mapping[str, Any]
    keep: bool = False


def save_checkpoints(saves: Sequence[Save]) -> None:
    """Save one checkpoint per member; when this returns, all of them and their logs are synced to disk."""
    logs = [log for save in saves for log in save.writer.unsynced()]
    with still_held(save.writer for save in saves):
        atomic.create_directories(_new_directories(saves), also_sync=[log.path for log in logs])
        for log in logs:
            log.unsynced = False
        for save in saves:
            save.writer.prune()


def load_common(
    writers: Sequence[RunWriter], expect: Mapping[str, torch.Tensor] | None = None
) -> list[Checkpoint] | None:
    """Return each member's checkpoint of the newest step that is intact for all; set aside damaged newer ones.

    None when some member has never saved a checkpoint: then all start from the beginning. Raises CorruptData when
    every member has saved and no step is intact for all.
    """
    if not writers:
        return []
    damage: dict[tuple[RunWriter, int], str] = {}
    shared = set.intersection(*(set(checkpoints.all_steps(writer.folder)) for writer in writers))
    for step in sorted(shared, reverse=True):
        intact: list[Checkpoint] = []
        for writer in writers:
            try:
                intact.append(checkpoints.load(writer.folder, step, expect))
            except Mismatch:
                raise
            except CorruptData as error:
                damage[writer, step] = str(error)
        if len(intact) == len(writers):
            for (writer, bad), reason in damage.items():
                writer.set_aside(bad, reason)
            return intact
    if any(not checkpoints.all_steps(w.folder) and not checkpoints.names_set_aside(w.folder) for w in writers):
        return None
    raise CorruptData(
        f"no step is intact for all {len(writers)} runs: {'; '.join(damage.values()) or 'none is shared'}"
    )


def write_statuses(entries: Sequence[tuple[RunWriter, str, Mapping[str, Any]]]) -> None:
    """Replace the status of each run by (state, facts); sync the logs of the runs that stop running first."""
    contents: dict[Path, bytes] = {}
    for writer, state, facts in entries:
        if state not in STATES:
            raise unknown("state", state, STATES)
        if facts.keys() & {"format", "state"}:
            raise UsageError("format and state are not facts that a status can be given")
        writer.ensure_held()
        document = formats.stamp({"state": state, **facts})
        contents[writer.path / STATUS] = safe_json.encode_row(document, f"the status of run {writer.id}") + b"\n"
    logs = [log for writer, state, _ in entries if state != "running" for log in writer.unsynced()]
    with still_held(writer for writer, _, _ in entries):
        atomic.sync_all(log.path for log in logs)
        for log in logs:
            log.unsynced = False
        atomic.replace_all(contents)


@contextmanager
def still_held(writers: Iterable[RunWriter]) -> Iterator[None]:
    """Replace a write error by the error that a run directory has vanished, where that is its cause."""
    try:
        yield
    except (CorruptData, StorageError):
        for writer in writers:
            writer.ensure_held()
        raise


def _new_directories(saves: Sequence[Save]) -> Iterator[tuple[Path, Mapping[str, bytes]]]:
    for writer, step, tensors, meta, keep in saves:
        step = check_int("step", step, at_least=0, at_most=checkpoints.MAX_STEP)
        writer.ensure_held()
        files = checkpoints.encode(step, tensors, meta, writer.log_sizes(), keep)
        if not writer.has_saved(step, files, keep):
            yield writer.folder / str(step), files
