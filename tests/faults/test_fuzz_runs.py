"""Random damage to every kind of file of a run: no traceback, no silent change, and other runs are untouched.

A few dozen mutations in every run of the tests, 500 of bytes and 500 of JSON values in `make test-all`.
"""

from __future__ import annotations

import random
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from semfocus.analysis.records import Record
from semfocus.analysis.results import Results
from semfocus.cli import app
from semfocus.errors import SemfocusError
from semfocus.execution import train
from semfocus.report.page.page import render
from semfocus.report.page.pictures import Drawn, PictureMaker
from semfocus.store import RunDirectory, RunStore, write_arrays, write_measurement
from semfocus.training import Progress
from tests.faults.fuzz import changed_document, damaged
from tests.measurements import payloads
from tests.training.helpers import run_of, runtime, tiny

FINISHED, SIBLING = tiny(1, "topk:3"), tiny(2)
PAIR = [tiny(3, "banded:3"), tiny(4, "banded:3")]
NO_PICTURES = PictureMaker(lambda draw, kind: Drawn("", "", None))  # drawing takes longer than all else
TEXTS = (".json", ".jsonl")


class _Stop(BaseException):
    """As a kill."""


@dataclass(frozen=True)
class Fuzzed:
    """A store with a finished run, an interrupted one, and a sibling of each; and what they say undamaged."""

    root: Path
    finished: str
    interrupted: str
    others: dict[str, dict[str, bytes]]  # by run, the content of its files
    records: dict[str, dict[str, Any]]
    measured: dict[str, Any]
    ended: list[dict[str, Any]]  # the rows of the interrupted run when it has come to its end


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Fuzzed:
    import numpy as np

    place = tmp_path_factory.mktemp("fuzz")
    root = place / "runs"
    train([FINISHED, SIBLING], root, runtime(keep_epochs=(1,)))

    def stop(progress: Progress) -> None:
        if progress.step == 10:
            raise _Stop

    with pytest.raises(_Stop):
        train(PAIR, root, runtime(checkpoint_seconds=0), stop)
    finished, interrupted = run_of(FINISHED, root), run_of(PAIR[0], root)
    write_measurement(finished, "dispersion", payloads.dispersion())
    write_measurement(finished, "mask_stability", payloads.mask_stability([0.5, 0.25]))
    write_measurement(finished, "sharpness", payloads.sharpness())
    write_measurement(finished, "surface", payloads.surface([1.0, 2.0]))
    write_arrays(finished, "surface", {"losses": np.ones((3, 3)), "plan": np.arange(4)})
    (sibling,) = (run_of(config, root) for config in PAIR[1:])
    results = Results.load(root)
    assert results.faults == []
    ended = train(PAIR, Path(shutil.copytree(root, place / "ended")), runtime())[0].run.metrics()
    return Fuzzed(
        root,
        finished.id,
        interrupted.id,
        {run.id: files_of(run.path) for run in (run_of(SIBLING, root), sibling)},
        {record.id: said(record) for record in results.records},
        {name: one.document for name, one in results.measurements[finished.id].items()},
        ended,
    )


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "lock"
    }


def said(record: Record) -> dict[str, Any]:
    """Everything that an answer can be made of."""
    return {"config": record.config, "rows": list(record.metrics), "state": record.state, "seconds": record.seconds}


def call(*arguments: object) -> str:
    """What a command prints; an error must be one of ours."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], color=True)  # as in a terminal
    if result.exception is not None and not isinstance(result.exception, (SemfocusError, SystemExit)):
        raise AssertionError(f"{arguments[0]} raised") from result.exception
    return result.output


def check_answers(fuzzed: Fuzzed, root: Path, target: str, honest: bool, place: int) -> None:
    """Read a store with one damaged run in every way; `honest`: no checksum was made to fit the damage."""
    results = Results.load(root)
    by_id = {record.id: said(record) for record in results.records}
    for run_id, expected in fuzzed.records.items():
        if run_id != target:
            assert by_id[run_id] == expected, "another run has changed"
    named = {fault.name for fault in results.faults}
    if honest:
        assert target in named or by_id.get(target) == fuzzed.records[target], "a silent change"
        for name, measurement in results.measurements.get(target, {}).items():
            assert measurement.document == fuzzed.measured[name], "a silent change of a measurement"
    out = root.parent / "out"
    printed = call("runs", root) + call("runs", root, "--json") + call("show", root / target)
    printed += call("verdicts", root) + call("export", root, "--to", ("csv", "parquet")[place % 2], "--out", out)
    assert not {c for c in printed if not c.isprintable()} - {"\n"}, "a control character reaches the terminal"
    page = render(results) if place % 20 == 0 else render(results, picture=NO_PICTURES)
    assert "<script>alert" not in page


def resume(fuzzed: Fuzzed, root: Path, honest: bool) -> None:
    """Go on with the interrupted run: it comes to the same end, or says why not."""
    target = RunDirectory(root / fuzzed.interrupted)
    call("resume", target.path, "--out", root, "--device", "cpu", "--jobs", 1, "--threads", 1, "--compile", "off")
    if honest and target.path.is_dir():
        for record in Results.load(root, [target.id]).records:
            assert record.state != "done" or list(record.metrics) == fuzzed.ended, "another end"


def fuzz(fuzzed: Fuzzed, tmp_path: Path, seed: int, json_values: bool) -> None:
    """One mutation of one file of one run, and every command."""
    dice = random.Random(f"{seed}{json_values}")
    root = Path(shutil.copytree(fuzzed.root, tmp_path / "runs"))
    target = dice.choice((fuzzed.finished, fuzzed.interrupted))
    paths = sorted(path for path in (root / target).rglob("*") if path.is_file() and path.name != "lock")
    if json_values:
        paths = [path for path in paths if path.suffix in TEXTS]
    kind = dice.choice(sorted({path.suffix + path.name[0] for path in paths}))
    path = dice.choice([path for path in paths if path.suffix + path.name[0] == kind])
    before, honest = path.read_bytes(), True
    if json_values:
        honest = dice.random() < 0.5
        path.write_bytes(changed_document(before, dice, sealed=not honest))
    else:
        path.write_bytes(damaged(before, dice))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            check_answers(fuzzed, root, target, honest, seed)
            if target == fuzzed.interrupted:
                resume(fuzzed, root, honest)
                check_untouched(fuzzed, root, but=PAIR)
            check_untouched(fuzzed, root)
        except BaseException as error:
            error.add_note(f"seed {seed}, {path.relative_to(root)}: {path.read_bytes()[:2000]!r}")
            raise
    shutil.rmtree(tmp_path)


def check_untouched(fuzzed: Fuzzed, root: Path, but: Any = ()) -> None:
    for run_id, files in fuzzed.others.items():
        assert files_of(root / run_id) == files, "a file of another run was changed"
    assert {entry.name for entry in RunStore(root).entries()} >= {*fuzzed.records}, "a run was deleted"


@pytest.mark.parametrize("json_values", [False, True], ids=["bytes", "values"])
@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_file_is_named_or_changes_nothing(
    fuzzed: Fuzzed, tmp_path: Path, seed: int, json_values: bool
) -> None:
    fuzz(fuzzed, tmp_path / "one", seed, json_values)


@pytest.mark.slow
@pytest.mark.parametrize("json_values", [False, True], ids=["bytes", "values"])
@pytest.mark.parametrize("tens", range(50))
def test_five_hundred_damaged_files_of_each_kind(fuzzed: Fuzzed, tmp_path: Path, tens: int, json_values: bool) -> None:
    for seed in range(1000 + 10 * tens, 1010 + 10 * tens):
        fuzz(fuzzed, tmp_path / str(seed), seed, json_values)
