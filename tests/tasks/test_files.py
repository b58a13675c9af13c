"""A user's own file as a task."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path

import duckdb
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from semfocus.config import RunConfig, TaskConfig
from semfocus.errors import DataError
from semfocus.randomness import stream
from semfocus.tasks import SPLITS, Task, get_task
from semfocus.tasks.tokenisers import BytePairs
from tests.tasks.helpers import BITS, DATA_SETS, bits_file, descriptions, write_csv, write_jsonl


def rendered(task) -> dict[str, set[str]]:
    """The text of each row, and the splits that contain it."""
    splits_of = {}
    for split in SPLITS:
        batch = task.sample(task.size(split), seed=0, split=split)
        for row, length in zip(batch.tokens, batch.lengths.tolist(), strict=True):
            splits_of.setdefault(task.render(row, length), set()).add(split)
    return splits_of


# Real data


@pytest.fixture(scope="module")
def described_csv(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("real") / "described.csv"
    return write_csv(path, [(name, sentence) for sentence, name in descriptions()], ("Category", "Sentence"))


def test_real_text_in_a_csv_file_becomes_words_with_the_right_labels(described_csv):
    task = get_task(described_csv)
    assert task.class_names == DATA_SETS
    assert task.report.tokenizer == "whitespace"
    assert task.report.rows_read == len(descriptions()) > 300
    labels_of = {}
    for sentence, name in descriptions():
        labels_of.setdefault(sentence, set()).add(name)
    batch = task.sample(task.size("train"), seed=0)
    columns = (batch.tokens, batch.labels.tolist(), batch.lengths.tolist())
    for row, label, length in zip(*columns, strict=True):
        assert task.class_names[label] in labels_of[task.render(row, length)]
    assert sum(len(names) == 1 for names in labels_of.values()) > 250


def test_real_text_can_be_learned_from_the_train_split(described_csv):
    task = get_task(described_csv)

    def counted(split):
        batch = task.sample(task.size(split), seed=0, split=split)
        words = torch.nn.functional.one_hot(batch.tokens, task.vocab_size + 1).sum(1)[:, : task.vocab_size]
        return words.double(), batch.labels

    words, labels = counted("train")
    rates = torch.stack([words[labels == c].sum(0) + 0.5 for c in range(task.num_classes)])
    prior = torch.bincount(labels, minlength=task.num_classes).double().log()
    heldout, truth = counted("heldout")
    guess = (heldout @ (rates / rates.sum(1, keepdim=True)).log().T + prior).argmax(1)
    assert (guess == truth).double().mean() > task.baselines["majority"] + 0.1


def test_unknown_share_and_width_of_real_text_are_those_of_the_rows(described_csv):
    task = get_task(described_csv, max_length=20)
    train = [s for s, _ in descriptions() if task.settings.split_of(s) == "train"]
    heldout = [s for s, _ in descriptions() if task.settings.split_of(s) == "heldout"]
    known = {word for sentence in train for word in sentence.split()}
    words = [word for sentence in heldout for word in sentence.split()[:20]]
    assert task.report.unknown_share == pytest.approx(sum(word not in known for word in words) / len(words))
    assert 0.2 < task.report.unknown_share < 0.8
    assert task.seq_len == task.report.width == 20
    assert task.report.rows_truncated == sum(len(sentence.split()) > 20 for sentence, _ in descriptions())
    assert task.report.vocabulary == task.vocab_size == len(known) + 1


def test_byte_pairs_of_real_text_are_fitted_to_train_rows_and_decode_to_the_text(described_csv):
    task = get_task(described_csv, tokenizer="bpe", vocab_size=400, max_length=10_000)
    assert (task.vocab_size, task.report.tokenizer, task.report.unknown_share) == (400, "bpe", 0.0)
    texts = rendered(task)
    longest = max(len(task.parse(text)) for text, splits in texts.items() if "train" in splits)
    assert task.seq_len == longest
    whole = {sentence for sentence, _ in descriptions() if len(task.parse(sentence)) <= longest}
    assert len(whole) > 300
    assert whole <= set(texts)
    row = task.sample(1, seed=0, split="test").tokens[0]
    assert torch.equal(task.parse(task.render(row)), row[row != task.pad_id])


def test_byte_pairs_are_not_fitted_to_heldout_rows(tmp_path):
    plain = get_task(bits_file(tmp_path), tokenizer="bpe", vocab_size=300)
    strange = {"text": "", "label": 0}
    while not strange["text"] or plain.settings.split_of(strange["text"]) == "train":
        strange["text"] += "xyz"
    more = get_task(bits_file(tmp_path, [strange] * 5, "more.jsonl"), tokenizer="bpe", vocab_size=300)
    assert more.symbols == plain.symbols
    assert more.size("train") == plain.size("train")


def test_real_digits_through_a_file_equal_those_through_arrays(tmp_path):
    pixels, labels = load_digits(return_X_y=True)
    tokens = pixels.astype(int)
    records = [{"tokens": row, "target": int(y)} for row, y in zip(tokens.tolist(), labels, strict=True)]
    task, twin = get_task(write_jsonl(tmp_path / "digits.jsonl", records)), Task.from_arrays(tokens, labels)
    for split in SPLITS:
        assert task.size(split) == twin.size(split)
        batch = task.sample(task.size(split), seed=3, split=split)
        other = twin.sample(twin.size(split), seed=3, split=split)
        order, other_order = (sorted(zip(b.tokens.tolist(), b.labels.tolist(), strict=True)) for b in (batch, other))
        assert order == other_order
    assert task.symbols == (*map(str, range(17)), "<unk>")


# Splits


other_texts = st.text(st.characters(codec="utf-8", exclude_characters="01"), min_size=1, max_size=20)


@settings(max_examples=40, deadline=None)
@given(st.lists(other_texts | st.sampled_from(BITS)), st.integers(0, 2**32))
def test_adding_and_reordering_rows_moves_no_row_to_another_split(texts, seed):
    with tempfile.TemporaryDirectory() as folder:
        before = rendered(get_task(bits_file(Path(folder)), tokenizer="char"))
        records = [{"text": t, "label": t.count("1") % 2} for t in [*BITS, *texts]]
        order = stream(seed, "order").permutation(len(records))
        path = write_jsonl(Path(folder) / "more.jsonl", [records[i] for i in order])
        after = rendered(get_task(path, tokenizer="char"))
    assert set(before) == set(BITS)
    assert all(len(splits) == 1 for splits in before.values())
    assert {text: after[text] for text in BITS} == before


def test_equal_texts_share_a_split_even_with_different_labels(tmp_path):
    path = write_jsonl(tmp_path / "twice.jsonl", [{"text": t, "label": i} for t in BITS for i in (0, 1)])
    task = get_task(path)
    assert set(rendered(task)) == set(BITS)
    assert all(len(splits) == 1 for splits in rendered(task).values())
    assert sum(task.report.rows.values()) == 200


# Options


def test_text_without_white_space_becomes_characters_and_with_it_words(tmp_path):
    rows = [(text if i % 2 else f"{text[:3]} {text[3:]}", i % 2) for i, text in enumerate(BITS)]
    assert get_task(write_csv(tmp_path / "half.csv", rows)).report.tokenizer == "whitespace"
    rows[0] = (BITS[0], 0)
    assert get_task(write_csv(tmp_path / "less.csv", rows)).report.tokenizer == "char"
    assert get_task(tmp_path / "less.csv", tokenizer="whitespace").report.tokenizer == "whitespace"


def test_vocab_size_keeps_the_most_frequent_train_symbols(tmp_path):
    rows = [(f"a a b{i}", i % 2) for i in range(100)]
    task = get_task(write_csv(tmp_path / "a.csv", rows), vocab_size=1)
    assert task.symbols == ("a", "<unk>")
    assert task.render(task.sample(1, seed=0).tokens[0]) == "a a <unk>"
    assert task.parse("b a").tolist() == [1, 0]
    assert task.report.unknown_share == pytest.approx(1 / 3)
    assert task.pad_id == 2


@pytest.mark.parametrize("keep", ["start", "end"])
def test_keep_decides_which_end_of_a_long_row_is_kept(tmp_path, keep):
    task = get_task(bits_file(tmp_path, [{"text": "1", "label": 1}]), max_length=3, keep=keep)
    texts = []
    for split in SPLITS:
        batch = task.sample(task.size(split), seed=0, split=split)
        texts += [task.render(row, n) for row, n in zip(batch.tokens, batch.lengths.tolist(), strict=True)]
    assert sorted(texts) == sorted(text[:3] if keep == "start" else text[-3:] for text in [*BITS, "1"])
    assert (task.seq_len, task.report.width, task.report.rows_truncated) == (3, 3, 100)


def test_width_is_that_of_the_longest_train_row(tmp_path):
    rows = [(text, i % 2) for i, text in enumerate(BITS)]
    task = get_task(write_csv(tmp_path / "a.csv", rows))
    longer = "0"
    while task.settings.split_of(longer) != "heldout" or len(longer) < 9:
        longer += "1"
    task = get_task(write_csv(tmp_path / "b.csv", [*rows, (longer, 1)]))
    assert (task.seq_len, task.report.rows_truncated) == (7, 1)


@pytest.mark.parametrize(
    "header",
    [("text", "label"), ("TEXT", " Label "), ("sentence", "class"), ("content", "y"), ("review", "Sentiment")],
)
def test_columns_are_recognised_by_common_names(tmp_path, header):
    task = get_task(write_csv(tmp_path / "a.csv", [(t, i % 2) for i, t in enumerate(BITS)], header))
    assert (task.settings.text_column, task.settings.label_column) == header


def test_columns_are_chosen_by_option_and_text_has_precedence_over_its_synonyms(tmp_path):
    rows = [(t, t[::-1], f"id{i}", i % 2) for i, t in enumerate(BITS)]
    path = write_csv(tmp_path / "a.csv", rows, ("text", "content", "id", "label"))
    assert set(rendered(get_task(path))) == set(BITS)
    assert set(rendered(get_task(path, text_column="content"))) == {t[::-1] for t in BITS}
    assert get_task(path, label_column="id").num_classes == 100


def test_options_that_were_chosen_from_the_data_give_the_same_task_when_passed(described_csv):
    task = get_task(described_csv, max_length=12)
    again = get_task(described_csv, **task.options)
    assert again == task
    assert again.fingerprint() == task.fingerprint()
    assert torch.equal(again.sample(50, seed=1).tokens, task.sample(50, seed=1).tokens)


def test_a_cached_sample_equals_a_fresh_one(tmp_path):
    task = get_task(bits_file(tmp_path))
    for _ in range(2):
        assert torch.equal(task.sample(9, seed=1, cache=True).tokens, task.sample(9, seed=1).tokens)


# Identity


def test_two_copies_are_one_task_and_a_changed_byte_is_another(tmp_path):
    path = bits_file(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    copy = tmp_path / "elsewhere" / "copy.jsonl"
    copy.write_bytes(path.read_bytes())
    one, two = get_task(path), get_task(str(copy))
    assert one.fingerprint() == two.fingerprint()
    assert one == two
    assert torch.equal(one.sample(20, seed=5).tokens, two.sample(20, seed=5).tokens)
    assert str(tmp_path) not in json.dumps(one.fingerprint())
    assert "jsonl" in json.dumps(one.fingerprint())
    copy.write_bytes(path.read_bytes() + b"\n")
    assert get_task(copy).fingerprint() != one.fingerprint()


@pytest.mark.parametrize(
    "option",
    [{"tokenizer": "whitespace"}, {"vocab_size": 1}, {"max_length": 3}, {"keep": "end"}, {"heldout_share": 0.3}],
    ids=str,
)
def test_each_option_is_part_of_the_identity(tmp_path, option):
    path = bits_file(tmp_path)
    assert get_task(path, **option).fingerprint() != get_task(path).fingerprint()


def test_other_byte_pairs_change_the_identity(tmp_path):
    task = get_task(bits_file(tmp_path), tokenizer="bpe", vocab_size=300)
    other = dataclasses.replace(task, tokeniser=BytePairs.fit(["other text, other merges"] * 9, 300))
    assert other.fingerprint() != task.fingerprint()


def test_numpy_option_values_are_stored_as_plain_numbers(tmp_path):
    task = get_task(bits_file(tmp_path), max_length=np.int64(5), heldout_share=np.float32(0.25))
    assert json.loads(json.dumps(task.fingerprint()))["options"]["max_length"] == 5


# Token lists


def test_token_lists_of_texts_are_not_split_further(tmp_path):
    records = [{"tokens": [f"w {t[:3]}", t[3:]], "label": i % 2} for i, t in enumerate(BITS)]
    task = get_task(write_jsonl(tmp_path / "a.jsonl", records))
    assert task.report.tokenizer == "tokens"
    assert "w 000" in task.symbols
    assert task.seq_len == 2


def test_parquet_gives_the_same_rows_as_jsonl(tmp_path):
    records = [{"tokens": [int(c) for c in t], "label": "odd" if t.count("1") % 2 else "even"} for t in BITS]
    twin = get_task(write_jsonl(tmp_path / "a.jsonl", records))
    with duckdb.connect() as connection:
        connection.read_json(str(tmp_path / "a.jsonl")).write_parquet(str(tmp_path / "a.parquet"))
    task = get_task(tmp_path / "a.parquet")
    assert task.class_names == twin.class_names == ("even", "odd")
    for split in SPLITS:
        one, two = (t.sample(t.size(split), seed=2, split=split) for t in (task, twin))
        assert torch.equal(one.tokens, two.tokens)
        assert torch.equal(one.labels, two.labels)


@pytest.mark.parametrize("separator", [";", "\t"])
def test_a_csv_file_of_semicolons_or_tabs_is_read_like_one_of_commas(tmp_path, separator):
    rows = [("text", "label"), *((text, str(i % 2)) for i, text in enumerate(BITS))]
    for name, between in (("a.csv", separator), ("b.csv", ",")):
        (tmp_path / name).write_text("".join(f"{text}{between}{label}\n" for text, label in rows), encoding="utf-8")
    task, twin = get_task(tmp_path / "a.csv"), get_task(tmp_path / "b.csv")
    assert (task.class_names, task.report) == (twin.class_names, twin.report)


@pytest.mark.parametrize(("zero", "one"), [("0.0", "1.0"), ("0", "1.0"), ("0.", "1.00")])
def test_whole_numbers_written_as_fractions_are_classes(tmp_path, zero, one):
    task = get_task(write_csv(tmp_path / "a.csv", [(t, one if i % 2 else zero) for i, t in enumerate(BITS)]))
    assert task.class_names == ("0", "1")
    rows = [{"text": t, "label": float(i % 2)} for i, t in enumerate(BITS)]
    assert get_task(write_jsonl(tmp_path / "a.jsonl", rows)).class_names == ("0", "1")


def test_large_labels_written_as_fractions_stay_apart(tmp_path):
    labels = ("12345678901234567.0", "12345678901234568.0")
    task = get_task(write_csv(tmp_path / "a.csv", [(t, labels[i % 2]) for i, t in enumerate(BITS)]))
    assert task.class_names == ("12345678901234567", "12345678901234568")


def test_a_pretrained_tokeniser_is_taken_by_its_path_and_known_by_its_content(tmp_path, monkeypatch):
    texts = ["what a fine film", "never again", "a fine cast", "cold and long"] * 30
    trained = BytePairs.fit(texts, 300).model
    trained.add_special_tokens(["<s>"])
    (tmp_path / "model").mkdir()
    trained.save(str(tmp_path / "model" / "tokenizer.json"))
    data = write_csv(tmp_path / "a.csv", [(f"{text} {i}", i % 2) for i, text in enumerate(texts)])
    task = get_task(data, tokeniser=str(tmp_path / "model"))
    assert task.report.tokenizer == "pretrained"
    assert task.vocab_size == trained.get_vocab_size(with_added_tokens=True)
    row = task.sample(1, seed=0).tokens[0]
    assert task.render(row) in {f"{text} {i}" for i, text in enumerate(texts)}
    monkeypatch.chdir(tmp_path)  # a folder of this place needs no separator to be a path
    assert get_task(data, tokeniser="model").fingerprint() == task.fingerprint()
    moved = tmp_path / "other.json"
    trained.save(str(moved))
    assert get_task(data, tokenizer=str(moved)).fingerprint() == task.fingerprint()
    BytePairs.fit(texts, 320).model.save(str(moved))
    assert get_task(data, tokenizer=str(moved)).fingerprint() != task.fingerprint()
    moved.write_text("{}", encoding="utf-8")
    with pytest.raises(DataError, match=r"other\.json' is not a tokenizer\.json"):
        get_task(data, tokenizer=str(moved))
    with pytest.raises(DataError, match=r"none\.json' cannot be read"):
        get_task(data, tokenizer=str(tmp_path / "none.json"))


def test_runs_on_own_data_keep_their_ids(tmp_path):
    """Recorded before options were added: what is at its default must not enter the identity."""
    rows = [(f"{'good fine' if i % 2 else 'bad poor'} word{i}", i % 2) for i in range(60)]
    path = tmp_path / "a.csv"
    path.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows), encoding="utf-8")
    config = RunConfig(task=TaskConfig(name=str(path), train_rows=None, heldout_rows=None))
    assert config.run_id(config.task.build()) == "ff420e2276526022"
    arrays = Task.from_arrays([[i % 3, i % 5, i] for i in range(60)], [i % 2 for i in range(60)])
    assert config.run_id(arrays) == "2114ae6d46de63a5"
