"""Simulated runs with known truths, as records that the real verdict functions judge.

    runs = Cells([Cell("parity", {"full": Arm(60), "topk:5": Arm(60 / 1.3)}, seeds=20)])
    for settings, measurements in runs.worlds(400):
        ...                              # one repetition: settings as `settings_from` would find them

A run is a handful of evaluations: from its own epoch on it is at full training accuracy and at its held-out level, and
its training loss decays exponentially. Epochs are lognormal, and correlated between the runs of a seed.
Configurations are the paper's. They do not depend on the repetition, so that each setting is found once, by
`settings_from`, and its runs are then exchanged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from semfocus.analysis.metrics import Metrics
from semfocus.analysis.records import Record
from semfocus.analysis.verdicts.settings import TASKS, Setting, settings_from
from semfocus.config_files import apply_overrides
from semfocus.measurements import Measurement, Measurements
from semfocus.randomness import stream
from semfocus.recipes import configure
from semfocus.tasks import get_task

Floats = NDArray[np.float64]
Measure = Callable[[Floats], dict[str, Measurement]]  # of two uniform numbers of a run: its measurements by name
# The held-out losses at these shares of training, from a normal number that the seed's arms share in part, and an own.
Losses = Callable[[Floats, float, float], Floats]
FULL, TOPK = "full", "topk:5"
BASE = 0.4  # median epochs of full attention, as a share of the horizon
HOLDS, MIXED, NOT, OPEN = "holds", "mixed", "does not hold", "not decided"
SPREAD, CORRELATION, SEQ_LEN, EVALUATIONS = 0.25, 0.5, 40, 20
TEXTS = ("next_word", "text", "mqar")  # they stand on the configuration of another task: no corpus is read
LOSSES = 40  # evaluations of a language model


@dataclass(frozen=True)
class Arm:
    """What is true of one mechanism; epochs are relative to the horizon of its task."""

    median: float = (
        0.4  # of the epochs to full training accuracy, of the time of decay of the loss, and of `heldout_at`
    )
    spread: float = SPREAD
    heldout: float = 0.9  # mean accuracy
    noise: float = 0.005  # its standard deviation over seeds
    stuck: float = 0.0  # share of runs that stay at `chance`
    chance: float = 0.5
    slow: float = 0.0  # share of runs that take three times as long
    fits: bool = True  # else it stays at `chance` in training too
    measure: Measure | None = None
    losses: Losses | None = None  # of a language model; nothing else is then known of it


@dataclass(frozen=True)
class Cell:
    """The arms of one setting."""

    task: str
    arms: Mapping[str, Arm]
    seeds: Mapping[str, int] | int = 20
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class World:
    """A simulated study and the outcome that an endless one would have; on an edge that is "not decided"."""

    claim: str
    name: str
    truth: str
    cells: Sequence[Cell]

    @property
    def key(self) -> str:
        return f"{self.claim}/{self.name}"


def pair(
    task: str, ratio: float, changes: Mapping[str, Any] = {}, seeds: int = 20, topk: Mapping[str, Any] = {}, **both: Any
) -> Cell:
    """Full attention and top-k, `ratio` times as fast; `topk` differs in these fields, too."""
    full = Arm(**{"median": BASE, **both})
    return Cell(task, {FULL: full, TOPK: replace(full, median=full.median / ratio, **topk)}, seeds, changes)


def speeds(ratio: float, first: float | None = None, **more: Any) -> list[Cell]:
    """The eight tasks; the first one may differ."""
    return [pair(task, first if first is not None and i == 0 else ratio, **more) for i, task in enumerate(TASKS)]


class Cells:
    """All settings of one simulated study."""

    def __init__(self, cells: Sequence[Cell], name: str) -> None:
        self.cells, self.name = cells, name
        self.settings = [_setting(cell.task, json.dumps(dict(cell.changes))) for cell in cells]

    def worlds(self, repetitions: int) -> Iterator[tuple[list[Setting], Measurements]]:
        """One study after the other. A seed's luck is shared by all arms of a task, whatever its settings."""
        luck: dict[str, Floats] = {}
        own: dict[tuple[int, str], Floats] = {}
        for place, cell in enumerate(self.cells):
            for mechanism in cell.arms:
                shape = (repetitions, _count(cell, mechanism), 6)
                key = f"benchmarks/verdicts/{self.name}/{place}/{mechanism}"
                own[place, mechanism] = stream(0, key).uniform(shape)
                if cell.task not in luck or luck[cell.task].shape[1] < shape[1]:
                    luck[cell.task] = stream(0, f"benchmarks/verdicts/{self.name}/{cell.task}").uniform((*shape[:2], 2))
        for i in range(repetitions):
            measurements: dict[str, dict[str, Measurement]] = {}
            settings = []
            for place, (cell, setting) in enumerate(zip(self.cells, self.settings, strict=True)):
                arms = {
                    mechanism: _runs(
                        place, setting, mechanism, arm, own[place, mechanism][i], luck[cell.task][i], measurements
                    )
                    for mechanism, arm in cell.arms.items()
                }
                settings.append(replace(setting, arms=arms, tests={}, known_times={}))
            yield settings, measurements


def _count(cell: Cell, mechanism: str) -> int:
    return cell.seeds if isinstance(cell.seeds, int) else cell.seeds[mechanism]


@cache
def _setting(task: str, changes: str) -> Setting:
    known = "parity" if task in TEXTS else task
    config = configure(known, "full", 0, "paper").model_dump(mode="json")
    config = apply_overrides(config, [f"{name}={json.dumps(value)}" for name, value in json.loads(changes).items()])
    options = json.loads(json.dumps(get_task(known).options)) | config["task"]["options"]
    config["task"]["name"] = task
    config["data"] = {"task": task, "version": 1, "options": options}
    config["sizes"] = {"vocab_size": 2, "num_classes": get_task(known).num_classes, "seq_len": SEQ_LEN}
    (setting,) = settings_from([Record("", config, [], "done", 1.0)])
    return setting


def _runs(
    place: int,
    setting: Setting,
    mechanism: str,
    arm: Arm,
    own: Floats,
    luck: Floats,
    measurements: dict[str, dict[str, Measurement]],
) -> dict[int, Record]:
    n, horizon = len(own), float(setting.fields["training.epochs"])
    (template,) = setting.arms["full"].values()
    speed = np.sqrt(CORRELATION) * ndtri(luck[:n, 0]) + np.sqrt(1 - CORRELATION) * ndtri(own[:, 0])
    epochs = np.ceil(horizon * arm.median * np.exp(arm.spread * speed) * np.where(own[:, 1] < arm.slow, 3.0, 1.0))
    stuck = _both_uniform(luck[:n, 1], own[:, 2]) < arm.stuck
    levels = np.clip(np.where(stuck, arm.chance, arm.heldout) + arm.noise * ndtri(own[:, 3]), 0, 1)
    config = template.config | {"attention": template.config["attention"] | {"mechanism": mechanism}}
    runs = {}
    for seed in range(n):
        name = f"{place}/{mechanism}/{seed}"
        if arm.losses is not None:
            metrics = _language(horizon, arm.losses, float(speed[seed]), float(ndtri(own[seed, 3])))
        else:
            metrics = _metrics(horizon, float(epochs[seed]), float(levels[seed]), arm)
        runs[seed] = Record(name, config | {"seed": seed}, metrics, "done", 1.0)
        if arm.measure is not None:
            measurements[name] = arm.measure(own[seed, 4:])
    return runs


def _both_uniform(a: Floats, b: Floats) -> Floats:
    """A uniform number that depends on both: runs of one seed are often stuck together."""
    return ndtr(np.sqrt(CORRELATION) * ndtri(a) + np.sqrt(1 - CORRELATION) * ndtri(b))


@cache
def _grid(horizon: float) -> Floats:
    return np.ceil(np.linspace(horizon / EVALUATIONS, horizon, EVALUATIONS))


def _language(horizon: float, losses: Losses, shared: float, own: float) -> Metrics:
    shares = np.arange(1, LOSSES + 1) / LOSSES
    return Metrics(
        {"epoch": shares * horizon, "step": shares * 1e4, "heldout_loss": losses(shares, shared, own)}, LOSSES
    )


def _metrics(horizon: float, at: float, level: float, arm: Arm) -> Metrics:
    grid = _grid(horizon)
    place = int(np.searchsorted(grid, at))
    epochs = grid if at > horizon or grid[place] == at else np.concatenate([grid[:place], [at], grid[place:]])
    there = epochs >= at
    chance = np.float64(arm.chance)
    columns = {
        "epoch": epochs,
        "train_loss": 2.3 * np.exp(-epochs / (at / 3)) if arm.fits else np.full(len(epochs), 2.3),
        "train_accuracy": np.where(there, 1.0 if arm.fits else chance, 0.0),
        "heldout_accuracy": np.where(there | (epochs == horizon), level, 0.0),
    }
    return Metrics(columns, len(epochs))
