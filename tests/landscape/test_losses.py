"""Many models at once over shared rows."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from semfocus.config import TaskConfig
from semfocus.landscape.losses import Losses, Plan, plan
from semfocus.model import Encoder
from semfocus.spec import Spec, initial
from semfocus.training import data
from semfocus.training.data import Rows
from tests.training.helpers import CPU, tiny


def _spec_and_rows(padded: bool, mechanism: str = "topk:3") -> tuple[Spec, Rows, data.Batch]:
    config = tiny(1, mechanism, rows=(23, 4))
    if padded:
        options = {"min_length": 5, "max_length": 30, "max_depth": 3}
        config = config.model_copy(
            update={"task": TaskConfig(name="listops", options=options, train_rows=23, heldout_rows=4)}
        )
    task = config.task.build()
    spec = Spec(config.model, config.attention, task.vocab_size, task.num_classes, task.seq_len)
    batch, _ = data.load(config, task)
    return spec, data.stack([batch], spec, CPU), batch


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("mechanism", ["full", "topk:3", "banded:3+1g"])
def test_each_of_many_models_has_the_loss_it_has_alone(padded: bool, mechanism: str) -> None:
    spec, rows, batch = _spec_and_rows(padded, mechanism)
    assert (rows.lengths is not None) == padded
    parameters = torch.stack([initial(spec, seed) for seed in range(3)])
    losses = Losses(spec, rows, Plan(members=3, rows=5))  # the last of five chunks is short
    losses.matrix.copy_(parameters)
    found = losses()
    for i in range(3):
        logits = Encoder(spec, parameters[i])(batch.tokens, batch.lengths)
        assert found[i].item() == pytest.approx(functional.cross_entropy(logits, batch.labels).item(), rel=1e-5)
    assert torch.equal(losses(), found)


def test_examples_are_shared_by_the_members_and_not_copied() -> None:
    _, rows, _ = _spec_and_rows(True)
    for part in rows.every().shared_by(4):
        assert part is not None
        assert part.shape[0] == 4
        assert part.stride(0) == 0


@pytest.mark.parametrize("count", [1, 7, 23, 5000])
def test_a_plan_covers_all_rows_with_chunks_that_waste_less_than_a_row_each(count: int) -> None:
    spec, _, _ = _spec_and_rows(False)
    found = plan(spec, count, CPU, positions=2048)
    chunks = -(-count // found.rows)
    assert found.rows * chunks >= count
    assert found.rows * chunks - count < chunks
    assert found.rows * found.members * spec.length <= max(2048, found.members * spec.length)
