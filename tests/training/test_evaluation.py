"""Evaluation measures loss and accuracy over whole sets, whatever the chunks, the padding and the device."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from semfocus.config import TaskConfig
from semfocus.training.cohort import Cohort
from semfocus.training.evaluation import Evaluator, chunk_size
from semfocus.training.step import TrainStep
from tests.training.helpers import begin, tiny
from tests.training.plain import PlainEncoder


@pytest.mark.parametrize("mechanism", ["full", "topk:3"])
@pytest.mark.parametrize("quirk", [False, True], ids=["every row", "not the last row"])
def test_scores_are_the_mean_loss_and_accuracy_over_whole_sets(mechanism: str, quirk: bool) -> None:
    configs = [tiny(seed, mechanism, drop_one_row=quirk) for seed in (1, 2)]
    cohort = begin(configs)
    cohort.parameters *= 3
    scores = Evaluator(cohort, size=5).scores()  # the last chunk is short
    for i in range(2):
        plain = PlainEncoder(cohort.spec, cohort.parameters[i])
        for split, rows in (("train", cohort.train), ("heldout", cohort.heldout)):
            count = rows.count - quirk
            tokens, labels = rows.tokens[i, :count].long(), rows.targets[i, :count].long()
            logits = plain(tokens, torch.full((count,), 8))
            loss = functional.cross_entropy(logits, labels).item()
            accuracy = (logits.argmax(dim=-1) == labels).double().mean().item()
            assert scores[f"{split}_loss"][i] == pytest.approx(loss, rel=1e-5)
            assert scores[f"{split}_accuracy"][i] == pytest.approx(accuracy, abs=1e-12)


def test_padded_examples_have_the_scores_of_a_plain_model() -> None:
    config = tiny(task="listops", rows=(30, 10)).model_copy(update={"task": _short_listops()})
    cohort = begin([config])
    assert cohort.train.lengths is not None
    scores = Evaluator(cohort).scores()
    tokens, lengths = cohort.train.tokens[0].long(), cohort.train.lengths[0]
    logits = PlainEncoder(cohort.spec, cohort.parameters[0])(tokens, lengths)
    expected = functional.cross_entropy(logits, cohort.train.targets[0].long()).item()
    assert scores["train_loss"][0] == pytest.approx(expected, rel=1e-5)


def test_padding_in_one_set_alone_is_masked_there_and_changes_nothing_in_the_other() -> None:
    cohort = begin([tiny(1), tiny(2)])
    expected = Evaluator(cohort).scores()
    lengths = torch.full((2, 21), 8)
    lengths[:, ::2] = 5
    padded = replace(cohort, heldout=replace(cohort.heldout, lengths=lengths))
    scores = Evaluator(padded).scores()
    assert scores["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-5)
    for i in range(2):
        logits = PlainEncoder(cohort.spec, cohort.parameters[i])(cohort.heldout.tokens[i].long(), lengths[i])
        loss = functional.cross_entropy(logits, cohort.heldout.targets[i].long()).item()
        assert scores["heldout_loss"][i] == pytest.approx(loss, rel=1e-5)


def test_nan_in_one_member_changes_no_score_of_the_others() -> None:
    cohort = begin([tiny(1), tiny(2)])
    expected = Evaluator(cohort).scores()
    cohort.parameters[0] = float("nan")
    scores = Evaluator(cohort).scores()
    assert scores["train_loss"][1] == expected["train_loss"][1]
    assert scores["heldout_loss"][1] == expected["heldout_loss"][1]
    assert all(value != value for value in (scores["train_loss"][0], scores["heldout_loss"][0]))


@pytest.mark.parametrize(
    ("tokens", "scores", "size"),
    [
        (2 * 8 * 1000, 2**29, 64),
        (2 * 8 * 20, 2**29, 16),
        (2 * 8 * 33, 2**29, 32),
        (1, 2**29, 1),
        (2**14, 2 * 64 * 9, 8),
    ],
)
def test_chunks_fit_the_device_and_are_nearly_full(tokens: int, scores: int, size: int) -> None:
    """43 training and 21 held-out examples of 8 tokens, two members, one head."""
    assert chunk_size(begin([tiny(1), tiny(2)]), tokens, scores) == size


def test_logits_over_a_large_vocabulary_are_taken_a_few_rows_at_a_time() -> None:
    cohort = begin([tiny(1)])
    cohort.spec = replace(cohort.spec, num_classes=50_000, predicts_positions=True, is_causal=True)
    rows = chunk_size(cohort, tokens_at_once=2**21)
    assert rows == 64  # 64 x 8 x 50 000 numbers are a tenth of what is allowed
    cohort.spec = replace(cohort.spec, num_classes=2_000_000)
    assert chunk_size(cohort, tokens_at_once=2**21) == 16


class AppleCohort(Cohort):
    """A cohort that computes as on an `mps` device, which this machine need not have."""

    sum_dtype = torch.float32


class _NoFloat64(TorchDispatchMode):
    """Fails at every tensor of float64, which Apple's GPUs do not support."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            assert not (isinstance(tensor, torch.Tensor) and tensor.dtype == torch.float64), func
        return result


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("mechanism", ["full", "topk:3", "topk:3~0.5", "randomk:3", "banded:3+1g", "block_local:3"])
def test_nothing_on_the_device_is_float64_where_the_device_does_not_support_it(mechanism: str, optimizer: str) -> None:
    cohort = AppleCohort(**vars(begin([tiny(1, mechanism, optimizer=optimizer, lr=0.01)])))
    scores = Evaluator(cohort).scores()  # the positional encoding is computed on the host, in float64, and cached
    train_step = TrainStep(cohort)
    train_step.begin_epoch(0, 0)
    with _NoFloat64():
        train_step.run(2)
        after = Evaluator(cohort).scores()
    assert after["train_loss"] != scores["train_loss"]


def test_sums_are_float64_where_the_device_supports_it() -> None:
    cohort = begin([tiny(1)])
    on_mps = SimpleNamespace(device=torch.device("mps"))
    assert cohort.sum_dtype == torch.float64
    assert Cohort.sum_dtype.fget(on_mps) == torch.float32


def _short_listops() -> TaskConfig:
    options = {"min_length": 4, "max_length": 16, "max_depth": 3, "max_args": 4}
    return TaskConfig(name="listops", options=options, train_rows=30, heldout_rows=10)
