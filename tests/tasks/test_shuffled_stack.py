"""Stack manipulation with its positions in one fixed order: the same labels, other neighbours."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from semfocus.config import RunConfig, TaskConfig
from semfocus.errors import UsageError
from semfocus.tasks import get_task

PLAIN, SHUFFLED = get_task("stack_manipulation"), get_task("stack_manipulation", shuffle=True)


def order_of(length: int) -> list[int]:
    """Where each position of a shuffled row comes from, read off the examples: the columns are equal there alone."""
    plain, shuffled = (task.sample(400, seed=2, lengths=(length, length)).tokens for task in (PLAIN, SHUFFLED))
    return [next(i for i in range(length) if torch.equal(shuffled[:, j], plain[:, i])) for j in range(length)]


def test_all_rows_have_the_same_order_and_the_labels_of_the_rows_they_come_from() -> None:
    order = order_of(40)
    assert sorted(order) == list(range(40))
    for seed, split in ((7, "train"), (8, "heldout")):
        plain, shuffled = (task.sample(300, seed=seed, split=split) for task in (PLAIN, SHUFFLED))
        assert torch.equal(shuffled.tokens, plain.tokens[:, order])
        assert torch.equal(shuffled.labels, plain.labels)
        assert torch.equal(SHUFFLED.label(shuffled.tokens), plain.labels)
        assert (PLAIN.label(shuffled.tokens) != plain.labels).float().mean() > 0.3


def test_neighbours_are_as_far_apart_as_in_a_random_order() -> None:
    steps = np.abs(np.diff(order_of(40)))
    assert abs(steps.mean() - 41 / 3) < 5  # the mean distance of two random positions of 40
    assert (steps == 1).sum() <= 6


def test_a_shorter_row_has_the_order_without_the_positions_it_lacks_and_padding_stays_at_its_end() -> None:
    assert order_of(9) == [place for place in order_of(40) if place < 9]
    batch = SHUFFLED.sample(300, seed=3, lengths=(1, 40))
    padding = torch.arange(40) >= batch.lengths[:, None]
    assert torch.equal(batch.tokens == SHUFFLED.pad_id, padding)
    assert torch.equal(SHUFFLED.label(batch.tokens, batch.lengths), batch.labels)


def test_without_it_examples_fingerprint_and_run_ids_are_as_before_there_was_a_choice() -> None:
    said = get_task("stack_manipulation", shuffle=False)
    assert said.fingerprint() == {"task": "stack_manipulation", "version": 1, "options": {"length": 40}}
    assert SHUFFLED.fingerprint()["options"] == {"length": 40, "shuffle": True}
    configs = [
        RunConfig(task=TaskConfig(name="stack_manipulation", options=o))
        for o in ({}, {"shuffle": False}, {"shuffle": True})
    ]
    first, again, other = (config.run_id(config.task.build()) for config in configs)
    assert first == again != other


def test_the_shortcut_is_there_in_shuffled_rows_too() -> None:
    assert SHUFFLED.baselines == PLAIN.baselines
    batch = SHUFFLED.sample(4000, seed=1)
    last = batch.tokens[:, order_of(40).index(39)]
    decided = last >= 3
    assert abs(decided.float().mean() - 2 / 3) < 0.03
    assert torch.equal(batch.labels[decided], last[decided] - 3)


@pytest.mark.parametrize("value", [1, "true", None])
def test_anything_but_true_or_false_is_refused_by_name(value: object) -> None:
    with pytest.raises(UsageError, match=r"shuffle = .* must be true or false"):
        get_task("stack_manipulation", shuffle=value)
