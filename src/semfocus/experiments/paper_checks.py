"""What the paper says without a figure of runs, and what it leaves to check: one function each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from semfocus.config import RunConfig
from semfocus.experiments.experiment import Change, Panel
from semfocus.experiments.paper_figures import FIRST, FOCUS, GELU, SECOND
from semfocus.experiments.registry import study
from semfocus.experiments.study import AS_IS, Choices, Tasks, crossed

EVERY = FIRST + SECOND
_curves = Panel("training loss over held-out accuracy", ("train_loss", "heldout_accuracy"))


def _keys_kept(width: int) -> list[str]:
    """Full attention, and top-k from one key to all; a k that the row has no room for is left out."""
    sizes = sorted({size for size in (1, 3, 5, 9, 15, width // 2, width) if 1 <= size <= width})
    return ["full", *(f"topk:{size}" for size in sizes)]


@study(
    title="From one key to all",
    asks="How do speed and accuracy change as k grows from 1 to the whole row, where top-k is full attention?",
    claims=("C11",),
    panels=(
        Panel(
            "epochs to 95 % training accuracy, and final held-out accuracy, by k",
            ("converged_at", "final.heldout_accuracy"),
            kind="sweep",
            along="attention.mechanism",
            lines=("task.name",),
        ),
        _curves,
    ),
    recipe="clean",
)
def k_sweep(tasks: Tasks = EVERY, **choices: Unpack[Choices]) -> list[RunConfig]:
    # clean: padded to a multiple of k, as in the paper's code, a long row would grow by up to half with k = L/2
    return crossed(tasks, _keys_kept, **(Choices(recipe="clean") | choices))


@study(
    title="Dispersion and speed-up",
    asks="Does the ratio of semantic dispersions, top-k over full, predict the speed-up across tasks?",
    panels=(
        Panel(
            "speed-up against the ratio of dispersions at initialisation",
            ("speed_up",),
            kind="scatter",
            along="dispersion.checkpoints.0.delta",
            lines=("task.name",),
            each=(),
        ),
    ),
    measures=("dispersion",),
)
def dispersion_vs_speedup(tasks: Tasks = EVERY, **choices: Unpack[Choices]) -> list[RunConfig]:
    return crossed(tasks, FOCUS, **choices)


@study(
    title="Stability of the mask",
    asks="Does a small semantic separation make the choice of keys unstable under noise, and slow learning down?",
    claims=("C12",),
    panels=(
        Panel(
            "share of kept keys that stay, by noise", ("mask_stability.kept",), along="mask_stability.noise",
            lines=("task.name", "attention.mechanism"), each=(),
        ),
        Panel(
            "speed-up against the separation", ("speed_up",), kind="scatter", along="mask_stability.separation",
            lines=("task.name", "attention.mechanism"), each=(),
        ),
    ),
    measures=("mask_stability",),
)  # fmt: skip
def mask_stability(tasks: Tasks = EVERY, **choices: Unpack[Choices]) -> list[RunConfig]:
    return crossed(tasks, (*FOCUS, "topk:9"), **choices)


@study(
    title="Focus, or just sparsity?",
    asks="Do the k worst keys, or k keys at random, help as the k best do?",
    panels=(_curves,),
)
def controls(tasks: Tasks = EVERY, **choices: Unpack[Choices]) -> list[RunConfig]:
    return crossed(tasks, (*FOCUS, "bottomk:5", "randomk:5"), **choices)


@study(
    title="Dispersion and separation, trained models",
    asks="Do trained top-5 models have lower semantic dispersion than trained full models, as the theory wants?",
    figures=("Table 6",),
    claims=("C9",),
    panels=(
        Panel(
            "percentiles of dispersion, separation and in-degree",
            tuple(f"dispersion.checkpoints.last.{name}" for name in ("delta", "separation", "in_degree")),
            kind="table",
        ),
    ),
    measures=("dispersion",),
)
def table_6(tasks: Tasks = FIRST, **choices: Unpack[Choices]) -> list[RunConfig]:
    return crossed(tasks, FOCUS, **choices)


@study(
    title="Loss surfaces of trained models",
    asks="Is the loss smoother around a trained top-5 model than around a trained full one?",
    figures=("5", "23-27"),
    claims=("C10",),
    panels=(
        Panel("loss surface", ("surface",), kind="surface", each=("task.name", "model.activation")),
        Panel(
            "slopes within growing squares",
            ("surface.per_step", "surface.per_distance"),
            along="surface.squares",
            each=("task.name", "model.activation"),
        ),
    ),
    measures=("surface",),
)
def surfaces(
    tasks: Tasks = FIRST, changes: Sequence[Change] = (AS_IS, *GELU), **choices: Unpack[Choices]
) -> list[RunConfig]:
    return crossed(tasks, FOCUS, changes, **choices)
