"""`semfocus theory speed` on stores of synthetic runs, and the help of the theory commands."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from semfocus.analysis.dispersion_vs_speedup import stored_points
from semfocus.analysis.masks_vs_speedup import stored_mask_points
from semfocus.analysis.results import Results
from semfocus.cli import app
from semfocus.errors import UsageError
from semfocus.report.terminal.tables import dispersion_table, mask_table
from semfocus.store import RunDirectory
from semfocus.store.measurements import read_measurement, write_measurement
from tests.report import measured as made_up
from tests.report.helpers import configs, made, rows

TASKS = ("even_pairs", "parity", "missing_duplicate", "cycle_navigation")


def store(root: Path, tasks: tuple[str, ...] = TASKS) -> list[RunDirectory]:
    runs = []
    for config in configs(tasks, ("full", "topk:5"), 2, training__epochs=60):
        run = made(root, config)
        write_measurement(run, "dispersion", made_up.dispersion(run))
        write_measurement(run, "mask_stability", made_up.mask_stability(run))
        runs.append(run)
    return runs


def change(run: RunDirectory, name: str, **settings: Any) -> None:
    write_measurement(run, name, (read_measurement(run, name) or {}) | settings)


def speed(root: Path, *options: str) -> Any:
    return CliRunner().invoke(app, ["theory", "speed", "--runs", str(root), "--out", str(root / "drawn"), *options])


def test_masks_are_related_to_epochs_and_speed_up_with_a_table_and_a_figure(tmp_path: Path) -> None:
    runs = store(tmp_path)
    heavy = next(run for run in runs if run.config()["attention"]["mechanism"] == "topk:5")
    change(heavy, "mask_stability", rows=3)
    result = speed(tmp_path, "--measure", "masks")
    assert result.exit_code == 0, result.output
    assert "epochs to 95 %" in result.output
    assert "masks against epochs: Rank correlation " in result.output
    assert "masks against speed-up: Rank correlation " in result.output
    assert "1 of 2" in result.output
    assert f"left out: run {heavy.id} (even_pairs, topk:5, seed" in result.output
    assert "measured with rows = 3, not 100" in result.output
    assert "With 4 tasks even a perfect order has p = 0.083" in result.output
    names = {f"masks-speed{end}.{kind}" for end in ("", "-dark") for kind in ("svg", "pdf", "png")}
    assert {path.name for path in (tmp_path / "drawn").iterdir()} == names
    assert "missing_duplicate" in (tmp_path / "drawn" / "masks-speed.svg").read_text()


def test_dispersion_counts_measured_seeds_and_names_what_was_left_out(tmp_path: Path) -> None:
    runs = store(tmp_path)
    change(runs[0], "dispersion", rows=7)
    result = speed(tmp_path)
    assert result.exit_code == 0, result.output
    assert result.output.count("2 of 2") == 3
    assert result.output.count("1 of 2") == 1
    assert f"left out: run {runs[0].id} (even_pairs, full, seed" in result.output
    assert "measured with rows = 7, not 100" in result.output


@pytest.mark.parametrize("measure", ["dispersion", "masks"])
def test_a_narrow_terminal_folds_the_table_and_cuts_nothing(tmp_path: Path, measure: str) -> None:
    store(tmp_path)
    results, text = Results.load(tmp_path), StringIO()
    if measure == "masks":
        table = mask_table(stored_mask_points(results, "topk:5").points)
    else:
        table = dispersion_table(stored_points(results, "topk:5", "95"))
    Console(width=60, soft_wrap=True, file=text).print(table)
    shown = text.getvalue()
    assert "\u2026" not in shown
    assert "..." not in shown
    for word in (*TASKS, "speed-up", "measured"):
        assert word in shown


def test_no_figures_are_named_if_none_was_drawn(tmp_path: Path) -> None:
    """Neither arm gets there: no speed-up, no point, no figure."""
    for config in configs(("parity",), ("full", "topk:5"), 2, training__epochs=60):
        stuck = [row | {"train_accuracy": 0.5} for row in rows(config)]
        run = made(tmp_path, config, measured=stuck)
        write_measurement(run, "dispersion", made_up.dispersion(run))
    result = speed(tmp_path)
    assert result.exit_code == 0, result.output
    assert "undefined" in result.output
    assert "figures" not in result.output


@pytest.mark.parametrize("measure", ["dispersion", "masks"])
def test_a_mechanism_without_runs_is_refused_with_the_known_ones(tmp_path: Path, measure: str) -> None:
    store(tmp_path, ("parity",))
    for name in ("foo", "full", "topk:4"):
        error = speed(tmp_path, "--measure", measure, "--mechanism", name).exception
        assert isinstance(error, UsageError)
        assert f"unknown mechanism '{name}'" in str(error)
        assert "known: topk:5" in str(error)


def test_runs_measured_with_different_settings_are_reported_as_such(tmp_path: Path) -> None:
    for run in store(tmp_path, ("parity",)):
        if run.config()["attention"]["mechanism"] == "full":
            change(run, "dispersion", split="heldout")
    error = speed(tmp_path).exception
    assert isinstance(error, UsageError)
    assert "in the same way" in str(error)
    assert "split = train, not heldout" in str(error)


def test_a_missing_mask_stability_is_reported_with_the_command_that_measures_it(tmp_path: Path) -> None:
    for config in configs(("parity",), ("full", "topk:5"), 1, training__epochs=6):
        made(tmp_path, config)
    error = speed(tmp_path, "--measure", "masks").exception
    assert isinstance(error, UsageError)
    assert "--mask-stability" in str(error)


@pytest.mark.parametrize("command", ["regions", "looseness", "speed"])
def test_examples_in_the_help_stand_on_lines_of_their_own(command: str) -> None:
    shown = CliRunner().invoke(app, ["theory", command, "--help"]).output
    lines = [line.strip() for line in shown.splitlines() if line.strip().startswith("semfocus ")]
    assert f"semfocus theory {command}" in lines
    assert len(lines) >= 2
