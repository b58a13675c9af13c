"""Members of a cohort learn what they would learn alone, and what torch's own modules and optimisers learn."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from semfocus.config import RunConfig, TaskConfig
from semfocus.model.forward import forward
from semfocus.training.cohort import Cohort
from semfocus.training.step import TrainStep
from tests.training.helpers import begin, tiny
from tests.training.plain import PlainEncoder

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.3},
    "sgd with decay": {"lr": 0.3, "weight_decay": 0.02},
    "adam": {"optimizer": "adam", "lr": 0.01},
    "adam with decay": {"optimizer": "adam", "lr": 0.01, "weight_decay": 0.02},
    "adamw": {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1},
}


def learn(
    configs: list[RunConfig], epochs: int = 3, dtype: torch.dtype = torch.float32, step: type[TrainStep] = TrainStep
) -> Cohort:
    cohort = begin(configs)
    cohort.parameters = cohort.parameters.to(dtype)
    cohort.moments = {name: moments.to(dtype) for name, moments in cohort.moments.items()}
    train_step = step(cohort)
    for epoch in range(epochs):
        train_step.begin_epoch(epoch, 0)
        train_step.run(cohort.steps_per_epoch)
    return cohort


@pytest.mark.parametrize("mechanism", ["full", "topk:3", "topk:3~0.5", "randomk:3", "banded:3+1g"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_a_member_learns_the_same_alone_and_in_any_cohort(mechanism: str, optimizer: str) -> None:
    base = OPTIMIZERS[optimizer]
    configs = [
        tiny(1, mechanism, **base | {"lr": base["lr"] * 3}),
        tiny(2, mechanism, **base | {"lr": base["lr"] * 2, "decay": 0.5}),
        tiny(3, mechanism, **base),
    ]
    cohort = learn(configs)
    reversed_ = learn(configs[::-1])
    for i, config in enumerate(configs):
        alone = learn([config])
        assert not torch.allclose(alone.parameters, begin([config]).parameters, atol=5e-3)
        for other in (cohort.parameters[i], reversed_.parameters[2 - i]):
            torch.testing.assert_close(other, alone.parameters[0], rtol=1e-4, atol=2e-6)
        for name, moments in alone.moments.items():
            torch.testing.assert_close(cohort.moments[name][i], moments[0], rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize(
    ("mechanism", "dropout", "draws"),
    [
        ("topk:3", 0.0, False),
        ("topk:3", 0.1, True),
        ("topk:3~0.5", 0.0, True),
        ("randomk:3", 0.0, True),
        ("randomk:3", 0.1, True),
    ],
)
def test_a_step_draws_new_seeds_for_every_member_where_anything_is_random(
    mechanism: str, dropout: float, draws: bool
) -> None:
    class Recorded(TrainStep):
        def seeds(self) -> torch.Tensor | None:
            drawn.append(super().seeds())
            return drawn[-1]

    drawn: list[torch.Tensor | None] = []
    configs = [tiny(seed, mechanism, model={"dropout": dropout}) for seed in (1, 2)]
    learn(configs, epochs=2, step=Recorded)
    assert len(drawn) == 10
    assert [seeds is not None for seeds in drawn] == [draws] * 10
    if draws:
        every = torch.stack([seeds for seeds in drawn if seeds is not None])
        assert every.unique().numel() == every.numel()


@pytest.mark.parametrize("field", ["seed", "lr", "decay"])
def test_each_member_follows_its_own_seed_rate_and_decay(field: str) -> None:
    changed = {"seed": tiny(2), "lr": tiny(1, lr=0.2), "decay": tiny(1, decay=0.5)}[field]
    cohort = learn([tiny(1), changed, tiny(1)])
    assert torch.equal(cohort.parameters[0], cohort.parameters[2])
    assert not torch.allclose(cohort.parameters[0], cohort.parameters[1], atol=1e-4)


@pytest.mark.parametrize("clip", [None, 0.05], ids=["not clipped", "clipped"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_equal_those_of_a_plain_module_with_torchs_own_optimiser(name: str, clip: float | None) -> None:
    """In float64: Adam divides by the size of a gradient, and the gradient of the keys' bias is pure rounding."""
    options = OPTIMIZERS[name] | {"clip": clip, "decay": 0.7}
    configs = [tiny(seed, "topk:3", model={"dropout": 0.0}, **options) for seed in (1, 2)]
    cohort = learn(configs, dtype=torch.float64)
    fresh = begin(configs)
    for i, config in enumerate(configs):
        plain = PlainEncoder(fresh.spec, fresh.parameters[i].double())
        norms = _train_plainly(plain, fresh, i, config)
        assert clip is None or max(norms) > 2 * clip, "the clip of this test has nothing to do"
        torch.testing.assert_close(cohort.parameters[i], plain.row(), rtol=1e-4, atol=3e-6)


def _train_plainly(plain: PlainEncoder, cohort: Cohort, member: int, config: RunConfig) -> list[float]:
    training = config.training
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    optimizer = kinds[training.optimizer](plain.parameters(), lr=training.lr, weight_decay=training.weight_decay)
    tokens, labels = cohort.train.tokens[member].long(), cohort.train.targets[member].long()
    norms = []
    for epoch in range(training.epochs):
        rows, weights = cohort.order(epoch)
        for i in range(rows.shape[0]):
            chosen = rows[i, member][weights[i] > 0]
            optimizer.zero_grad()
            logits = plain(tokens[chosen], torch.full(chosen.shape, tokens.shape[1]))
            functional.cross_entropy(logits, labels[chosen]).backward()
            limit = float("inf") if training.clip is None else training.clip
            norms.append(torch.nn.utils.clip_grad_norm_(plain.parameters(), limit).item())
            optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] = training.lr * training.decay ** (epoch + 1)
    return norms


def test_every_epoch_is_a_new_permutation_of_the_examples_and_the_last_batch_may_be_short() -> None:
    cohort = begin([tiny(1), tiny(2)])
    assert cohort.steps_per_epoch == 5
    orders = []
    for epoch in range(3):
        rows, weights = cohort.order(epoch)
        assert weights.sum(dim=1).tolist() == [10, 10, 10, 10, 3]
        for member in range(2):
            order = rows[:, member][weights > 0].tolist()
            assert sorted(order) == list(range(43))
            orders.append(tuple(order))
    assert len(set(orders)) == 6


def test_the_order_of_a_member_does_not_depend_on_its_cohort() -> None:
    together, alone = begin([tiny(1), tiny(2)]).order(4)[0], begin([tiny(2)]).order(4)[0]
    assert torch.equal(together[:, 1], alone[:, 0])


def test_examples_that_pad_the_last_batch_do_not_change_the_update() -> None:
    """43 examples in steps of 10, against the same examples in whole and short batches of plain torch."""
    config = tiny(1, model={"dropout": 0.0}, lr=1.0, clip=None, epochs=1)
    cohort = begin([config])
    rows, weights = cohort.order(0)
    assert (rows[-1, 0][weights[-1] == 0] == 0).all()  # example 0 pads the batch
    train_step = TrainStep(cohort)
    train_step.begin_epoch(0, 0)
    train_step.run(4)
    before = PlainEncoder(cohort.spec, cohort.parameters[0].clone())
    train_step.run(1)
    last = rows[-1, 0, :3]
    tokens, labels = cohort.train.tokens[0, last].long(), cohort.train.targets[0, last].long()
    functional.cross_entropy(before(tokens, torch.full((3,), 8)), labels).backward()
    expected = before.row() - before.row(gradients=True)
    torch.testing.assert_close(cohort.parameters[0], expected, rtol=1e-4, atol=1e-6)


def test_drop_one_row_leaves_out_one_shuffled_example_an_epoch() -> None:
    cohort = begin([tiny(1, rows=(41, 21), drop_one_row=True)])
    assert cohort.steps_per_epoch == 4
    left_out = set()
    for epoch in range(4):
        rows, weights = cohort.order(epoch)
        assert weights.all()
        (missing,) = set(range(41)) - set(rows.flatten().tolist())
        left_out.add(missing)
    assert len(left_out) > 1


def test_a_member_as_a_module_computes_the_same_logits_as_in_the_cohort() -> None:
    cohort = learn([tiny(1, "topk:3"), tiny(2, "topk:3")])
    tokens = cohort.heldout.tokens.long()
    logits = forward(cohort.spec.layout.split(cohort.parameters), tokens, None, cohort.spec)
    for i in range(2):
        torch.testing.assert_close(cohort.member(i)(tokens[i]), logits[i], rtol=1e-5, atol=1e-6)


def test_unused_columns_between_parameters_stay_zero() -> None:
    cohort = learn([tiny(1, optimizer="adamw", lr=0.01, weight_decay=0.1)])
    taken = torch.zeros(cohort.spec.layout.size, dtype=torch.bool)
    for view in cohort.spec.layout.split(taken.unsqueeze(0)).values():
        view.fill_(True)
    assert taken.sum() == cohort.spec.layout.num_parameters < cohort.spec.layout.size
    assert not cohort.parameters[0][~taken].any()


def test_members_that_share_their_examples_keep_them_once() -> None:
    options = {"min_length": 10, "max_length": 20, "max_depth": 4}
    task = TaskConfig(name="listops", options=options, train_rows=43, heldout_rows=21)  # one data set for all seeds
    configs = [tiny(seed).model_copy(update={"task": task}) for seed in (1, 2)]
    shared = begin(configs)
    own = [begin([config]).train for config in configs]
    assert shared.train.tokens.stride(0) == shared.train.targets.stride(0) == 0
    for member, rows in enumerate(own):
        assert torch.equal(shared.train.tokens[member], rows.tokens[0])
        assert torch.equal(shared.train.targets[member], rows.targets[0])
    left = shared.only([1]).train
    assert left.count == 43
    assert left.tokens.untyped_storage().data_ptr() == shared.train.tokens.untyped_storage().data_ptr()
    apart = begin([tiny(1), tiny(2)])
    assert apart.train.tokens.stride(0) > 0
    assert not torch.equal(apart.train.tokens[0], apart.train.tokens[1])
