"""The task `text`: rows are the corpus, each token once; splits share no document; tokens lie on disk."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from semfocus.cli import app
from semfocus.config import TaskConfig
from semfocus.errors import UsageError
from semfocus.tasks import SPLITS, get_task
from semfocus.tasks.corpora import streams
from semfocus.tasks.corpora.division import _by_hash
from semfocus.tasks.corpora.named import PythonSources
from semfocus.tasks.rows import Shares
from semfocus.tasks.text import Text

WORDS = (
    "the",
    "cat",
    "saw",
    "a",
    "dog",
    "near",
    "an",
    "old",
    "house",
    "by",
    "the",
    "green",
    "river",
    "where",
    "it",
    "slept",
)


def folder_of_texts(root: Path, count: int = 60, words: int = 80, seed: int = 0) -> Path:
    """A folder of distinct texts, some of them in folders of their own."""
    draws = random.Random(seed)
    for i in range(count):
        path = root / f"part{i % 3}" / f"{i:03}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [" ".join(draws.choices(WORDS, k=8)) for _ in range(words // 8)]
        path.write_text(f"number {i}\n" + "\n".join(lines) + "\n")
    return root


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return folder_of_texts(tmp_path / "corpus")


def text_task(corpus: Path, **options) -> Text:
    task = get_task("text", **{"corpus": str(corpus), "length": 16, "heldout_share": 0.2, "test_share": 0.1, **options})
    assert isinstance(task, Text)
    return task


TOKENIZERS = ("bytes", "bpe:300")


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_the_rows_of_a_split_are_its_documents_one_after_the_other(corpus: Path, tokenizer: str) -> None:
    task = text_task(corpus, tokenizer=tokenizer)
    files = [file.read_text() for file in sorted(corpus.rglob("*.txt"))]
    for split in SPLITS:
        tokens, labels = task.rows(split)
        whole = task.streams.tokens[split]
        text = task.decode(np.array(whole))
        mine = [file for file in files if file in text]
        assert text == "".join(f"{file}\n" for file in mine)
        assert len(tokens) == task.size(split) == (len(whole) - 1) // 16
        assert (tokens.reshape(-1) == whole[: tokens.size]).all()
        assert (labels.reshape(-1) == whole[1 : tokens.size + 1]).all()
        assert task.streams.text_bytes[split] == sum(map(len, mine))
        assert task.streams.documents[split] == len(mine)


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_no_document_is_in_two_splits_and_none_is_lost(corpus: Path, tokenizer: str) -> None:
    task = text_task(corpus, tokenizer=tokenizer)
    texts = {split: task.decode(np.array(task.streams.tokens[split])) for split in SPLITS}
    numbers = {
        split: {line for line in text.splitlines() if line.startswith("number")} for split, text in texts.items()
    }
    assert sum(map(len, numbers.values())) == len(set.union(*numbers.values())) == 60
    assert all(numbers.values())


def test_an_epoch_has_each_row_once(corpus: Path) -> None:
    task = text_task(corpus)
    count = task.size("train")
    batch = task.sample(count, seed=5)
    drawn = sorted(map(tuple, batch.tokens.tolist()))
    assert drawn == sorted(map(tuple, np.asarray(task.rows("train")[0]).tolist()))
    assert batch.labels.shape == batch.tokens.shape == (count, 16)
    assert (batch.labels[:, :-1] == batch.tokens[:, 1:]).all()
    assert (batch.lengths == 16).all()
    with pytest.raises(UsageError, match=f"n = {count + 1} is more than the {count} rows of split 'train'"):
        task.sample(count + 1, seed=5)


def test_rows_do_not_depend_on_the_seed_of_a_run_and_a_part_of_them_is_the_same_for_all(corpus: Path) -> None:
    task = text_task(corpus)
    assert task.data_seed(3) == task.data_seed(4)
    assert torch.equal(task.sample(9, seed=1).tokens, task.sample(9, seed=1).tokens)
    assert not torch.equal(task.sample(9, seed=1).tokens, task.sample(9, seed=2).tokens)
    assert torch.equal(task.sample(4, seed=1).tokens, task.sample(9, seed=1).tokens[:4])


def test_a_copied_document_counts_once(corpus: Path) -> None:
    before = text_task(corpus)
    for path in sorted(corpus.rglob("*.txt"))[:5]:
        (corpus / f"zz-{path.name}").write_bytes(path.read_bytes())
    after = text_task(corpus)
    assert after.streams.duplicates == 5
    assert after.fingerprint() == before.fingerprint()
    assert (after.streams.tokens["train"] == before.streams.tokens["train"]).all()


@given(
    sizes=st.lists(st.integers(1, 2000), min_size=3, max_size=40, unique=True),
    shares=st.tuples(st.floats(0.01, 0.5), st.floats(0.01, 0.4)),
)
def test_every_split_has_a_document_and_about_its_share_of_the_bytes(
    sizes: list[int], shares: tuple[float, float]
) -> None:
    documents = {hashlib.sha256(str(size).encode()).digest(): size for size in sizes}
    split_of = _by_hash(documents, Shares(heldout_share=shares[0], test_share=shares[1]))
    assert split_of.keys() == documents.keys()
    assert "heldout" in split_of.values()
    assert "test" in split_of.values()
    total = {split: sum(documents[each] for each in documents if split_of[each] == split) for split in SPLITS}
    for split, share in (("heldout", shares[0]), ("test", shares[1])):
        assert abs(total[split] - share * sum(sizes)) <= max(sizes)


def test_the_fingerprint_follows_the_text_and_not_its_place(corpus: Path, tmp_path: Path) -> None:
    other = folder_of_texts(tmp_path / "elsewhere" / "copy")
    assert text_task(corpus).fingerprint() == text_task(other).fingerprint()
    assert text_task(corpus).fingerprint() != text_task(corpus, length=17).fingerprint()
    assert text_task(corpus).fingerprint() != text_task(corpus, test_share=0.15).fingerprint()
    changed = other / "part0" / "000.txt"
    changed.write_text(changed.read_text().replace("number 0", "number O"))
    assert text_task(corpus).fingerprint() != text_task(other).fingerprint()
    assert str(tmp_path) not in json.dumps(text_task(corpus).fingerprint())


def test_a_changed_file_of_the_same_size_is_read_again(corpus: Path) -> None:
    before = text_task(corpus).fingerprint()
    path = corpus / "part1" / "001.txt"
    about = path.stat()
    path.write_text(path.read_text().replace("number 1", "number I"))
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))  # the time of a change is not so easily set back
    assert text_task(corpus).fingerprint() != before


def test_one_text_is_divided_by_place(tmp_path: Path) -> None:
    path = tmp_path / "novel.txt"
    lines = [f"line {i} says {i * i}\n" for i in range(2000)]
    path.write_text("".join(lines))
    task = text_task(path)
    texts = [task.decode(np.array(task.streams.tokens[split]))[:-1] for split in SPLITS]
    assert "".join(texts) == path.read_text()
    assert all(text.endswith("\n") for text in texts)
    shares = [len(text) / path.stat().st_size for text in texts]
    assert shares == pytest.approx([0.7, 0.2, 0.1], abs=0.01)


def test_a_long_line_is_cut_between_characters(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text("ßλ漢🎈" * 5000)
    task = text_task(path)
    for split in SPLITS:
        bytes(np.array(task.streams.tokens[split][:-1]).tolist()).decode()


def test_a_delimiter_ends_documents_of_a_text_file(tmp_path: Path) -> None:
    path = tmp_path / "stories.txt"
    path.write_text("<|endoftext|>\n".join(f"story {i} " + "and so on " * 5 for i in range(80)))
    task = text_task(path, delimiter="<|endoftext|>")
    assert sum(task.streams.documents.values()) == 80
    assert "endoftext" not in task.decode(np.array(task.streams.tokens["train"]))


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_records_are_documents(tmp_path: Path, suffix: str) -> None:
    texts = [f"document {i}: ünïcödé " + "word " * 20 for i in range(80)]
    path = tmp_path / f"records{suffix}"
    if suffix == ".jsonl":
        path.write_text("".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(texts)))
    else:
        import duckdb

        with duckdb.connect() as connection:
            connection.execute("CREATE TABLE t (id INTEGER, text VARCHAR)")
            connection.executemany("INSERT INTO t VALUES (?, ?)", [[i, text] for i, text in enumerate(texts)])
            connection.execute(f"COPY t TO '{path}' (FORMAT parquet)")
    task = text_task(path)
    assert sum(task.streams.documents.values()) == 80
    lines = [line for split in SPLITS for line in task.decode(np.array(task.streams.tokens[split])).splitlines()]
    assert sorted(lines) == sorted(texts)


def test_a_folder_takes_the_suffixes_that_are_asked_for(tmp_path: Path) -> None:
    for i in range(60):
        (tmp_path / f"{i}.c").write_text(f"int f{i}(void) {{ return {i}; }}\n")
        (tmp_path / f"{i}.md").write_text(f"# Page {i}\n\nwith a paragraph of text\n")
    (tmp_path / ".hidden.md").write_text("hidden\n")
    assert "int f" not in text_task(tmp_path).decode(np.array(text_task(tmp_path).streams.tokens["train"]))
    sources = text_task(tmp_path, suffixes=".c")
    assert sum(sources.streams.documents.values()) == 60


def test_tokens_are_mapped_from_the_disk_in_the_narrowest_type(corpus: Path) -> None:
    for tokenizer, dtype in (("bytes", np.uint8), ("bpe:300", np.uint16)):
        tokens = text_task(corpus, tokenizer=tokenizer).streams.tokens["train"]
        assert isinstance(tokens, np.memmap)
        assert tokens.dtype == dtype
        assert not tokens.flags.writeable


def test_without_a_cache_the_same_tokens_are_kept_in_memory(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = text_task(corpus)
    whole, fingerprint = np.array(mapped.streams.tokens["train"]), mapped.fingerprint()
    streams._open.clear()
    monkeypatch.setenv("SEMFOCUS_CACHE", "off")
    kept = text_task(corpus)
    assert not isinstance(kept.streams.tokens["train"], np.memmap)
    assert (kept.streams.tokens["train"] == whole).all()
    assert kept.fingerprint() == fingerprint


def test_a_cache_that_cannot_be_written_does_not_stop_the_work(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SEMFOCUS_CACHE", str(tmp_path / "file"))
    assert text_task(corpus, length=15).size("train") > 0


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("damage", ["flip", "cut", "manifest", "gone"])
def test_a_damaged_cache_is_made_again(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: str, damage: str
) -> None:
    monkeypatch.setenv("SEMFOCUS_CACHE", str(tmp_path / "cache"))
    whole = np.array(text_task(corpus, tokenizer=tokenizer).streams.tokens["train"])
    (folder,) = (tmp_path / "cache" / "tasks").glob("text-*")
    streams._open.clear()
    path = folder / ("manifest.json" if damage == "manifest" else "train.bin")
    data = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    else:
        data[7] ^= 1
        path.write_bytes(data[: len(data) // 2 * 2 - 2] if damage == "cut" else data)
    again = text_task(corpus, tokenizer=tokenizer)
    assert (np.array(again.streams.tokens["train"]) == whole).all()
    assert [each.name for each in (tmp_path / "cache" / "tasks").iterdir()] == [folder.name]


def test_a_second_process_reads_what_the_first_wrote(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMFOCUS_CACHE", str(tmp_path / "cache"))
    first = text_task(corpus).fingerprint()
    streams._open.clear()
    monkeypatch.setattr(streams, "divide", None)  # nothing is read again
    assert text_task(corpus).fingerprint() == first


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@given(text=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60))
@settings(max_examples=40)
def test_decode_is_the_inverse_of_parse(tmp_path_factory: pytest.TempPathFactory, tokenizer: str, text: str) -> None:
    root = tmp_path_factory.getbasetemp() / "inverse"
    task = text_task(root if root.is_dir() else folder_of_texts(root), tokenizer=tokenizer)
    ids = task.parse(text)
    assert (ids < task.vocab_size).all()
    assert task.decode(ids) == text


def test_a_rendered_row_is_one_printable_line(corpus: Path) -> None:
    task = text_task(corpus)
    hostile = "a\x1b[31mred\x07\r\n\ttab \u202eevil\u2066 שלום עולם é\x9b"
    shown = task.render(task.parse(hostile))
    assert shown.isprintable()
    assert "שלום עולם é" in shown  # letters from right to left are letters
    for escape in (r"\x1b[31mred", r"\x07", r"\r\n", r"\t", r"\u202e", r"\u2066", r"\x9b"):
        assert escape in shown
    every = task.render(torch.arange(257))  # every byte, the separator and padding
    assert every.isprintable()
    assert r"\xff" in every
    assert all(symbol.isprintable() for symbol in task.symbols)
    assert len(set(task.symbols)) == task.vocab_size == 256


def test_text_that_a_model_makes_up_is_shown_even_where_it_is_no_text(corpus: Path) -> None:
    for tokenizer in TOKENIZERS:
        task = text_task(corpus, tokenizer=tokenizer)
        draws = np.random.default_rng(0)
        for _ in range(20):
            assert task.render(draws.integers(0, task.vocab_size + 1, 50)).isprintable()
    with pytest.raises(UsageError, match=r"ids of text are 0 \.\. "):
        task.decode([task.vocab_size + 1])


def test_bits_per_byte_compare_between_tokenisers(corpus: Path) -> None:
    by_bytes, by_pairs = (text_task(corpus, tokenizer=tokenizer) for tokenizer in TOKENIZERS)
    assert by_bytes.bits_per_byte(math.log(2)) == pytest.approx(1, rel=0.01)  # separators have no byte
    tokens, text = len(by_pairs.streams.tokens["heldout"]), by_pairs.streams.text_bytes["heldout"]
    assert by_pairs.bits_per_byte(3.0) == pytest.approx(3.0 / math.log(2) * tokens / text)
    assert by_pairs.bytes_per_token["heldout"] > 1.5


def test_baselines_are_counts_of_the_held_out_text(corpus: Path) -> None:
    task = text_task(corpus)
    train, heldout = (task.streams.tokens[split].tolist() for split in ("train", "heldout"))
    commonest = max(set(train), key=train.count)
    assert task.baselines["majority"] == pytest.approx(heldout.count(commonest) / len(heldout), abs=1e-4)
    follow: dict[int, list[int]] = {}
    for first, second in itertools.pairwise(train):
        follow.setdefault(first, []).append(second)
    best = {first: max(follow[first].count(second) for second in follow[first]) for first in follow}
    right = 0
    for first, second in itertools.pairwise(heldout):
        tied = first in follow and follow[first].count(second) == best[first]
        right += tied
    assert task.baselines["shortcut"] <= right / (len(heldout) - 1) + 1e-4
    assert task.baselines["majority"] < task.baselines["shortcut"] < 1


def test_python_needs_nothing_but_python_and_takes_what_it_may() -> None:
    small = PythonSources("stdlib", 1)
    names = [document.name for document in small.documents()]
    assert sum(len(document.read()) for document in small.documents()) <= 10**6
    assert len(names) > 20
    assert not [name for name in names if "/test/" in name or "site-packages" in name or "_sysconfigdata" in name]
    larger = [document.name for document in PythonSources("stdlib", 2).documents()]
    assert larger[: len(names)] == names  # more megabytes keep what fewer had
    assert [name.split("/")[0] for name, *_ in PythonSources("typer", 1).stamp()] == ["typer"] * len(
        PythonSources("typer", 1).stamp()
    )


def test_a_run_takes_all_rows_unless_told_otherwise(corpus: Path) -> None:
    config = TaskConfig.with_default_rows("text", {"corpus": str(corpus), "length": 16})
    assert config.train_rows is config.heldout_rows is None


def test_both_spellings_of_the_tokeniser(corpus: Path) -> None:
    assert get_task("text", corpus=str(corpus), tokeniser="bpe:300").options["tokenizer"] == "bpe:300"
    with pytest.raises(UsageError, match="two of them are spellings of one option"):
        get_task("text", tokeniser="bytes", tokenizer="bytes")


def test_a_corpus_is_shown(corpus: Path) -> None:
    arguments = ["tasks", "show", "text", "--n", "2", "--option", f"corpus={corpus}", "--option", "length=24"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0
    shown = " ".join(done.output.split())
    assert "text: which token comes next in a text?" in shown
    assert "Data: corpus corpus, 60 documents" in shown
    assert "Tokens: bytes, 256 symbols" in shown
