"""A stored measurement is read as a typed value; a malformed one is refused and does not affect others."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from semfocus.errors import CorruptData, OtherFormat
from semfocus.measurements import Dispersion, Malformed, Measurement, Sharpness, keep, read, read_all
from semfocus.measurements.store import KINDS, beside
from semfocus.store import DamagedMeasurement, RunDirectory, write_measurement
from tests.measurements import payloads
from tests.store.helpers import new_run

WHOLE: dict[str, dict[str, Any]] = {
    "dispersion": payloads.dispersion(),
    "mask_stability": payloads.mask_stability([0.5, None]),
    "surface": payloads.surface([1.0, None]),
    "sharpness": payloads.sharpness(),
}


@pytest.mark.parametrize("name", WHOLE)
def test_every_kind_comes_back_typed_under_its_plain_name(tmp_path: Path, name: str) -> None:
    run = new_run(tmp_path)
    write_measurement(run, name, WHOLE[name])
    measured = read_all(run).measurements[name]
    assert type(measured) is KINDS[name]
    assert measured.document == WHOLE[name]
    assert read(run, type(measured)) == measured


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        ("dispersion", {"k": 0}, "k is below 1"),
        ("dispersion", {"k": True}, "k is not a number of at most 1e"),
        ("dispersion", {"rows": None}, "rows is missing"),
        ("dispersion", {"checkpoints": {}}, "it has no checkpoint"),
        ("dispersion", {"checkpoints": {"last": 3}}, "a checkpoint is not an object"),
        ("dispersion", {"checkpoints": {"last": payloads.checkpoint() | {"delta": 3}}}, "delta is not an object"),
        (
            "dispersion",
            {"checkpoints": {"last": payloads.checkpoint() | {"delta": {"75": "high"}}}},
            "delta 75 is not a number",
        ),
        (
            "dispersion",
            {"checkpoints": {"last": payloads.checkpoint(delta_heavy={"95": -1})}},
            "delta_heavy 95 is below 0",
        ),
        ("mask_stability", {"noise": [0.1]}, "noise, kept and by_separation do not fit together"),
        ("mask_stability", {"noise": [0.1, None]}, "noise has gaps"),
        ("mask_stability", {"by_separation": 7}, "by_separation is not an object"),
        ("surface", {"directions": "sideways"}, "directions is not one of random, path, hessian"),
        ("surface", {"grid": 10**9}, "it has no grid of 2 to"),
        ("surface", {"extent": 0}, "it has no grid of 2 to"),
        ("surface", {"squares": [0.1]}, "per_step has not one number a square"),
        ("sharpness", {"gradient_norm": [1.0]}, "its lists differ in length"),
        ("sharpness", {"epochs": [0.0, 1e300]}, "epochs is not a number of at most 1e"),
        ("sharpness", {"epochs": [0.0] * 10_001}, "epochs is not a list"),
    ],
)
def test_a_malformed_measurement_is_reported_with_the_reason_and_others_are_read(
    tmp_path: Path, name: str, changes: dict[str, Any], why: str
) -> None:
    run = new_run(tmp_path)
    for kind, payload in WHOLE.items():
        write_measurement(run, kind, payload | changes if kind == name else payload)
    with pytest.raises(Malformed, match=why):
        KINDS[name].from_payload(WHOLE[name] | changes)
    stored = read_all(run)
    assert set(stored.measurements) == set(WHOLE) - {name}
    ((damaged, error),) = stored.unreadable
    assert (damaged, str(error)) == (name, stored.unreadable[0].text.partition("is not shown: ")[2])


@pytest.mark.parametrize(
    ("content", "kind"), [(b'{"format": 1', CorruptData), (b'{"format": 99, "payload": {}}', OtherFormat)]
)
def test_a_damaged_file_is_reported_and_the_others_are_read(
    tmp_path: Path, content: bytes, kind: type[Exception]
) -> None:
    run = new_run(tmp_path)
    write_measurement(run, "sharpness", payloads.sharpness())
    (run.path / "measurements" / "dispersion.json").write_bytes(content)
    stored = read_all(run)
    assert set(stored.measurements) == {"sharpness"}
    assert [(one.name, type(one.error)) for one in stored.unreadable] == [("dispersion", kind)]


def test_a_linked_folder_is_reported(tmp_path: Path) -> None:
    run = new_run(tmp_path / "runs")
    (run.path / "measurements").symlink_to(tmp_path)
    assert "symbolic link" in read_all(run).unreadable[0].text


def test_numbers_too_large_to_draw_are_stored_and_read_by_their_settings(tmp_path: Path) -> None:
    run, payload = new_run(tmp_path), payloads.sharpness(certified=[1e40, 1e50])
    kept = keep(run, Sharpness.from_payload(payload, math.inf))
    assert read(run, Sharpness, kept.settings, largest=math.inf) == kept
    with pytest.raises(Malformed, match="certified"):
        read(run, Sharpness)


def _measured(run: RunDirectory, rows: int, usual: int | None = None) -> Measurement:
    measured = Dispersion.from_payload(payloads.dispersion(rows=rows))
    return keep(run, measured, None if usual is None else measured.settings | {"rows": usual})


def test_the_usual_settings_keep_the_plain_name_and_others_are_read_by_settings(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    usual, other = _measured(run, 100, usual=100), _measured(run, 7, usual=100)
    assert read(run, Dispersion) == usual
    assert read(run, Dispersion, other.settings) == other
    assert read(run, Dispersion, other.settings | {"k": 6}) is None
    assert sorted(payloads.stored(run)) == sorted(["dispersion", beside("dispersion", other.settings)])


def test_the_names_of_files_do_not_change() -> None:
    settings = {"k": 5, "split": "train", "rows": 1000, "error": 0.001}
    assert beside("dispersion", settings) == "dispersion--b4ba5cfe02ae"


def test_one_that_is_malformed_is_replaced_with_a_warning(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    write_measurement(run, "dispersion", {"k": "five"})
    with pytest.warns(DamagedMeasurement, match="made anew"):
        measured = _measured(run, 100)
    assert read(run, Dispersion) == measured
