"""The small runs whose results are kept, and one small comparison. Each case has a name of its own and plain settings.

Both recipes are written out as fields, so that nothing here depends on where the package keeps them.
"""

from __future__ import annotations

from typing import Any

Settings = dict[str, Any]

EVEN_PAIRS: Settings = {"name": "even_pairs", "options": {"length": 14}, "train_rows": 70, "heldout_rows": 40}
LISTOPS: Settings = {
    "name": "listops",
    "options": {"min_length": 8, "max_length": 20, "max_depth": 4},
    "train_rows": 60,
    "heldout_rows": 40,
}  # rows of 9 to 19 tokens: all but the longest have padding
MODEL: Settings = {"blocks": 2, "d_model": 16, "d_mlp": 16, "dropout": 0.01}
TRAINING: Settings = {"epochs": 3, "batch_size": 16, "lr": 0.1, "decay": 0.9995}
PAPER: Settings = {"padding_visible": True, "pad_to_multiple": True}
MECHANISMS = (
    "full", "banded:5", "banded:5+1g", "block_local:5", "block_local:5+1g", "topk:3", "topk:3+1s+2w", "bottomk:3",
    "randomk:3", "randomk_replaced:3",
)  # fmt: skip


def _case(
    mechanism: str = "topk:3",
    task: Settings = EVEN_PAIRS,
    attention: Settings | None = None,
    model: Settings | None = None,
    training: Settings | None = None,
    seed: int = 153476998,
) -> Settings:
    return {
        "task": task,
        "attention": {"mechanism": mechanism, **(attention or {})},
        "model": {**MODEL, **(model or {})},
        "training": {**TRAINING, **(training or {})},
        "seed": seed,
    }


def _of_length(name: str, length: int = 12) -> Settings:
    return {"name": name, "options": {"length": length}, "train_rows": 60, "heldout_rows": 40}


CASES: dict[str, Settings] = {
    **{f"one length, {mechanism}": _case(mechanism) for mechanism in MECHANISMS},
    **{f"ragged, {mechanism}": _case(mechanism, LISTOPS) for mechanism in MECHANISMS},
    **{
        f"ragged, paper recipe, {mechanism}": _case(mechanism, LISTOPS, model=PAPER)
        for mechanism in ("full", "banded:5+1g", "block_local:5", "topk:3")
    },
    "one length, paper recipe": _case("topk:5", model=PAPER),
    "a second seed in the same cohort": _case(seed=235510766),
    "all quirks": _case(
        "randomk_replaced:3",
        LISTOPS,
        model={**PAPER, "dropout": 0.1, "dropout_in_evaluation": True, "first_norm_exact": True},
        training={"drop_one_row": True},
    ),
    "adam": _case(training={"optimizer": "adam", "lr": 0.003, "epochs": 3}),
    "adamw": _case(task=LISTOPS, training={"optimizer": "adamw", "lr": 0.003, "weight_decay": 0.1, "epochs": 3}),
    "sgd, weight decay, no clip": _case(training={"clip": None, "weight_decay": 0.01, "decay": 0.5}),
    "gelu": _case(model={"activation": "gelu"}),
    "mish": _case("full", model={"activation": "mish"}),
    "post norm": _case(task=LISTOPS, model={"norm": "post"}),
    "class token": _case(task=LISTOPS, model={"pooling": "cls"}),
    "class token, full": _case("full", model={"pooling": "cls"}),
    "sigmoid": _case(task=LISTOPS, attention={"normaliser": "sigmoid"}),
    "sigmoid, full, cold": _case("full", attention={"normaliser": "sigmoid", "inverse_temperature": 2.0}),
    "softmax, cold": _case(attention={"inverse_temperature": 2.0}),
    "two heads, split": _case(task=LISTOPS, model={"heads": 2, "head_width": "split"}),
    "two heads, as wide as the model": _case("banded:5", model={"heads": 2}),
    "no dropout": _case("full", model={"dropout": 0.0}),
    "stops by until": _case(task=_of_length("missing_duplicate"), training={"stop_accuracy": 0.54, "epochs": 6}),
    "stops by patience": _case(task=LISTOPS, training={"patience": 2, "epochs": 12}),
    "diverges": _case("full", training={"clip": None, "lr": 1e30}),
    **{
        f"task {name}": _case(task=_of_length(name))
        for name in ("parity", "missing_duplicate", "cycle_navigation", "stack_manipulation")
    },
    **{f"task {name}": _case(task=_of_length(name, 13)) for name in ("modular_arithmetic", "solve_equation")},
}

# Some seeds learn and some do not; the rate is low enough that rounding does not grow along the training.
COMPARISON: Settings = {
    "task": "even_pairs",
    "attention": ["full", "topk:2"],
    "seeds": 3,
    "epochs": 15,
    "options": {"length": 5},
    "overrides": [
        "model.blocks=1", "model.d_model=16", "model.d_mlp=16", "model.dropout=0.0", "task.train_rows=60",
        "task.heldout_rows=20", "training.optimizer=adam", "training.lr=0.003", "training.batch_size=3",
    ],
}  # fmt: skip
