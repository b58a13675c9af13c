"""The study `positional_semantic`: the solvable layer of `theory.positional_semantic`, over sample ratios and seeds.

    study = SolvableStudy.at_scale("quick")
    rows = study.run(Path("solvable"))           resumes: rows.jsonl holds every training that has ended
    study.seconds()                              what is left takes, from a few steps made now

It is no study of runs: nothing but these layers is trained, a layer is one vector, and a row of rows.jsonl is a result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from semfocus.errors import CorruptData, unknown
from semfocus.recipes import seeds as first_seeds
from semfocus.store import atomic, locks
from semfocus.store.logs import Log
from semfocus.theory.positional_semantic import FULL, TOKENS, Setup, Trained, World, linear_error, train

ROWS, LOCK = "rows.jsonl", "lock"
MECHANISMS = (FULL, "topk:3", "topk:2")
TARGETS = (FULL, "topk:2")
LINEAR = "linear"  # the mixture by position alone, as a mechanism of its own
Scale = Literal["paper", "quick", "smoke"]
_STEPS_TO_TIME = 20


@dataclass(frozen=True)
class Cell:
    """One data set: what its target keeps, how many examples for each dimension, and its seed."""

    target: str
    alpha: float
    seed: int


@dataclass(frozen=True)
class SolvableStudy:
    """Which layers are trained."""

    setup: Setup
    alphas: tuple[float, ...]
    seeds: tuple[int, ...]
    mechanisms: tuple[str, ...] = MECHANISMS
    targets: tuple[str, ...] = TARGETS

    @staticmethod
    def at_scale(scale: str, seeds: int | None = None, tokens: int = TOKENS) -> SolvableStudy:
        """paper: the source's d = 1000; quick: some ten minutes of one core; smoke: a moment.

        With two tokens it is the source's model, with full attention alone: top-1 cannot learn.
        """
        if scale not in SCALES:
            raise unknown("scale", scale, SCALES)
        setup, alphas, count = SCALES[scale]
        study = SolvableStudy(
            replace(setup, tokens=tokens), alphas, tuple(first_seeds(count if seeds is None else seeds))
        )
        return replace(study, mechanisms=(FULL,), targets=(FULL,)) if tokens == 2 else study

    @property
    def cells(self) -> list[Cell]:
        """Seed by seed, so that a study that is cut off leaves whole seeds behind."""
        return [Cell(target, alpha, seed) for seed in self.seeds for target in self.targets for alpha in self.alphas]

    def left(self, folder: Path) -> list[Cell]:
        """The cells that have no result yet."""
        there = {(row.target, row.trained.alpha, row.trained.seed) for row in self.read(folder)}
        return [cell for cell in self.cells if (cell.target, cell.alpha, cell.seed) not in there]

    def run(self, folder: Path, on_progress: Callable[[int, int], None] = lambda done, total: None) -> list[Row]:
        """Train what is not there; interrupted, the same call goes on where it was."""
        atomic.make_directories(folder)
        if not (folder / ROWS).exists():
            atomic.write_bytes(folder / ROWS, b"")
        with locks.hold(folder / LOCK):
            left, log = self.left(folder), Log(folder / ROWS, ordered=False)
            for done, cell in enumerate(left):
                on_progress(done, len(left))
                for row in self._train(cell):
                    log.append(row)
            on_progress(len(left), len(left))
        return self.read(folder)

    def read(self, folder: Path) -> list[Row]:
        """The results of this study among those in the folder; others have another setup."""
        log = Log(folder / ROWS, ordered=False)
        if not log.path.exists():
            return []
        own = {(cell.target, cell.alpha, cell.seed) for cell in self.cells}
        rows = [_row(values, log.path) for values in log.rows() if _is_of(values, self.setup)]
        whole = len(self.mechanisms) * 2 + 1  # both starts, and the linear mixture; a cell cut off is trained again
        count: dict[Any, dict[Any, Row]] = {}
        for row in rows:
            cell = row.target, row.trained.alpha, row.trained.seed
            if cell in own:
                count.setdefault(cell, {})[row.trained.mechanism, row.trained.start] = row
        return [row for found in count.values() if len(found) == whole for row in found.values()]

    def seconds(self, folder: Path) -> float:
        """What is left takes on this machine, from a few steps of the cell in the middle."""
        left = self.left(folder)
        if not left:
            return 0.0
        setup = replace(self.setup, steps=_STEPS_TO_TIME)
        middle = sorted(left, key=lambda cell: cell.alpha)[len(left) // 2]
        world = World.draw(setup, middle.alpha, middle.seed)
        train(world, self.mechanisms)
        began = time.perf_counter()
        train(world, self.mechanisms)
        each = (time.perf_counter() - began) / _STEPS_TO_TIME * self.setup.steps / middle.alpha
        return each * sum(cell.alpha for cell in left)

    def _train(self, cell: Cell) -> list[dict[str, Any]]:
        world = World.draw(replace(self.setup, target=cell.target), cell.alpha, cell.seed)
        trained = train(world, self.mechanisms)
        error = linear_error(world)
        trained.append(Trained(LINEAR, "positional", cell.alpha, cell.seed, error, error, 0.0, 0.0))
        return [_shared(self.setup) | {"target": cell.target} | asdict(row) for row in trained]


@dataclass(frozen=True)
class Row:
    """One result: what the target keeps, and where the training ended."""

    target: str
    trained: Trained


def results(rows: Sequence[Row], target: str) -> list[Trained]:
    """The trainings on this target."""
    return [row.trained for row in rows if row.target == target]


def _shared(setup: Setup) -> dict[str, Any]:
    """The setup as the beginning of a row; what the target keeps stands beside it."""
    return {f"setup_{name}": value for name, value in asdict(setup).items() if name != "target"}


def _is_of(values: dict[str, Any], setup: Setup) -> bool:
    return all(values.get(name) == value for name, value in _shared(setup).items())


def _row(values: dict[str, Any], path: Path) -> Row:
    try:
        trained = Trained(**{field.name: values[field.name] for field in fields(Trained)})
        return Row(str(values["target"]), trained)
    except KeyError as error:
        raise CorruptData(f"{path} has a row without {error.args[0]}; delete the file to train anew") from None


SCALES: dict[str, tuple[Setup, tuple[float, ...], int]] = {
    "paper": (Setup(width=1000, steps=5000), (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0), 10),
    "quick": (Setup(width=200, steps=2000), (0.1, 0.2, 0.3, 0.45, 0.65, 0.9, 1.3, 2.0), 10),
    "smoke": (Setup(width=16, steps=30, test_rows=50), (0.2, 1.0, 3.0), 2),
}
