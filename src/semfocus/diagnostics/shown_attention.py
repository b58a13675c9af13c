"""What a trained model attends to in one example, layer by head: the weight of every kept key.

shown = attention_of(run, row=3)
shown.weights       (blocks, heads, queries, keys), 0 where a key is not kept
shown.tokens        the text of each position
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semfocus.attention.inputs import AttentionInputs
from semfocus.attention.inspection import observing
from semfocus.attention.reference import reference
from semfocus.errors import UsageError, check_int
from semfocus.model.encoder import Encoder
from semfocus.store import RunDirectory, RunStore
from semfocus.tasks import Task
from semfocus.training import data
from semfocus.training.loading import config_of, load


@dataclass(frozen=True)
class ShownAttention:
    """The attention of one example."""

    weights: NDArray[np.float32]  # (blocks, heads, queries, keys)
    tokens: list[str]
    title: str
    stem: str  # of a file's name


def attention_of(
    run: str | Path | RunDirectory,
    row: int = 0,
    split: Literal["train", "heldout"] = "heldout",
    out: Path | str | None = None,
) -> ShownAttention:
    """The attention of the run's newest model in example `row` of a split, without dropout."""
    directory = run if isinstance(run, RunDirectory) else RunStore(out).find(str(run))
    config = config_of(directory)
    task = config.task.build()
    examples = data.opened(config, task)[split == "heldout"]
    check_int("row", row, at_least=0)
    if row >= len(examples):
        raise UsageError(f"row = {row}: the {split} split of run {directory.id} has the rows 0 .. {len(examples) - 1}")
    batch = data.head(examples, row + 1)
    model, length = load(directory), int(batch.lengths[row])
    weights = attention_weights(model, batch.tokens[row : row + 1], batch.lengths[row : row + 1])
    spec = model.spec
    extras = range(spec.length - spec.extra_tokens, spec.length)
    shown = [*range(spec.padded_len if spec.model.padding_visible else length), *extras]
    return ShownAttention(
        weights[:, :, shown][..., shown],
        [*_texts(task, batch.tokens[row, : len(shown) - len(extras)]), *("*" for _ in extras)],
        f"{config.task.name}, {spec.plan}, {spec.normaliser}: {split} example {row}",
        f"attention-{directory.id}-{split}-{row}",
    )


def attention_weights(model: Encoder, tokens: Tensor, lengths: Tensor) -> NDArray[np.float32]:
    """(blocks, heads, L, L) the weights of one example (1, L), by the reference."""
    blocks: list[Tensor] = []

    def observe(inputs: AttentionInputs, grouped: bool) -> None:
        _, info = reference(inputs, want_info=True)
        assert info is not None
        dense = info.weights.new_zeros(*info.weights.shape[:-1], inputs.num_keys)
        blocks.append(dense.scatter_add(-1, info.indices.clamp(min=0), info.weights)[0, 0])

    with observing(observe), torch.no_grad():
        model(tokens, lengths)
    return torch.stack(blocks).float().numpy()


def _texts(task: Task, tokens: Tensor) -> list[str]:
    names = (*task.symbols, "#")
    return [names[i] if i < len(names) else "#" for i in tokens.tolist()]
