"""The task `next_word`: every window of every sentence with the token after it, and nothing else."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from semfocus.config import RunConfig, TaskConfig
from semfocus.errors import DataError, UsageError
from semfocus.tasks import SPLITS, get_task
from semfocus.tasks.corpora.codecs import Fitted, _canonical
from semfocus.tasks.corpora.named import PythonSources, open_named
from semfocus.tasks.corpora.sentences import cut
from semfocus.tasks.next_word import NextWord
from tests.tasks.test_text import folder_of_texts

TOKENIZERS = ("unigram:300", "bpe:300")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of_texts(tmp_path_factory.mktemp("sentences"), 40)


def word_task(corpus: Path, **options) -> NextWord:
    chosen = {"corpus": str(corpus), "tokenizer": "bpe:300", "sentences": "lines", "heldout_share": 0.2, **options}
    task = get_task("next_word", **chosen)
    assert isinstance(task, NextWord)
    return task


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("length", [None, 5])
def test_rows_are_all_windows_of_all_sentences(corpus: Path, tokenizer: str, length: int | None) -> None:
    task = word_task(corpus, tokenizer=tokenizer, length=length)
    found = {split: Counter() for split in SPLITS}
    for split in SPLITS:
        batch = task.sample(task.size(split), seed=1, split=split)
        for row, label in zip(batch.tokens.tolist(), batch.labels.tolist(), strict=True):
            found[split][(*row, label)] += 1
    lines = [line for path in sorted(corpus.rglob("*.txt")) for line in path.read_bytes().splitlines()]
    encoded = [np.concatenate(list(task.codec.encode(line))).tolist() for line in lines]
    expected = Counter()
    for ids in encoded:
        for start in range(len(ids) - task.seq_len):
            expected[tuple(ids[start : start + task.seq_len + 1])] += 1
    assert expected == sum(found.values(), Counter())
    assert all(found.values())


def test_a_window_is_as_long_as_a_mean_sentence_of_the_train_split(corpus: Path) -> None:
    task = word_task(corpus)
    text = task.codec.decode(task.streams.tokens["train"].tolist())
    lengths = [len(next(iter(task.codec.encode(line.encode())))) for line in text.splitlines()]
    assert task.seq_len == sum(lengths) // len(lengths)


def test_the_separator_is_neither_a_token_nor_a_class(corpus: Path) -> None:
    task = word_task(corpus)
    batch = task.sample(task.size("train"), seed=0)
    assert task.num_classes == task.vocab_size == len(task.codec.symbols) - 1
    assert int(batch.tokens.max()) < task.vocab_size
    assert int(batch.labels.max()) < task.vocab_size
    assert task.objective == "classification"  # one answer a row: the model may see the whole window


def test_the_same_texts_give_the_same_byte_pairs_again() -> None:
    texts = [document.read() for document in open_named("docstrings", "stdlib", 1).documents()]
    assert len({Fitted.fit("bpe:300", texts).digest for _ in range(3)}) == 1


def test_a_unigram_model_does_not_depend_on_the_order_in_which_its_library_adds_up() -> None:
    first = [["<unk>", 0.0], ["the", -3.0000000001], ["t", -4.5], ["h", -9.0001], ["q", -9.0002], ["he", -6.0]]
    other = [["<unk>", 0.0], ["he", -6.0000000001], ["the", -3.0], ["q", -9.0001], ["h", -9.0002], ["t", -4.5]]
    assert _canonical(first) == _canonical(other)
    assert dict(map(tuple, _canonical(first))) == {"<unk>": 0, "the": -3, "t": -4.5, "h": -7, "q": -7, "he": -6}


def test_a_window_is_read_and_shown(corpus: Path) -> None:
    for tokenizer in TOKENIZERS:
        task = word_task(corpus, tokenizer=tokenizer)
        batch = task.sample(1, seed=4)
        text = task.decode(batch.tokens[0])
        assert text.strip() in " ".join(
            line for path in corpus.rglob("*.txt") for line in path.read_text().splitlines()
        )
        assert task.render(batch.tokens[0]).isprintable()
        assert task.render_label(int(batch.labels[0])) in task.class_names
        assert task.decode(task.parse("the cat saw")) == "the cat saw"


def test_there_is_no_rule_that_labels_a_window(corpus: Path) -> None:
    task = word_task(corpus)
    with pytest.raises(UsageError, match="no rule that labels a row"):
        task.label(task.sample(2, seed=0).tokens)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        (b"One is here. Two is\nthere!  Three?", [b"One is here.", b"Two is there!", b"Three?"]),
        (b'He said "stop." Then (it) went.) And so', [b'He said "stop."', b"Then (it) went.)", b"And so"]),
        (b"e.g. this is one, of 3.5 parts. 4 more", [b"e.g. this is one, of 3.5 parts.", b"4 more"]),
        (b"A title\n\nand a paragraph\n \nand one", [b"A title", b"and a paragraph", b"and one"]),
        ("Ça va. Été comme hiver. Où ?".encode(), [b"\xc3\x87a va.", "Été comme hiver.".encode(), "Où ?".encode()]),
        (b" \n\n \n", []),
    ],
)
def test_sentences_end_with_marks(text: bytes, sentences: list[bytes]) -> None:
    assert list(cut(text, "marks")) == sentences


def test_lines_are_sentences_as_prepared_corpora_have_them() -> None:
    assert list(cut(b" no it was n't black monday \n\n but <unk> it did\r\n", "lines")) == [
        b"no it was n't black monday",
        b"but <unk> it did",
    ]


def test_docstrings_are_prose_without_code() -> None:
    sources = {document.name: document.read() for document in PythonSources("typer", 1).documents()}
    prose = {document.name: document.read() for document in open_named("docstrings", "typer", 1).documents()}
    assert sources.keys() == prose.keys()
    text = b"".join(prose.values())
    assert text
    assert b"import annotations" not in text
    assert b'"""' not in text
    assert b">>>" not in text
    assert b"import" in b"".join(sources.values())


def test_a_run_with_all_windows_is_accepted(corpus: Path) -> None:
    options = {"corpus": str(corpus), "tokenizer": "bpe:300", "heldout_share": 0.2, "sentences": "lines"}
    config = RunConfig(task=TaskConfig.with_default_rows("next_word", options))
    config.check(config.task.build())
    assert config.rows(config.task.build()) == (word_task(corpus).size("train"), word_task(corpus).size("heldout"))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"tokenizer": "bytes"}, UsageError, "must be bpe or unigram and a number of symbols"),
        ({"sentences": "words"}, UsageError, "unknown sentences 'words'; .*known: lines, marks"),
        ({"sentences": "none"}, UsageError, "unknown sentences 'none'"),
        ({"length": 0}, UsageError, "length = 0 must be at least 1"),
        (
            {"length": 500},
            DataError,
            "no sentence of the split 'train' has more than 500 tokens; choose a smaller length",
        ),
    ],
)
def test_what_does_not_fit_is_refused(corpus: Path, options: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        word_task(corpus, **options).size("train")
