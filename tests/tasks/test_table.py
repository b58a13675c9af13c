"""Tasks over arrays in memory (`Task.from_arrays`), and what they share with tasks over files."""

from __future__ import annotations

import hashlib
import re
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from semfocus.errors import DataError, UsageError
from semfocus.tasks import SPLITS, Batch, Task
from semfocus.tasks.rows import Shares
from semfocus.tasks.table import DataWarning, TableTask

SMALL = [[i % 5, i // 5 % 5, i // 25 % 5][: 1 + i % 3] for i in range(100)]
LABELS = [i % 2 for i in range(100)]


@pytest.fixture(scope="module")
def digits() -> TableTask:
    pixels, labels = load_digits(return_X_y=True)
    return Task.from_arrays(pixels.astype(int), labels, name="digits")


def all_rows(task: TableTask, split, seed: int = 0) -> Batch:
    return task.sample(task.size(split), seed=seed, split=split)


def multiset(task: TableTask, splits=SPLITS) -> list[tuple]:
    """Every row of these splits with its label, in a fixed order."""
    rows = []
    for split in splits:
        batch = all_rows(task, split)
        for row, label, length in zip(*(c.tolist() for c in (batch.tokens, batch.labels, batch.lengths)), strict=True):
            rows.append((row[:length], task.class_names[label]))
    return sorted(rows)


def test_real_digits_are_complete_and_keep_their_labels(digits):
    pixels, labels = load_digits(return_X_y=True)
    expected = sorted((row, str(label)) for row, label in zip(pixels.astype(int).tolist(), labels, strict=True))
    assert multiset(digits) == expected
    assert (digits.vocab_size, digits.pad_id, digits.num_classes, digits.seq_len) == (17, 17, 10, 64)
    assert digits.class_names == tuple("0123456789")


def test_real_digits_can_be_learned_from_the_train_split(digits):
    train, heldout = all_rows(digits, "train"), all_rows(digits, "heldout")
    centres = torch.stack([train.tokens[train.labels == c].double().mean(0) for c in range(10)])
    guess = torch.cdist(heldout.tokens.double(), centres).argmin(1)
    assert (guess == heldout.labels).double().mean() > 0.85


def test_split_sizes_are_near_their_shares_and_reported(digits):
    sizes = {split: digits.size(split) for split in SPLITS}
    assert sum(sizes.values()) == digits.report.rows_read == 1797
    assert digits.report.rows == sizes
    assert abs(sizes["heldout"] / 1797 - 0.2) < 0.03  # three standard errors
    assert abs(sizes["test"] / 1797 - 0.1) < 0.022
    assert (digits.report.vocabulary, digits.report.width, digits.report.unknown_share) == (17, 64, 0.0)


def test_baselines_are_chance_and_the_most_frequent_train_class(digits):
    labels = all_rows(digits, "train").labels
    majority = torch.bincount(labels).max().item() / len(labels)
    assert digits.baselines == {"chance": 0.1, "majority": pytest.approx(majority)}


def test_a_sample_has_no_row_twice_and_depends_on_seed_and_split_alone(digits):
    one, again, other = (digits.sample(100, seed=s, split="heldout") for s in (1, 1, 2))
    assert torch.equal(one.tokens, again.tokens)
    assert torch.equal(one.labels, again.labels)
    assert not torch.equal(one.tokens, other.tokens)
    assert len({tuple(row) for row in one.tokens.tolist()}) == 100
    heldout = {tuple(row) for row, _ in multiset(digits, ["heldout"])}
    assert {tuple(row) for row in one.tokens.tolist()} <= heldout


def test_more_rows_than_a_split_holds_is_an_error_that_names_both(digits):
    size = digits.size("test")
    with pytest.raises(UsageError, match=rf"n = {size + 1} is more than the {size} rows of split 'test' of digits"):
        digits.sample(size + 1, seed=0, split="test")
    assert len(digits.sample(0, seed=0)) == 0


def test_lengths_and_label_rules_are_refused_for_fixed_rows(digits):
    with pytest.raises(UsageError, match=r"lengths = \(1, 5\): the rows of digits have the lengths they have"):
        digits.sample(3, seed=0, lengths=(1, 5))
    with pytest.raises(UsageError, match="digits has no rule that labels a row"):
        digits.label(digits.sample(3, seed=0).tokens)


def test_all_runs_share_one_data_seed(digits):
    assert {digits.data_seed(seed) for seed in (0, 1, 153476998)} == {0}


def test_rows_of_different_lengths_are_padded_with_pad_id_to_the_longest():
    task = Task.from_arrays(SMALL, LABELS)
    assert (task.seq_len, task.vocab_size) == (3, 5)
    batch = all_rows(task, "train")
    for row, length in zip(batch.tokens.tolist(), batch.lengths.tolist(), strict=True):
        assert row[length:] == [5] * (3 - length)
        assert all(0 <= token < 5 for token in row[:length])
    assert multiset(task) == sorted((row, str(label)) for row, label in zip(SMALL, LABELS, strict=True))


def test_padding_beyond_a_length_is_ignored_whatever_it_holds():
    lengths = [len(row) for row in SMALL]
    padded = np.array([row + [999] * (7 - len(row)) for row in SMALL])
    task = Task.from_arrays(torch.from_numpy(padded), torch.tensor(LABELS), lengths=torch.tensor(lengths))
    assert (task.seq_len, task.vocab_size) == (7, 5)
    narrow = Task.from_arrays(SMALL, LABELS)
    assert multiset(task) == multiset(narrow)
    assert task.fingerprint() != narrow.fingerprint()  # batches of another width


def test_render_and_parse_are_inverse_and_ids_outside_are_refused():
    task = Task.from_arrays(SMALL, LABELS)
    batch = task.sample(20, seed=0)
    for row, length in zip(batch.tokens, batch.lengths.tolist(), strict=True):
        text = task.render(row)
        assert text == task.render(row, length) == " ".join(map(str, row[:length].tolist()))
        assert torch.equal(task.parse(text), row[:length])
    with pytest.raises(UsageError, match="holds ids from 0 to 4"):
        task.render([1, 5, 2])


def test_identity_follows_content_not_type_name_or_padding():
    task = Task.from_arrays(SMALL, LABELS)
    padded = np.array([row + [0] * (3 - len(row)) for row in SMALL], dtype=np.uint8)
    lengths = [len(row) for row in SMALL]
    same = Task.from_arrays(padded, np.array(LABELS), lengths=lengths, name="other", class_names=("no", "yes"))
    assert same.fingerprint() == task.fingerprint()
    assert same == task
    assert hash(same) == hash(task)
    assert torch.equal(same.sample(30, seed=4).tokens, task.sample(30, seed=4).tokens)


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": [*SMALL[:-1], [4, 4]]},
        {"labels": [1, *LABELS[1:]]},
        {"vocab_size": 6},
        {"class_names": ("a", "b", "c")},
        {"heldout_share": 0.3},
        {"test_share": 0.2},
    ],
)
def test_identity_changes_with_all_that_changes_the_rows(change):
    task = Task.from_arrays(SMALL, LABELS)
    other = Task.from_arrays(**{"tokens": SMALL, "labels": LABELS, **change})
    assert other.fingerprint() != task.fingerprint()
    assert other != task


def test_text_labels_and_given_class_names_are_understood():
    assert Task.from_arrays(SMALL, ["b", "a"] * 50).class_names == ("a", "b")
    named = Task.from_arrays(SMALL, LABELS, class_names=["no", "yes", "never"])
    assert named.class_names == ("no", "yes", "never")
    assert named.num_classes == 3


def test_rows_without_tokens_are_skipped_counted_and_reported_by_one_warning():
    rows = [*SMALL[:7], [], *SMALL[8:], []]
    with pytest.warns(DataWarning) as caught:
        task = Task.from_arrays(rows, [*LABELS, 0], name="mine")
    assert [str(w.message) for w in caught] == [
        "mine: 2 of 101 rows tokenise to nothing and were skipped (the first: row 7)"
    ]
    assert caught[0].filename == __file__
    assert (task.report.rows_read, task.report.rows_skipped) == (101, 2)
    assert sum(task.report.rows.values()) == 99


def test_no_warning_when_nothing_is_skipped():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Task.from_arrays(SMALL, LABELS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tokens": []}, "arrays has no rows"),
        ({"tokens": 5}, "tokens of arrays must be an array (n, L) or a list of rows, not int"),
        ({"tokens": "0101"}, "must be an array (n, L) or a list of rows, not str"),
        ({"tokens": np.zeros(5, int)}, "must have the shape (n, L), not (5,)"),
        ({"tokens": np.zeros((100, 3))}, "row 0: tokens must be a flat row of whole numbers, not [0. 0. 0.]; convert"),
        ({"tokens": [*SMALL[:-1], ["a"]]}, "row 99: tokens must be a flat row of whole numbers, not ['a']"),
        ({"tokens": [*SMALL[:-1], [1, [2]]]}, "row 99: tokens must be a flat row"),
        ({"tokens": [*SMALL[:-1], [True]]}, "row 99: tokens must be a flat row"),
        ({"tokens": [*SMALL[:-1], [2**70]]}, "row 99: tokens must be a flat row"),
        ({"tokens": [*SMALL[:-1], [1, -3]]}, "row 99: the id -3 at position 1 must be from 0 to 1048575"),
        ({"tokens": [*SMALL[:-1], [2**20]]}, "row 99: the id 1048576 at position 0"),
        ({"tokens": [[]] * 100}, "none of the 100 rows of arrays holds a single token"),
        ({"labels": LABELS[:-1]}, "100 rows of tokens but 99 labels"),
        ({"labels": 3}, "labels of arrays must be one label a row"),
        ({"labels": np.zeros((100, 1), int)}, "labels of arrays must be one label a row"),
        ({"labels": [0.5] * 100}, "row 0: the label 0.5 is a fraction"),
        ({"labels": [1] * 100}, "every row of arrays has the label 1"),
        ({"lengths": [1] * 99}, "lengths of arrays must be 100 whole numbers"),
        ({"lengths": [1.0] * 100}, "lengths of arrays must be 100 whole numbers"),
        ({"lengths": [2] * 100}, "row 0: the length 2 must be from 0 to 1"),
        ({"lengths": [-1] * 100}, "row 0: the length -1 must be from 0 to 1"),
        ({"vocab_size": 4}, "row 4: the id 4 is not below vocab_size = 4"),
        ({"vocab_size": 0}, "vocab_size = 0 must be at least 1"),
        ({"heldout_share": 0.0}, "heldout_share = 0 leaves nothing to judge by"),
        ({"heldout_share": 1.5}, "heldout_share = 1.5 must be a number from 0 to below 1"),
        ({"test_share": "0.1"}, "test_share = '0.1' must be a number"),
        ({"test_share": False}, "test_share = False must be a number"),
        ({"test_share": float("nan")}, "test_share = nan must be a number"),
        ({"heldout_share": 0.6, "test_share": 0.4}, "leave nothing to train on"),
        (
            {"heldout_share": 1e-9},
            "falls into the split 'heldout' (heldout_share = 1e-09, test_share = 0.1); raise heldout",
        ),
        ({"test_share": 1e-9}, "raise test_share"),
        ({"heldout_share": 0.5, "test_share": 0.4999999999}, "lower heldout_share or test_share"),
    ],
)
def test_bad_arguments_are_named_with_what_would_be_right(arguments, message):
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        Task.from_arrays(**{"tokens": SMALL, "labels": LABELS, **arguments})
    assert caught.value.exit_code == 2


def test_a_test_share_of_zero_means_no_test_rows():
    task = Task.from_arrays(SMALL, LABELS, test_share=0)
    assert task.size("test") == 0
    with pytest.raises(UsageError, match="n = 1 is more than the 0 rows of split 'test'"):
        task.sample(1, seed=0, split="test")


def test_bad_data_and_wrong_options_are_different_errors():
    with pytest.raises(DataError):
        Task.from_arrays(SMALL, [1] * 100)


@given(st.lists(st.lists(st.integers(0, 9), min_size=1), min_size=1), st.floats(0.01, 0.4), st.floats(0, 0.4))
def test_equal_rows_share_a_split_and_another_heldout_share_moves_no_test_row(rows, heldout, test):
    shares = Shares(heldout_share=heldout, test_share=test)
    wider = Shares(heldout_share=heldout + 0.1, test_share=test)
    for row in rows:
        split = shares.split_of(row)
        assert shares.split_of(np.array(row)) == shares.split_of(tuple(row)) == split
        assert (wider.split_of(row) == "test") == (split == "test")
        if split == "heldout":
            assert wider.split_of(row) == "heldout"


def test_the_split_of_a_row_is_decided_by_its_sha256_and_does_not_change_between_versions():
    # sha256("abc") is ba7816bf 8f01cfea ...: the place 0xba7816bf / 2^32 = 0.72839...
    assert Shares(heldout_share=0.7284, test_share=0).split_of("abc") == "heldout"
    assert Shares(heldout_share=0.7283, test_share=0).split_of("abc") == "train"
    assert Shares(heldout_share=0.1, test_share=0.7284).split_of("abc") == "test"
    place = int(hashlib.sha256(b"[10,2]").hexdigest()[:16], 16) / 2**64
    assert Shares(heldout_share=place + 1e-9, test_share=0).split_of([10, 2]) == "heldout"
    assert Shares(heldout_share=place - 1e-9, test_share=0).split_of([10, 2]) == "train"


def test_a_train_split_of_one_class_is_refused() -> None:
    tokens = np.arange(40)[:, None]
    first = Task.from_arrays(tokens, np.arange(40) % 2)
    train = set(first.sample(first.size("train"), seed=0).tokens[:, 0].tolist())
    with pytest.raises(DataError, match="rows of its train split have the label"):
        Task.from_arrays(tokens, np.array([0 if i in train else 1 for i in range(40)]))
