"""The task `mqar`: rows are zoology's, labels follow from the tokens, and stand at the asked keys alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from semfocus.errors import UsageError
from semfocus.tasks import NO_TARGET, get_task
from semfocus.training.objective import get_objective


@settings(max_examples=40)
@given(
    pairs=st.integers(1, 12),
    room=st.integers(0, 40),
    spare=st.integers(0, 60),
    power=st.sampled_from([0.01, 0.5, 1.0]),
    fill=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_generator_and_rule_agree(pairs: int, room: int, spare: int, power: float, fill: bool, seed: int) -> None:
    task = get_task("mqar", length=4 * pairs + room, pairs=pairs, vocab=2 * pairs + 2 + spare, power=power, fill=fill)
    batch = task.sample(15, seed=seed)
    assert torch.equal(task.label(batch.tokens, batch.lengths), batch.labels)
    assert torch.equal(task.parse(task.render(batch.tokens[0])), batch.tokens[0])


def test_rows_of_mixed_lengths_have_all_their_questions_inside() -> None:
    task = get_task("mqar", length=48, pairs=4, vocab=40)
    batch = task.sample(300, seed=1, lengths=(16, 48))
    assert torch.equal(task.label(batch.tokens, batch.lengths), batch.labels)
    assert set(batch.lengths.tolist()) == set(range(16, 49))
    assert ((batch.labels != NO_TARGET).sum(dim=1) == 4).all()
    beyond = torch.arange(48) >= batch.lengths[:, None]
    assert (batch.tokens[beyond] == task.pad_id).all()
    assert (batch.labels[beyond] == NO_TARGET).all()


def test_the_example_of_the_docstring_has_its_labels() -> None:
    task = get_task("mqar", length=8, pairs=2, vocab=12)
    no = NO_TARGET
    assert task.label(torch.tensor([[4, 8, 2, 9, 2, 7, 4, 0]])).tolist() == [[no, no, no, no, 9, no, 8, no]]


def test_zoologys_own_example_has_its_labels() -> None:
    task = get_task("mqar", length=15, pairs=2, vocab=12)
    row = [2, 8, 4, 7, 0, 0, 4, 0, 0, 0, 0, 0, 2, 0, 0]
    labels = [NO_TARGET] * 15
    labels[6], labels[12] = 7, 8
    assert task.label(torch.tensor([row])).tolist() == [labels]


def test_keys_and_values_are_uniform_and_questions_follow_the_power_law() -> None:
    task = get_task("mqar", length=32, pairs=2, vocab=20, power=0.01)
    n = 40_000
    batch = task.sample(n, seed=3)
    keys, values = batch.tokens[:, 0:4:2].numpy(), batch.tokens[:, 1:4:2].numpy()
    assert (keys[:, 0] != keys[:, 1]).all()
    assert (values[:, 0] != values[:, 1]).all()
    for column, low, count in ((keys, 1, 9), (values, 10, 10)):
        observed = np.bincount(column.reshape(-1) - low, minlength=count)
        assert len(observed) == count
        expected = 2 * n / count
        assert ((observed - expected) ** 2 / expected).sum() < 35  # chi-square, 9 degrees: p = 6e-5
    places = (batch.labels != NO_TARGET).numpy()[:, 4::2]
    assert not (batch.labels != NO_TARGET).numpy()[:, 5::2].any()  # only at even distances from the pairs
    weights = np.arange(1, 15) ** (0.01 - 1)
    p = weights / weights.sum()
    # Two places drawn one after the other: P(i) = p_i + sum over j of p_j p_i / (1 - p_j).
    either = p + np.array([sum(p[j] * p[i] / (1 - p[j]) for j in range(14) if j != i) for i in range(14)])
    error = np.sqrt(either * (1 - either) / n)
    assert (np.abs(places.mean(axis=0) - either) < 4.5 * error).all()
    even = get_task("mqar", length=32, pairs=2, vocab=20, power=1.0).sample(n, seed=3)
    shares = (even.labels != NO_TARGET).numpy()[:, 4::2].mean(axis=0)
    assert np.abs(shares - 2 / 14).max() < 4.5 * np.sqrt(2 / 14 * 12 / 14 / n)


def test_what_stands_between_is_random_and_never_a_key_of_the_row() -> None:
    task = get_task("mqar", length=40, pairs=3, vocab=30)
    batch = task.sample(4000, seed=5)
    rest = batch.tokens[:, 6:].numpy()[(batch.labels[:, 6:] == NO_TARGET).numpy()]
    assert set(rest.tolist()) == set(range(30))
    without = get_task("mqar", length=40, pairs=3, vocab=30, fill=False).sample(50, seed=5)
    rest = without.tokens[:, 6:].numpy()[(without.labels[:, 6:] == NO_TARGET).numpy()]
    assert set(rest.tolist()) == {0}


def test_the_shortcut_is_a_value_of_the_row() -> None:
    task = get_task("mqar", length=32, pairs=4, vocab=24)
    batch = task.sample(20_000, seed=2)
    asked = batch.labels != NO_TARGET
    first_value = batch.tokens[:, 1:2].expand(-1, 32)
    share = float((batch.labels[asked] == first_value[asked]).double().mean())
    assert share == pytest.approx(task.baselines["shortcut"], abs=0.005)
    assert task.baselines["majority"] == 1 / 12


def test_accuracy_and_loss_are_those_of_the_asked_positions_alone() -> None:
    task = get_task("mqar", length=16, pairs=2, vocab=12)
    batch = task.sample(6, seed=0)
    objective = get_objective(task.objective)
    objective.check(task)
    targets = objective.targets(batch)[None]
    right = torch.nn.functional.one_hot(batch.labels.clamp(min=0), 12).double()[None] * 50
    measured = objective.measure(right, targets)
    assert measured["accuracy"].tolist() == [[1.0] * 6]
    assert float(measured["loss"].max()) < 1e-9
    half = right.clone()
    first = (batch.labels != NO_TARGET).int().argmax(dim=1)
    half[0, torch.arange(6), first] = 0
    half[0, torch.arange(6), first, 0] = 50
    assert objective.measure(half, targets)["accuracy"].tolist() == [[0.5] * 6]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pairs": 20}, "length = 64 is too short for pairs = 20: .* choose length >= 80 or pairs <= 16"),
        ({"vocab": 16}, "vocab = 16 has too few keys for pairs = 8; choose vocab >= 18"),
        ({"power": 0.0}, "power = 0.0 must be a number from"),
        ({"fill": 1}, "fill = 1 must be true or false"),
        ({"pairs": 0}, "pairs = 0 must be at least 1"),
    ],
)
def test_options_that_do_not_fit_are_refused_with_what_would(options: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        get_task("mqar", **options)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([4, 8, 4, 9, 4, 0, 2, 0], "pairs of a new key and a value"),
        ([4, 3, 2, 9, 4, 0, 2, 0], "pairs of a new key and a value"),
        ([4, 8, 2, 9, 4, 0, 4, 0], "each of its 2 keys once"),
        ([4, 8, 2, 9, 4, 0, 0, 0], "each of its 2 keys once"),
    ],
)
def test_a_row_outside_the_language_is_refused(row: list[int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        get_task("mqar", length=8, pairs=2, vocab=12).label(torch.tensor([row]))


def test_lengths_below_four_tokens_a_pair_are_refused() -> None:
    with pytest.raises(UsageError, match="needs at least 32"):
        get_task("mqar").sample(3, seed=0, lengths=(31, 64))
