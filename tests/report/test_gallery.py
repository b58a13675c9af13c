"""Figures that say what the numbers say, in every format and theme, whatever things are called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from semfocus.analysis.comparison import compare_records
from semfocus.analysis.groups import group_records
from semfocus.analysis.records import Record
from semfocus.report.figures.curves import HELD, Column, draw_grid
from semfocus.report.figures.drawing import keeping_figures
from semfocus.report.figures.gallery import ablations, draw_all, main_groups, write_figures
from semfocus.report.figures.heatmap import cell_texts, strength
from semfocus.report.figures.lines import quantiles, series
from semfocus.report.figures.style import PALETTES
from semfocus.report.page.payload import charts
from semfocus.report.text import epochs_text, interval_text
from tests.analysis.test_comparison import record
from tests.report.helpers import configs, records, store
from tests.report.helpers import record as made_up


def test_the_figure_is_written_twice_over_and_is_the_same_each_time(tmp_path: Path) -> None:
    runs = [record(m, s, a) for s in range(3) for m, a in (("full", [0.5] * 10), ("topk:5", [0.5, 1.0]))]
    comparison = compare_records("<b>task</b>", runs, {"chance": 0.5, "majority": 0.5})

    def draw(name: str) -> list[Path]:
        column = Column.of(comparison.task, comparison, runs)
        return draw_grid([column], ["train_loss", "heldout_accuracy"], tmp_path / name, formats=("svg", "png"))

    written = draw("curves")
    assert [path.suffix for path in written] == [".svg", ".png"]
    svg = written[0].read_text()
    assert "<b>task" not in svg
    assert "chance, majority" in svg
    assert draw("again")[0].read_text() == svg


def test_every_figure_of_a_store_is_drawn_in_every_format_and_theme_asked_for(tmp_path: Path) -> None:
    store(tmp_path / "runs", seeds=2, training__epochs=8)
    written = write_figures(tmp_path / "runs", tmp_path / "figures", themes=["light"])
    kinds = ("curves", "convergence", "speed-up")
    assert [path.name for path in written] == [f"{kind}.{suffix}" for kind in kinds for suffix in ("svg", "pdf", "png")]
    assert [path.read_bytes()[:4] for path in written[:3]] == [b"<?xm", b"%PDF", b"\x89PNG"]
    store(tmp_path / "runs", seeds=2, training__epochs=8, model__blocks=2)
    dark = write_figures(tmp_path / "runs", tmp_path / "figures", formats=["svg"], themes=["dark"])
    assert [path.name for path in dark] == [f"{kind}-dark.svg" for kind in (*kinds, "ablation-even-pairs-blocks")]
    assert PALETTES["dark"].ground in dark[0].read_text()
    assert PALETTES["dark"].ground not in written[0].read_text()


def test_a_curve_whose_runs_have_all_stopped_goes_on_thin_as_on_the_page(tmp_path: Path) -> None:
    """It ended where its last run stopped, while the page drew it to the end."""
    runs = [record("full", s, [0.5] * 10) for s in range(3)] + [record("topk:5", s, [0.5, 1.0]) for s in range(3)]
    column = Column.of("task", compare_records("task", runs, {}), runs)
    with keeping_figures() as figures:
        draw_grid([column], ["train_accuracy"], tmp_path / "curves")
    lines = figures[0].axes[0].lines
    (thin,) = [line for line in lines if line.get_linewidth() == HELD]
    assert (list(thin.get_xdata()), list(thin.get_ydata())) == ([2, 10], [1, 1])
    assert "thin: all runs have stopped" in figures[0].get_suptitle().replace("\n", " ")
    (chart,) = charts(group_records(runs).groups, ["full", "topk:5"])
    assert [arm.get("heldFrom") for arm in chart["arms"]] == [None, 2]


def test_the_best_accuracy_that_needs_no_learning_is_drawn_with_all_its_names(tmp_path: Path) -> None:
    runs = [record("full", s, [0.5, 0.9]) for s in range(3)]
    baselines = {"chance": 0.5, "majority": 0.8, "shortcut": 0.8}
    column = Column.of("task", compare_records("task", runs, baselines), runs)
    with keeping_figures() as figures:
        draw_grid([column], ["heldout_accuracy"], tmp_path / "curves")
    assert {text.get_text() for text in figures[0].axes[0].texts} == {"majority, shortcut"}


def test_many_tasks_are_split_into_sheets_of_four(tmp_path: Path) -> None:
    tasks = ("even_pairs", "parity", "missing_duplicate", "cycle_navigation", "solve_equation")
    groups = group_records(made_up(config) for config in configs(tasks, seeds=1, training__epochs=6)).groups
    names = [path.name for path in draw_all(groups, tmp_path, formats=["svg"])]
    assert names == ["curves-1.svg", "convergence-1.svg", "curves-2.svg", "convergence-2.svg", "speed-up.svg"]


def test_a_figure_survives_every_name(tmp_path: Path) -> None:
    runs = []
    for name in ("$x^2", "<script>alert(1)</script>", "\u05e9\u05dc\u05d5\u05dd \U0001f600", "a" * 300):
        runs += [record("full", 1, [0.5, 1.0]), record("topk:5", 1, [1.0])]
        for run in runs[-2:]:
            run.config["task"]["name"] = name
    written = draw_all(group_records(runs).groups, tmp_path, formats=["svg"])
    assert len(written) == 3
    for path in written:
        assert "<script>" not in path.read_text()
        assert "$x^2" in path.read_text()


def test_nothing_measured_means_no_figure_and_nothing_learned_means_no_wrong_one(tmp_path: Path) -> None:
    store(tmp_path / "empty", state="empty", seeds=1, training__epochs=1)
    for run in (tmp_path / "empty").iterdir():
        (run / "metrics.jsonl").write_bytes(b"")
    assert write_figures(tmp_path / "empty", tmp_path / "out") == []
    stuck = [record(m, s, [0.5] * 10) for s in range(3) for m in ("full", "topk:5")]
    assert draw_all(group_records(stuck).groups, tmp_path / "stuck", formats=["svg"])


def test_a_cell_tells_faster_slower_never_and_not_even_full_attention_apart() -> None:
    def cell(full: list[float], other: list[float]) -> tuple[str, str]:
        runs: list[Record] = [record(m, s, a) for s in range(3) for m, a in (("full", full), ("topk:5", other))]
        return cell_texts(compare_records("task", runs, {}).arm("topk:5"))

    late, soon, never = [0.5] * 7 + [1.0], [0.5, 1.0], [0.5]
    assert cell(late, soon) == ("4x", "may be chance"), "three seeds: the interval leaves out 1, but p is 0.25"
    assert cell(never, soon)[0] == "≥ 5x"
    assert cell(soon, never) == ("never", "0.2x or less")
    assert cell(never, never) == ("never", "nor does full")
    assert strength(8) == 1
    assert strength(1) == 0
    assert strength(0.5) == pytest.approx(-1 / 3)
    assert strength(None) == 0


def test_epochs_are_written_as_median_and_range_or_never() -> None:
    runs = [record("full", s, [0.5] * (s + 1) + [1.0]) for s in range(3)] + [record("topk:5", 0, [0.5])]
    comparison = compare_records("parity", runs, {})
    assert epochs_text(comparison.arm("full")) == ("3", "2-4")
    assert epochs_text(comparison.arm("topk:5")) == ("never", "")
    assert interval_text(comparison.arm("full")) == ""


def measured(values: list[float], name: str = "train_accuracy") -> list[dict[str, Any]]:
    others = dict.fromkeys(("train_loss", "train_accuracy", "heldout_loss", "heldout_accuracy"), 0.5)
    return [{"epoch": i + 1, "step": i + 1, **others, name: value} for i, value in enumerate(values)]


def test_each_setting_varied_alone_is_an_ablation_and_adam_with_its_own_rate_is_one_step() -> None:
    runs = [*records(), *records(model__blocks=2), *records(training__lr=0.3)]
    runs += records(training__optimizer="adam", training__lr=0.001, training__decay=0.99999)
    groups = group_records(runs).groups
    varied = {one.setting: [name for name, _ in one.columns] for one in ablations(groups)}
    assert varied == {
        "model.blocks": ["blocks 2", "blocks 5"],
        "training.lr": ["learning rate 0.1", "learning rate 0.3"],
        "training.optimizer": ["adam, learning rate 0.001", "sgd, learning rate 0.1"],
    }
    assert len(main_groups(groups)) == 1


def test_quartiles_are_numpys_and_a_run_that_is_not_finite_counts_as_the_largest() -> None:
    values = np.array([[1.0, 5.0], [2.0, 1.0], [4.0, 2.0], [8.0, 9.0]])
    expected = np.quantile(values, (0.25, 0.5, 0.75), axis=0)
    np.testing.assert_allclose(np.stack(quantiles(values)), expected)
    values[3, 0] = np.nan
    low, middle, high = quantiles(values)
    assert (low[0], middle[0]) == (1.75, 3.0)
    assert np.isnan(high[0])
    assert np.isfinite(high[1])


def test_a_run_that_stopped_early_keeps_its_last_value_and_one_in_progress_is_left_out_of_the_curve() -> None:
    (config,) = configs(seeds=1, mechanisms=["full"], training__epochs=4)
    runs = [
        made_up(config, measured=measured([0.5, 1.0])),
        made_up(config, measured=measured([0.5, 0.6, 0.7, 0.8])),
        made_up(config, state="running", measured=measured([0.0])),
    ]
    curve = series(runs, "train_accuracy")
    assert curve is not None
    assert curve.runs == 2
    np.testing.assert_allclose(curve.middle, [0.5, 0.8, 0.85, 0.9])


def test_runs_in_progress_are_drawn_as_far_as_all_have_come() -> None:
    (config,) = configs(seeds=1, mechanisms=["full"], training__epochs=4)
    runs = [made_up(config, "running", measured(values)) for values in ([0.5, 0.6, 0.7], [0.5, 0.8])]
    curve = series(runs, "train_accuracy")
    assert curve is not None
    assert curve.in_progress
    np.testing.assert_allclose(curve.middle, [0.5, 0.7])
    assert series([made_up(config, "empty", [])], "train_accuracy") is None
