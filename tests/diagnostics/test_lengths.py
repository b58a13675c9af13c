"""Accuracy by length of trained runs: what it measures, that it goes on where it was, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from semfocus.cli import app
from semfocus.diagnostics import lengths as module
from semfocus.diagnostics.lengths import ladder, measure_lengths
from semfocus.errors import UsageError
from semfocus.measurements import LengthCurve, Malformed, read
from semfocus.tasks import get_task
from semfocus.training.loading import load
from tests.training.helpers import runtime, tiny, trained
from tests.training.test_lengths import spanned


def test_the_ladder_doubles_from_the_longest_length_of_training_to_sixteen_times_it() -> None:
    assert ladder(40) == [40, 80, 160, 320, 640]
    assert ladder(64, 4) == [64, 128, 256]
    assert module.longest_trained(tiny(1)) == 8
    assert module.longest_trained(spanned("2-7")) == 7


@pytest.mark.parametrize("task", ["even_pairs", "copy"])
def test_each_length_has_the_accuracy_that_the_model_has_on_test_examples_of_it(task, tmp_path: Path) -> None:
    (run,) = trained([tiny(1, "topk:2", task=task, epochs=1, model={"positions": "rope"})], tmp_path)
    curve = measure_lengths(run, [8, 19], rows=37, runtime=runtime())
    for length in (8, 19):
        batch = get_task(task, length=length).sample(37, seed=1, split="test")
        right = load(run).predict(batch.tokens, batch.lengths) == batch.labels
        if task == "copy":
            right = right.sum(dim=1) / (batch.labels >= 0).sum(dim=1)
        assert curve.points[length].accuracy == pytest.approx(right.double().mean().item())
        assert curve.points[length].loss > 0


def test_it_is_stored_length_by_length_and_goes_on_where_it_was(tmp_path: Path, monkeypatch) -> None:
    (run,) = trained([tiny(1, epochs=1)], tmp_path)
    seen = []
    scores = module._scores

    def watched(model, task, seed, rows):
        seen.append(task.length)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return scores(model, task, seed, rows)

    monkeypatch.setattr(module, "_scores", watched)
    with pytest.raises(KeyboardInterrupt):
        measure_lengths(run, rows=9, runtime=runtime())
    assert sorted(read(run, LengthCurve).points) == [8, 16]
    curve = measure_lengths(run, rows=9, runtime=runtime())
    assert seen == [8, 16, 32, 32, 64, 128]
    assert sorted(curve.points) == [8, 16, 32, 64, 128]
    assert measure_lengths(run, rows=9, runtime=runtime()).points == curve.points
    assert len(seen) == 6
    monkeypatch.undo()
    assert measure_lengths(run, [8], rows=10, runtime=runtime()).rows == 10  # other settings stay apart
    assert read(run, LengthCurve, {"step": 5, "rows": 9}).points == curve.points


def test_the_command_prints_what_is_stored(tmp_path: Path) -> None:
    (run,) = trained([tiny(1, epochs=1)], tmp_path)
    arguments = ["lengths", run.id, "--length", "8", "--length", "12", "--rows", "20", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, [*arguments, "--device", "cpu", "--threads", "1"])
    assert result.exit_code == 0, result.output
    accuracy = read(run, LengthCurve).points[12].accuracy
    assert f"12  {accuracy:.1%}" in result.output


def test_positions_that_were_not_learned_are_refused_by_their_number(tmp_path: Path) -> None:
    (run,) = trained([tiny(1, epochs=1, model={"positions": "learned:12"})], tmp_path)
    assert 12 in measure_lengths(run, [12], rows=5, runtime=runtime()).points
    with pytest.raises(UsageError, match="learned:12: sequences have 16 positions; write learned:16"):
        measure_lengths(run, [16], rows=5, runtime=runtime())


def test_a_task_without_lengths_and_bad_numbers_are_refused(tmp_path: Path) -> None:
    (run,) = trained([tiny(1, epochs=1)], tmp_path)
    for arguments, message in ((([0],), "length = 0 must be at least 1"), (([8], 0), "rows = 0 must be at least 1")):
        with pytest.raises(UsageError, match=message):
            measure_lengths(run, *arguments, runtime=runtime())
    listops = tiny(1)
    listops = listops.model_copy(update={"task": listops.task.model_copy(update={"name": "listops", "options": {}})})
    with pytest.raises(UsageError, match="task listops has no option length"):
        module.longest_trained(listops)


def test_a_stored_curve_is_checked() -> None:
    good = {"rows": 5, "step": 1, "points": {"8": {"loss": 0.1, "accuracy": 1.0}}}
    assert LengthCurve.from_payload(good).points[8].accuracy == 1.0
    for points in ({}, {"x": {"loss": 1}}, {"8": {"loss": "many"}}, {"0": {"loss": 1}}):
        with pytest.raises(Malformed):
            LengthCurve.from_payload(good | {"points": points})
