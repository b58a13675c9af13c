"""Runs whose rows and tensors are functions of the step, so that what is read back can be checked to the bit."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import torch

from semfocus.config.run import recorded_run_id
from semfocus.store import RunDirectory, RunStore, RunWriter, checkpoints, formats

RUN = "0123456789abcdef"
CONFIG: dict[str, Any] = {"task": {"name": "parity", "length": 8}, "training": {"lr": 0.1, "epochs": 3}, "seed": 7}


def new_run(root: Path, run_id: str = RUN) -> RunDirectory:
    return RunStore(root).create_or_open(run_id, CONFIG)


def row(step: int) -> dict[str, Any]:
    return {"epoch": step // 2, "step": step, "lr": 0.1, "train_loss": 1 / (step + 1), "note": "x" * (step % 50)}


def state(step: int, size: int = 300) -> dict[str, torch.Tensor]:
    return {"weight": torch.arange(size, dtype=torch.float32) * step, "seen": torch.tensor(step)}


def advance(writer: RunWriter, first: int, last: int, every: int = 2, keep: tuple[int, ...] = ()) -> None:
    """Make steps `first` to `last`: one row per step, a checkpoint whenever `every` divides the step."""
    for step in range(first, last + 1):
        writer.append_metrics(row(step))
        writer.append_timing({"step": step, "seconds": 0.5})
        if step % every == 0:
            writer.save_checkpoint(step, state(step), {"rng": [step, step + 1]}, keep=step in keep)


def filled(root: Path, last: int = 4, **options: Any) -> RunDirectory:
    """Return a run with rows up to `last` and its newest checkpoints."""
    run = new_run(root)
    with run.lock() as writer:
        advance(writer, 1, last, **options)
    return run


def assert_consistent(run: RunDirectory, at_least: int = 0) -> int:
    """Assert that rows are 1, 2, 3, ..., that the newest checkpoint is exact and has its rows; return its step."""
    rows = run.metrics()
    assert rows == [row(step) for step in range(1, len(rows) + 1)]
    checkpoint = run.load_checkpoint()
    step = 0 if checkpoint is None else checkpoint.step
    assert at_least <= step <= len(rows)
    if checkpoint is not None:
        assert checkpoint.meta == {"rng": [step, step + 1]}
        assert set(checkpoint.tensors) == {"weight", "seen"}
        assert all(torch.equal(tensor, state(step)[name]) for name, tensor in checkpoint.tensors.items())
    return step


def flip(path: Path, position: int) -> None:
    """Flip one bit of one byte."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def processes() -> ForkServerContext:
    """Return a context whose processes start in milliseconds: forked from a server that has imported torch."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "safetensors.torch", "semfocus.store", "pytest"])
    return context


def copy_run(run: RunDirectory, root: Path) -> RunDirectory:
    """Copy the store of a run to `root`; return the run there."""
    shutil.copytree(run.path.parent, root)
    return RunStore(root).open(run.id)


def train_on(run: RunDirectory, last: int) -> None:
    """Resume from the newest checkpoint and make steps up to `last`, as a training does."""
    with run.lock() as writer:
        checkpoint = writer.load_checkpoint()
        writer.rewind(checkpoint)
        writer.write_status("running")
        first = 1 if checkpoint is None else checkpoint.step + 1
        assert len(writer.metrics()) == first - 1
        advance(writer, first, last)
        writer.write_status("done", epochs=4)


def plant(run: RunDirectory, data: bytes, /, step: int = 4, **body: Any) -> None:
    """Write `data` as the tensors of a checkpoint, with a manifest whose checksums are right."""
    files = {checkpoints.STATE: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}}
    manifest = {"format": 1, "step": step, "meta": {}, "keep": False, "logs": {}, **body, "files": files}
    directory = run.path / "checkpoints" / str(step)
    directory.mkdir(exist_ok=True)
    (directory / checkpoints.STATE).write_bytes(data)
    (directory / checkpoints.MANIFEST).write_bytes(checkpoints.seal(manifest))


def reseal(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a document of a run and give it the checksum of its new content, as who wants to deceive would."""
    document = json.loads(path.read_text())
    change(document)
    document.pop(formats.SEAL, None)
    path.write_text(json.dumps({**document, formats.SEAL: formats.checksum(document)}))


def forge(run: RunDirectory, change: Callable[[dict[str, Any]], object]) -> RunDirectory:
    """Change the configuration of a run, and give the run the id that belongs to it; the old directory is gone.

    Status and checkpoints say that they are of the new run, as who wants to deceive would have them say.
    """
    fields = run.config()
    change(fields)
    forged = run.path.with_name(recorded_run_id(fields) or run.id)
    reseal(run.path / "config.json", lambda document: document.update(config=fields, id=forged.name))
    if (run.path / "status.json").exists():
        reseal(run.path / "status.json", lambda document: document.update({formats.RUN: forged.name}))
    for manifest in run.path.glob(f"checkpoints/*/{checkpoints.MANIFEST}"):
        body = json.loads(manifest.read_text())["body"]
        manifest.write_bytes(checkpoints.seal({**body, formats.RUN: forged.name}))
    run.path.rename(forged)
    return RunDirectory(forged)


class Bomb:
    """Unpickling this creates a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.path),)
