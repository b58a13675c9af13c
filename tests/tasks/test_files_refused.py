"""Files of a user's own that are refused, or read in part with a warning: rows, columns and options are named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from semfocus.errors import DataError, UsageError
from semfocus.tasks import get_task
from semfocus.tasks.table import DataWarning
from tests.tasks.helpers import BITS, bits_file, write_csv, write_jsonl


def test_rows_without_tokens_are_skipped_counted_and_reported_by_a_warning(tmp_path):
    extra = [{"text": "", "label": 1}, {"text": None, "label": 0}, {"text": [], "label": 0}]
    with pytest.warns(DataWarning, match=r"3 of 103 rows tokenise to nothing .* \(the first: line 101\)") as caught:
        task = get_task(bits_file(tmp_path, extra))
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert (task.report.rows_read, task.report.rows_skipped) == (103, 3)
    assert sum(task.report.rows.values()) == 100


def test_white_space_alone_has_no_words_but_has_characters(tmp_path):
    path = bits_file(tmp_path, [{"text": " \t", "label": 1}])
    with pytest.warns(DataWarning, match="1 of 101 rows"):
        get_task(path, tokenizer="whitespace")
    assert get_task(path, tokenizer="char").report.rows_skipped == 0


def refusal(path: Path, **options) -> str:
    with pytest.raises(UsageError) as caught:
        get_task(path, **options)
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizzer": "char"}, "unknown option of bits.jsonl 'tokenizzer'; did you mean 'tokenizer'?"),
        ({"tokeniser": "char", "tokenizer": "char"}, "two spellings of one option"),
        ({"metrics": "f1"}, "unknown metrics 'f1'; known: accuracy, balanced"),
        ({"tokenizer": "word"}, "unknown tokenizer 'word'; known: auto, bpe, char, tokens, whitespace"),
        ({"tokenizer": "tokens"}, "tokenizer = 'tokens' needs token lists, but column 'text'"),
        ({"vocab_size": 0}, "vocab_size = 0 must be at least 1"),
        ({"vocab_size": 255, "tokenizer": "bpe"}, "vocab_size = 255 must be at least 256"),
        ({"vocab_size": "many"}, "vocab_size = 'many' must be a whole number"),
        ({"max_length": 0}, "max_length = 0 must be at least 1"),
        ({"keep": "middle"}, "keep = 'middle' is not one of start, end"),
        ({"heldout_share": 2}, "heldout_share = 2 must be a number from 0 to below 1"),
        ({"text_column": 3}, "text_column = 3 must be the name of a column"),
        (
            {"text_column": "txt"},
            "unknown column of bits.jsonl 'txt'; did you mean 'text'? known: label, text; name one with "
            "--option text_column=NAME (in Python text_column='NAME')",
        ),
        ({"label_column": "text"}, "text_column and label_column of bits.jsonl are both 'text'"),
        ({"test_share": 1e-9}, "none of its 100 rows falls into the split 'test'"),
    ],
    ids=str,
)
def test_a_bad_option_is_named_with_what_would_be_right(tmp_path, monkeypatch, options, message):
    bits_file(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert message in refusal(Path("bits.jsonl"), **options)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (
            ("a", "b", "c"),
            "has no column called text or similar; its columns: 'a', 'b', 'c'; name one with "
            "--option text_column=NAME (in Python text_column='NAME')",
        ),
        (("text", "b", "c"), "has no column called label or similar; its columns: 'text', 'b', 'c'"),
        (("Text", "text", "label"), "several columns that could hold the text: 'Text', 'text'"),
        (("sentence", "review", "label"), "several columns that could hold the text: 'sentence', 'review'"),
        (("text", "class", "target"), "several columns that could hold the label: 'class', 'target'"),
        (("text", "text", "label"), "has 2 columns called 'text'; rename all but one"),
    ],
)
def test_an_unrecognised_column_is_an_error_that_lists_the_columns(tmp_path, header, message):
    path = write_csv(tmp_path / "a.csv", [("a", "b", "c")] * 3, header)
    assert message in refusal(path)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"text": "a", "label": None}, "line 101: the label is missing"),
        ({"text": "a", "label": " "}, "line 101: the label is missing"),
        ({"text": "a", "label": "one"}, "mixes types of labels: a whole number 0 at line 1, a text 'one' at line 101"),
        ({"text": "a", "label": 0.5}, "line 101: the label 0.5 is a fraction"),
        ({"text": "a", "label": [1]}, "line 101: the label [1] (list)"),
        ({"text": "a", "label": "\ud800"}, r"line 101: the label holds '\ud800', half of a character"),
        ({"text": 12, "label": 1}, "line 101: 12 (int) is neither a text nor a token list"),
        ({"text": {"a": 1}, "label": 1}, "line 101: {'a': 1} (dict) is neither a text nor a token list"),
        ({"text": ["a"], "label": 1}, "column 'text' mixes types: a text at line 1, a list of texts at line 101"),
        ({"text": [1], "label": 1}, "mixes types: a text at line 1, a list of whole numbers at line 101"),
        ({"text": [1, "a"], "label": 1}, "line 101: token 1 is a (str) in a list that begins with 1"),
        ({"text": [1, True], "label": 1}, "line 101: token 1 is True (bool)"),
        ({"text": [0.5], "label": 1}, "line 101: token 0 is 0.5 (float)"),
        ({"text": [["a"]], "label": 1}, "line 101: token 0 is ['a'] (list)"),
        ({"text": [None], "label": 1}, "line 101: token 0 is None (NoneType)"),
        ({"text": "a\ud800", "label": 1}, r"line 101: the text holds '\ud800', half of a character"),
        ({"text": ["a", "\udc00"], "label": 1}, r"line 101: the token list holds '\udc00', half of a character"),
        ({"text": "a"}, "line 101: 'label' is missing (keys: text)"),
    ],
)
def test_a_bad_row_is_named_with_its_line_and_value(tmp_path, record, message):
    assert message in refusal(bits_file(tmp_path, [record]))


def test_token_lists_refuse_a_tokenizer_of_texts(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": [i], "label": i % 2} for i in range(50)])
    assert "tokenizer = 'bpe' needs texts, but column 'text'" in refusal(path, tokenizer="bpe")


def test_header_only_one_class_and_only_empty_rows_are_refused(tmp_path):
    assert "names its columns but has no rows" in refusal(write_csv(tmp_path / "a.csv", []))
    same = write_csv(tmp_path / "b.csv", [(t, "x") for t in BITS])
    assert "every row of" in refusal(same)
    assert "has the label 'x'" in refusal(same)
    assert "none of the 2 rows of" in refusal(write_csv(tmp_path / "c.csv", [("", 1), ("", 2)]))


def test_csv_labels_that_are_fractions_are_refused_with_their_line(tmp_path):
    path = write_csv(tmp_path / "a.csv", [(t, i / 4) for i, t in enumerate(BITS)])
    bad = 3 * len(BITS) // 4
    assert re.search(rf"a\.csv: {bad} bad lines .*: line 3: the label '0.25' is a fraction", refusal(path))


def test_all_bad_lines_are_counted_and_the_first_five_shown(tmp_path):
    rows = [(text, "NaN" if i % 10 == 3 else i % 2) for i, text in enumerate(BITS)]
    message = refusal(write_csv(tmp_path / "a.csv", [*rows, ("a", "b", "c")]))
    assert f"{len(BITS) // 10 + 1} bad lines (the first 5 are shown): line 5: the label is missing" in message
    assert message.count("line ") == 5
    assert "line 55" not in message
    two = refusal(write_jsonl(tmp_path / "a.jsonl", [{"text": "a", "label": float("nan")}, {"text": "b"}]))
    assert "2 bad lines: line 1: the label is missing; fill it in or remove the row; line 2: 'label' is missing" in two


@pytest.mark.parametrize("missing", ["nan", "NaN", " NAN ", ""])
def test_a_label_nan_is_missing_and_no_class(tmp_path, missing):
    path = write_csv(tmp_path / "a.csv", [*((t, i % 2) for i, t in enumerate(BITS)), ("a", missing)])
    assert f"line {len(BITS) + 2}: the label is missing" in refusal(path)


@pytest.mark.parametrize(("header", "mark"), [("text;label, as given", ";"), ("text|label", "|")])
def test_a_header_with_another_separator_is_told_of(tmp_path, header, mark):
    (tmp_path / "a.csv").write_text(f"{header}\na;1\n", encoding="utf-8")
    assert f"they seem to be separated by {mark!r}" in refusal(tmp_path / "a.csv")


def test_a_file_too_small_to_split_says_what_to_change(tmp_path):
    path = write_csv(tmp_path / "a.csv", [("one", 1), ("two", 2), ("one", 1)])
    message = refusal(path)
    assert "none of its 3 rows falls into the split" in message
    assert "_share" in message
    with pytest.raises(DataError):
        get_task(path)
