"""Readers of CSV, TSV, JSON lines and Parquet accept what the formats allow and name what they refuse."""

from __future__ import annotations

import sys
import tracemalloc
from pathlib import Path

import duckdb
import pytest

from semfocus.errors import BadRow, DataError, MissingExtra
from semfocus.tasks import readers
from semfocus.tasks.readers import MAX_LINE_BYTES, open_source
from semfocus.tasks.registry import FILE_SUFFIXES


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(path: Path, text: str = "text", label: str = "label") -> list[tuple]:
    pairs = list(open_source(path).pairs(text, label))
    bad = [pair for pair in pairs if isinstance(pair, BadRow)]
    if bad:
        raise bad[0]
    return [tuple(pair) for pair in pairs]


def refusal(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        read(path)
    assert caught.value.exit_code == 2
    return str(caught.value)


def write_parquet(path: Path, select: str) -> Path:
    with duckdb.connect() as connection:
        connection.sql(select).write_parquet(str(path))
    return path


def test_every_suffix_that_get_task_takes_for_a_file_has_a_reader():
    assert tuple(readers._KINDS) == FILE_SUFFIXES


def test_csv_quotes_line_ends_and_byte_order_mark_are_understood(tmp_path):
    content = b'\xef\xbb\xbftext,label\r\n"one\r\ntwo, ""three""",a\r\n\r\ncaf\xc3\xa9,b'
    rows = read(write(tmp_path, "a.csv", content))
    assert rows == [(2, 'one\r\ntwo, "three"', "a"), (5, "café", "b")]


def test_tsv_is_split_at_tabs_and_upper_case_suffix_is_known(tmp_path):
    assert read(write(tmp_path, "a.TSV", "label\ttext\nx\tone, two\n")) == [(2, "one, two", "x")]


def test_quotes_inside_an_unquoted_field_are_plain_text(tmp_path):
    assert read(write(tmp_path, "a.csv", 'text,label\n5" disk,a\n')) == [(2, '5" disk', "a")]


def test_jsonl_skips_blank_lines_but_counts_them(tmp_path):
    content = '\ufeff{"text": "a b", "label": 1}\r\n\r\n{"label": 2, "text": ["x"], "other": NaN, "other": {}}\n'
    assert read(write(tmp_path, "a.jsonl", content)) == [(1, "a b", 1), (3, ["x"], 2)]


def test_parquet_rows_lists_and_nulls_are_read_unchanged(tmp_path):
    path = write_parquet(
        tmp_path / "a.parquet",
        "SELECT * FROM (VALUES ([1, 2], 'a', 0.5), ([], 'b', 0.1), (NULL, NULL, 0.2)) v(text, label, rest)",
    )
    assert open_source(path).columns == ["text", "label", "rest"]
    assert read(path) == [(1, [1, 2], "a"), (2, [], "b"), (3, None, None)]


def test_more_parquet_rows_than_one_fetch_keep_order_and_number(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", "SELECT 'r' || i AS text, i % 3 AS label FROM range(10000) t(i)")
    assert read(path) == [(i + 1, f"r{i}", i % 3) for i in range(10_000)]


@pytest.mark.parametrize("name", ["a*.parquet", "a?.parquet", "a[1].parquet", "a'); --.parquet"])
def test_a_parquet_name_is_neither_a_pattern_nor_a_statement_nor_a_partition(tmp_path, name):
    folder = tmp_path / "label=9"
    folder.mkdir()
    path = write_parquet(folder / "tmp.parquet", "SELECT 'x' AS text, 1 AS label").rename(folder / name)
    write_parquet(folder / "a1.parquet", "SELECT 'wrong' AS text, 2 AS label")
    assert read(path) == [(1, "x", 1)]


def test_a_parquet_column_with_quotes_and_dots_in_its_name_is_found(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", """SELECT 'x' AS "a.b ""c""; --", 1 AS "LABEL" """)
    assert read(path, 'a.b "c"; --', "LABEL") == [(1, "x", 1)]


def test_parquet_without_duckdb_names_the_extra(tmp_path, monkeypatch):
    path = write_parquet(tmp_path / "a.parquet", "SELECT 'x' AS text, 1 AS label")
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingExtra, match=r"Parquet needs the package duckdb: pip install 'semfocus\[analysis\]'"):
        open_source(path)


def test_a_damaged_parquet_file_is_a_data_error(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", "SELECT 'x' || i AS text, i AS label FROM range(1000) t(i)")
    write(tmp_path, "a.parquet", path.read_bytes()[:-20])
    assert "a.parquet is not readable as Parquet" in refusal(path)


@pytest.mark.parametrize("suffix", FILE_SUFFIXES)
def test_empty_missing_and_odd_paths_are_named(tmp_path, suffix):
    assert "is empty" in refusal(write(tmp_path, f"empty{suffix}", ""))
    assert f"none{suffix} is not there" in refusal(tmp_path / f"none{suffix}")
    (tmp_path / f"folder{suffix}").mkdir()
    assert "is not a regular file" in refusal(tmp_path / f"folder{suffix}")
    assert "cannot be read" in refusal(tmp_path / ("a" * 300 + suffix))


@pytest.mark.parametrize("content", ["\n\n", "\ufeff", "\r\n"])
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_a_file_of_blank_lines_is_empty(tmp_path, suffix, content):
    assert "is empty" in refusal(write(tmp_path, f"a{suffix}", content))


def test_another_suffix_lists_the_known_ones(tmp_path):
    assert "must end in one of .csv, .tsv, .jsonl, .parquet" in refusal(write(tmp_path, "a.txt", "x"))


def test_a_file_that_may_not_be_opened_is_a_data_error(tmp_path, monkeypatch):
    path = write(tmp_path, "a.csv", "text,label\na,1\n")

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert "a.csv cannot be read: Permission denied" in refusal(path)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_invalid_utf8_names_line_byte_and_offset(tmp_path, suffix):
    start = b"text,label\nok,1\n" if suffix == ".csv" else b'{"text": "ok", "label": 1}\n\n'
    message = refusal(write(tmp_path, f"a{suffix}", start + b"na\xefve,2\n"))
    assert "line 3: byte 0xef" in message
    assert f"offset {len(start) + 2} of the file" in message
    assert "save the file as UTF-8" in message


def test_a_line_over_the_cap_is_refused_and_one_at_the_cap_is_read(tmp_path):
    row = b"x" * (MAX_LINE_BYTES - 2) + b",a"
    assert len(read(write(tmp_path, "fits.csv", b"text,label\n" + row + b"\r\n"))[0][1]) == MAX_LINE_BYTES - 2
    message = refusal(write(tmp_path, "long.csv", b"text,label\nx" + row + b"\n"))
    assert "line 2: longer than 16777216 bytes (16 MiB)" in message


def test_a_file_without_line_ends_is_not_read_into_memory_whole(tmp_path):
    path = tmp_path / "a.jsonl"
    with path.open("wb") as file:
        file.truncate(40 * MAX_LINE_BYTES)
    tracemalloc.start()
    try:
        assert "line 1: longer than" in refusal(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * MAX_LINE_BYTES


@pytest.mark.parametrize(
    ("row", "problem"),
    [("a,b,c", "3 fields where the header has 2; put quotes"), ("alone", "1 field where the header has 2; add")],
    ids=["a comma too many", "a field too few"],
)
def test_a_csv_row_with_the_wrong_number_of_fields_names_line_and_counts(tmp_path, row, problem):
    message = refusal(write(tmp_path, "a.csv", f'text,label\n"two\nlines",1\n{row}\n'))
    assert f"line 4: {problem}" in message


@pytest.mark.parametrize("row", ['"never closed,1\nmore,2\n', '"closed" badly,1\n'])
def test_broken_quotes_name_the_line_where_the_row_begins(tmp_path, row):
    message = refusal(write(tmp_path, "a.csv", "text,label\nfine,1\n" + row))
    assert "line 3: not readable as .csv" in message


def test_a_quote_that_never_closes_stops_at_the_cap(tmp_path):
    megabyte = b"more,2 " * 149_797 + b"\n"
    message = refusal(write(tmp_path, "a.csv", b'text,label\n"open\n' + megabyte * 20))
    assert "line 2: not readable as .csv (field larger than field limit (16777216))" in message


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{text: 1}", "not JSON"),
        ("[1, 2]", "a JSON list, not an object"),
        ("12", "a JSON int, not an object"),
        ("[" * 100_000, "nested too deeply"),
        ('{"text": "a", "label": ' + "1" * 5000 + "}", "not JSON"),
        ('{"text": "a"}', "'label' is missing (keys: text)"),
        ("{}", "'text' is missing (keys: none)"),
    ],
)
def test_a_bad_json_line_is_named_with_its_fault(tmp_path, line, words):
    message = refusal(write(tmp_path, "a.jsonl", '{"text": "a", "label": 1}\n' + line + "\n"))
    assert "a.jsonl, line 2: " in message
    assert words in message
