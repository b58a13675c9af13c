"""The figures of the paper (arXiv 2506.14095) on text, 19 and 20: the word after a window of a sentence.

The paper takes the Penn Treebank, which may not be handed on: these studies take another corpus (docstrings of Python's
standard library), with the paper's kinds and sizes of vocabulary fitted to it, and windows as long as its mean
sentence. So they repeat the setting and not the numbers. Who has the Treebank gives its file:

    semfocus run figure_20 --set task.options.corpus=ptb.txt --set task.options.sentences=lines

The figures' numbers of blocks are given as ranges, 8 to 64 and 6 to 15; those between the ends are chosen here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from semfocus.analysis.verdicts.text import FIGURE_19, FIGURE_20, TextFigure
from semfocus.config import RunConfig
from semfocus.config_files import apply_overrides, parse_config
from semfocus.experiments.experiment import Panel
from semfocus.experiments.paper_figures import FOCUS
from semfocus.experiments.registry import study
from semfocus.experiments.study import Choices, Tasks, seed_by_seed
from semfocus.recipes import Scale

_curves = Panel("training loss over held-out accuracy", ("train_loss", "heldout_accuracy"), each=("model.blocks",))
_asks = (
    "On a free corpus, since the paper's may not be handed on: does top-5 attention learn the next word in fewer epochs"
)
QUIRKS = ("padding_visible", "pad_to_multiple")
LESS: Mapping[Scale, Mapping[str, Any]] = {
    "paper": {},
    "quick": {"training.epochs": 3, "task.train_rows": 2000, "task.heldout_rows": 500, "model.d_model": 16,
              "model.d_mlp": 32, "task.options.length": 16, "task.options.tokenizer": "bpe:512",
              "task.options.megabytes": 2},
    "smoke": {"training.epochs": 2, "training.batch_size": 25, "task.train_rows": 60, "task.heldout_rows": 30,
              "model.d_model": 8, "model.d_mlp": 8, "model.heads": 1, "task.options.length": 12,
              "task.options.tokenizer": "bpe:300", "task.options.megabytes": 1},
}  # fmt: skip
FEWER_BLOCKS: Mapping[Scale, Sequence[int]] = {"quick": (2, 4), "smoke": (1, 2)}


def _figure(figure: TextFigure, tasks: Tasks, choices: Choices) -> list[RunConfig]:
    scale: Scale = choices.get("scale", "paper")
    recipe = choices.get("recipe", "paper")
    bases = []
    for task in tasks:
        fields = {**figure.fields, **LESS[scale]}
        fields |= {f"model.{name}": recipe != "clean" for name in QUIRKS}
        fields |= {f"model.{name}": recipe == "authors" for name in ("dropout_in_evaluation", "first_norm_exact")}
        plain: dict[str, Any] = {"task": {"name": task, "train_rows": None, "heldout_rows": None}}
        for blocks in FEWER_BLOCKS.get(scale, figure.blocks):
            texts = [f"{name}={json.dumps(value)}" for name, value in fields.items()]
            bases.append(parse_config(apply_overrides(plain, [*texts, f"model.blocks={blocks}"])))
    more = {"most": choices["most"]} if "most" in choices else {}
    return seed_by_seed(bases, FOCUS, seeds=choices.get("seeds", 10), overrides=choices.get("overrides", ()), **more)


@study(
    title="Next word, narrow and deep",
    asks=f"{_asks} than full attention, in 8 to 64 blocks of width 32?",
    figures=("19",),
    claims=("C14",),
    panels=(_curves,),
)
def figure_19(tasks: Tasks = ("next_word",), **choices: Unpack[Choices]) -> list[RunConfig]:
    return _figure(FIGURE_19, tasks, choices)


@study(
    title="Next word, wide",
    asks=f"{_asks} than full attention, in 6 to 15 blocks of width 128?",
    figures=("20",),
    claims=("C14",),
    panels=(_curves,),
)
def figure_20(tasks: Tasks = ("next_word",), **choices: Unpack[Choices]) -> list[RunConfig]:
    return _figure(FIGURE_20, tasks, choices)
