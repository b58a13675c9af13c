"""Examples of a corpus stay on the disk: what a batch, an evaluation and a run give is the same to the bit."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from semfocus.config import AttentionConfig, ModelConfig, RunConfig, TaskConfig, TrainingConfig
from semfocus.tasks import Task, Windows, get_task
from semfocus.tasks.text import Text
from semfocus.training import data
from semfocus.training.cohort import Cohort, spec_of
from semfocus.training.data import MappedRows, Rows
from semfocus.training.evaluation import Evaluator
from semfocus.training.objective import objective_of
from semfocus.training.step import TrainStep
from tests.tasks.test_text import folder_of_texts
from tests.training.helpers import CPU
from tests.training.test_language import ADAMW, DECODER, text_config

TASKS: list[tuple[str, dict[str, Any]]] = [
    ("text", {"length": 16}),
    ("text", {"length": 16, "tokenizer": "bpe:300"}),
    ("next_word", {"length": 5, "tokenizer": "bpe:300", "sentences": "lines"}),
]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return folder_of_texts(tmp_path / "corpus")


def run_of(corpus: Path, name: str, options: dict[str, Any], mechanism: str = "topk:3", **model: Any) -> RunConfig:
    shares = {"corpus": str(corpus), "heldout_share": 0.2, "test_share": 0.1}
    return RunConfig(
        task=TaskConfig(name=name, options=options | shares, train_rows=41, heldout_rows=9),
        attention=AttentionConfig(mechanism=mechanism),
        model=ModelConfig(**{**DECODER, "dropout": 0.1} | model, blocks=1),
        training=TrainingConfig(epochs=2, batch_size=10, evaluate_test=True, **ADAMW),
        seed=4,
    )


def both(config: RunConfig, members: int = 2) -> tuple[MappedRows, Rows]:
    """The training examples of a run where they lie, and in memory."""
    task = config.task.build()
    spec, objective = spec_of(config, task), objective_of(task)
    examples, (drawn, _) = data.opened(config, task)[0], data.load(config, task)
    sampled = task.sample(41, seed=task.data_seed(config.seed))
    assert torch.equal(drawn.tokens, sampled.tokens)
    assert torch.equal(drawn.labels, sampled.labels)
    mapped = data.place([examples] * members, spec, CPU, objective)
    assert isinstance(mapped, MappedRows)
    return mapped, data.stack([sampled] * members, spec, CPU, objective)


def assert_same(ours: data.Examples, theirs: data.Examples) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine is None) == (other is None)
        if mine is not None and other is not None:
            assert mine.dtype == other.dtype
            assert torch.equal(mine, other)


@pytest.mark.parametrize("model", [{}, {"pad_to_multiple": True}], ids=["plain", "padded"])
@pytest.mark.parametrize(("name", "options"), [*TASKS, ("text", {"length": 130})])
def test_batches_from_the_disk_are_those_from_memory(
    corpus: Path, name: str, options: dict[str, Any], model: dict[str, Any]
) -> None:
    mapped, rows = both(run_of(corpus, name, options, **model))
    assert (rows.lengths is None) == (not model and options["length"] < 128)
    members = torch.arange(2).unsqueeze(-1)
    indices = torch.tensor([[0, 40, 7], [7, 3, 3]])
    assert mapped.count == rows.count == 41
    assert_same(mapped.take(members, indices), rows.take(members, indices))
    assert_same(mapped.every(), rows.every())
    assert_same(mapped.between(3, 17).only([1]).every(), rows.between(3, 17).only([1]).every())
    assert_same(mapped.resident().every(), rows.every())


def test_a_device_is_filled_piece_by_piece(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mapped, rows = both(run_of(corpus, *TASKS[0]))
    monkeypatch.setattr(data, "TOKENS_A_PIECE", 100)
    resident = mapped.resident()
    assert_same(resident.every(), rows.every())
    assert (resident.tokens.dtype, resident.tokens.stride(0)) == (torch.int16, 0)  # 256 bytes and padding


def test_a_gpu_holds_a_corpus_where_it_fits(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mapped, _ = both(run_of(corpus, *TASKS[0]))
    assert not mapped.fits  # on a CPU it would be a copy of the disk
    on_gpu = replace(mapped, device=torch.device("cuda"))
    for free, fits in ((10**6, True), (41 * 16 * 8, False)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, free))
        assert on_gpu.fits == fits


def test_a_run_from_the_disk_is_the_run_from_memory(corpus: Path) -> None:
    """Two members that share a corpus, with batches in parts, a schedule and a test split."""
    config = text_config(corpus, evaluate_test=True)
    configs = [config.model_copy(update={"seed": seed}) for seed in (1, 2)]
    tasks: list[Task] = [config.task.build()] * 2
    ends = []
    for in_memory in (False, True):
        cohort = Cohort.begin(configs, tasks, CPU)
        assert all(isinstance(rows, MappedRows) for rows in cohort.sets.values())
        if in_memory:
            sets = {name: rows.resident() for name, rows in cohort.sets.items() if isinstance(rows, MappedRows)}
            cohort = replace(cohort, **sets)
        step = TrainStep(cohort, micro_batch=4)
        for epoch in (0, 1):
            step.begin_epoch(epoch, 0)
            step.run(cohort.steps_per_epoch)
        ends.append((cohort.parameters, Evaluator(cohort, size=7).scores()))
    assert torch.equal(ends[0][0], ends[1][0])
    assert ends[0][1] == ends[1][1]


def test_a_corpus_takes_no_memory_as_training_begins(tmp_path: Path) -> None:
    """Eight bytes a token, twice, was what rows in memory took."""
    text = tmp_path / "large.txt"
    words = np.random.default_rng(0).integers(97, 123, 2**20, dtype=np.uint8)
    text.write_bytes(words.tobytes())
    config = text_config(text)
    config = config.model_copy(update={"task": config.task.model_copy(update={"train_rows": None})})
    task = config.task.build()
    tokens = len(task.streams.tokens["train"])
    tracemalloc.start()
    try:
        cohort = Cohort.begin([config], [task], CPU)
        step = TrainStep(cohort)
        step.begin_epoch(0, 0)
        step.run(2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert cohort.train.count * 16 > tokens - 17 > 700_000
    # Of a row of 16 tokens, its start, its place in the order and in a permutation: eight bytes each.
    assert peak < 4 * tokens


class Reversed(Text):
    name = "reversed_text"

    def draw(self, request, rng):
        rows = super().draw(request, rng)
        return rows._replace(tokens=rows.tokens[:, ::-1].copy())


def test_a_task_that_draws_otherwise_is_trained_on_what_it_draws(corpus: Path) -> None:
    task = Reversed(corpus=str(corpus), length=16)
    assert task.windows(4, seed=1) is None
    assert isinstance(get_task("text", corpus=str(corpus), length=16).windows(4, seed=1), Windows)
