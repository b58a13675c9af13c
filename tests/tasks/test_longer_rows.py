"""Copy, reverse, sort, flip-flop and 2-back: labels by an independent rule, and what a row looks like."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from semfocus.errors import UsageError
from semfocus.tasks import NO_TARGET, get_task

NAMES = ("copy", "reverse", "sort", "flip_flop", "two_back")
BY_HAND = {
    "copy": ("314=314", [-1, -1, -1, 3, 1, 4, -1]),
    "reverse": ("314=413", [-1, -1, -1, 4, 1, 3, -1]),
    "sort": ("314=134", [-1, -1, -1, 1, 3, 4, -1]),
    "flip_flop": ("w1i0w0i1r0", [-1] * 8 + [0, -1]),
    "two_back": ("31415", [-1, -1, 3, 1, 4]),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_row_written_by_hand_has_the_labels_written_by_hand(name) -> None:
    text, labels = BY_HAND[name]
    task = get_task(name, length=12)
    expected = [NO_TARGET if label < 0 else label for label in labels]
    assert task.label(task.parse(text)[None]).tolist() == [expected]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**40), length=st.integers(4, 23), data=st.data())
def test_what_is_drawn_is_labelled_the_same_by_the_rule(name, seed, length, data) -> None:
    task = get_task(name, length=length)
    low = data.draw(st.integers(4, length))
    batch = task.sample(9, seed=seed, lengths=(low, length))
    assert torch.equal(task.label(batch.tokens, batch.lengths), batch.labels)
    assert batch.tokens.shape == batch.labels.shape == (9, task.seq_len)
    inside = torch.arange(task.seq_len) < batch.lengths[:, None]
    assert (batch.tokens[~inside] == task.pad_id).all()
    assert (batch.labels[~inside] == NO_TARGET).all()
    assert (batch.tokens[inside] < task.vocab_size).all()
    assert ((batch.labels != NO_TARGET).sum(dim=1) > 0).all()


def strings(name: str, length: int = 30) -> list[str]:
    task = get_task(name, length=length)
    batch = task.sample(400, seed=3, lengths=(4, length))
    return [task.render(row, int(end)) for row, end in zip(batch.tokens, batch.lengths, strict=True)]


def test_answers_are_what_python_makes_of_the_given_string() -> None:
    rules = {"copy": lambda s: s, "reverse": lambda s: s[::-1], "sort": lambda s: "".join(sorted(s))}
    for name, rule in rules.items():
        rows = strings(name)
        assert len({len(row) for row in rows}) == 27  # all lengths are drawn
        for row in rows:
            question, answer = row.split("=")
            assert answer == rule(question)


def test_a_flip_flop_reads_what_was_written_last_and_mostly_ignores() -> None:
    kinds = {"w": 0, "r": 0, "i": 0}
    for row in strings("flip_flop"):
        pairs = [row[i : i + 2] for i in range(0, len(row), 2)]
        assert pairs[0][0] == "w"
        assert pairs[-1][0] == "r"
        memory = None
        for kind, bit in pairs:
            memory = bit if kind == "w" else memory
            assert kind != "r" or bit == memory
        for kind, _ in pairs[1:-1]:
            kinds[kind] += 1
    total = sum(kinds.values())
    assert kinds["i"] / total == pytest.approx(0.8, abs=0.03)
    assert kinds["w"] / total == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize("name", NAMES)
def test_symbols_are_uniform_and_splits_independent(name) -> None:
    task = get_task(name, length=20)
    first, again, other = (task.sample(2000, seed=1, split=split) for split in ("train", "train", "heldout"))
    assert torch.equal(first.tokens, again.tokens)
    assert not torch.equal(first.tokens, other.tokens)
    digits = first.tokens[:, :20]
    if name != "flip_flop":
        counts = np.bincount(digits.flatten().numpy(), minlength=10)[:10]
        assert abs(counts / counts.sum() - 0.1).max() < 0.01


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("copy", "314=31", r"digits, '=' and as many digits"),
        ("sort", "3=4=314", r"digits, '=' and as many digits"),
        ("flip_flop", "i1r1", "reads before anything is written"),
        ("flip_flop", "w11r", "pairs of w, r or i and a bit"),
    ],
)
def test_rows_that_break_the_rule_are_refused(name, text, message) -> None:
    task = get_task(name, length=12)
    with pytest.raises(UsageError, match=message):
        task.label(task.parse(text)[None])


def test_lengths_beyond_the_given_digits_are_refused_by_number() -> None:
    with pytest.raises(UsageError, match=r"longest <= 5, the number of given digits"):
        get_task("copy", length=5).sample(3, seed=1, lengths=(2, 9))
    with pytest.raises(UsageError, match="length = 3 is too short for flip_flop; choose length >= 4"):
        get_task("flip_flop", length=3)
