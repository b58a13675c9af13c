"""Runs whose every row and tensor follows from the step, so that what comes back can be checked to the bit."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import torch

from semfocus.store import RunDirectory, RunStore, RunWriter

RUN = "0123456789abcdef"
CONFIG: dict[str, Any] = {"task": {"name": "parity", "length": 8}, "training": {"lr": 0.1, "epochs": 3}, "seed": 7}


def new_run(root: Path, run_id: str = RUN) -> RunDirectory:
    return RunStore(root).create_or_open(run_id, CONFIG)


def row(step: int) -> dict[str, Any]:
    return {"epoch": step // 2, "step": step, "lr": 0.1, "train_loss": 1 / (step + 1), "note": "x" * (step % 50)}


def state(step: int, size: int = 300) -> dict[str, torch.Tensor]:
    return {"weight": torch.arange(size, dtype=torch.float32) * step, "seen": torch.tensor(step)}


def advance(writer: RunWriter, first: int, last: int, every: int = 2, keep: tuple[int, ...] = ()) -> None:
    """Steps `first` to `last`, a row each and a checkpoint every so often."""
    for step in range(first, last + 1):
        writer.append_metrics(row(step))
        writer.append_timing({"step": step, "seconds": 0.5})
        if step % every == 0:
            writer.save_checkpoint(step, state(step), {"rng": [step, step + 1]}, keep=step in keep)


def filled(root: Path, last: int = 4, **options: Any) -> RunDirectory:
    """A run with rows up to `last` and its newest checkpoints."""
    run = new_run(root)
    with run.lock() as writer:
        advance(writer, 1, last, **options)
    return run


def assert_consistent(run: RunDirectory, at_least: int = 0) -> int:
    """Rows are 1, 2, 3, ... and the newest checkpoint is exact, not before `at_least`, and covered by the rows."""
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
    """Change one bit of one byte."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def processes() -> ForkServerContext:
    """Fresh processes that cost milliseconds: forked from one that has torch and nothing else going on."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "safetensors.torch", "semfocus.store", "pytest"])
    return context
