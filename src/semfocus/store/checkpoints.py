"""Checkpoints on disk: `checkpoints/<step>/` with `state.safetensors` and `manifest.json`.

    manifest.json   {"sha256": checksum of the body,
                     "body": {"format": 3, "run": "07d9...", "step": 40, "meta": {...}, "keep": false,
                              "files": {"state.safetensors": {"bytes": ..., "sha256": ...}},
                              "logs": {"metrics.jsonl": {"bytes": ..., "sha256": ...}, ...}}}    # up to this step

The manifest is written last and holds a checksum of everything, itself included: a checkpoint without a manifest, or
with another checksum, or of another run, is damaged. Checkpoints are ordered by step, never by a clock. This module
reads checkpoints and encodes them; `writer` writes them.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from semfocus.errors import CorruptData, OtherFormat, StorageError
from semfocus.store import formats, safe_json, tensors
from semfocus.store.logs import Mark
from semfocus.store.tensors import Mismatch

if TYPE_CHECKING:
    import torch

STATE, MANIFEST = "state.safetensors", "manifest.json"
ASIDE = ".bad-"  # the prefix of damaged checkpoints that were set aside
MAX_STATE_BYTES = 16 * 2**30
MAX_STEP = 10**15


class DamagedCheckpoint(UserWarning):
    """A checkpoint is damaged; an earlier one is used instead."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What was saved at one step."""

    step: int
    tensors: dict[str, torch.Tensor]
    meta: dict[str, Any]
    logs: dict[str, Mark]  # how much of each log belongs to this step


def encode(
    run_id: str,
    step: int,
    values: Mapping[str, torch.Tensor],
    meta: Mapping[str, Any],
    logs: Mapping[str, Mark],
    keep: bool,
) -> dict[str, bytes]:
    """Return the files of a checkpoint, in the order in which they must be written."""
    state = tensors.encode(values)
    files = {STATE: {"bytes": len(state), "sha256": hashlib.sha256(state).hexdigest()}}
    marks = {name: mark.to_json() for name, mark in logs.items()}
    body = {"run": run_id, "step": step, "meta": dict(meta), "keep": keep, "files": files, "logs": marks}
    return {STATE: state, MANIFEST: seal(formats.stamp(body))}


def manifest_to_keep(folder: Path, step: int) -> bytes:
    """Return the manifest of this step with `keep` set."""
    return seal({**_unseal(folder / str(step) / MANIFEST), "keep": True})


def all_steps(folder: Path) -> list[int]:
    """Return the steps of all checkpoints, intact or damaged, newest first."""
    return sorted((int(name) for name in _names(folder) if _is_step(name)), reverse=True)


def names_set_aside(folder: Path) -> list[str]:
    """Return the names of the damaged checkpoints that were set aside."""
    return sorted(name for name in _names(folder) if name.startswith(ASIDE))


def is_complete(folder: Path, step: int) -> bool:
    """Return whether the manifest is valid and the state has the right size; `load` verifies the checksum."""
    try:
        manifest = read_manifest(folder, step)
        return os.lstat(folder / str(step) / STATE).st_size == manifest["files"][STATE]["bytes"]
    except (CorruptData, OSError):
        return False


def is_kept(folder: Path, step: int) -> bool:
    """Return whether this step must not be pruned; True where that cannot be read, so that nothing is lost."""
    try:
        return read_manifest(folder, step)["keep"]
    except (CorruptData, OtherFormat):
        return True


def load(folder: Path, step: int, expect: Mapping[str, torch.Tensor] | None = None) -> Checkpoint:
    """Return the checkpoint of this step after verifying its checksums.

    Raises CorruptData when it is damaged, Mismatch when its tensors differ from `expect` in name, shape or dtype.
    """
    manifest = read_manifest(folder, step)
    with _verified_state(folder, step, manifest) as (file, size):
        values = tensors.decode(file, size, str(folder / str(step) / STATE), expect)
    return Checkpoint(step, values, manifest["meta"], marks_in(manifest))


def sort_out(folder: Path) -> tuple[list[int], dict[int, str]]:
    """Return the steps whose checksums are right, newest first, and what is wrong with each other step."""
    intact, damage = [], {}
    for step in all_steps(folder):
        try:
            with _verified_state(folder, step, read_manifest(folder, step)):
                intact.append(step)
        except CorruptData as error:
            damage[step] = str(error)
    return intact, damage


@contextmanager
def _verified_state(folder: Path, step: int, manifest: Mapping[str, Any]) -> Iterator[tuple[BinaryIO, int]]:
    """Yield the tensors of a checkpoint as an open file of known size, after verifying their checksum."""
    path = folder / str(step) / STATE
    size, digest = manifest["files"][STATE]["bytes"], manifest["files"][STATE]["sha256"]
    try:
        handle = safe_json.open_plain(path)
    except FileNotFoundError:
        raise CorruptData(f"{path} is missing") from None
    with os.fdopen(handle, "rb") as file:
        actual_size = os.fstat(file.fileno()).st_size
        if actual_size != size:
            raise CorruptData(f"{path} has {actual_size} bytes where its manifest says {size}")
        if hashlib.file_digest(file, "sha256").hexdigest() != digest:
            raise CorruptData(f"{path} does not have the SHA-256 sum that its manifest gives")
        file.seek(0)
        yield file, size


def load_newest(folder: Path, expect: Mapping[str, torch.Tensor] | None) -> tuple[Checkpoint | None, dict[int, str]]:
    """Return the newest intact checkpoint (None when none was ever saved), and the damage of newer ones by step.

    Raises CorruptData when checkpoints exist and none is intact: whether to start again is for the user to decide.
    """
    damage: dict[int, str] = {}
    while remaining := [step for step in all_steps(folder) if step not in damage]:
        step = remaining[0]
        try:
            return load(folder, step, expect), damage
        except Mismatch:
            raise
        except CorruptData as error:
            if step in all_steps(folder):  # otherwise the writer has pruned it meanwhile, after saving a newer one
                damage[step] = str(error)
    lost = [*damage.values(), *(f"{folder / name} was set aside" for name in names_set_aside(folder))]
    if lost:
        raise CorruptData(f"no checkpoint is intact: {'; '.join(lost)}. To start again, remove {folder.parent}")
    return None, {}


def read_manifest(folder: Path, step: int) -> dict[str, Any]:
    """Return the manifest's body in the current format, after verifying its checksum and the type of each field."""
    directory = folder / str(step)
    if not _is_plain_directory(directory):
        raise CorruptData(f"{directory} is not a directory of its own; a file or a link is no checkpoint")
    path = directory / MANIFEST
    body = formats.upgrade(_unseal(path), "manifest", path)
    files, logs = body.get("files"), body.get("logs")
    state = files.get(STATE) if isinstance(files, dict) else None
    valid = (
        body.get("step") == step
        and isinstance(body.get("meta"), dict)
        and isinstance(body.get("keep"), bool)
        and isinstance(state, dict)
        and _is_size(state.get("bytes"))
        and isinstance(state.get("sha256"), str)
        and isinstance(logs, dict)
    )
    if not valid:
        raise CorruptData(f"{path} is not the manifest of step {step}")
    formats.check_run(body, folder.parent.name, path)
    marks_in(body)
    return body


def marks_in(manifest: Mapping[str, Any]) -> dict[str, Mark]:
    """Return how much of each log belongs to the checkpoint of this manifest."""
    return {name: Mark.parse(value) for name, value in manifest["logs"].items()}


def seal(body: dict[str, Any]) -> bytes:
    """Return a manifest with this body and its checksum."""
    what = f"the manifest of step {body['step']}"
    safe_json.encode(body, what)  # refuses what cannot be read back, before the checksum is computed
    return safe_json.encode({"sha256": formats.checksum(body), "body": body}, what)


def _unseal(path: Path) -> dict[str, Any]:
    data = safe_json.read(path)
    if data is None:
        raise CorruptData(f"{path} is missing: the checkpoint is not complete")
    document = safe_json.decode(data, str(path))
    body = document.get("body") if isinstance(document, dict) else None
    if not isinstance(body, dict) or document.get("sha256") != formats.checksum(body):
        raise CorruptData(f"{path} does not have its own SHA-256 sum")
    return body


def _names(folder: Path) -> list[str]:
    if not os.path.lexists(folder):
        return []
    if not _is_plain_directory(folder):
        raise CorruptData(f"{folder} is not a directory of its own; links are not followed")
    try:
        return os.listdir(folder)
    except OSError as error:
        raise StorageError(f"cannot read {folder}: {error.strerror}") from error


def _is_plain_directory(path: Path) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False


def _is_step(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) <= len(str(MAX_STEP)) and str(int(name)) == name


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_STATE_BYTES
