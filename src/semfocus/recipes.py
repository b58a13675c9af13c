"""The paper's hyperparameters by task, the seeds, the two recipes and the three scales.

`clean` masks padding and adds none; `paper` lets it be seen and pads sparse rows to a multiple of k, as the paper's
code does. Of the scales, `paper` has the paper's numbers, `quick` the same architecture and optimiser with smaller
numbers, for a laptop, and `smoke` numbers so small that a run takes a moment: it shows that things work, no more.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Literal, get_args

from semfocus.config import AttentionConfig, ModelConfig, RunConfig, TaskConfig, TrainingConfig
from semfocus.errors import check_int, unknown

Recipe = Literal["clean", "paper"]
Scale = Literal["paper", "quick", "smoke"]

PAPER_SEEDS = (
    153476998, 235510766, 205084180, 129959864, 149896109,
    140439608, 145017219, 162518970, 245293503, 152674004,
)  # fmt: skip

COMPACT = ("full", "banded:5", "block_local:5", "banded:5+1g", "block_local:5+1g", "topk:5")
QUICK = ("full", "banded:5", "topk:5")
GRID = (
    "full", *(f"{name}:{size}" for name in ("topk", "banded", "block_local") for size in (5, 9)),
    *(f"{name}:{size}+{extra}g" for name in ("banded", "block_local") for size in (5, 9) for extra in (1, 3)),
)  # fmt: skip


@dataclass(frozen=True)
class Hyperparameters:
    """What the paper chose for a task."""

    epochs: int
    blocks: int = 5
    lr: float = 0.1
    decay: float = 0.9995


PAPER = {
    "parity": Hyperparameters(1000),
    "even_pairs": Hyperparameters(100),
    "missing_duplicate": Hyperparameters(250),
    "cycle_navigation": Hyperparameters(750),
    "stack_manipulation": Hyperparameters(200),
    "modular_arithmetic": Hyperparameters(600),
    "solve_equation": Hyperparameters(600),
    "listops": Hyperparameters(200, blocks=10, lr=1.0, decay=0.99),
}
OWN_DATA = Hyperparameters(50, blocks=4)  # for a user's file or task: a modest model that most data suit


def seeds(count: int) -> list[int]:
    """The first of the paper's ten seeds, and after those 28-bit numbers from the hash of their place."""
    check_int("seeds", count, at_least=1)
    more = (int.from_bytes(hashlib.sha256(f"seed {i}".encode()).digest()[:4], "big") >> 4 for i in range(10, count))
    return [*PAPER_SEEDS[:count], *more]


def configure(
    task: str, mechanism: str, seed: int, recipe: Recipe = "clean", options: dict[str, Any] | None = None
) -> RunConfig:
    """The paper's run of this task, mechanism and seed; a task that the paper does not have gets stated defaults."""
    known = task in PAPER
    chosen = PAPER.get(task, OWN_DATA)
    rows = TaskConfig(name=task, options=options or {})
    if not known:
        rows = TaskConfig(name=task, options=options or {}, train_rows=None, heldout_rows=None)
    quirks = recipe == "paper"
    return RunConfig(
        task=rows,
        attention=AttentionConfig(mechanism=mechanism),
        model=ModelConfig(blocks=chosen.blocks, padding_visible=quirks, pad_to_multiple=quirks),
        training=TrainingConfig(epochs=chosen.epochs, lr=chosen.lr, decay=chosen.decay),
        seed=seed,
    )


def at_scale(task: str, mechanism: str, seed: int, recipe: Recipe = "clean", scale: Scale = "paper") -> RunConfig:
    """The run of this task, mechanism and seed, as large as `scale` says."""
    if recipe not in get_args(Recipe):
        raise unknown("recipe", recipe, get_args(Recipe))
    makers = {"paper": configure, "quick": quick, "smoke": smoke}
    if scale not in makers:
        raise unknown("scale", scale, makers)
    return makers[scale](task, mechanism, seed, recipe)


def quick(task: str, mechanism: str, seed: int, recipe: Recipe = "clean") -> RunConfig:
    """Smaller numbers, same everything else: rows of 20 tokens, 3 blocks, 2000 rows, at most 20 epochs.

    A run stops when it has learned its training rows to 95 %. ListOps keeps its rule with rows of up to 79 tokens.
    """
    base = configure(task, mechanism, seed, recipe)
    shorter = {"min_length": 20, "max_length": 80, "max_depth": 6} if task == "listops" else {"length": 20}
    return base.model_copy(
        update={
            "task": TaskConfig(
                name=task, options=shorter if task in PAPER else {}, train_rows=2000 if task in PAPER else None,
                heldout_rows=500 if task in PAPER else None,
            ),
            "model": base.model.model_copy(update={"blocks": 3}),
            "training": base.training.model_copy(update={"epochs": 20, "stop_accuracy": 0.95}),
        }
    )  # fmt: skip


def smoke(task: str, mechanism: str, seed: int, recipe: Recipe = "clean") -> RunConfig:
    """A moment's work: rows of 12 tokens (ListOps: up to 19), one block 8 wide, 60 training rows, 2 epochs."""
    base = configure(task, mechanism, seed, recipe)
    shorter = {"min_length": 10, "max_length": 20, "max_depth": 4} if task == "listops" else {"length": 12}
    whole = TaskConfig(name=task, options=shorter if task in PAPER else {})
    built = whole.build()
    sizes = {"train_rows": built.size("train"), "heldout_rows": built.size("heldout")}  # None: without end
    few = {"train_rows": 60, "heldout_rows": 30}
    rows = {name: min(few[name], size or few[name]) for name, size in sizes.items()}
    return base.model_copy(
        update={
            "task": whole.model_copy(update=rows),
            "model": base.model.model_copy(update={"blocks": 1, "d_model": 8, "d_mlp": 8}),
            "training": base.training.model_copy(update={"epochs": 2}),
        }
    )
