"""Labels are numbered as classes, or refused by name."""

from __future__ import annotations

import datetime
import re

import pytest

from semfocus.errors import DataError
from semfocus.tasks.rows import Item, Origin, checked_label, number_classes

ORIGIN = Origin("data.csv", "line")


def numbered(labels, names=None):
    items = [Item(i + 2, "x", checked_label(ORIGIN, i + 2, label)) for i, label in enumerate(labels)]
    class_names, classes = number_classes(ORIGIN, items, names)
    return class_names, classes.tolist()


@pytest.mark.parametrize(
    ("labels", "names", "classes"),
    [
        ([10, 9, 9, -1], ("-1", "9", "10"), [2, 1, 1, 0]),
        (["10", " 9", "9 "], ("9", "10"), [1, 0, 0]),
        (["10", "9", "b"], ("10", "9", "b"), [0, 1, 2]),
        (["01", "1", "02"], ("01", "02", "1"), [0, 2, 1]),
        (["1.5", "2", "b"], ("1.5", "2", "b"), [0, 1, 2]),
        ([True, False], ("false", "true"), [1, 0]),
        (["9" * 5000, "1"], ("1", "9" * 5000), [1, 0]),
        (["1e", "2"], ("1e", "2"), [0, 1]),
    ],
    ids=["numbers", "texts of numbers", "texts", "leading zeros", "fractions beside words", "truth", "huge", "1e"],
)
def test_classes_are_numbered_by_value_or_by_text(labels, names, classes):
    assert numbered(labels) == (names, classes)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a", ""], "line 3: the label is missing"),
        (["a", "  "], "line 3: the label is missing"),
        ([1, None], "line 3: the label is missing"),
        ([1, float("nan")], "line 3: the label is missing"),
        ([1, 0.5], "line 3: the label 0.5 is a fraction; classes are whole numbers or words"),
        ([[1], 2], "line 2: the label [1] (list) must be a whole number or a text"),
        ([{"a": "b" * 100}, 2], "line 2: the label {'a': 'bbb"),
        ([datetime.date(2020, 1, 1)], "(date) must be"),
        (["1", "0.5", "2"], "line 3: the label '0.5' is a fraction"),
        (["1", "2e5"], "line 3: the label '2e5' is a fraction"),
        ([1, "a"], "mixes types of labels: a whole number 1 at line 2, a text 'a' at line 3"),
        ([1, True], "mixes types of labels: a whole number 1 at line 2, a truth value True at line 3"),
        (["a", "a", " a"], "every row of data.csv has the label 'a'"),
    ],
)
def test_labels_that_cannot_be_classes_are_refused_by_name(labels, message):
    with pytest.raises(DataError, match=re.escape(message)):
        numbered(labels)


def test_with_given_names_labels_are_indices():
    assert numbered([2, 0, 0], ("a", "b", "c")) == (("a", "b", "c"), [2, 0, 0])


@pytest.mark.parametrize("label", [3, -1, "a", True])
def test_a_label_outside_the_given_names_is_refused_by_name(label):
    with pytest.raises(DataError, match=r"line 3: the label .* must be a whole number from 0 to 2"):
        numbered([0, label], ("a", "b", "c"))


def test_one_class_is_refused_even_with_names():
    with pytest.raises(DataError, match=r"every row of data\.csv has the label 1"):
        numbered([1, 1], ("a", "b"))
