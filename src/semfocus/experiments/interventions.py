"""What the paper explains, put to the test by changing the cause alone: one function each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from semfocus.config import RunConfig
from semfocus.experiments.experiment import Change, Panel
from semfocus.experiments.paper_figures import FOCUS
from semfocus.experiments.registry import study
from semfocus.experiments.study import AS_IS, Choices, Tasks, crossed

FASTER = ("even_pairs", "missing_duplicate", "modular_arithmetic", "solve_equation", "cycle_navigation", "parity")
TEMPERATURE = "attention.inverse_temperature"
SHUFFLE = "task.options.shuffle"
TEMPERATURES: tuple[Change, ...] = tuple({TEMPERATURE: value} for value in (0.25, 0.5, 1.0, 2.0, 4.0))
AWAY = ("shifted:5+10a", "shifted:5+20a")
_curves = Panel("training loss over held-out accuracy", ("train_loss", "heldout_accuracy"))


@study(
    title="Dispersion by temperature",
    asks="Is full attention as fast as top-5 where the inverse temperature gives its scores the dispersion of top-5's?",
    claims=("C13",),
    panels=(
        Panel(
            "epochs to 95 % training accuracy, by inverse temperature",
            ("converged_at",),
            kind="sweep",
            along=TEMPERATURE,
        ),
        Panel(
            "semantic dispersion before training, by inverse temperature",
            ("dispersion.checkpoints.0.delta",),
            kind="sweep",
            along=TEMPERATURE,
        ),
        Panel(_curves.title, _curves.metrics, lines=("attention.mechanism", TEMPERATURE)),
    ),
    measures=("dispersion",),
)
def temperature(
    tasks: Tasks = ("even_pairs", "missing_duplicate", "stack_manipulation", "modular_arithmetic"),
    changes: Sequence[Change] = TEMPERATURES,
    **choices: Unpack[Choices],
) -> list[RunConfig]:
    return crossed(tasks, FOCUS, changes, **choices)


@study(
    title="Noise in the choice",
    asks="Is the lead of top-5 lost where its keys are chosen from noisy scores and weighted by the clean ones?",
    claims=("C12",),
    panels=(
        Panel(
            "epochs to 95 % training accuracy, and final held-out accuracy, by the noise of the choice",
            ("converged_at", "final.heldout_accuracy"),
            kind="sweep",
            along="attention.mechanism",
            lines=("task.name",),
        ),
        _curves,
    ),
)
def noisy_choice(tasks: Tasks = FASTER, **choices: Unpack[Choices]) -> list[RunConfig]:
    return crossed(tasks, (*FOCUS, *(f"topk:5~{sigma}" for sigma in ("0.01", "0.1", "1"))), **choices)


def _bands(seq_len: int) -> list[str]:
    """Bands from five keys to the whole row, two of them moved away, beside full and top-5 attention."""
    widths = sorted({min(width, seq_len) for width in (5, 9, 13, 21, 40)})
    return [*FOCUS, *(f"banded:{width}" for width in widths), *AWAY]


@study(
    title="Is it locality?",
    asks="Are bands the fastest on Stack Manipulation because neighbours matter there: also wider, away, or shuffled?",
    panels=(
        Panel(
            "epochs to 95 % training accuracy, and final held-out accuracy, by the keys that are kept",
            ("converged_at", "final.heldout_accuracy"),
            kind="sweep",
            along="attention.mechanism",
            lines=("task.name",),
            each=(SHUFFLE,),
        ),
        Panel(_curves.title, _curves.metrics, each=("task.name", SHUFFLE)),
    ),
    recipe="clean",
)
def locality(
    tasks: Tasks = ("stack_manipulation",),
    changes: Sequence[Change] = (AS_IS, {SHUFFLE: True}),
    **choices: Unpack[Choices],
) -> list[RunConfig]:
    # clean: padded to a multiple of the width, as in the paper's code, rows of 40 would grow to as many as 52
    return crossed(tasks, _bands, changes, **(Choices(recipe="clean") | choices))
