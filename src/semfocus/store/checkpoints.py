"""Checkpoints on disk: `checkpoints/<step>/` with `state.safetensors` and `manifest.json`.

    manifest.json   {"sha256": sum of the body,
                     "body": {"format": 1, "step": 40, "meta": {...}, "keep": false,
                              "files": {"state.safetensors": {"bytes": ..., "sha256": ...}},
                              "logs": {"metrics.jsonl": bytes that belong to this step, ...}}}

The manifest is written last and sums up everything, itself included: a checkpoint without a manifest, or whose
sums differ, is damaged. Order is by step; no clock is asked. This module reads, and says what is to be written.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semfocus.errors import CorruptData, OtherFormat, StorageError
from semfocus.store import formats, safe_json, tensors
from semfocus.store.tensors import Mismatch

if TYPE_CHECKING:
    import torch

STATE, MANIFEST = "state.safetensors", "manifest.json"
ASIDE = ".bad-"  # how the names of damaged checkpoints begin, once set aside
MAX_STATE_BYTES = 16 * 2**30
MAX_STEP = 10**15


class DamagedCheckpoint(UserWarning):
    """A checkpoint that cannot be used, so that an earlier one is."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What was saved at one step."""

    step: int
    tensors: dict[str, torch.Tensor]
    meta: dict[str, Any]
    log_sizes: dict[str, int]  # how many bytes of each log belong to it


def contents(
    step: int,
    values: Mapping[str, torch.Tensor],
    meta: Mapping[str, Any],
    log_sizes: Mapping[str, int],
    keep: bool,
) -> dict[str, bytes]:
    """The files of a checkpoint, in the order in which they are to be written."""
    state = tensors.encode(values)
    files = {STATE: {"bytes": len(state), "sha256": hashlib.sha256(state).hexdigest()}}
    body = {"step": step, "meta": dict(meta), "keep": keep, "files": files, "logs": dict(log_sizes)}
    return {STATE: state, MANIFEST: _sealed(formats.stamp(body))}


def with_keep(folder: Path, step: int) -> bytes:
    """The manifest of this step, changed to say that it stays."""
    return _sealed({**_unsealed(folder / str(step) / MANIFEST), "keep": True})


def all_steps(folder: Path) -> list[int]:
    """The steps that have an entry here, sound or damaged, newest first."""
    return sorted((int(name) for name in _names(folder) if _is_step(name)), reverse=True)


def set_aside(folder: Path) -> list[str]:
    """The names of the damaged ones that were set aside."""
    return sorted(name for name in _names(folder) if name.startswith(ASIDE))


def looks_sound(folder: Path, step: int) -> bool:
    """Whether the manifest is sound and the file beside it has the right size; its sum is left to `load`."""
    try:
        manifest = read_manifest(folder, step)
        return os.lstat(folder / str(step) / STATE).st_size == manifest["files"][STATE]["bytes"]
    except (CorruptData, OSError):
        return False


def is_kept(folder: Path, step: int) -> bool:
    """Whether this step was saved to stay; one that cannot be read is not ours to delete."""
    try:
        return read_manifest(folder, step)["keep"]
    except (CorruptData, OtherFormat):
        return True


def load(folder: Path, step: int, expect: Mapping[str, torch.Tensor] | None = None) -> Checkpoint:
    """The checkpoint of this step, every sum checked: CorruptData when it is damaged, Mismatch when not as expected."""
    manifest = read_manifest(folder, step)
    path = folder / str(step) / STATE
    size, digest = manifest["files"][STATE]["bytes"], manifest["files"][STATE]["sha256"]
    try:
        handle = safe_json.open_plain(path)
    except FileNotFoundError:
        raise CorruptData(f"{path} is missing") from None
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(file.fileno()).st_size
        if found != size:
            raise CorruptData(f"{path} has {found} bytes where its manifest says {size}")
        if hashlib.file_digest(file, "sha256").hexdigest() != digest:
            raise CorruptData(f"{path} does not have the SHA-256 sum that its manifest gives")
        file.seek(0)
        values = tensors.decode(file, size, str(path), expect)
    return Checkpoint(step, values, manifest["meta"], manifest["logs"])


def newest(folder: Path, expect: Mapping[str, torch.Tensor] | None) -> tuple[Checkpoint | None, dict[int, str]]:
    """The newest intact checkpoint, and what is wrong with each newer one. None when none was ever saved.

    CorruptData when there are some and none is intact: starting again from nothing is not ours to decide.
    """
    damage: dict[int, str] = {}
    while remaining := [step for step in all_steps(folder) if step not in damage]:
        step = remaining[0]
        try:
            return load(folder, step, expect), damage
        except Mismatch:
            raise
        except CorruptData as error:
            if step in all_steps(folder):  # otherwise its writer has pruned it meanwhile, and has a newer one
                damage[step] = str(error)
    lost = [*damage.values(), *(f"{folder / name} was set aside" for name in set_aside(folder))]
    if lost:
        raise CorruptData(f"no checkpoint is intact: {'; '.join(lost)}. To start again, remove {folder.parent}")
    return None, {}


def read_manifest(folder: Path, step: int) -> dict[str, Any]:
    """The manifest's body in the present format, its own sum and the kind of every field checked."""
    directory = folder / str(step)
    if not _is_plain_directory(directory):
        raise CorruptData(f"{directory} is not a directory of its own; a file or a link is no checkpoint")
    path = directory / MANIFEST
    body = formats.upgrade(_unsealed(path), "manifest", path)
    files, logs = body.get("files"), body.get("logs")
    state = files.get(STATE) if isinstance(files, dict) else None
    sound = (
        body.get("step") == step
        and isinstance(body.get("meta"), dict)
        and isinstance(body.get("keep"), bool)
        and isinstance(state, dict)
        and _is_size(state.get("bytes"))
        and isinstance(state.get("sha256"), str)
        and isinstance(logs, dict)
        and all(map(_is_size, logs.values()))
    )
    if not sound:
        raise CorruptData(f"{path} is not the manifest of step {step}")
    return body


def _sealed(body: dict[str, Any]) -> bytes:
    what = f"the manifest of step {body['step']}"
    safe_json.encode(body, what)  # refuses what cannot be read back, before the sum is taken
    return safe_json.encode({"sha256": _sum(body), "body": body}, what)


def _unsealed(path: Path) -> dict[str, Any]:
    data = safe_json.read(path)
    if data is None:
        raise CorruptData(f"{path} is missing: the checkpoint is not complete")
    document = safe_json.decode(data, str(path))
    body = document.get("body") if isinstance(document, dict) else None
    if not isinstance(body, dict) or document.get("sha256") != _sum(body):
        raise CorruptData(f"{path} does not have its own SHA-256 sum")
    return body


def _sum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


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
