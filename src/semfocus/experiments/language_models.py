"""Does focus pre-train language models faster? Studies of causal decoders, one function each.

All of them train the decoders of `semfocus.decoders`, choose the learning rate of each arm first, and list their runs
seed by seed: a study that is cut off leaves whole comparisons behind. Runs of one size share the batches.

The text is a sample of the Python sources of all installed packages. It is the same wherever the same packages are
installed; `--set task.options.corpus=FILE` takes another text, which stays what it is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Unpack

from semfocus.config import RunConfig, TaskConfig
from semfocus.config_files import apply_overrides
from semfocus.decoders import SIZES, Size, configured, model_of, training_of
from semfocus.errors import UsageError
from semfocus.experiments.experiment import Panel, Tuning
from semfocus.experiments.registry import study
from semfocus.experiments.study import Choices, Tasks, seed_by_seed
from semfocus.recipes import Scale
from semfocus.tasks import Task, get_task
from semfocus.tasks.registry import task_class

LENGTH, PAIRS, WIDTH = "task.options.length", "task.options.pairs", "model.d_model"
PYTHON: dict[str, Any] = {
    "packages": "all",
    "megabytes": 64,
}  # as many bytes as 1500 batches of 32,768 tokens, and more
SMALL_PYTHON: dict[str, Any] = {"megabytes": 2}  # of the standard library: quicker to read
GROWING = "topk:8>full@0.3"
ARMS = ("full", "topk:8", "topk:32", "topk:8+4s+16w", "banded:32", GROWING)
PAIR = ("full", "topk:8")
HEAD_STARTS = ("head_start.25", "head_start.50", "head_start.100")
BY_LAST_LOSS = Tuning(seeds=1, by="last loss")
# Of training, in equal ratios: heads form early.
COURSE = (0.0, *(round(2 ** (-i / 2), 4) for i in range(12, -1, -1)))
QUICK = Size(blocks=2, d_model=32, length=64, batch_size=16, steps=120, lr=4e-3, evaluated_rows=64)
SMOKE = Size(blocks=1, d_model=16, length=32, batch_size=4, steps=6, lr=4e-3, evaluated_rows=4)
_losses = Panel("held-out loss by tokens", ("heldout_loss",), along="tokens")


def _options(scale: Scale, overrides: Sequence[str]) -> dict[str, Any]:
    """Of the corpus: the study's own, unless the user names a text."""
    given = apply_overrides({"task": {"options": {}}}, [text for text in overrides if text.startswith("task.options.")])
    own = {} if "corpus" in given["task"]["options"] else PYTHON if scale == "paper" else SMALL_PYTHON
    return own | given["task"]["options"]


def _decoders(tasks: Tasks, sizes: Sequence[Size], scale: Scale, overrides: Sequence[str]) -> list[RunConfig]:
    """The runs of these sizes, without a mechanism and a seed; a length that the user gives is that of all rows."""
    for task in tasks:
        if task_class(task).language_size is None:
            raise UsageError(f"task {task} has no language models: these studies are about text; leave it out")
    options = _options(scale, overrides)
    chosen = dict.fromkeys(_with_rows(size, options.get("length", size.length)) for size in sizes)
    return [configured(size, task, "full", 0, options, build=_built) for task in tasks for size in chosen]


def _built(task: str, **options: Any) -> Task:
    """The task, kept: only the length of its corpus matters here, and to look through all packages takes a second."""
    return _kept(task, json.dumps(options))


@cache
def _kept(task: str, options: str) -> Task:
    return get_task(task, **json.loads(options))


def _with_rows(size: Size, length: int) -> Size:
    """The size with rows of this length, and as many tokens a batch and an evaluation as before."""
    batch, evaluated = (max(1, rows * size.length // length) for rows in (size.batch_size, size.evaluated_rows))
    return replace(size, length=length, batch_size=batch, evaluated_rows=evaluated)


def _long_study(sizes: dict[Scale, Sequence[Size]], tasks: Tasks, mechanisms: Sequence[str], choices: Choices,
                seeds: int) -> list[RunConfig]:  # fmt: skip
    scale, overrides = choices.get("scale", "paper"), choices.get("overrides", ())
    more = {"most": choices["most"]} if "most" in choices else {}
    bases = _decoders(tasks, sizes[scale], scale, overrides)
    return seed_by_seed(bases, mechanisms, seeds=choices.get("seeds", seeds), overrides=overrides, **more)


@study(
    title="Does focus pre-train faster?",
    asks="In how many tokens does a causal model of 10 M parameters with focus reach full attention's held-out loss?",
    claims=("C14", "C19"),
    panels=(
        replace(_losses, each=(LENGTH,)),
        Panel("head start over full attention at 25, 50 and 100 % of training, in times fewer tokens", HEAD_STARTS,
              kind="sweep", along="attention.mechanism", lines=("task.name",), each=(LENGTH,)),
        Panel("final held-out loss, and seconds of training", ("final.heldout_loss", "seconds"), kind="map",
              each=(LENGTH,)),
    ),
    recipe="clean",
    keep_epochs=(),
    tuning=BY_LAST_LOSS,
)  # fmt: skip
def pretraining(tasks: Tasks = ("text",), **choices: Unpack[Choices]) -> list[RunConfig]:
    sizes: dict[Scale, Sequence[Size]] = {
        "paper": [SIZES["10m"], _with_rows(SIZES["10m"], 2048)],
        "quick": [QUICK, _with_rows(QUICK, 128)],
        "smoke": [SMOKE, _with_rows(SMOKE, 64)],
    }
    return _long_study(sizes, tasks, ARMS, choices, seeds=8)


@study(
    title="Does the head start grow with the model?",
    asks="Does the head start of top-8 over full attention grow or vanish from 1 M to 30 M parameters?",
    claims=("C20",),
    panels=(
        Panel("head start over full attention by parameters, in times fewer tokens", HEAD_STARTS, kind="sweep",
              along="parameters", each=()),
        replace(_losses, each=(WIDTH,)),
    ),
    recipe="clean",
    keep_epochs=(),
    tuning=BY_LAST_LOSS,
)  # fmt: skip
def scaling(tasks: Tasks = ("text",), **choices: Unpack[Choices]) -> list[RunConfig]:
    """The same batches and as many of them at every size, those of 10m: the size is all that differs."""
    model, quick = SIZES["10m"], replace(QUICK, steps=80)
    sizes: dict[Scale, Sequence[Size]] = {
        "paper": [replace(model, blocks=SIZES[name].blocks, d_model=SIZES[name].d_model, lr=SIZES[name].lr)
                  for name in ("1m", "3m", "10m", "30m")],
        "quick": [replace(quick, d_model=width) for width in (16, 32, 64)],
        "smoke": [replace(SMOKE, d_model=width) for width in (8, 16, 32)],
    }  # fmt: skip
    return _long_study(sizes, tasks, PAIR, choices, seeds=4)


@study(
    title="When do induction heads appear?",
    asks="Do heads that copy what followed a token before appear in fewer tokens with top-8 than with full attention?",
    claims=("C22",),
    panels=(
        Panel("repeated random tokens: the best head's weight on the token to copy, and the accuracy of copying",
              ("induction.best_heads", "induction.accuracies"), along="induction.tokens", each=()),
        replace(_losses, each=()),
    ),
    measures=("induction",),
    recipe="clean",
    keep_epochs=(),
    keep_shares=COURSE,
    tuning=BY_LAST_LOSS,
)  # fmt: skip
def induction(tasks: Tasks = ("text",), **choices: Unpack[Choices]) -> list[RunConfig]:
    sizes: dict[Scale, Sequence[Size]] = {"paper": [SIZES["3m"]], "quick": [QUICK], "smoke": [SMOKE]}
    return _long_study(sizes, tasks, PAIR, choices, seeds=8)


def _recall(task: str, pairs: int, size: Size, vocab: int, rows: int, epochs: int) -> RunConfig:
    options = {"length": size.length, "pairs": pairs, "vocab": vocab}
    heldout = size.evaluated_rows
    return RunConfig(
        task=TaskConfig(name=task, options=options, train_rows=rows, heldout_rows=heldout),
        model=model_of(size),
        training=training_of(size, epochs, min(rows, heldout)),
    )


@study(
    title="Associative recall",
    asks="Does top-8 attention find associations of keys with values in fewer epochs, by their number and the width?",
    claims=("C21",),
    panels=(
        Panel("epochs to 95 % training accuracy, and final held-out accuracy", ("converged_at",
              "final.heldout_accuracy"), kind="map", each=(WIDTH, PAIRS)),
        Panel("final held-out accuracy by the number of pairs", ("final.heldout_accuracy",), kind="sweep", along=PAIRS,
              each=(WIDTH,)),
        Panel("learning curves", ("train_loss", "heldout_accuracy"), each=(WIDTH, PAIRS)),
    ),
    recipe="clean",
    keep_epochs=(),
    tuning=BY_LAST_LOSS,
)  # fmt: skip
def recall(tasks: Tasks = ("mqar",), **choices: Unpack[Choices]) -> list[RunConfig]:
    """Multi-query associative recall, two blocks; the band is a control that sees nothing far away."""
    scale: Scale = choices.get("scale", "paper")
    size = Size(blocks=2, d_model=64, length=128, batch_size=64, steps=0, lr=3e-3, evaluated_rows=1000)
    # The size, the numbers of pairs, the widths, the vocabulary, the rows and the epochs.
    made: dict[Scale, tuple[Size, Sequence[int], Sequence[int], int, int, int]] = {
        "paper": (size, (8, 16, 32), (32, 64, 128), 8192, 20_000, 32),
        "quick": (replace(size, length=24, batch_size=32, evaluated_rows=100), (2, 4), (16, 32), 32, 2000, 8),
        "smoke": (replace(size, length=16, batch_size=10, evaluated_rows=20), (2, 4), (8, 16), 32, 60, 2),
    }
    size, numbers, widths, vocab, rows, epochs = made[scale]
    bases = [
        _recall(task, pairs, replace(size, d_model=width), vocab, rows, epochs)
        for task in tasks
        for width in widths
        for pairs in numbers
    ]
    arms = ("full", "topk:8", f"banded:{size.length // 4}")
    more = {"most": choices["most"]} if "most" in choices else {}
    return seed_by_seed(bases, arms, seeds=choices.get("seeds", 8), overrides=choices.get("overrides", ()), **more)
