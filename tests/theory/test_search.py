"""The search behind the looseness tables finds known maxima, is deterministic, and uses its own random stream."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from semfocus.errors import UsageError
from semfocus.theory.looseness import (
    ATTENTION_FORMS,
    SOFTMAX_FORMS,
    attention_looseness,
    print_tables,
    softmax_looseness,
)
from semfocus.theory.witnesses import maximise


def bowl(z):
    return 3 - ((z - 1.5) ** 2).sum(-1)


def test_a_known_maximum_is_found():
    maximum = maximise(bowl, 3, seed=0, name="bowl")
    assert maximum.value == pytest.approx(3, abs=1e-4)
    assert maximum.point.tolist() == pytest.approx([1.5] * 3, abs=0.01)


def test_the_same_seed_gives_the_same_search_and_another_seed_another():
    first, again, other = (maximise(bowl, 3, seed=s, name="bowl", steps=5) for s in (1, 1, 2))
    assert first.value == again.value
    assert torch.equal(first.point, again.point)
    assert first.value != other.value


def test_no_global_generator_is_touched():
    before = (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate())
    maximise(bowl, 2, seed=0, name="bowl", steps=3)
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()
    assert before[2] == random.getstate()


def test_points_without_a_finite_value_are_ignored():
    def partly(z):
        return torch.where(z[:, 0] > 0, bowl(z), torch.nan)

    assert maximise(partly, 2, seed=0, name="partly").value == pytest.approx(3, abs=1e-3)
    with pytest.raises(UsageError, match="finite nowhere"):
        maximise(lambda z: z.sum(-1) * torch.nan, 2, seed=0, name="nowhere", steps=3)


def test_sizes_below_one_are_refused():
    with pytest.raises(UsageError, match="steps = 0"):
        maximise(bowl, 2, seed=0, name="bowl", steps=0)


def test_no_search_exceeds_a_proved_bound():
    rows = list(softmax_looseness(norms=(2,), deltas=(1.0,), ks=(2,), separations=(None, 0.5), steps=60))
    assert [row.separation for row in rows] == [None, 0.5]
    for row in rows:
        assert set(row.shares) == set(SOFTMAX_FORMS)
        assert 0 < max(row.shares[form] for form in ("simple", "sharp", "certified")) <= 1 + 1e-6
    for row in attention_looseness(steps=3):
        assert set(row.shares) == set(ATTENTION_FORMS)
        assert 0 < row.shares["certified"] <= 1


def test_both_tables_are_printed_as_markdown(capsys):
    rows = list(softmax_looseness(norms=(1,), deltas=(1.0,), ks=(2,), separations=(None,), steps=3))
    others = list(attention_looseness(steps=2))
    print_tables(rows, others)
    out = capsys.readouterr().out
    assert "| norm | delta | k | separation | attained | paper | simple | sharp | certified |" in out
    assert "| 1 | 1 | 2 | fixed mask | 0." in out
    assert "| full | w | 1 | 4 | " in out
