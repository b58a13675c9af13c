"""Runs made by hand: the paper's configuration, and the few rows of metrics that decide anything."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

from semfocus.analysis.records import Record
from semfocus.analysis.verdicts import CLAIMS, Verdict
from semfocus.analysis.verdicts.evidence import conclude
from semfocus.analysis.verdicts.settings import TASKS, settings_from
from semfocus.config.run import recorded_run_id
from semfocus.config_files import apply_overrides
from semfocus.measurements import Malformed, Measurement
from semfocus.measurements.store import KINDS
from semfocus.recipes import configure
from semfocus.tasks import get_task

WIDTH = 40
TEXTS = ("next_word", "text", "mqar")  # they stand on the configuration of another task: no corpus is read


def run(
    task: str,
    mechanism: str,
    seed: int,
    *,
    at: float | None = 20,
    fits: bool = True,
    heldout: float = 0.9,
    heldout_at: float | None = None,
    loss_at: float = 10,
    losses: Callable[[float], float] | None = None,
    state: str = "done",
    recipe: str = "paper",
    changes: Mapping[str, Any] = {},
    width: int = WIDTH,
) -> Record:
    """One run: 95 % training accuracy at epoch `at`, held-out accuracy `heldout` from `heldout_at` (else `at`) on.

    `losses` is the held-out loss by the share of training, in forty evaluations.
    """
    config = json.loads(_config(task, recipe, json.dumps(dict(changes)), width))
    config["attention"]["mechanism"], config["seed"] = mechanism, seed
    horizon = config["training"]["epochs"]
    later = heldout_at if heldout_at is not None else at
    epochs = sorted({0.5, loss_at, horizon, *(epoch for epoch in (at, later) if epoch is not None)})
    if losses is not None:
        epochs = [horizon * i / 40 for i in range(1, 41)]
    rows = [
        {
            "epoch": epoch,
            "step": int(epoch * 200),
            "lr": 0.1,
            "train_loss": 0.1 if epoch >= loss_at else 1.0,
            "train_accuracy": 0.5 if at is None or epoch < at else 1.0 if fits else 0.96,
            "heldout_loss": 1.0 if losses is None else losses(epoch / horizon),
            "heldout_accuracy": heldout if later is None or epoch >= later else 0.1,
        }
        for epoch in epochs
    ]
    return Record(recorded_run_id(config), config, rows, state, 1.0)


@cache
def _config(task: str, recipe: str, changes: str, width: int) -> str:
    known = "parity" if task in TEXTS else task
    config = configure(known, "full", 0, recipe).model_dump(mode="json")
    config = apply_overrides(config, [f"{name}={json.dumps(value)}" for name, value in json.loads(changes).items()])
    options = json.loads(json.dumps(get_task(known).options)) | config["task"]["options"]
    config["task"]["name"] = task
    config["data"] = {"task": task, "version": 1, "options": options}
    config["sizes"] = {"vocab_size": 2, "num_classes": get_task(known).num_classes, "seq_len": width}
    return json.dumps(config)


def arm(task: str, mechanism: str, at: float | None, seeds: int = 10, spread: float = 0.3, **more: Any) -> list[Record]:
    """Runs of many seeds whose epochs differ a little: the same seeds are slow in every arm."""
    return [
        run(task, mechanism, seed, at=None if at is None else at + spread * (seed % 5), **more) for seed in range(seeds)
    ]


def both(full: float | None, topk: float | None, tasks: Sequence[str] = TASKS, **more: Any) -> list[Record]:
    """Full attention and top-k on each of these tasks."""
    return [
        record
        for task in tasks
        for mechanism, at in (("full", full), ("topk:5", topk))
        for record in arm(task, mechanism, at, **more)
    ]


def verdict(claim: str, records: Sequence[Record], measurements: Mapping[str, Any] | None = None) -> Verdict:
    """The verdict on one claim, as `judge` gives it beside the others."""
    (judged,) = (known for known in CLAIMS if known.id == claim)
    return conclude(judged, judged.parts(settings_from(records), measurements or {}))


def measure(
    records: Sequence[Record], name: str, payload: Callable[[Record], dict[str, Any] | None]
) -> dict[str, dict[str, Measurement]]:
    """A measurement of each run, by run id and name; what is not one is left out, as a store does it."""
    measurements: dict[str, dict[str, Measurement]] = {}
    for record in records:
        value = payload(record)
        with suppress(Malformed):
            if value is not None:
                measurements[record.id] = {name: KINDS[name].from_payload(value)}
    return measurements
