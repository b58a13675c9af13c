"""Values are encoded and decoded unchanged, or refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semfocus.errors import UsageError
from semfocus.store import safe_json

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SCALARS = st.none() | st.booleans() | st.integers(-(2**64), 2**64) | st.floats() | TEXTS
ROWS = st.dictionaries(TEXTS.filter(lambda name: name != safe_json.NOT_FINITE), SCALARS, max_size=6)


@given(ROWS)
def test_a_row_is_decoded_unchanged_from_a_line_of_standard_json(row: dict[str, Any]) -> None:
    line = safe_json.encode_row(row, "a row")
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert b"\n" not in line
    back = safe_json.decode_row(line, "a row")
    assert list(back) == list(row)
    for name, value in row.items():
        assert type(back[name]) is type(value)
        assert back[name] == value or (math.isnan(value) and math.isnan(back[name]))


def test_a_float_that_is_not_finite_is_null_in_standard_json_and_restored_by_decode_row() -> None:
    row = {"step": 1, "a": math.nan, "b": math.inf, "c": -math.inf, "d": None}
    line = safe_json.encode_row(row, "a row")
    lost = {"a": "nan", "b": "inf", "c": "-inf"}
    assert json.loads(line) == {"step": 1, "a": None, "b": None, "c": None, "d": None, "not_finite": lost}
    back = safe_json.decode_row(line, "a row")
    assert math.isnan(back.pop("a"))
    assert back == {"step": 1, "b": math.inf, "c": -math.inf, "d": None}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"a": [math.nan]}, "nan is not finite"),
        ({"a": {1: 2}}, "a key that is not a text"),
        ({"a": {1, 2}}, "a value of type set"),
        ({"a": b"bytes"}, "a value of type bytes"),
        ({"a": "\ud800"}, "half a surrogate pair"),
        ({"\ud800": 1}, "half a surrogate pair"),
        ({"a": "x" * 2**20}, "at most 1048576 are read back"),
    ],
)
def test_what_cannot_be_decoded_is_not_encoded(value: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=f"the thing .*{reason}"):
        safe_json.encode(value, "the thing")


def test_a_structure_without_end_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(UsageError, match="nested deeper than 32 levels"):
        safe_json.encode(endless, "the thing")


def test_the_deepest_structure_that_can_be_written_can_be_read() -> None:
    value: Any = 1
    for _ in range(safe_json.MAX_DEPTH - 1):
        value = [value]
    assert safe_json.decode(safe_json.encode(value, "it"), "it") == value
    with pytest.raises(UsageError):
        safe_json.encode([value], "it")


def test_a_missing_file_is_none_and_no_error(tmp_path: Path) -> None:
    assert safe_json.read(tmp_path / "nothing.json") is None


def test_the_reserved_name_not_finite_cannot_be_a_field() -> None:
    with pytest.raises(UsageError, match="the name not_finite is taken"):
        safe_json.encode_row({"not_finite": 1}, "a row")
