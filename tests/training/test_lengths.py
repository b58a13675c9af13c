"""Training on lengths drawn per batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from semfocus.config import RunConfig, TaskConfig
from semfocus.errors import UsageError
from tests.training.helpers import assert_same_bits, begin, run_of, tiny, trained


def spanned(lengths: str | None = "2-8", task: str = "even_pairs", seed: int = 1, **training) -> RunConfig:
    config = tiny(seed, "topk:2", task=task, epochs=2, **training)
    return config.model_copy(update={"task": TaskConfig(**config.task.model_dump() | {"lengths": lengths})})


def test_every_training_batch_has_one_length_and_held_out_examples_have_their_own() -> None:
    cohort = begin([spanned(seed=1), spanned(seed=2)])
    lengths = cohort.train.lengths
    for epoch in (0, 1):
        order, weights = cohort.order(epoch)
        assert weights.sum() == 43
        for e in range(2):
            seen = []
            for step, weight in zip(order[:, e], weights, strict=True):
                own = lengths[e, step[weight > 0]].tolist()
                assert len(set(own)) == 1
                seen += step[weight > 0].tolist()
            assert sorted(seen) == list(range(43))
    assert not torch.equal(cohort.order(0)[0], cohort.order(1)[0])
    assert len(set(cohort.heldout.lengths.flatten().tolist())) == 7
    assert not torch.equal(lengths[0], lengths[1])


def test_lengths_are_uniform_over_the_span() -> None:
    config = spanned("1-8")
    config = config.model_copy(update={"task": config.task.model_copy(update={"train_rows": 4000})})
    counts = torch.bincount(begin([config]).train.lengths[0], minlength=9)[1:] / 4000
    assert (counts - 1 / 8).abs().max() < 0.06  # of 400 batches


@pytest.mark.parametrize("task", ["even_pairs", "copy", "flip_flop"])
def test_a_run_of_drawn_lengths_trains_and_is_the_same_again(task, tmp_path: Path) -> None:
    config = spanned("4-8", task=task)
    first = trained([config], tmp_path / "first")
    assert_same_bits(trained([config], tmp_path / "again"), first)
    assert run_of(config, tmp_path / "first").path.name == first[0].id
    assert first[0].config()["task"]["lengths"] == "4-8"


def test_without_drawn_lengths_a_run_keeps_its_id_and_its_stored_settings(tmp_path: Path) -> None:
    (run,) = trained([tiny(1, epochs=1)], tmp_path)
    assert "lengths" not in run.config()["task"]


@pytest.mark.parametrize("lengths", ["0-4", "5-3", "4", "a-b", "1-", "-1-4", "1-40.0"])
def test_a_span_that_is_none_is_refused(lengths) -> None:
    with pytest.raises(ValueError, match=r"task\.lengths = .* must be a shortest and a longest length"):
        spanned(lengths)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (spanned("1-9"), r"lengths = \(1, 9\) must satisfy 1 <= shortest <= longest <= 8"),
        (spanned("1-8", task="flip_flop"), r"lengths = \(1, 8\): flip_flop needs at least 4"),
        (spanned("2-9", task="copy"), "longest <= 8, the number of given digits that follows from the options of copy"),
        (spanned("2-99", task="copy"), "longest <= 8, the number of given digits"),
        (spanned(drop_one_row=True), "training.drop_one_row breaks up batches"),
    ],
)
def test_a_span_that_the_task_cannot_draw_is_refused_by_the_task(config, message) -> None:
    with pytest.raises(UsageError, match=message):
        config.check(config.task.build())
