"""No number of a run can be changed on disk unnoticed: every command names the run and answers without it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import semfocus
from semfocus.analysis.results import Results
from semfocus.archive.pack import pack
from semfocus.archive.tables import publish, read_published
from semfocus.archive.unpack import unpack
from semfocus.cli import app
from semfocus.errors import CorruptData
from semfocus.execution import train
from semfocus.measurements import read_all
from semfocus.store import RunDirectory, RunStore, read_arrays, read_measurement, write_arrays, write_measurement
from semfocus.training.loading import config_of
from tests.measurements import payloads
from tests.training.helpers import assert_same_bits, run_of, runtime, tiny, trained

HEALTHY, OTHER = tiny(2), tiny(1, "topk:3")


def digit(text: str) -> str:
    """The last digit before the end of a number, made another."""
    place = [match.start() for match in re.finditer(r"[0-9](?=[,}])", text)][-1]
    return text[:place] + str((int(text[place]) + 5) % 10) + text[place + 1 :]


def without_last_lines(text: str) -> str:
    return "".join(text.splitlines(keepends=True)[:-1])


CHANGES: dict[str, tuple[str, Callable[[str], str]]] = {
    "a digit of the metrics": ("metrics.jsonl", digit),
    "the last lines of the metrics": ("metrics.jsonl", without_last_lines),
    "all lines of the metrics": ("metrics.jsonl", lambda text: ""),
    "one more line of metrics": (
        "metrics.jsonl",
        lambda text: text + text.splitlines()[-1].replace('"step": 15', '"step": 16') + "\n",
    ),
    "the mechanism": ("config.json", lambda text: text.replace("topk:3", "full")),
    "the size of the rows": ("config.json", lambda text: text.replace('"seq_len": 8', '"seq_len": 9')),
    "the objective": (
        "config.json",
        lambda text: text.replace('"objective": "classification"', '"objective": "next_token"'),
    ),
    "the label": ("config.json", lambda text: text.replace('"label": ""', '"label": "best"')),
    "the state": ("status.json", lambda text: text.replace('"done"', '"diverged"')),
    "the device": ("status.json", lambda text: text.replace('"cpu"', '"gpu"')),
    "the seconds": ("timing.jsonl", digit),
}


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def trained_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("integrity") / "runs"
    trained([HEALTHY, OTHER], root)
    return root


@pytest.fixture
def root(tmp_path: Path, trained_store: Path) -> Path:
    return Path(shutil.copytree(trained_store, tmp_path / "runs"))


def changed(root: Path, file: str, change: Callable[[str], str]) -> RunDirectory:
    run = run_of(OTHER, root)
    path = run.path / file
    text = path.read_text()
    assert change(text) != text
    path.write_text(change(text))
    return run


@pytest.mark.parametrize(("file", "change"), CHANGES.values(), ids=CHANGES)
def test_a_changed_run_is_named_and_left_out_of_every_answer(
    root: Path, tmp_path: Path, file: str, change: Callable[[str], str]
) -> None:
    run, healthy = changed(root, file, change), run_of(HEALTHY, root)
    results = Results.load(root)
    assert [record.id for record in results.records] == [healthy.id]
    assert [(fault.name, fault.kind) for fault in results.faults] == [(run.id, "corrupt")]
    assert file in results.faults[0].what
    listed = {row["id"]: row["state"] for row in json.loads(call("runs", root, "--json").stdout)}
    assert listed == {healthy.id: "done", run.id: "corrupt"}
    shown = call("show", run.path)
    assert isinstance(shown.exception, CorruptData)
    assert shown.stdout == ""
    document = json.loads(call("verdicts", root, "--json").stdout)
    assert (document["runs"], [fault["name"] for fault in document["faults"]]) == (1, [run.id])
    exported = call("export", root, "--to", "csv", "--out", tmp_path / "runs.csv")
    assert run.id in exported.stderr
    assert run.id not in (tmp_path / "runs.csv").read_text()
    reported = call("report", root, "--out", tmp_path / "page.html")
    assert reported.exit_code == 0
    assert run.id in reported.stderr
    resumed = call("resume", run.id, healthy.id, "--out", root, "--device", "cpu")
    assert isinstance(resumed.exception, CorruptData)
    assert run.id in str(resumed.exception)
    page = (tmp_path / "page.html").read_text()
    assert run.id in page
    assert list(pack(RunStore(root), tmp_path / "runs.tar.xz").left_out) == [run.id]
    assert list(publish(RunStore(root), tmp_path / "tables").left_out) == [run.id]


@pytest.mark.parametrize(("file", "change"), CHANGES.values(), ids=CHANGES)
def test_nothing_is_measured_on_the_model_of_a_changed_run(root: Path, file: str, change: Callable[[str], str]) -> None:
    run = changed(root, file, change)
    few = ("--k", 2, "--rows", 5)
    for words in (("diagnose", *few), ("lengths",), ("sharpness",), ("show-attention",), ("surface", "--grid", 5)):
        refused = call(words[0], run.id, *words[1:], "--out", root)
        assert isinstance(refused.exception, CorruptData), words
        assert run.id in str(refused.exception)
    with pytest.raises(CorruptData, match=run.id):
        semfocus.load(run)
    assert not (run.path / "measurements").exists()


def old_format(run: RunDirectory) -> RunDirectory:
    """As semfocus wrote a run before there were checksums: documents of format 2, logs without."""
    for name in ("config.json", "status.json"):
        document = json.loads((run.path / name).read_text())
        document.pop("sha256", None)
        document.pop("logs", None)
        (run.path / name).write_text(json.dumps(document | {"format": 2}))
    shutil.rmtree(run.path / "checkpoints")
    (run.path / "checkpoints").mkdir()
    return run


def test_runs_without_checksums_are_accepted_and_called_unverified(root: Path) -> None:
    before = Results.load(root)
    old = old_format(run_of(OTHER, root))
    results = Results.load(root)
    assert results.faults == []
    assert [v.to_dict() for v in results.verdicts] == [v.to_dict() for v in before.verdicts]
    assert old.verification() == "unverified"
    assert run_of(HEALTHY, root).verification() == "verified"
    assert "metrics: unverified" in call("show", old.path).stdout
    assert "metrics: verified" in call("show", run_of(HEALTHY, root).path).stdout


@pytest.mark.parametrize("name", ["the last lines of the metrics", "all lines of the metrics", "the mechanism"])
def test_of_a_run_without_checksums_lost_lines_and_another_config_are_noticed_all_the_same(
    root: Path, name: str
) -> None:
    old_format(run_of(OTHER, root))
    run = changed(root, *CHANGES[name])
    assert [fault.name for fault in Results.load(root).faults] == [run.id]
    assert len(Results.load(root).records) == 1


def test_a_config_that_is_not_the_run_s_own_is_refused_wherever_a_model_is_taken_from_it(root: Path) -> None:
    run = old_format(run_of(OTHER, root))
    changed(root, *CHANGES["the mechanism"])
    with pytest.raises(CorruptData, match=f"is not what run {run.id} was named after"):
        config_of(run)


MEASURED = {
    "dispersion": payloads.dispersion(),
    "mask_stability": payloads.mask_stability([0.5, 0.25]),
    "surface": payloads.surface([1.0, 2.0]),
    "sharpness": payloads.sharpness(),
}


@pytest.mark.parametrize("name", MEASURED)
def test_a_changed_measurement_is_named_and_left_out(root: Path, name: str) -> None:
    run = run_of(OTHER, root)
    write_measurement(run, name, MEASURED[name])
    assert list(read_all(run).measurements) == [name]
    path = run.path / "measurements" / f"{name}.json"
    path.write_text(digit(path.read_text()))
    kept = read_all(run)
    assert kept.measurements == {}
    assert "SHA-256" in kept.unreadable[0].text
    with pytest.raises(CorruptData, match="SHA-256"):
        read_measurement(run, name)


def test_a_flipped_byte_of_measured_arrays_is_noticed_wherever_it_is(root: Path) -> None:
    import numpy as np

    run = run_of(OTHER, root)
    arrays = {"losses": np.arange(6.0).reshape(2, 3), "plan": np.array([1, 2])}
    write_arrays(run, "surface", arrays)
    path = run.path / "measurements" / "surface.safetensors"
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(CorruptData):
            read_arrays(run, "surface")
    path.write_bytes(data)
    back = read_arrays(run, "surface")
    assert back is not None
    assert all(np.array_equal(back[name], value) for name, value in arrays.items())


def test_a_measurement_under_the_name_of_other_settings_is_named(root: Path) -> None:
    run = run_of(OTHER, root)
    write_measurement(run, "dispersion--0123456789ab", payloads.dispersion())
    (unreadable,) = read_all(run).unreadable
    assert "other settings" in unreadable.text


def test_rows_that_a_checkpoint_relies_on_are_verified_before_a_run_goes_on(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(progress: Any) -> None:
        if progress.step == 10:
            raise Stop

    with pytest.raises(Stop):
        train([HEALTHY], tmp_path, runtime(checkpoint_seconds=0), stop)
    run = run_of(HEALTHY, tmp_path)
    text = (run.path / "metrics.jsonl").read_text()
    (run.path / "metrics.jsonl").write_text(digit(text))
    assert [fault.name for fault in Results.load(tmp_path).faults] == [run.id]
    with pytest.raises(CorruptData, match="another SHA-256 sum"), run.lock() as writer:
        writer.rewind(writer.load_checkpoint())
    (run.path / "metrics.jsonl").write_text(text)
    assert run.verification() == "verified"
    assert_same_bits(trained([HEALTHY], tmp_path), trained([HEALTHY], tmp_path / "undisturbed"))


def test_checksums_travel_in_archives_and_tables_to_the_bit(root: Path, tmp_path: Path) -> None:
    old_format(run_of(HEALTHY, root))
    runs = [run_of(config, root) for config in (HEALTHY, OTHER)]
    pack(RunStore(root), tmp_path / "runs.tar.xz")
    unpack([tmp_path / "runs.tar.xz"], RunStore(tmp_path / "unpacked"))
    publish(RunStore(root), tmp_path / "tables")
    read_published(tmp_path / "tables", RunStore(tmp_path / "published"))
    for place in ("unpacked", "published"):
        there = [RunDirectory(tmp_path / place / run.id) for run in runs]
        for run, back in zip(runs, there, strict=True):
            for name in ("config.json", "metrics.jsonl", "timing.jsonl", "status.json"):
                assert (back.path / name).read_bytes() == (run.path / name).read_bytes()
        assert [back.verification() for back in there] == ["unverified", "verified"]
        assert Results.load(tmp_path / place).faults == []


@pytest.mark.parametrize(
    "files",
    [("status.json",), ("metrics.jsonl", "timing.jsonl", "status.json"),
     ("metrics.jsonl", "timing.jsonl", "status.json", "checkpoints")],
    ids=["the status", "all that was recorded", "everything but the configuration"],
)  # fmt: skip
def test_files_of_another_run_are_not_taken_for_its_own(root: Path, files: tuple[str, ...]) -> None:
    run, healthy = run_of(OTHER, root), run_of(HEALTHY, root)
    put(files, healthy, run)
    results = Results.load(root)
    assert [record.id for record in results.records] == [healthy.id]
    assert f"is that of run '{healthy.id}'" in results.faults[0].what


def test_a_checkpoint_of_another_run_is_not_taken_for_its_own(root: Path) -> None:
    run, healthy = run_of(OTHER, root), run_of(HEALTHY, root)
    put(("checkpoints",), healthy, run)
    assert run.checkpoint_steps() == []
    with pytest.raises(CorruptData, match=f"is that of run '{healthy.id}'"):
        run.load_checkpoint()
    with pytest.raises(CorruptData, match=f"is that of run '{healthy.id}'"):
        run.intact_steps()


def put(files: tuple[str, ...], source: RunDirectory, target: RunDirectory) -> None:
    for name in files:
        if (source.path / name).is_dir():
            shutil.rmtree(target.path / name)
            shutil.copytree(source.path / name, target.path / name)
        else:
            shutil.copy(source.path / name, target.path / name)
