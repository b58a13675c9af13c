"""The label rules: test vectors, the authors' own rows, and agreement with every generator at many lengths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from semfocus.errors import UsageError
from semfocus.tasks import get_task
from tests.tasks.helpers import NNCH_TASKS

VECTORS = [
    ("parity", [1, 0, 1, 0, 1, 0, 0], 1),
    ("parity", [0, 1, 1, 1, 1], 0),
    ("even_pairs", [0, 0, 1, 1, 1, 0], 0),
    ("even_pairs", [0, 1, 0, 1, 0, 0, 1], 1),
    ("even_pairs", [1], 0),
    ("missing_duplicate", [0, 1, 1, 0, 0, 2, 1, 0], 1),
    ("missing_duplicate", [1, 0, 1, 1, 2, 1], 0),
    ("missing_duplicate", [1], 1),
    ("cycle_navigation", [2, 0, 1, 0, 0], 3),
    ("cycle_navigation", [2, 2, 2, 0], 2),
    ("stack_manipulation", [1, 2, 2, 2], 2),
    ("stack_manipulation", [1, 2, 2, 3], 0),
    ("stack_manipulation", [0, 1, 1, 1, 1, 1, 3, 4, 2, 4, 2, 2], 1),
    ("modular_arithmetic", [6, 3], 2),
    ("modular_arithmetic", [8, 6, 3, 9], 2),
    ("modular_arithmetic", [8, 0, 5, 2, 9], 2),
    ("modular_arithmetic", [8, 6, 3, 5, 8, 6, 3, 7, 6, 3, 9, 9], 1),
    ("solve_equation", [9, 10, 2], 2),
    ("solve_equation", [7, 9, 6, 1, 8, 10, 4], 0),
    ("solve_equation", [7, 6, 3, 5, 7, 9, 6, 2, 8, 8, 10, 3], 3),
]
TEXTS = [
    ("listops", "[MED 1 2 ]", 1),
    ("listops", "[SM 9 9 5 ]", 3),
    ("listops", "[MAX 2 [MIN 7 4 ] [MED 1 8 3 6 ] ]", 4),
    ("modular_arithmetic", "(( -3 + 4 ) * 2)", 2),
    ("solve_equation", "(x - 1) = 4", 0),
    ("missing_duplicate", "0110_110", 0),
    ("stack_manipulation", "0 1 1 POP PUSH0 POP", 1),
]


@pytest.mark.parametrize(("name", "ids", "label"), VECTORS)
def test_a_published_vector_has_its_label(name: str, ids: list[int], label: int) -> None:
    assert get_task(name).label(torch.tensor([ids])).tolist() == [label]


@pytest.mark.parametrize(("name", "text", "label"), TEXTS)
def test_a_written_row_has_its_label(name: str, text: str, label: int) -> None:
    task = get_task(name)
    assert task.label(task.parse(text)[None]).tolist() == [label]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("cycle_navigation", "cycle_navigation"),
        ("stack_manipulation", "stack_manipulation"),
        ("modular_arithmetic", "modular_arithmetic_brackets"),
        ("solve_equation", "solve_equation"),
    ],
)
def test_the_label_rule_agrees_with_the_authors_on_every_reference_row(ours: str, theirs: str, data_dir: Path) -> None:
    with np.load(data_dir / "nnch_reference.npz") as reference:
        tokens, labels = reference[f"{theirs}__tokens"], reference[f"{theirs}__labels"]
    assert tokens.shape == (2000, 40)
    computed = get_task(ours).label(torch.from_numpy(tokens.astype(np.int64)))
    assert (computed.numpy() == labels).sum() == 2000


SHORTEST = {"solve_equation": 3}


@pytest.mark.parametrize("name", NNCH_TASKS)
@settings(max_examples=25, deadline=None)
@given(length=st.integers(1, 130), seed=st.integers(0, 2**32), split=st.sampled_from(["train", "heldout", "test"]))
def test_generator_and_rule_agree_at_every_length(name: str, length: int, seed: int, split: str) -> None:
    task = get_task(name, length=max(length, SHORTEST.get(name, 1)))
    batch = task.sample(20, seed=seed, split=split)
    assert torch.equal(task.label(batch.tokens, batch.lengths), batch.labels)
    assert torch.equal(task.label(batch.tokens), batch.labels)
    for row in batch.tokens[:5]:
        assert torch.equal(task.parse(task.render(row)), row)


@pytest.mark.parametrize("name", NNCH_TASKS)
@pytest.mark.parametrize("per", ["row", "batch"])
def test_generator_and_rule_agree_on_rows_of_mixed_lengths(name: str, per: str) -> None:
    task, low = get_task(name), SHORTEST.get(name, 1)
    batch = task.sample(800, seed=3, lengths=(low, 40), per=per)
    assert torch.equal(task.label(batch.tokens, batch.lengths), batch.labels)
    beyond = torch.arange(40) >= batch.lengths[:, None]
    assert (batch.tokens[beyond] == task.pad_id).all()
    spread = set(batch.lengths.tolist())
    assert spread == set(range(low, 41)) if per == "row" else len(spread) == 1
    for row, length in zip(batch.tokens[:50], batch.lengths[:50], strict=True):
        assert torch.equal(task.parse(task.render(row, length)), row[:length])


def test_a_row_of_ten_thousand_tokens_works() -> None:
    for name in NNCH_TASKS:
        task = get_task(name, length=10_000)
        batch = task.sample(3, seed=0)
        assert torch.equal(task.label(batch.tokens, batch.lengths), batch.labels)


@settings(max_examples=10, deadline=None)
@given(low=st.integers(0, 60), room=st.integers(10, 80), depth=st.integers(3, 8), seed=st.integers(0, 99))
def test_listops_generator_and_rule_agree_for_many_shapes(low: int, room: int, depth: int, seed: int) -> None:
    task = get_task("listops", min_length=low, max_length=low + room, max_depth=depth)
    batch = task.sample(40, seed=seed, cache=False)
    assert torch.equal(task.label(batch.tokens, batch.lengths), batch.labels)
    assert (batch.lengths > low).all()
    assert (batch.lengths < low + room).all()
    for row, length in zip(batch.tokens[:5], batch.lengths[:5], strict=True):
        assert torch.equal(task.parse(task.render(row)), row[:length])


@pytest.mark.parametrize(
    ("name", "ids", "message"),
    [
        ("parity", [0, 1, 5], "id 5 at position 2"),
        ("missing_duplicate", [0, 1, 0, 1], "0 holes"),
        ("missing_duplicate", [0, 2, 2, 1], "2 holes"),
        ("modular_arithmetic", [8, 1, 5, 9], "position 3"),
        ("modular_arithmetic", [8, 1, 5, 2], "brackets open"),
        ("modular_arithmetic", [6, 6, 1], "position 1"),
        ("modular_arithmetic", [1, 5, 2], "position 1"),
        ("modular_arithmetic", [8, 10, 9], "contains 'x'"),
        ("solve_equation", [1, 10, 2], "one x"),
        ("listops", [1, 2], "not one complete expression"),
        ("listops", [10, 1, 2, 14, 14], "closes nothing"),
    ],
)
def test_a_row_outside_the_language_is_refused_with_the_place(name: str, ids: list[int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        get_task(name).label(torch.tensor([ids]))


def test_an_unknown_symbol_in_a_text_is_named() -> None:
    with pytest.raises(UsageError, match="'7' at place 2"):
        get_task("parity").parse("017")


def test_wrong_shapes_of_tokens_and_lengths_are_refused() -> None:
    task = get_task("parity")
    with pytest.raises(UsageError, match=r"shape \(n, L\)"):
        task.label(torch.tensor([0, 1]))
    with pytest.raises(UsageError, match="float32"):
        task.label(torch.tensor([[0.0]]))
    with pytest.raises(UsageError, match=r"shape \(n, L\)"):
        task.label(torch.zeros(3, 0, dtype=torch.int64))
    with pytest.raises(UsageError, match="1 to 2"):
        task.label(torch.tensor([[0, 1]]), torch.tensor([1.5]))
    with pytest.raises(UsageError, match="not a row of parity"):
        task.render([-1, 0])
    with pytest.raises(UsageError, match="1 to 2"):
        task.label(torch.tensor([[0, 1]]), torch.tensor([3]))
