"""The files of measurements: `measurements/<name>.json`, and `<name>.safetensors` for arrays.

    write_measurement(run, "dispersion", {"k": 5, ...})      replaces what was there, in one step
    read_measurement(run, "dispersion")                      None when it was never measured
    with changing(run): ...                                  read and write again, while no other process does

`semfocus.measurements` gives the names and types the payloads; everything else goes through it. Measurements can be
made again from the run's checkpoints. They do not take the run's lock, because its writer never opens them. Anybody may
have written what is read, as with everything in a run directory.
"""

from __future__ import annotations

import fcntl
import io
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semfocus.errors import CorruptData, StorageError, UsageError
from semfocus.store import atomic, formats, safe_json, tensors
from semfocus.store.directory import LOCK, RunDirectory

if TYPE_CHECKING:
    import numpy as np

FOLDER, DOCUMENT, ARRAYS = "measurements", ".json", ".safetensors"
MAX_ARRAY_BYTES = 2**30
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")


class DamagedMeasurement(UserWarning):
    """A measurement cannot be read, and is left out."""


def write_measurement(run: RunDirectory, name: str, payload: Mapping[str, Any]) -> None:
    """Keep `payload` (JSON; numbers finite or None) with the run under this name."""
    what = f"the measurement {name!r} of run {run.id}"
    document = {"run": run.id, "name": name, "payload": dict(payload)}
    _write(run, name, DOCUMENT, formats.encode(document, what))


def read_measurement(run: RunDirectory, name: str) -> dict[str, Any] | None:
    """What was measured under this name; None when nothing was, CorruptData when it is damaged or another run's."""
    path = _place(run, name, DOCUMENT)
    document = formats.read(path, "measurement")
    if document is None:
        return None
    body = document.body
    payload = body.get("payload")
    if body.get("run") != run.id or body.get("name") != name or not isinstance(payload, dict):
        raise CorruptData(f"{path} is not the measurement {name!r} of run {run.id}")
    return payload


@contextmanager
def changing(run: RunDirectory) -> Iterator[None]:
    """Keep other processes out between a read and a write; else what one of them adds in between would be lost."""
    folder = _folder(run)
    if not run.path.is_dir():
        raise StorageError(f"{run.path} is gone; there is no run to keep measurements with")
    atomic.make_directories(folder)
    handle = atomic.open_lock(folder / LOCK)
    try:
        with suppress(OSError):  # a file system without locks: go on without
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def measurement_names(run: RunDirectory) -> list[str]:
    """The names under which something was measured, sound or damaged."""
    try:
        files = os.listdir(_folder(run))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"cannot read {run.path / FOLDER}: {error.strerror}") from error
    names = (file.removesuffix(DOCUMENT) for file in files if file.endswith(DOCUMENT))
    return sorted(name for name in names if _NAME.fullmatch(name))


def write_arrays(run: RunDirectory, name: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Keep arrays of numbers or booleans with the run under this name, apart from its JSON."""
    import torch

    try:
        values = {key: torch.tensor(array) for key, array in arrays.items()}
    except (TypeError, ValueError) as error:
        raise UsageError(f"the arrays {name!r} of run {run.id} cannot be kept: {error}") from None
    data = tensors.encode(values, sealed=True)
    if len(data) > MAX_ARRAY_BYTES:
        raise UsageError(f"the arrays {name!r} of run {run.id} take {len(data)} bytes; at most {MAX_ARRAY_BYTES}")
    _write(run, name, ARRAYS, data)


def read_arrays(run: RunDirectory, name: str) -> dict[str, np.ndarray] | None:
    """The arrays kept under this name; None when there are none, CorruptData when they are damaged."""
    path = _place(run, name, ARRAYS)
    try:
        handle = safe_json.open_plain(path)
    except FileNotFoundError:
        return None
    with os.fdopen(handle, "rb") as file:
        size = os.fstat(handle).st_size
        if size > MAX_ARRAY_BYTES:
            raise CorruptData(f"{path} is larger than {MAX_ARRAY_BYTES} bytes")
        data = file.read()
    tensors.check_seal(data, str(path))
    values = tensors.decode(io.BytesIO(data), len(data), str(path), None)
    try:
        return {key: value.numpy() for key, value in values.items()}
    except TypeError as error:
        raise CorruptData(f"{path} holds numbers of a kind that arrays do not have: {error}") from None


def delete_arrays(run: RunDirectory, name: str) -> None:
    """Remove the arrays kept under this name, if there are any."""
    path = _place(run, name, ARRAYS)
    with atomic.storage_errors(path):
        path.unlink(missing_ok=True)


def _write(run: RunDirectory, name: str, suffix: str, data: bytes) -> None:
    path = _place(run, name, suffix)
    if not run.path.is_dir():
        raise StorageError(f"{run.path} is gone; there is no run to keep the measurement {name!r} with")
    new = not path.parent.exists()
    atomic.make_directories(path.parent)
    atomic.ensure_writable(path.parent)
    atomic.sweep(path.parent)
    atomic.replace_all({path: data})
    if new:
        atomic.sync_all([run.path])


def _place(run: RunDirectory, name: str, suffix: str) -> Path:
    if not _NAME.fullmatch(name):  # before it is joined to a path
        raise UsageError(f"{name!r} is not a measurement's name: lowercase letters, digits, - and _, a letter first")
    return _folder(run) / f"{name}{suffix}"


def _folder(run: RunDirectory) -> Path:
    folder = run.path / FOLDER
    if folder.is_symlink():
        raise CorruptData(f"{folder} is a symbolic link; links in a run directory are not followed")
    return folder
