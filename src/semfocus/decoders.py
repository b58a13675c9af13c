"""Language models by size: decoders as they are built today, and how long and with which rate each is trained.

    language("10m", "text", "topk:8", seed=1, options={"packages": "all"})

RMSNorm before each layer and before the head, rotary positions, squared ReLU, heads of 64 channels, a tied head and no
biases; AdamW with warm-up and a cosine. With bytes for tokens the embedding is small, and a size is that of the blocks;
`124m` has the shape of the smallest GPT-2, and byte pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from semfocus.config import AttentionConfig, ModelConfig, RunConfig, TaskConfig, TrainingConfig
from semfocus.errors import UsageError, unknown
from semfocus.tasks import Task, get_task
from semfocus.tasks.registry import task_class

HEAD_WIDTH = 64
HELDOUT_TOKENS = 2**18  # that an evaluation takes at most, of each split


@dataclass(frozen=True)
class Size:
    """A decoder and its training: `steps` batches of `batch_size` rows of `length` tokens."""

    blocks: int
    d_model: int
    length: int
    batch_size: int
    steps: int
    lr: float
    evaluated_rows: int
    tokenizer: str = "bytes"

    @property
    def parameters(self) -> int:
        """Of the blocks: projections of attention, and an MLP four times as wide as the model."""
        return self.blocks * 12 * self.d_model**2


SIZES = {
    "tiny": Size(blocks=3, d_model=64, length=128, batch_size=16, steps=1000, lr=4e-3, evaluated_rows=128),
    "1m": Size(blocks=5, d_model=128, length=256, batch_size=32, steps=1500, lr=3e-3, evaluated_rows=256),
    "3m": Size(blocks=4, d_model=256, length=512, batch_size=32, steps=1500, lr=2e-3, evaluated_rows=256),
    "10m": Size(blocks=6, d_model=384, length=512, batch_size=64, steps=1500, lr=1e-3, evaluated_rows=512),
    "30m": Size(blocks=10, d_model=512, length=512, batch_size=64, steps=2000, lr=8e-4, evaluated_rows=512),
    "124m": Size(
        blocks=12, d_model=768, length=1024, batch_size=128, steps=3000, lr=6e-4, evaluated_rows=256,
        tokenizer="bpe:50000",
    ),
}  # fmt: skip


def language(
    size: str,
    task: str = "text",
    mechanism: str = "full",
    seed: int = 0,
    options: dict[str, Any] | None = None,
    steps: int | None = None,
) -> RunConfig:
    """The run of a language model of this size; options of the task win over those of the size.

    A corpus with fewer rows than the training takes is read several times.
    """
    if size not in SIZES:
        raise unknown("size", size, SIZES)
    if task_class(task).language_size is None:
        raise UsageError(f"size = {size!r} is of language models, and task {task} is none; leave it out")
    chosen = SIZES[size]
    return configured(chosen, task, mechanism, seed, options or {}, chosen.steps if steps is None else steps)


def smallest(task: str, mechanism: str, seed: int, options: dict[str, Any] | None = None) -> RunConfig:
    """A moment's work: one block of width 16, rows of 24 tokens, 6 steps."""
    size = Size(blocks=1, d_model=16, length=24, batch_size=4, steps=6, lr=4e-3, evaluated_rows=4)
    return configured(size, task, mechanism, seed, options or {}, size.steps)


def configured(
    size: Size, task: str, mechanism: str, seed: int, options: dict[str, Any], steps: int | None = None,
    build: Callable[..., Task] = get_task,
) -> RunConfig:  # fmt: skip
    """The run of a language model of any size; without `steps`, of as many as the size says."""
    own = {"length": size.length} | ({} if size.tokenizer == "bytes" else {"tokenizer": size.tokenizer})
    built = build(task, **own | options)
    wanted = (size.steps if steps is None else steps) * size.batch_size
    there = built.size("train") or wanted
    readings = -(-wanted // there)  # epochs
    rows = -(-wanted // readings)
    fitting = max(1, HELDOUT_TOKENS // built.seq_len)
    evaluated = min(size.evaluated_rows, fitting)
    return RunConfig(
        task=TaskConfig(
            name=task,
            options=own | options,
            train_rows=min(rows, there),
            heldout_rows=min(evaluated, built.size("heldout") or evaluated),
        ),
        attention=AttentionConfig(mechanism=mechanism),
        model=model_of(size),
        training=training_of(size, readings, min(evaluated, rows)),
        seed=seed,
    )


def model_of(size: Size) -> ModelConfig:
    """The decoder of a size."""
    return ModelConfig(
        blocks=size.blocks,
        d_model=size.d_model,
        heads=max(1, size.d_model // HEAD_WIDTH),
        head_width="split",
        d_mlp=4 * size.d_model,
        activation="relu2",
        norm_function="rmsnorm",
        final_norm=True,
        biases=False,
        tied_head=True,
        init="normal",
        positions="rope",
        dropout=0.0,
    )


def training_of(size: Size, epochs: int, evaluated_rows: int) -> TrainingConfig:
    """The optimiser and schedule that all sizes share."""
    return TrainingConfig(
        epochs=epochs,
        batch_size=size.batch_size,
        optimizer="adamw",
        lr=size.lr,
        decay=1.0,
        schedule="cosine",
        warmup=0.03,
        final_lr=0.1,
        beta2=0.95,
        weight_decay=0.1,
        clip=1.0,
        evaluated_rows=evaluated_rows,
    )
