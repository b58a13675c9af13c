"""`semfocus surface`, `sharpness` and `theory` as a person types them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner

from semfocus.cli import app
from semfocus.errors import CorruptData, UsageError
from semfocus.landscape import default_extent
from semfocus.report.figures.drawing import keeping_figures
from semfocus.store import RunDirectory
from semfocus.store.measurements import read_measurement
from tests.training.helpers import tiny, trained

Kind = Callable[[str, str], RunDirectory]
FAST = ["--device", "cpu", "--threads", "1"]


@pytest.fixture
def figures() -> Iterator[list[Figure]]:
    """The figures that a command draws; none is written."""
    with keeping_figures() as drawn:
        yield drawn


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_surfaces_of_two_mechanisms_are_measured_stored_and_drawn(run_of_kind: Kind, figures: list[Figure]) -> None:
    runs = [run_of_kind("pre", mechanism) for mechanism in ("full", "topk:3")]
    text = invoke("surface", *(str(run.path) for run in runs), "--grid", "5", *FAST)
    assert "full: losses" in text
    assert "topk:3: losses" in text
    assert len(figures) == 4  # surfaces and slopes, light and dark
    for run in runs:
        payload = read_measurement(run, "surface")
        assert payload is not None
        assert payload["grid"] == 5


@pytest.mark.usefixtures("figures")
def test_along_the_path_all_surfaces_reach_as_far_as_the_longest_path(tmp_path: Path) -> None:
    runs = trained([tiny(1, epochs=3), tiny(1, "topk:3", epochs=3, lr=0.5)], tmp_path / "runs", keep_epochs=(0, 1, 2))
    longest = max(default_extent(run, "path") for run in runs)
    options = ["--grid", "5", "--directions", "path", *FAST]
    text = invoke("surface", *(str(run.path) for run in runs), *options)
    assert text.count(f"up to {longest:g} along each direction") == 2
    assert text.count(f"slopes within {longest:g}:") == 2


def test_sharpness_prints_a_line_for_each_checkpoint_and_writes_its_figures(run_of_kind: Kind, tmp_path: Path) -> None:
    run = run_of_kind("pre", "full")
    text = invoke(
        "sharpness", run.id[:10], "--out", str(run.path.parent), "--rows", "10", "--figures", str(tmp_path), *FAST
    )
    assert len([line for line in text.splitlines() if line.startswith("   ")]) == 5
    assert {f"sharpness-even_pairs{theme}.{kind}" for theme in ("", "-dark") for kind in ("svg", "pdf", "png")} == {
        path.name for path in tmp_path.iterdir()
    }


@pytest.mark.parametrize("command", ["surface", "sharpness"])
def test_negative_rows_are_refused_with_the_meaning_of_zero(command: str, run_of_kind: Kind, tmp_path: Path) -> None:
    run = run_of_kind("pre", "full")
    options = ["--rows", "-3", "--out", str(run.path.parent), "--figures", str(tmp_path)]
    error = CliRunner().invoke(app, [command, run.id, *options]).exception
    assert isinstance(error, UsageError)
    assert "rows = -3" in str(error)
    assert "0 for all" in str(error)


def test_regions_are_printed_and_drawn(figures: list[Figure]) -> None:
    text = invoke("theory", "regions")
    assert "34.3%" in text  # W < 1 at delta 2, as in docs/theory.md
    assert len(figures) == 4  # W and X, light and dark


def test_looseness_searches_and_compares_trained_models(run_of_kind: Kind, figures: list[Figure]) -> None:
    run = run_of_kind("pre", "topk:3")
    text = invoke("theory", "looseness", str(run.path), "--steps", "10", "--rows", "2")
    assert "paper: at most 1.5" in text  # the counterexample in the 1-norm
    assert "refuted" in text
    assert len(figures) == 6  # softmax, attention and models, light and dark


@pytest.mark.parametrize("command", ["compare", "report", "surface", "sharpness"])
def test_every_example_in_the_help_has_a_line_of_its_own(command: str) -> None:
    lines = [line.strip() for line in invoke(command, "--help").splitlines()]
    examples = [line for line in lines if line.startswith("semfocus ")]
    assert len(examples) >= 2
    assert all(line.count("semfocus") == 1 for line in examples)


def test_runs_of_one_label_or_of_two_tasks_are_refused(run_of_kind: Kind, tmp_path: Path) -> None:
    same = run_of_kind("pre", "full")
    other = run_of_kind("post", "full")
    with pytest.raises(UsageError, match="two of the runs are both full, seed 1"):
        invoke("surface", str(same.path), str(other.path), *FAST)
    (parity,) = trained([tiny(1, task="parity", epochs=1)], tmp_path)
    with pytest.raises(UsageError, match="different tasks: even_pairs, parity"):
        invoke("sharpness", str(run_of_kind("pre", "topk:3").path), str(parity.path), *FAST)


@pytest.mark.parametrize("command", ["surface", "sharpness"])
def test_a_checkpoint_of_another_library_is_refused_by_its_file(command: str, tmp_path: Path) -> None:
    folder = tmp_path / "0123456789abcdef"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "bert"}')
    result = CliRunner().invoke(app, [command, str(folder)])
    assert isinstance(result.exception, CorruptData)
    assert "config.json does not say its format version" in str(result.exception)
