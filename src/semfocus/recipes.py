"""The paper's hyperparameters by task, the seeds, the three recipes and the three scales.

The recipe `clean` masks padding and adds none. `paper` makes padding visible and pads to a multiple of k where
attention is sparse, as the paper's code does. `authors` has every quirk of that code: those two, attention dropout in
evaluation, epsilon 0 in the first attention's LayerNorm, one row of ListOps left out, random keys drawn with
replacement. The scale `paper` has the paper's numbers; `quick` has smaller ones for a
laptop, with the same architecture and optimiser; `smoke` has numbers so small that a run takes a moment.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Literal, get_args

from semfocus.config import AttentionConfig, ModelConfig, RunConfig, TaskConfig, TrainingConfig
from semfocus.decoders import language, smallest
from semfocus.errors import check_int, unknown
from semfocus.tasks import Task, task_names
from semfocus.tasks.registry import option_defaults, task_class

Recipe = Literal["clean", "paper", "authors"]
Scale = Literal["paper", "quick", "smoke"]

PAPER_SEEDS = (
    153476998, 235510766, 205084180, 129959864, 149896109,
    140439608, 145017219, 162518970, 245293503, 152674004,
)  # fmt: skip

COMPACT = ("full", "banded:5", "block_local:5", "banded:5+1g", "block_local:5+1g", "topk:5")
QUICK = ("full", "banded:5", "topk:5")
LANGUAGE = ("full", "topk:8", "topk:32", "topk:8>full@0.3", "banded:32")
LANGUAGE_QUICK = ("full", "topk:8", "topk:8>full@0.3")
GRID = (
    "full", *(f"{name}:{size}" for name in ("topk", "banded", "block_local") for size in (5, 9)),
    *(f"{name}:{size}+{extra}g" for name in ("banded", "block_local") for size in (5, 9) for extra in (1, 3)),
)  # fmt: skip


LADDER = (2, 4, 8, 16)  # values of k to try on a task of one's own


@dataclass(frozen=True)
class Hyperparameters:
    """What the paper chose for a task."""

    epochs: int
    blocks: int = 5
    lr: float = 0.1
    decay: float = 0.9995  # of the authors' scripts; their notes say 0.99


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
QUICK_ROWS = 2000, 500  # training and held-out examples
QUICK_STEPS = 400  # of a language model
QUICK_EVALUATED_ROWS = 32  # of its training rows: forty evaluations would take as long as the training
MAX_SEEDS = 10_000
OWN_DATA = Hyperparameters(50, blocks=4)  # of a task that is not in the paper, e.g. a user's file


def seeds(count: int) -> list[int]:
    """The first of the paper's ten seeds; further ones are 28-bit hashes of their index."""
    check_int("seeds", count, at_least=1, at_most=MAX_SEEDS)
    more = (int.from_bytes(hashlib.sha256(f"seed {i}".encode()).digest()[:4], "big") >> 4 for i in range(10, count))
    return [*PAPER_SEEDS[:count], *more]


def configure(
    task: str,
    mechanism: str,
    seed: int,
    recipe: Recipe = "clean",
    options: dict[str, Any] | None = None,
    size: str | None = None,
) -> RunConfig:
    """The paper's run of this task, mechanism and seed; a task that is not in the paper gets stated defaults.

    `size` is one of `decoders.SIZES`, for language models alone.
    """
    if recipe not in get_args(Recipe):
        raise unknown("recipe", recipe, get_args(Recipe))
    size = size or language_size(task)
    if size is not None:
        return language(size, task, mechanism, seed, options)
    chosen = PAPER.get(task, OWN_DATA)
    pads_as_authors, is_authors = recipe != "clean", recipe == "authors"
    return RunConfig(
        task=TaskConfig.with_default_rows(task, options),
        attention=AttentionConfig(mechanism=mechanism_in(recipe, mechanism)),
        model=ModelConfig(
            blocks=chosen.blocks,
            padding_visible=pads_as_authors,
            pad_to_multiple=pads_as_authors,
            dropout_in_evaluation=is_authors,
            first_norm_exact=is_authors,
        ),
        training=TrainingConfig(
            epochs=chosen.epochs,
            lr=chosen.lr,
            decay=chosen.decay,
            drop_one_row=is_authors and task == "listops",  # the other tasks' loader has no such fault
        ),
        seed=seed,
    )


def language_size(task: str) -> str | None:
    """The size of a language model for this task by default; None of a task that is not text."""
    return task_class(task).language_size if task in task_names() else None


def usual_mechanisms(task: str, is_quick: bool = False) -> tuple[str, ...]:
    """What is compared where nothing else is asked for."""
    if language_size(task) is not None:
        return LANGUAGE_QUICK if is_quick else LANGUAGE
    return QUICK if is_quick else COMPACT


def mechanism_in(recipe: Recipe, mechanism: str) -> str:
    """The mechanism as a recipe means it: in `authors` random keys are drawn with replacement."""
    name, colon, size = mechanism.partition(":")
    is_random = recipe == "authors" and (name.strip().lower(), colon) == ("randomk", ":")
    return f"randomk_replaced:{size}" if is_random else mechanism


def ladder(seq_len: int) -> list[str]:
    """Top-k attention with a few k, none above half of the sequence."""
    return [f"topk:{k}" for k in LADDER if k <= max(2, seq_len // 2)]


def at_scale(task: str, mechanism: str, seed: int, recipe: Recipe = "clean", scale: Scale = "paper") -> RunConfig:
    """The run of this task, mechanism and seed at a scale."""
    makers = {"paper": configure, "quick": quick, "smoke": smoke}
    if scale not in makers:
        raise unknown("scale", scale, makers)
    return makers[scale](task, mechanism, seed, recipe)


def quick(
    task: str,
    mechanism: str,
    seed: int,
    recipe: Recipe = "clean",
    options: dict[str, Any] | None = None,
    size: str | None = None,
) -> RunConfig:
    """Smaller numbers, everything else the same: 20 tokens, 3 blocks, 2000 training examples, at most 20 epochs.

    A run stops once 95 % of its training examples are right. ListOps keeps its rule with up to 79 tokens. Options of
    the task win over these numbers. A language model of any size takes 400 steps.
    """
    size = size or language_size(task)
    if size is not None:
        short = language(size, task, mechanism, seed, options, steps=QUICK_STEPS)
        evaluated = min(QUICK_EVALUATED_ROWS, short.training.evaluated_rows or QUICK_EVALUATED_ROWS)
        return short.model_copy(update={"training": short.training.model_copy(update={"evaluated_rows": evaluated})})
    listops = {"min_length": 20, "max_length": 80, "max_depth": 6}
    base = configure(task, mechanism, seed, recipe, _shorter(task, 20, listops) | (options or {}))
    return base.model_copy(
        update={
            "task": _with_at_most(base.task, *QUICK_ROWS),
            "model": base.model.model_copy(update={"blocks": 3}),
            "training": base.training.model_copy(update={"epochs": 20, "stop_accuracy": 0.95}),
        }
    )


def smoke(task: str, mechanism: str, seed: int, recipe: Recipe = "clean") -> RunConfig:
    """A moment's work: 12 tokens (ListOps: up to 19), one block of width 8, 60 training examples, 2 epochs."""
    if language_size(task) is not None:
        return smallest(task, mechanism, seed)
    listops = {"min_length": 10, "max_length": 20, "max_depth": 4}
    base = configure(task, mechanism, seed, recipe, _shorter(task, 12, listops))
    return base.model_copy(
        update={
            "task": with_fewer_rows(base.task, base.task.build(), 60, 30),
            "model": base.model.model_copy(update={"blocks": 1, "d_model": 8, "d_mlp": 8}),
            "training": base.training.model_copy(update={"epochs": 2}),
        }
    )


def with_fewer_rows(config: TaskConfig, task: Task, train: int, heldout: int) -> TaskConfig:
    """With at most these many examples, also where the task itself says how many there are."""
    sizes = {"train_rows": task.size("train"), "heldout_rows": task.size("heldout")}
    whole = config.model_copy(update={name: size for name, size in sizes.items() if size is not None})
    return _with_at_most(whole, train, heldout)


def _shorter(task: str, length: int, listops: dict[str, Any]) -> dict[str, Any]:
    """The options that shorten a task's sequences; none without an option `length`, or if they are that short."""
    if task == "listops":
        return listops
    default = option_defaults(task).get("length")
    if type(default) is not int or default <= length:
        return {}
    return {"length": max(length, getattr(task_class(task), "shortest", length))}


def _with_at_most(task: TaskConfig, train: int, heldout: int) -> TaskConfig:
    """With fewer examples where their number is given."""
    rows = {"train_rows": (task.train_rows, train), "heldout_rows": (task.heldout_rows, heldout)}
    return task.model_copy(update={name: min(given, most) for name, (given, most) in rows.items() if given is not None})
