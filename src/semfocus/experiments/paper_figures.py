"""The figures of the paper (arXiv 2506.14095) that show runs, one function each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from semfocus.config import RunConfig
from semfocus.errors import check_int
from semfocus.experiments.experiment import Change, Panel, distinct
from semfocus.experiments.registry import study
from semfocus.experiments.study import AS_IS, Choices, Tasks, crossed
from semfocus.recipes import COMPACT, GRID, seeds
from semfocus.training.objective import CLASSIFICATION

THREE = ("listops", "even_pairs", "missing_duplicate")
FIRST = ("listops", "parity", "even_pairs", "missing_duplicate")
SECOND = ("stack_manipulation", "modular_arithmetic", "solve_equation", "cycle_navigation")
FOCUS = ("full", "topk:5")
GELU: tuple[Change, ...] = ({"model.activation": "gelu"},)
MISH: tuple[Change, ...] = ({"model.activation": "mish"},)

_both = Panel("training loss over held-out accuracy", ("train_loss", "heldout_accuracy"))
_loss = Panel("training loss", ("train_loss",))
_accuracy = Panel("training accuracy", ("train_accuracy",))
_activations = Panel(_both.title, _both.metrics, each=("task.name", "model.activation"))

_compact = (
    "Do models whose attention keeps the k best keys learn faster, and generalise as well, as with full attention"
)
_whole = "Does it depend on the size of the window or of k, or on the number of global tokens, who learns faster"

FIRST_CLAIMS = ("C1", "C2", "C3", "C4", "C5")  # of speed and of what is learned


@study(
    title="Speed and accuracy, three tasks",
    asks=f"{_compact}?",
    figures=("1",),
    claims=FIRST_CLAIMS,
    panels=(_both,),
)
def figure_1(tasks: Tasks = THREE, **choices: Unpack[Choices]) -> list[RunConfig]:
    return crossed(tasks, COMPACT, **choices)


@study(
    title="Speed and accuracy with GELU and Mish",
    asks=f"{_compact}, when the MLP's activation is another?",
    figures=("2",),
    claims=("C6",),
    panels=(_activations,),
)
def figure_2(
    tasks: Tasks = THREE, changes: Sequence[Change] = GELU + MISH, **choices: Unpack[Choices]
) -> list[RunConfig]:
    return crossed(tasks, COMPACT, changes, **choices)


def _one_by_one(field: str, *values: float) -> tuple[Change, ...]:
    """The run as it is, for comparison, and one for each value of a field."""
    return (AS_IS, *({field: value} for value in values))


BLOCKS = _one_by_one("model.blocks", 6, 15, 22)
HEADS = _one_by_one("model.heads", 2, 4, 8)
RATES = _one_by_one("training.lr", 0.66, 1.5, 2.25)
DECAYS = _one_by_one("training.decay", 0.9, 0.999, 0.9999)
ADAM: tuple[Change, ...] = (
    AS_IS,
    *(
        {"training.optimizer": "adam", "training.lr": rate, "training.decay": 0.99999}
        for rate in (1e-5, 1e-4, 1e-3, 1e-2)
    ),
)


def _ablation(title: str, field: str, changes: tuple[Change, ...]) -> Panel:
    return Panel(title, _both.metrics, lines=("attention.mechanism", field), changes=changes)


@study(
    title="Ablations on ListOps",
    asks="Does top-5 attention stay ahead of full attention when the model's or the optimiser's settings change?",
    figures=("3a-e",),
    claims=("C7", "C8"),
    panels=(
        _ablation("a: blocks", "model.blocks", BLOCKS),
        _ablation("b: heads", "model.heads", HEADS),
        _ablation("c: initial learning rate", "training.lr", RATES),
        _ablation("d: decay of the learning rate", "training.decay", DECAYS),
        _ablation("e: Adam, by learning rate", "training.lr", ADAM),
    ),
)
def figure_3(
    tasks: Tasks = ("listops",),
    changes: Sequence[Change] = (*BLOCKS, *HEADS[1:], *RATES[1:], *DECAYS[1:], *ADAM[1:]),
    **choices: Unpack[Choices],
) -> list[RunConfig]:
    return crossed(tasks, FOCUS, changes, **choices)


@study(
    title="Speed and accuracy, first four tasks",
    asks=f"{_compact}?",
    figures=("7",),
    claims=FIRST_CLAIMS,
    panels=(_both,),
)
def figure_7(tasks: Tasks = FIRST, **choices: Unpack[Choices]) -> list[RunConfig]:
    return crossed(tasks, COMPACT, **choices)


@study(
    title="Speed and accuracy, other four tasks",
    asks=f"{_compact}?",
    figures=("8",),
    claims=FIRST_CLAIMS,
    panels=(_both,),
)
def figure_8(tasks: Tasks = SECOND, **choices: Unpack[Choices]) -> list[RunConfig]:
    return crossed(tasks, COMPACT, **choices)


@study(
    title="Grid: training loss, first four tasks", asks=f"{_whole}?", figures=("9",), claims=("C3",), panels=(_loss,)
)
def figure_9(tasks: Tasks = FIRST, **choices: Unpack[Choices]) -> list[RunConfig]:
    return crossed(tasks, GRID, **choices)


@study(
    title="Grid: training accuracy, first four tasks",
    asks=f"{_whole}?",
    figures=("10",),
    claims=("C3",),
    panels=(_accuracy,),
)
def figure_10(tasks: Tasks = FIRST, **choices: Unpack[Choices]) -> list[RunConfig]:
    return crossed(tasks, GRID, **choices)


@study(
    title="Grid: training loss, other four tasks", asks=f"{_whole}?", figures=("11",), claims=("C3",), panels=(_loss,)
)
def figure_11(tasks: Tasks = SECOND, **choices: Unpack[Choices]) -> list[RunConfig]:
    return crossed(tasks, GRID, **choices)


@study(
    title="Grid: training accuracy, other four tasks",
    asks=f"{_whole}?",
    figures=("12",),
    claims=("C3",),
    panels=(_accuracy,),
)
def figure_12(tasks: Tasks = SECOND, **choices: Unpack[Choices]) -> list[RunConfig]:
    return crossed(tasks, GRID, **choices)


@study(
    title="Grid, GELU: training loss, first four",
    asks=f"{_whole}, with GELU?",
    figures=("13",),
    claims=("C6",),
    panels=(_loss,),
)
def figure_13(tasks: Tasks = FIRST, **choices: Unpack[Choices]) -> list[RunConfig]:
    return crossed(tasks, GRID, GELU, **choices)


@study(
    title="Grid, GELU: training accuracy, first four",
    asks=f"{_whole}, with GELU?",
    figures=("14",),
    claims=("C6",),
    panels=(_accuracy,),
)
def figure_14(tasks: Tasks = FIRST, **choices: Unpack[Choices]) -> list[RunConfig]:
    return crossed(tasks, GRID, GELU, **choices)


@study(
    title="Grid, Mish: training loss, first four",
    asks=f"{_whole}, with Mish?",
    figures=("15",),
    claims=("C6",),
    panels=(_loss,),
)
def figure_15(tasks: Tasks = FIRST, **choices: Unpack[Choices]) -> list[RunConfig]:
    return crossed(tasks, GRID, MISH, **choices)


@study(
    title="Grid, Mish: training accuracy, first four",
    asks=f"{_whole}, with Mish?",
    figures=("16",),
    claims=("C6",),
    panels=(_accuracy,),
)
def figure_16(tasks: Tasks = FIRST, **choices: Unpack[Choices]) -> list[RunConfig]:
    return crossed(tasks, GRID, MISH, **choices)


@study(
    title="Grid, GELU: training loss, other four",
    asks=f"{_whole}, with GELU?",
    figures=("17",),
    claims=("C6",),
    panels=(_loss,),
)
def figure_17(tasks: Tasks = SECOND, **choices: Unpack[Choices]) -> list[RunConfig]:
    return crossed(tasks, GRID, GELU, **choices)


@study(
    title="Grid, GELU: training accuracy, other four",
    asks=f"{_whole}, with GELU?",
    figures=("18",),
    claims=("C6",),
    panels=(_accuracy,),
)
def figure_18(tasks: Tasks = SECOND, **choices: Unpack[Choices]) -> list[RunConfig]:
    return crossed(tasks, GRID, GELU, **choices)


ROWS_OF_40 = (
    "even_pairs", "missing_duplicate", "stack_manipulation", "modular_arithmetic", "solve_equation", "cycle_navigation",
    "parity",
)  # fmt: skip


@study(
    title="Full against top-5, with twice the seeds",
    asks=f"{_compact}, judged by enough seeds to see a speed-up of 1.3?",
    claims=FIRST_CLAIMS,
    panels=(_both,),
)
def headline(tasks: Tasks = ROWS_OF_40, **choices: Unpack[Choices]) -> list[RunConfig]:
    """Twice as many seeds of full and top-5 as of the other masks: most of the speed-ups to judge are near 1.3."""
    twice: Choices = {**choices, "seeds": 2 * check_int("seeds", choices.get("seeds", 10), at_least=1)}
    # Task by task, so that a study that is cut off leaves whole comparisons behind.
    return distinct(
        config for task in tasks for config in (*crossed([task], FOCUS, **twice), *crossed([task], COMPACT, **choices))
    )


HEADLINE_SEEDS = 20
TO_95: tuple[Change, ...] = ({"training.stop_accuracy": CLASSIFICATION.learned.threshold},)


@study(
    title="Further seeds of full and top-5, to 95 %",
    asks="How much sooner does top-5 attention reach 95 % training accuracy, judged by more seeds?",
    claims=("C1", "C2"),
    panels=(_accuracy,),
)
def further_seeds(tasks: Tasks = ROWS_OF_40, **choices: Unpack[Choices]) -> list[RunConfig]:
    """The seeds after the twenty of `headline`, for what is read of a run up to 95 %: there it stops."""
    count = HEADLINE_SEEDS + check_int("seeds", choices.get("seeds", 10), at_least=1)
    more: Choices = {**choices, "seeds": count}
    there = {*seeds(HEADLINE_SEEDS)}
    return [config for config in crossed(tasks, FOCUS, TO_95, **more) if config.seed not in there]
