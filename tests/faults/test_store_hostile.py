"""Untrusted files give typed errors in bounded memory, and have no effects."""

from __future__ import annotations

import io
import json
import os
import pickle
import tracemalloc
import unicodedata
from pathlib import Path

import pytest
import torch

from semfocus.errors import CorruptData, UsageError
from semfocus.store import RunStore, tensors
from semfocus.store.tensors import Mismatch
from tests.store.helpers import CONFIG, RUN, Bomb, filled, new_run, plant, state


def test_a_pickle_in_the_place_of_the_tensors_is_refused_unread(tmp_path: Path) -> None:
    run = new_run(tmp_path / "runs")
    for data in (pickle.dumps(Bomb(tmp_path / "exploded")), _torch_saved(Bomb(tmp_path / "exploded"), tmp_path)):
        plant(run, data)
        with pytest.raises(CorruptData, match="not a safetensors file"):
            run.load_checkpoint()
    assert not (tmp_path / "exploded").exists()
    pickle.loads(pickle.dumps(Bomb(tmp_path / "exploded")))  # noqa: S301
    assert (tmp_path / "exploded").exists(), "the bomb of this test does not work"


def _torch_saved(value: object, tmp_path: Path) -> bytes:
    torch.save(value, tmp_path / "model.pt")
    return (tmp_path / "model.pt").read_bytes()


def test_a_file_in_the_place_of_a_checkpoint_or_a_run_is_refused_unread(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    (run.path / "checkpoints" / "7").write_bytes(pickle.dumps([1]))
    with pytest.raises(CorruptData, match="a file or a link is no checkpoint"):
        run.load_checkpoint()
    (tmp_path / "model.pt").write_bytes(pickle.dumps([1]))
    with pytest.raises(UsageError, match="never loaded"):
        RunStore(tmp_path).find(str(tmp_path / "model.pt"))


def _safetensors(header: object, body: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + body


def _entry(start: int, end: int, shape: object = (1,), dtype: object = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


CRAFTED: dict[str, bytes] = {
    "nothing": b"",
    "three bytes": b"abc",
    "header longer than the file": _safetensors({}, length=1000),
    "header of 2^63 bytes": _safetensors({}, length=2**63),
    "header over the limit": _safetensors(b"{" + b" " * 5_000_000 + b"}"),
    "header is no JSON": _safetensors(b"not JSON"),
    "header is a list": _safetensors([]),
    "header nested like a bomb": _safetensors(b"[" * 1_000_000),
    "header with a name twice": _safetensors(b'{"a":' + json.dumps(_entry(0, 4)).encode() + b',"a":1}', b"1234"),
    "entry is a number": _safetensors({"a": 1}),
    "entry without offsets": _safetensors({"a": {"dtype": "F32", "shape": [1]}}),
    "unknown dtype": _safetensors({"a": _entry(0, 4, dtype="PY_OBJECT")}, b"1234"),
    "dtype is a list": _safetensors({"a": _entry(0, 4, dtype=["F32"])}, b"1234"),
    "overlap": _safetensors({"a": _entry(0, 8, [2]), "b": _entry(4, 12, [2])}, bytes(12)),
    "same range twice": _safetensors({"a": _entry(0, 4), "b": _entry(0, 4)}, bytes(4)),
    "gap": _safetensors({"a": _entry(0, 4), "b": _entry(8, 12)}, bytes(12)),
    "beyond the end": _safetensors({"a": _entry(0, 400, [100])}, bytes(4)),
    "less than the file": _safetensors({"a": _entry(0, 4)}, bytes(8)),
    "backwards": _safetensors({"a": _entry(4, 0, [-1])}, bytes(4)),
    "huge shape": _safetensors({"a": _entry(0, 4 * 10**15, [10**15])}, bytes(4)),
    "shape that overflows 64 bits": _safetensors({"a": _entry(0, 0, [2**32, 2**32])}),
    "shape of a thousand sizes": _safetensors({"a": _entry(0, 4, [1] * 1000)}, bytes(4)),
    "shape of floats": _safetensors({"a": _entry(0, 4, [1.0])}, bytes(4)),
    "shape of booleans": _safetensors({"a": _entry(0, 4, [True])}, bytes(4)),
    "three offsets": _safetensors({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 4]}}, bytes(4)),
}


@pytest.mark.parametrize("data", CRAFTED.values(), ids=CRAFTED)
def test_crafted_tensors_give_a_typed_error_and_take_little_memory(tmp_path: Path, data: bytes) -> None:
    run = new_run(tmp_path)
    plant(run, data)
    tracemalloc.start()
    with pytest.raises(CorruptData, match=r"state\.safetensors"):
        run.load_checkpoint()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40_000_000
    with pytest.raises(CorruptData):  # by our own check of the header, before the library sees it
        tensors.read_header(io.BytesIO(data), len(data), "the file")


def test_a_sparse_file_of_gigabytes_is_refused_before_it_is_read(tmp_path: Path) -> None:
    run = filled(tmp_path)
    path = run.path / "checkpoints" / "4" / "state.safetensors"
    os.truncate(path, 2**40)
    with pytest.raises(CorruptData, match="has 1099511627776 bytes where"):
        run.load_checkpoint(step=4)


def test_other_names_shapes_and_dtypes_are_refused_and_listed(tmp_path: Path) -> None:
    run = filled(tmp_path)
    expect = {"weight": torch.zeros(2, 3), "seen": torch.tensor(0.0), "bias": torch.zeros(1)}
    with run.lock() as writer, pytest.raises(Mismatch) as caught:
        writer.load_checkpoint(expect=expect)
    message = str(caught.value)
    assert "weight is F32 (300,), not F32 (2, 3)" in message
    assert "seen is I64 (), not F32 ()" in message
    assert "bias is missing" in message
    with pytest.raises(Mismatch, match="seen is not expected"):
        run.load_checkpoint(expect={"weight": torch.zeros(300)})
    assert run.checkpoint_steps() == [4, 2], "an intact checkpoint of another model was set aside"
    assert run.load_checkpoint(expect=state(0)).step == 4


BAD_IDS = [
    "",
    ".",
    "..",
    "../0123456789abcdef",
    "/tmp/0123456789abcdef",
    "0123456789abcdef/",
    "0123456789abcdef/../0123456789abcdee",
    "0123456789abcdef\0",
    "0123456789abcdef\n",
    "%2e%2e%2f0123456789abcdef",
    "0123456789ABCDEF",
    "0123456",
    "0" * 65,
    "~0123456789abcdef",
    "\uff10\uff11\uff12\uff13\uff14\uff15\uff16\uff17",
    "\u0660\u0661\u0662\u0663\u0664\u0665\u0666\u0667",
    "\u202e0123456789abcdef",
    "abcdefe\u0301",
    "\U0001f4a3" * 8,
]


@pytest.mark.parametrize("run_id", BAD_IDS, ids=ascii)
def test_a_name_that_is_not_a_run_id_never_becomes_a_path(tmp_path: Path, run_id: str) -> None:
    root = tmp_path / "runs"
    store = RunStore(root)
    new_run(tmp_path)  # what `../` reaches
    new_run(root, "0123456789abcdee")
    for use in (lambda: store.create_or_open(run_id, CONFIG), lambda: store.open(run_id), lambda: store.remove(run_id)):
        with pytest.raises(UsageError):
            use()
    assert sorted(os.listdir(root)) == ["0123456789abcdee"]
    assert sorted(os.listdir(tmp_path)) == [RUN, "runs"]


@pytest.mark.parametrize(
    "text", ["a\0b", "/a\0b/0123456789abcdef", "%2e%2e", "~nobody-here/x", "../nowhere/01234567", ""]
)
def test_a_run_argument_that_leads_nowhere_is_a_usage_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError):
        RunStore(tmp_path).find(text)


LABELS = [unicodedata.normalize(form, "caf\u00e9") for form in ("NFC", "NFD")] + ["\u202eevil", "\U0001f525", "a/../b"]


@pytest.mark.parametrize("label", LABELS, ids=ascii)
def test_a_label_is_kept_as_it_is_and_the_path_stays_the_hash(tmp_path: Path, label: str) -> None:
    run = RunStore(tmp_path).create_or_open(RUN, {**CONFIG, "label": label})
    assert run.config()["label"] == label
    assert os.listdir(tmp_path) == [RUN]


HOSTILE_JSON: dict[str, bytes] = {
    "over a mebibyte": b'{"format": 1, "x": "' + b"a" * 2**20 + b'"}',
    "nested like a bomb": b"[" * 500_000,
    "nested like a bomb of objects": b'{"a":' * 100_000,
    "nested beyond the limit": b'{"format": 1, "a": ' + b"[" * 40 + b"]" * 40 + b"}",
    "bare NaN": b'{"format": 1, "state": NaN}',
    "a number beyond floats": b'{"format": 1, "state": 1e999}',
    "an endless integer": b'{"format": 1, "state": ' + b"9" * 10_000 + b"}",
    "half a surrogate pair": b'{"format": 1, "state": "\\ud800"}',
    "a key twice": b'{"format": 1, "format": 1}',
    "not UTF-8": b'{"format": 1, "state": "\xff"}',
    "UTF-16": '{"format": 1}'.encode("utf-16"),
    "nothing": b"",
    "a list": b"[]",
    "zeros": bytes(100),
}


@pytest.mark.parametrize("data", HOSTILE_JSON.values(), ids=HOSTILE_JSON)
def test_hostile_json_is_corrupt_data_that_names_the_file(tmp_path: Path, data: bytes) -> None:
    run = filled(tmp_path)
    for name, read in (("config.json", run.config), ("status.json", run.status)):
        (run.path / name).write_bytes(data)
        with pytest.raises(CorruptData, match=name):
            read()
    (run.path / "metrics.jsonl").write_bytes(data + b"\n")
    with pytest.raises(CorruptData, match=r"metrics\.jsonl line 1"):
        run.metrics()
    (run.path / "checkpoints" / "4" / "manifest.json").write_bytes(data)
    with pytest.raises(CorruptData, match=r"manifest\.json"):
        run.load_checkpoint(step=4)
    entry = RunStore(tmp_path).entries()[0]
    assert entry.state == "corrupt"
    assert "config.json" in entry.why


def test_a_log_without_end_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    run = filled(tmp_path)
    os.truncate(run.path / "metrics.jsonl", 2**40)
    with pytest.raises(CorruptData, match="is larger than"):
        run.metrics()


def test_a_line_without_end_is_refused(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    (run.path / "metrics.jsonl").write_text(json.dumps({"step": 1, "x": "a" * 2**20}) + "\n")
    with pytest.raises(CorruptData, match="line 1 is longer than 1048576 bytes"):
        run.metrics()


@pytest.mark.parametrize("line", ['{"step": 3, "x": [1]}', '{"x": 1}', '{"step": "3"}', '{"step": 2}', "3", "null"])
def test_rows_of_the_wrong_kind_or_order_are_refused(tmp_path: Path, line: str) -> None:
    run = filled(tmp_path, last=2)
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(CorruptData, match="line 3"):
        run.metrics()


@pytest.mark.parametrize("claim", ['"nan"', '{"loss": "nan"}', '{"x": "nan"}', '{"step": "nan"}', '{"none": 1e3}'])
def test_a_false_claim_about_numbers_that_are_not_finite_is_refused(tmp_path: Path, claim: str) -> None:
    run = new_run(tmp_path)
    (run.path / "metrics.jsonl").write_text(f'{{"step": 1, "loss": 0.5, "none": null, "not_finite": {claim}}}\n')
    with pytest.raises(CorruptData, match="not_finite"):
        run.metrics()


def test_pipes_and_devices_are_not_waited_for(tmp_path: Path) -> None:
    run = filled(tmp_path)
    (run.path / "config.json").unlink()
    os.mkfifo(run.path / "config.json")
    with pytest.raises(CorruptData, match="not a regular file"):
        run.config()
