"""Stores of synthetic runs, written as training writes them: runs that converge, stall or diverge."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from semfocus import recipes
from semfocus.analysis.records import Record
from semfocus.config import RunConfig
from semfocus.config.run import recorded_run_id
from semfocus.store import RunDirectory, RunStore
from semfocus.training.loading import document

HALFWAY = {"full": 40.0, "topk": 9.0, "banded": 400.0, "block_local": 300.0, "bottomk": 250.0, "randomk": 90.0}
FACTS = {
    "device": "cpu",
    "device_name": "a desk",
    "threads": 1,
    "compiled": False,
    "torch": "2.13.0",
    "python": "3.11.9",
}


def rows(config: RunConfig, epochs: int | None = None, every: float = 1.0) -> list[dict[str, Any]]:
    """Synthetic metrics: a smooth rise whose epoch depends on task, mechanism and seed."""
    mechanism = config.attention.mechanism
    draw = np.random.default_rng([config.seed, zlib.crc32(f"{config.task.name}/{mechanism}".encode())])
    middle = HALFWAY[mechanism.partition(":")[0]] * config.training.epochs / 100 * math.exp(0.3 * float(draw.normal()))
    middle *= 0.5 if "g" in mechanism.partition(":")[2] else 1.0
    middle *= 1 + len(config.task.name) % 4 / 2
    gap = 0.02 if mechanism.startswith("topk") else 0.07
    measured = []
    last = epochs or config.training.epochs
    for number in range(1, round(last / every) + 1):
        epoch = number * every
        learned = 1 / (1 + math.exp(-(epoch - middle) / (0.12 * middle)))
        shake = 0.01 * float(draw.normal())
        accuracy = min(1.0, max(0.0, 0.5 + 0.5 * learned + shake * (1 - learned)))
        measured.append(
            {
                "epoch": int(epoch) if epoch == int(epoch) else epoch, "step": round(epoch * 200), "lr": 0.1,
                "train_loss": 0.69 * (1 - learned) + 0.004 + abs(shake) / 3, "train_accuracy": accuracy,
                "heldout_loss": 0.69 * (1 - learned) + 0.1 + abs(shake),
                "heldout_accuracy": max(0.0, accuracy - gap * learned),
            }
        )  # fmt: skip
    return measured


def made(
    root: Path, config: RunConfig, state: str = "done", measured: Sequence[dict[str, Any]] | None = None
) -> RunDirectory:
    """Write one run to disk."""
    task = config.task.build()
    run = RunStore(root).create_or_open(config.run_id(task), document(config, task))
    with run.lock() as writer:
        for row in rows(config) if measured is None else measured:
            writer.append_metrics(row)
            writer.append_timing({"step": row["step"], "seconds": 0.25 * row["epoch"], "evaluation_seconds": 0.01})
        if state != "empty":
            writer.write_status(state, **FACTS)
    return run


def made_as(root: Path, config: RunConfig, fields: dict[str, Any], **facts: Any) -> RunDirectory:
    """Write one run whose config.json has these fields, which need not be those of a run that can be trained."""
    run = RunStore(root).create_or_open(recorded_run_id(fields) or "ab" * 8, fields)
    with run.lock() as writer:
        for row in rows(config):
            writer.append_metrics(row)
        writer.write_status("done", **facts)
    return run


def configs(
    tasks: Iterable[str] = ("even_pairs",),
    mechanisms: Iterable[str] = ("full", "topk:5"),
    seeds: int = 3,
    **changes: Any,
) -> list[RunConfig]:
    """Every task with every mechanism and seed; `changes` as `training__epochs=20`."""
    made_configs = []
    for task in tasks:
        for mechanism in mechanisms:
            for seed in recipes.seeds(seeds):
                config = recipes.configure(task, mechanism, seed)
                for name, value in changes.items():
                    part, field = name.split("__")
                    inner = getattr(config, part).model_copy(update={field: value})
                    config = config.model_copy(update={part: inner})
                made_configs.append(config)
    return made_configs


def store(root: Path, *args: Any, state: str = "done", **kwargs: Any) -> Path:
    """Write a store of such runs."""
    for config in configs(*args, **kwargs):
        made(root, config, state)
    return root


def record(config: RunConfig, state: str = "done", measured: list[dict[str, Any]] | None = None) -> Record:
    """One run as analysis reads it, without a directory."""
    task = config.task.build()
    metrics = rows(config) if measured is None else measured
    return Record(config.run_id(task), document(config, task), metrics, state, 1.0)


def records(*args: Any, **kwargs: Any) -> list[Record]:
    """Runs of twenty epochs; arguments as for `configs`."""
    return [record(config) for config in configs(*args, training__epochs=20, **kwargs)]
