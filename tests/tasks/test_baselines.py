"""What needs no learning is known of every task, whatever its options: otherwise guessing well looks learned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from semfocus.tasks import LengthTask, get_task, task_names
from semfocus.tasks import baselines as measuring
from semfocus.tasks.baselines import measured

PUBLISHING = [name for name in task_names() if get_task(name).published_baselines and name != "listops"]


@dataclass(frozen=True, kw_only=True)
class MostlyOnes(LengthTask):
    """Of three bits in four are ones; the class says whether the first is one."""

    name = "mostly_ones"
    summary = "is the first bit a one?"
    symbols = ("0", "1")
    num_classes = 2

    def generate(self, lengths: Any, rng: Any) -> Any:
        tokens = (rng.integers(4, (len(lengths), self.seq_len)) > 0).astype(np.int64)
        return tokens, self.label_rows(tokens, lengths)

    def label_rows(self, tokens: Any, lengths: Any) -> Any:
        return tokens[:, 0]


@pytest.mark.parametrize("name", PUBLISHING)
def test_what_is_measured_is_what_was_published(name: str) -> None:
    task = get_task(name)
    found = {"chance": 1 / task.num_classes, **measured(task)}
    assert max(found.values()) == pytest.approx(max(task.baselines.values()), abs=0.02)


@pytest.mark.slow
def test_a_glance_at_the_outermost_operator_is_measured_for_listops() -> None:
    assert measured(get_task("listops")) == pytest.approx({"majority": 0.165, "shortcut": 0.36}, abs=0.03)


def test_other_options_than_the_published_have_baselines_too() -> None:
    """`compare stack_manipulation --quick` took 33 % for its bar, where the last token alone gives 82 %."""
    short = get_task("stack_manipulation", length=12)
    assert short.baselines["majority"] == pytest.approx(0.5, abs=0.03)
    assert 0.78 < short.baselines["shortcut"] < 0.88
    assert get_task("listops", min_length=20, max_length=60).baselines["shortcut"] > 0.3


def test_a_task_of_ones_own_has_baselines_without_saying_so() -> None:
    assert MostlyOnes(length=6).baselines == {
        "chance": 0.5,
        "majority": pytest.approx(0.75, abs=0.03),
        "shortcut": 1.0,
    }


def test_a_fair_coin_stays_at_chance() -> None:
    assert get_task("parity", length=12).baselines == {"chance": 0.5}


def test_answers_at_each_position_are_judged_by_the_current_token() -> None:
    assert get_task("sort", length=10).baselines["shortcut"] > get_task("sort", length=10).baselines["majority"] + 0.2


def test_rows_too_long_to_draw_many_are_not_drawn_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run's configuration may come from a stranger: rows of a million tokens would fill the memory."""
    monkeypatch.setattr(measuring, "_measure", lambda task, n: pytest.fail("drawn"))
    assert get_task("parity", length=2**20).baselines == {"chance": 0.5}


def test_the_same_options_are_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = get_task("parity", length=13).baselines
    monkeypatch.setattr(measuring, "_measure", lambda task, n: pytest.fail("measured again"))
    assert get_task("parity", length=13).baselines == first
