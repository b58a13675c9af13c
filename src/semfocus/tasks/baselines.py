"""Accuracies that need no learning, measured on examples of a task: the commonest class, and a glance at one token.

A glance is the best rule that reads a single token at a fixed place from either end: the last action on a stack, the
outermost operator of an expression. Of tasks with an answer at each position it is the current token.

Rules are fitted on one half of the examples and judged on the other. One that is not beyond chance is left out, so that
a fair coin has 50.0 %, and not what this sample happens to give. Measured so, the published values come out again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from semfocus.randomness import stream
from semfocus.tasks.batch import NO_TARGET, DrawRequest, Rows

if TYPE_CHECKING:
    from semfocus.tasks.base import Task

EXAMPLES = 4000
MOST_TOKENS = 2**20  # in all: of long rows fewer are drawn
FEWEST = 400  # examples, below which nothing is measured
PLACES = 3  # tokens looked at from either end, one at a time
SURE = 3.0  # standard errors above a simpler rule

_known: dict[str, Mapping[str, float]] = {}


def measured(task: Task) -> dict[str, float]:
    """The rules that beat chance, by kind: `majority`, `shortcut`; drawn once for the same options."""
    key = json.dumps(task.fingerprint(), sort_keys=True)
    if key not in _known:
        n = min(EXAMPLES, MOST_TOKENS // task.seq_len)
        _known[key] = {} if n < FEWEST else _measure(task, n)
    return dict(_known[key])


def _measure(task: Task, n: int) -> dict[str, float]:
    rows = task.draw(DrawRequest(n=n, seed=0, split="train"), stream(0, f"tasks/{task.name}/baselines"))
    labels, contexts = _cases(rows)
    if (
        labels.dtype.kind not in "iu" or labels.min(initial=0) < 0
    ):  # an objective of its own, whose labels name no class
        return {}
    shares = {
        "majority": _share(np.zeros_like(labels), labels),
        "shortcut": max((_share(context, labels) for context in contexts), default=0.0),
    }
    beaten, found = 1 / task.num_classes, {}
    for kind, share in shares.items():
        error = math.sqrt(beaten * (1 - beaten) / (len(labels) - len(labels) // 2))
        if share > beaten + SURE * error:
            beaten = found[kind] = round(share, 3)
    return found


def _cases(rows: Rows) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
    """The labels (m,) that are asked for, and what each glance sees of them, (m,) each."""
    tokens, labels, lengths = rows
    if labels.ndim > 1:
        asked = labels != NO_TARGET
        return labels[asked], [tokens[asked]]
    each, width = np.arange(len(labels)), tokens.shape[1]
    ahead = [tokens[:, place] for place in range(min(PLACES, width))]
    behind = [tokens[each, np.maximum(lengths - 1 - place, 0)] for place in range(PLACES)]
    return labels, ahead + behind


def _share(context: NDArray[np.int64], labels: NDArray[np.int64]) -> float:
    """How often the commonest label of each context, in one half of the examples, is right in the other."""
    half = len(labels) // 2
    counts = np.zeros((context.max(initial=0) + 1, labels.max(initial=0) + 1))
    np.add.at(counts, (context[:half], labels[:half]), 1)
    return float((counts.argmax(axis=1)[context[half:]] == labels[half:]).mean())
