"""What is measured on a run comes back as it was, and a damaged file costs itself alone."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from semfocus.errors import CorruptData, OtherFormat, StorageError, UsageError
from semfocus.store import (
    RunStore,
    read_arrays,
    read_measurement,
    write_arrays,
    write_measurement,
)
from semfocus.store.measurements import delete_arrays, measurement_names
from tests.store.helpers import CONFIG, filled, new_run


def test_a_measurement_comes_back_and_the_next_one_replaces_it(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    assert read_measurement(run, "dispersion") is None
    assert measurement_names(run) == []
    write_measurement(run, "dispersion", {"k": 5, "delta": {"75": 1.25, "100": None}, "format": "own field"})
    write_measurement(run, "dispersion", {"k": 9})
    write_measurement(run, "mask_stability", {"noise": [0.1, 0.2]})
    assert read_measurement(run, "dispersion") == {"k": 9}
    assert read_measurement(run, "mask_stability") == {"noise": [0.1, 0.2]}
    assert measurement_names(run) == ["dispersion", "mask_stability"]


def test_a_measurement_disturbs_neither_the_listing_nor_the_writer_nor_the_removal(tmp_path: Path) -> None:
    run = filled(tmp_path)
    before = [entry.state for entry in RunStore(tmp_path).entries()]
    with run.lock():
        write_measurement(run, "dispersion", {"k": 5})
    assert [entry.state for entry in RunStore(tmp_path).entries()] == before
    RunStore(tmp_path).remove(run.id)
    assert not run.path.exists()


@pytest.mark.parametrize("bad", [math.nan, math.inf, {"x": -math.inf}, {1: 2}, object()])
def test_what_json_cannot_carry_is_refused_and_the_old_measurement_stays(tmp_path: Path, bad: object) -> None:
    run = new_run(tmp_path)
    write_measurement(run, "dispersion", {"k": 5})
    with pytest.raises(UsageError, match="dispersion"):
        write_measurement(run, "dispersion", {"value": bad})
    assert read_measurement(run, "dispersion") == {"k": 5}


@pytest.mark.parametrize("name", ["", "../x", "a/b", "A", ".tmp-1", "a.json", "x" * 65])
def test_a_name_that_could_leave_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    run = new_run(tmp_path)
    for act in (
        lambda: write_measurement(run, name, {}),
        lambda: read_measurement(run, name),
        lambda: write_arrays(run, name, {}),
        lambda: read_arrays(run, name),
    ):
        with pytest.raises(UsageError, match="name"):
            act()


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b'{"format": 1, "run"', CorruptData),
        (b"[]", CorruptData),
        (b'{"format": 1, "run": "0123456789abcdef", "name": "dispersion", "payload": [1]}', CorruptData),
        (b'{"format": 1, "run": "ffffffffffffffff", "name": "dispersion", "payload": {}}', CorruptData),
        (b'{"format": 99, "run": "0123456789abcdef", "name": "dispersion", "payload": {}}', OtherFormat),
    ],
)
def test_a_damaged_measurement_is_named_and_the_others_are_read(
    tmp_path: Path, content: bytes, error: type[Exception]
) -> None:
    run = new_run(tmp_path)
    write_measurement(run, "surface", {"grid": 3})
    (run.path / "measurements" / "dispersion.json").write_bytes(content)
    with pytest.raises(error, match="dispersion"):
        read_measurement(run, "dispersion")
    assert read_measurement(run, "surface") == {"grid": 3}


def test_a_linked_folder_is_neither_read_nor_written_through(tmp_path: Path) -> None:
    run, elsewhere = new_run(tmp_path / "runs"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "dispersion.json").write_text(json.dumps({"format": 1, "payload": {}}))
    (run.path / "measurements").symlink_to(elsewhere)
    with pytest.raises(CorruptData, match="symbolic link"):
        write_measurement(run, "dispersion", {})
    with pytest.raises(CorruptData, match="symbolic link"):
        measurement_names(run)
    assert len(list(elsewhere.iterdir())) == 1


def test_a_linked_file_is_not_written_through(tmp_path: Path) -> None:
    run = new_run(tmp_path / "runs")
    write_measurement(run, "surface", {})
    target = tmp_path / "target"
    target.write_text("mine")
    (run.path / "measurements" / "dispersion.json").symlink_to(target)
    with pytest.raises(StorageError, match="symbolic link"):
        write_measurement(run, "dispersion", {})
    assert target.read_text() == "mine"


def test_leftovers_and_foreign_files_are_not_taken_for_measurements(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    write_measurement(run, "surface", {})
    for name in (".tmp-0123-x.json", "Notes.json", "plot.png"):
        (run.path / "measurements" / name).write_text("?")
    assert measurement_names(run) == ["surface"]


def test_a_run_that_is_gone_is_not_made_again_by_a_measurement(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    RunStore(tmp_path).remove(run.id)
    with pytest.raises(StorageError, match="gone"):
        write_measurement(run, "dispersion", {})
    assert not run.path.exists()


def test_arrays_come_back_bit_for_bit_and_apart_from_the_json(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    arrays = {
        "loss": np.linspace(0, 1, 12).reshape(3, 4)[:, ::2],
        "kept": np.array([True, False]),
        "empty": np.zeros((0, 3), dtype=np.float32),
    }
    assert read_arrays(run, "surface") is None
    write_arrays(run, "surface", arrays)
    read = read_arrays(run, "surface")
    assert read is not None
    assert set(read) == set(arrays)
    for name, array in arrays.items():
        assert read[name].dtype == array.dtype
        np.testing.assert_array_equal(read[name], array)
    assert measurement_names(run) == []
    delete_arrays(run, "surface")
    delete_arrays(run, "surface")
    assert read_arrays(run, "surface") is None


def test_arrays_without_a_single_number_come_back(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    write_arrays(run, "surface", {"values": np.zeros(0), "path": np.zeros((0, 2))})
    back = read_arrays(run, "surface")
    assert back is not None
    assert {name: array.shape for name, array in back.items()} == {"values": (0,), "path": (0, 2)}


def test_arrays_that_are_damaged_or_not_numbers_are_refused(tmp_path: Path) -> None:
    run = RunStore(tmp_path).create_or_open("0123456789abcdef", CONFIG)
    with pytest.raises(UsageError, match="surface"):
        write_arrays(run, "surface", {"names": np.array(["a"])})
    write_arrays(run, "surface", {"loss": np.ones(4)})
    path = run.path / "measurements" / "surface.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(CorruptData, match="surface"):
        read_arrays(run, "surface")
