"""Tasks from what a user has in memory: every form gives the same rows, stored once, and found again by a name."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from semfocus.config import TaskConfig
from semfocus.errors import DataError, UsageError
from semfocus.report.text import facts_text
from semfocus.tasks import LengthTask, Task, get_task
from semfocus.tasks.given import keep
from tests.tasks.helpers import BITS, bits_file

LABELS = [text.count("1") % 2 for text in BITS]


class Dataset:
    """The part of a Hugging Face Dataset that is used: column names, columns, and the names of classes."""

    column_names = ["text", "label"]

    def __init__(self, texts: list[str], labels: list[int], names: list[str] | None = None) -> None:
        self.content = {"text": texts, "label": labels}
        label = SimpleNamespace(names=names) if names else SimpleNamespace(dtype="int64")
        self.features = {"text": SimpleNamespace(dtype="string"), "label": label}

    def __getitem__(self, name: str) -> list[Any]:
        return self.content[name]


def _pandas() -> Any:
    return pytest.importorskip("pandas", reason="pandas is not installed").DataFrame({"text": BITS, "label": LABELS})


def _polars() -> Any:
    return pytest.importorskip("polars", reason="polars is not installed").DataFrame({"text": BITS, "label": LABELS})


def _datasets() -> Any:
    library = pytest.importorskip("datasets", reason="datasets is not installed")
    return library.Dataset.from_dict({"text": BITS, "label": LABELS})


FORMS = {
    "pairs": lambda: list(zip(BITS, LABELS, strict=True)),
    "a generator": lambda: ((text, label) for text, label in zip(BITS, LABELS, strict=True)),
    "dictionaries": lambda: [{"text": text, "label": label} for text, label in zip(BITS, LABELS, strict=True)],
    "columns": lambda: {"text": BITS, "label": np.array(LABELS)},
    "whole floats": lambda: {"text": BITS, "label": np.array(LABELS, dtype=float)},
    "a Dataset's form": lambda: Dataset(BITS, LABELS),
    "pandas": _pandas,
    "polars": _polars,
    "datasets": _datasets,
}


def _build(data: Any, root: Path, **options: Any) -> Task:
    name, chosen = keep(data, root, options, "bits")
    return TaskConfig(name=name, options=chosen).build(root)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_rows_of_the_same_file(form: str, tmp_path: Path) -> None:
    task, twin = _build(FORMS[form](), tmp_path), get_task(bits_file(tmp_path))
    assert (task.class_names, task.vocab_size, task.report) == (twin.class_names, twin.vocab_size, twin.report)
    mine, other = (each.sample(each.size("train"), seed=1) for each in (task, twin))
    assert mine.tokens.equal(other.tokens)
    assert mine.labels.equal(other.labels)


def test_a_query_that_is_not_yet_a_table_is_run(tmp_path: Path) -> None:
    """A LazyFrame ended in polars' own TypeError."""
    assert _build(_polars().lazy(), tmp_path).report == _build(_polars(), tmp_path).report


def test_cells_may_be_tensors(tmp_path: Path) -> None:
    """A Dataset with the format of torch gives tensors; they were "not a whole number or a text"."""
    import torch

    plain = {"text": [[1, 2, int(bits[0])] for bits in BITS], "label": LABELS}
    tensors = {"text": [torch.tensor(row) for row in plain["text"]], "label": list(torch.tensor(LABELS))}
    assert keep(tensors, tmp_path)[0] == keep(plain, tmp_path)[0]


def test_equal_data_are_stored_once_and_other_data_apart(tmp_path: Path) -> None:
    names = {keep(FORMS[form](), tmp_path, {}, "bits")[0] for form in ("pairs", "columns", "a Dataset's form")}
    assert len(names) == 1
    assert keep(FORMS["pairs"]()[:50], tmp_path, {}, "bits")[0] not in names
    assert len(list((tmp_path / "data").rglob("*.jsonl"))) == 2
    name = names.pop()
    path = tmp_path / "data" / name.removeprefix("stored:")
    path.write_text("", encoding="utf-8")  # damaged: stored again, not trusted
    assert keep(FORMS["pairs"](), tmp_path, {}, "bits")[0] == name
    assert path.stat().st_size


def test_names_of_classes_in_a_dataset_are_the_classes(tmp_path: Path) -> None:
    assert _build(Dataset(BITS, LABELS, ["even", "odd"]), tmp_path).class_names == ("even", "odd")
    with pytest.raises(DataError, match="bits, row 0: the label is missing"):
        _build(Dataset(BITS, [-1, *LABELS[1:]], ["even", "odd"]), tmp_path)


def test_missing_values_of_a_frame_are_missing_labels_and_empty_texts(tmp_path: Path) -> None:
    frame = _pandas()
    frame.loc[[3, 5], "label"] = None
    with pytest.raises(DataError, match="bits: 2 bad rows: row 3: the label is missing"):
        _build(frame, tmp_path)
    texts = _pandas()
    texts.loc[3, "text"] = None
    with pytest.warns(UserWarning, match="1 of 100 rows tokenise to nothing"):
        assert _build(texts, tmp_path).report.rows_skipped == 1


def test_columns_and_token_lists_are_chosen_and_kept(tmp_path: Path) -> None:
    data = {"review": [list(text) for text in BITS], "stars": LABELS, "id": range(100)}
    task = _build(data, tmp_path, text_column="review", label_column="stars")
    assert (task.report.tokenizer, task.vocab_size) == ("tokens", 3)
    with pytest.raises(UsageError, match=r"bits has no column called label .* options={'label_column': 'NAME'}$"):
        _build(data, tmp_path, text_column="review")


def test_an_array_task_is_stored_and_comes_back_the_same(tmp_path: Path) -> None:
    rows, labels = [[i % 3, i % 5, i][: 1 + i % 3] for i in range(60)], ["ab"[i % 2] for i in range(60)]
    given: list[Task] = [
        Task.from_arrays([*rows, [0]], [*labels, "a"], name="mine", vocab_size=99),
        Task.from_arrays(np.arange(180).reshape(60, 3), np.arange(60) % 2 == 0, lengths=np.arange(60) % 3 + 1),
        Task.from_arrays(rows, [i % 2 for i in range(60)], class_names=["no", "yes", "never"], test_share=0),
    ]
    for task in given:
        name, options = keep(task, tmp_path)
        again = TaskConfig(name=name, options=options).build(tmp_path)
        assert again.fingerprint() == task.fingerprint()
        assert again.class_names == task.class_names
        mine, other = (each.sample(20, seed=0) for each in (task, again))
        assert mine.tokens.equal(other.tokens)
        assert mine.labels.equal(other.labels)
        balanced = TaskConfig(name=name, options={"metrics": "balanced"}).build(tmp_path)
        assert balanced.objective == "balanced_classification"


def test_damaged_stored_arrays_are_refused(tmp_path: Path) -> None:
    task = Task.from_arrays([[i % 3, i % 5, i] for i in range(60)], [i % 2 for i in range(60)])
    name, _ = keep(task, tmp_path)
    path = tmp_path / "data" / name.removeprefix("stored:")
    data = bytearray(path.read_bytes())
    data[-400] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"is damaged|does not hold the arrays"):
        get_task(path)
    path.write_bytes(b"not safetensors")
    with pytest.raises(DataError, match="does not hold the arrays of a task"):
        get_task(path)
    path.unlink()
    with pytest.raises(DataError, match="is not there"):
        get_task(path)


def test_files_and_registered_tasks_keep_their_names_and_options(tmp_path: Path) -> None:
    path = bits_file(tmp_path)
    name, options = keep(get_task(path, tokenizer="char", max_length=5), tmp_path)
    assert (
        TaskConfig(name=name, options=options).build().fingerprint()
        == get_task(path, tokenizer="char", max_length=5).fingerprint()
    )
    assert keep(get_task("parity", length=9), tmp_path) == ("parity", {"length": 9})
    assert keep("parity", tmp_path, {"length": 9}) == ("parity", {"length": 9})
    assert not (tmp_path / "data").exists()


class Unregistered(LengthTask):
    name = "unregistered"
    summary = "bits"
    symbols = ("0", "1")
    num_classes = 2

    def generate(self, lengths: Any, rng: Any) -> Any: ...
    def label_rows(self, tokens: Any, lengths: Any) -> Any: ...


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Unregistered(), "put @register_task above the class Unregistered"),
        (12, "of type int; give the name of a task, a file, a Task, pairs"),
        (None, "task = None"),
        ([("a", 1), "b"], r"bits, row 1: 'b' is not a pair of a text and a label"),
        ([("a", 1, 2)], r"bits, row 0: \('a', 1, 2\) is not a pair"),
        ((["a", "b", "c"], [0, 1, 1]), r"is not a pair .* give zip\(texts, labels\)"),
        ([], "bits is empty"),
        (SimpleNamespace(column_names={"train": ["text"], "test": ["text"]}), r"several splits \(train, test\)"),
        ({"text": ["a", "b"], "label": [1]}, "row 1: the label is missing"),
        ([("a", 1.5), ("b", 2)], "row 0: the label 1.5 is a fraction"),
    ],
    ids=str,
)
def test_what_is_no_task_is_refused_with_what_would_be_one(data: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        keep(data, tmp_path, {}, "bits")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (
            [("a b", i % 2) for i in range(40)],
            {},
            r"^bits: none of its .* as in options=\{'(test|heldout)_share': 0.3\}",
        ),
        ([(text, 1) for text in BITS], {}, r"^every row of bits .* options=\{'label_column': 'NAME'\} names another"),
        (list(zip(BITS, LABELS, strict=True)), {"tokenizer": "tokens"}, r"of bits holds .* options=\{'tokenizer': "),
    ],
    ids=["split", "class", "tokenizer"],
)
def test_data_in_memory_are_spoken_of_as_they_were_given(
    data: Any, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """Messages named the file that was stored, and options as they stand in get_task or at the command line."""
    with pytest.raises(UsageError, match=message) as caught:
        _build(data, tmp_path, **options)
    assert str(tmp_path) not in str(caught.value)
    assert "--option" not in str(caught.value)


def test_skipped_rows_in_memory_are_numbered_as_given(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"^bits: 1 of 101 rows .* \(the first: row 2\)"):
        _build([*zip(BITS[:2], LABELS[:2], strict=True), ("", 1), *zip(BITS[2:], LABELS[2:], strict=True)], tmp_path)


def test_arrays_are_spoken_of_as_they_were_given() -> None:
    with pytest.raises(DataError, match=r"none of its 40 rows .* as in \w+_share=0.[13], or add rows") as caught:
        Task.from_arrays([[1, 2]] * 40, [0, 1] * 20)
    assert "--option" not in str(caught.value)


@pytest.mark.parametrize(
    ("title", "stem"), [("Bewertungen über Filme", "Bewertungen_über_Filme"), ("评论", "评论"), ("u\u0308", "ü")]
)
def test_data_keep_the_letters_of_their_name(title: str, stem: str, tmp_path: Path) -> None:
    """Every letter that is not English became a line below."""
    name, _ = keep(zip(BITS, LABELS, strict=True), tmp_path, {}, title)
    assert name.endswith(f"/{stem}.jsonl")
    assert TaskConfig(name=name).build(tmp_path).num_classes == 2


def test_a_class_that_no_train_row_has_is_told_of(tmp_path: Path) -> None:
    """A column of ids in place of labels was trained on without a word."""
    task = _build([(f"w{i} w{i + 1}", f"id{i}") for i in range(90)], tmp_path)
    assert task.facts["untaught"] == 1.0
    assert "100.0% of the held-out rows are of classes that no train row has" in " ".join(facts_text(task.facts))
    assert "untaught" not in _build(list(zip(BITS, LABELS, strict=True)), tmp_path).facts


@pytest.mark.parametrize(
    "name",
    [
        "stored:../../etc/passwd",
        "stored:0123456789abcdef/" + "ä" * 200 + ".jsonl",
        "stored:0123456789abcdef/../a.jsonl",
        "stored:0123456789abcdef/a.csv",
        "stored:a",
    ],
)
def test_a_name_of_stored_data_leads_nowhere_else(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not the name of stored data"):
        TaskConfig(name=name).build(tmp_path)
    with pytest.raises(UsageError, match="say where these are"):
        TaskConfig(name="stored:0123456789abcdef/a.jsonl").build()
