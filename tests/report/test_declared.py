"""What an experiment declares is what is drawn: lines, columns, metrics, axes and bands come from the panel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from semfocus.analysis.comparability import setting_text
from semfocus.analysis.results import Results
from semfocus.errors import UsageError
from semfocus.execution.executor import train_jobs
from semfocus.experiments.experiment import config_key
from semfocus.experiments.registry import studies
from semfocus.experiments.run import plan
from semfocus.experiments.study import Study
from semfocus.measurements.store import KINDS
from semfocus.report.figures.declared import draw_panels
from semfocus.report.figures.drawing import keeping_figures
from semfocus.report.figures.panel_values import field_value
from semfocus.report.figures.places import sizes_of
from semfocus.report.figures.style import mechanism_style
from semfocus.report.page.page import render
from semfocus.training.runtime import Runtime
from tests.report import measured as made_up
from tests.report.helpers import configs, made, rows

TASKS = ("even_pairs", "parity")


@dataclass(frozen=True)
class Panel:
    """A panel as an experiment declares it."""

    title: str
    metrics: tuple[str, ...]
    kind: str = "curves"
    along: str = "epoch"
    lines: tuple[str, ...] = ("attention.mechanism",)
    each: tuple[str, ...] = ("task.name",)
    quantiles: tuple[float, float, float] = (0.25, 0.5, 0.75)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    root = tmp_path_factory.mktemp("runs")
    for config in configs(TASKS, ("full", "topk:5", "topk:9"), 3, training__epochs=12):
        made_up.measure(made(root, config))
    return Results.load(root)


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Results:
    root = tmp_path_factory.mktemp("blocks")
    for count in (2, 6):
        for config in configs(("parity",), ("full", "topk:5"), 2, training__epochs=12, model__blocks=count):
            made(root, config)
    return Results.load(root)


def drawn(panel: Any, results: Results, **options: Any) -> list[Figure]:
    with keeping_figures() as figures:
        draw_panels([panel], results, Path("unused"), **options)
    return figures


def legend_of(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def labels(axes: Sequence[Axes]) -> list[str]:
    return [axis.get_ylabel() for axis in axes if axis.get_ylabel()]


def test_a_field_that_a_config_leaves_out_is_named_by_its_default(tmp_path: Path) -> None:
    for place in ("sine", "none"):
        for config in configs(("parity",), ("full",), 2, training__epochs=12, model__positions=place):
            made(tmp_path, config)
    (figure,) = drawn(Panel("loss", ("train_loss",), each=("model.positions",)), Results.load(tmp_path))
    assert sorted(axis.get_title(loc="left") for axis in figure.axes) == ["positions none", "positions sine"]
    assert setting_text("model.positions", None) == "positions sine"
    assert setting_text("model.final_norm", None) == "final norm: no"
    assert setting_text("training.tuned", None) == "tuned none"
    assert setting_text("task.options.positions", None) == "positions none"


def test_curves_have_a_column_for_each_value_and_a_row_for_each_metric(results: Results) -> None:
    (figure,) = drawn(Panel("speed", ("train_loss", "heldout_accuracy")), results)
    assert len(figure.axes) == 4
    assert [axis.get_title(loc="left") for axis in figure.axes[:2]] == ["even_pairs", "parity"]
    assert labels(figure.axes) == ["training loss", "held-out accuracy"]
    assert legend_of(figure) == ["full", "topk:5", "topk:9"]
    assert figure.get_suptitle().startswith("speed: median and quartiles over 3 seeds")


def test_a_caption_says_where_some_lines_have_fewer_seeds(tmp_path: Path) -> None:
    for config in [*configs(("parity",), ("full",), 4), *configs(("parity",), ("topk:5",), 2)]:
        made(tmp_path, config)
    results = Results.load(tmp_path)
    sweep = Panel("sweep", ("converged_at",), kind="sweep", along="attention.mechanism")
    for panel in (Panel("speed", ("train_loss",)), sweep):
        (figure,) = drawn(panel, results)
        assert "over 2 to 4 seeds" in figure.get_suptitle().replace("\n", " ")
    assert "Median and quartiles over 2 to 4 seeds" in render(results)


def test_lines_may_differ_in_a_setting_too(blocks: Results) -> None:
    panel = Panel("ablation", ("train_loss",), lines=("attention.mechanism", "model.blocks"))
    (figure,) = drawn(panel, blocks)
    assert legend_of(figure) == ["full, blocks 2", "full, blocks 6", "topk:5, blocks 2", "topk:5, blocks 6"]
    lines = [line for line in figure.axes[0].lines if not line.get_label().startswith("_")]
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 4


def test_runs_that_differ_in_more_than_their_seed_are_never_one_line(blocks: Results) -> None:
    with pytest.raises(UsageError, match=r"the line 'full' mixes runs that differ in model\.blocks; name it in lines"):
        drawn(Panel("mixed", ("train_loss",)), blocks)


def test_a_setting_may_be_a_column_of_its_own(blocks: Results) -> None:
    (figure,) = drawn(Panel("columns", ("train_loss",), each=("task.name", "model.blocks")), blocks)
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["parity, blocks 2", "parity, blocks 6"]


def test_the_band_is_the_one_declared(results: Results) -> None:
    (whole,) = drawn(Panel("all", ("train_loss",), quantiles=(0.0, 0.5, 1.0)), results)
    (quartiles,) = drawn(Panel("some", ("train_loss",)), results)

    def height(figure: Figure) -> float:
        vertices = figure.axes[0].collections[0].get_paths()[0].vertices
        half = len(vertices) // 2
        return float(np.abs(vertices[1:half, 1] - vertices[half + 1 : -1, 1][::-1]).sum())

    assert height(whole) > height(quartiles) > 0
    assert "percentiles 0, 50 and 100 over 3 seeds" in whole.get_suptitle().replace("\n", " ")


def test_a_sweep_has_the_values_of_a_field_along_its_axis(results: Results, blocks: Results) -> None:
    panel = Panel("by k", ("converged_at", "final.heldout_accuracy"), "sweep", "attention.mechanism", ("task.name",))
    (figure,) = drawn(panel, results)
    assert [text.get_text() for text in figure.axes[2].get_xticklabels()] == ["full", "topk:5", "topk:9"]
    assert labels(figure.axes) == ["epochs to 95 % training accuracy", "final held-out accuracy"]
    (figure,) = drawn(Panel("by blocks", ("speed_up",), "sweep", "model.blocks"), blocks)
    line = next(line for line in figure.axes[0].lines if line.get_label() == "topk:5")
    assert list(line.get_xdata()) == [2.0, 6.0]
    expected = [group.comparison.arm("topk:5").speed_up for group in blocks.groups]
    assert list(line.get_ydata()) == [speed.ratio.value for speed in expected if speed is not None]


def test_a_median_seed_that_never_converges_is_a_hollow_mark_at_the_last_epoch(tmp_path: Path) -> None:
    for config in configs(("parity",), ("full", "topk:5"), 3, training__epochs=12):
        stuck = [row | {"train_accuracy": 0.5} for row in rows(config)]
        made(tmp_path, config, measured=stuck if config.attention.mechanism == "full" else None)
    panel = Panel("epochs", ("converged_at",), "sweep", "attention.mechanism", ("task.name",))
    (figure,) = drawn(panel, Results.load(tmp_path))
    hollow = [line for line in figure.axes[0].lines if line.get_markerfacecolor() == "#ffffff"]
    assert [(float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in hollow] == [(0.0, 12.0)]
    assert "never converged" in figure.get_suptitle().replace("\n", " ")
    assert figure.axes[0].get_ylim()[1] > 12


def test_sizes_of_one_mechanism_are_drawn_against_k_with_full_attention_as_a_level_line(tmp_path: Path) -> None:
    names = ("full", "topk:1", "topk:5", "topk:15")
    for config in configs(("parity",), names, 2, training__epochs=12):
        made(tmp_path, config)
    metrics = ("converged_at", "final.heldout_accuracy")
    panel = Panel("by k", metrics, "sweep", "attention.mechanism", ("task.name",))
    results = Results.load(tmp_path)
    (figure,) = drawn(panel, results)
    below = figure.axes[1]
    assert below.get_xlabel() == "keys kept, k"
    assert [text.get_text() for text in below.get_xticklabels()] == ["1", "5", "15"]
    (dotted,) = [line for line in below.lines if len(set(line.get_xdata())) == 2 and line.get_xdata()[0] == 0]
    (group,) = results.groups
    assert dotted.get_ydata()[0] == pytest.approx(group.comparison.arm("full").final_heldout.median)
    marks = [line for line in below.lines if len(line.get_xdata()) == 1]
    assert [line.get_color() for line in marks] == [mechanism_style(name).colour for name in names[1:]]
    assert "dotted: full attention" in figure.get_suptitle().replace("\n", " ")


def test_mechanisms_of_several_families_are_no_sweep_of_sizes() -> None:
    assert sizes_of(["full", "topk:9", "topk:1", "topk:5"]) == {"topk:1": 1, "topk:5": 5, "topk:9": 9}
    assert sizes_of(["full", "topk:5", "topk:9"]) == {}
    assert sizes_of(["topk:1", "topk:5", "topk:9", "banded:5"]) == {}
    assert sizes_of(["topk:1", "topk:5", "topk:9+1s"]) == {}
    assert sizes_of(["topk:1", "topk:5", "topk:9", "somebody's own"]) == {}


def test_measured_curves_go_along_what_was_measured(results: Results) -> None:
    fields = ("task.name", "attention.mechanism")
    (figure,) = drawn(
        Panel("masks", ("mask_stability.kept",), along="mask_stability.noise", lines=fields, each=()), results
    )
    assert len(figure.axes) == 1
    assert len(legend_of(figure)) == 6
    assert list(figure.axes[0].lines[0].get_xdata()) == [0.001, 0.01, 0.1, 0.3]
    (slopes,) = drawn(Panel("slopes", ("surface.per_step", "surface.per_step.50"), along="surface.squares"), results)
    assert "percentile 95" in slopes.get_suptitle()
    stored = results.measurements[results.groups[0].runs("full")[0].id]["surface"].document
    known = [
        square for square, slope in zip(stored["squares"], stored["per_step"]["95"], strict=True) if slope is not None
    ]
    assert list(slopes.axes[0].lines[0].get_xdata()) == known


def test_a_map_has_the_medians_of_tables_and_how_many_converged_where_half_did_not(tmp_path: Path) -> None:
    there = {"full": (3, 4, 6, None), "topk:5": (2, None, None, None), "topk:9": (None,) * 4}
    for config in configs(("parity",), tuple(there), 4, training__epochs=12):
        number = next(i for i, other in enumerate(configs(("parity",), ("full",), 4)) if other.seed == config.seed)
        epoch = there[config.attention.mechanism][number]
        lines = [row | {"train_accuracy": float(epoch is not None and row["epoch"] >= epoch)} for row in rows(config)]
        made(tmp_path, config, measured=lines)
    results = Results.load(tmp_path)
    (figure,) = drawn(Panel("epochs", ("converged_at",), "map"), results)
    assert [text.get_text() for text in figure.axes[0].texts] == ["5", "1 of 4", "never"]
    (group,) = results.groups
    assert group.comparison.arm("full").times.median == 5


def test_a_scatter_has_a_point_for_each_line(results: Results) -> None:
    fields = ("task.name", "attention.mechanism")
    panel = Panel("masks and speed", ("speed_up",), "scatter", "mask_stability.kept", fields, ())
    (figure,) = drawn(panel, results)
    names = {text.get_text() for text in figure.axes[0].texts}
    assert names == {f"{task}, {name}" for task in TASKS for name in ("topk:5", "topk:9")}  # full has no speed-up
    ratio = Panel("dispersion", ("speed_up",), "scatter", "dispersion.checkpoints.0.delta", ("task.name",), ())
    figures = drawn(ratio, results)
    assert len(figures) == 2  # one for each mechanism that is compared with full attention
    assert {text.get_text() for text in figures[0].axes[0].texts} == set(TASKS)
    assert figures[0].axes[0].get_xlabel().endswith("start of training")


def test_surfaces_are_drawn_for_one_seed_a_figure_for_each_task(results: Results) -> None:
    figures = drawn(Panel("loss surface", ("surface",), "surface"), results)
    assert len(figures) == 2
    assert [axis.get_title() for axis in figures[0].axes if axis.get_title()][:1] == ["full"]
    assert figures[1].get_suptitle().startswith("loss surface: parity, seed ")


def test_a_table_has_every_measured_percentile(results: Results) -> None:
    (figure,) = drawn(Panel("spread", ("dispersion.checkpoints.last.delta",), "table"), results)
    cells = figure.axes[0].tables[0].get_celld()
    texts = {place: cell.get_text().get_text() for place, cell in cells.items()}
    assert [texts[0, i] for i in range(5)] == [f"delta\np{p}" for p in (50, 75, 90, 95, 100)]
    assert texts[1, -1] == "even_pairs, full"
    assert len([place for place in texts if place[1] == -1]) == 6


def test_a_panel_shows_only_its_own_runs(results: Results) -> None:
    own = [record.id for record in results.records if record.mechanism != "topk:9"]
    (figure,) = drawn(Panel("own", ("train_loss",)), results, shown=lambda place: own)
    assert legend_of(figure) == ["full", "topk:5"]


def test_what_was_not_measured_is_not_drawn(blocks: Results) -> None:
    each = ("task.name", "model.blocks")
    kinds = {"curves": "mask_stability.noise", "scatter": "mask_stability.separation", "surface": "", "table": ""}
    for kind, along in kinds.items():
        metric = "surface" if kind == "surface" else "mask_stability.kept"
        assert drawn(Panel("nothing", (metric,), kind, along, each=each), blocks) == []


def test_an_unknown_kind_is_refused_by_name(blocks: Results) -> None:
    with pytest.raises(UsageError, match="panel 'pie': kind 'pie' is not one of curves, sweep"):
        drawn(Panel("pie", ("train_loss",), "pie"), blocks)


def test_files_are_numbered_by_panel(results: Results, tmp_path: Path) -> None:
    panels = [Panel("a", ("train_loss",)), Panel("b", ("train_accuracy",))]
    written = draw_panels(panels, results, tmp_path / "figure_1", formats=("svg",))
    assert [path.name for path in written] == ["figure_1-1.svg", "figure_1-2.svg"]
    again = draw_panels(panels, results, tmp_path / "again", formats=("svg",))
    assert [path.read_bytes() for path in written] == [path.read_bytes() for path in again]


@pytest.fixture(scope="module")
def smoke_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One store for all studies: they share runs."""
    return tmp_path_factory.mktemp("smoke")


@pytest.mark.slow
@pytest.mark.parametrize("study", studies(), ids=lambda study: study.name)
def test_every_panel_of_every_study_is_drawn_from_its_runs(study: Study, smoke_runs: Path, tmp_path: Path) -> None:
    """Panels on measurements draw nothing, for these runs were not measured."""
    tasks = list(dict.fromkeys(config.task.name for config in study.experiment(seeds=1).configs))
    experiment = study.experiment(tasks[:2], scale="smoke", seeds=1)
    job = plan(experiment, smoke_runs)
    train_jobs(job.jobs, job.store, Runtime(device="cpu", threads=1, compile="off"))
    results = Results.load(job.store).only(job.ids.values())
    for place, panel in enumerate(experiment.panels):
        shown = {job.ids[config_key(config)] for config in experiment.shown(place)}
        stem = tmp_path / f"{study.name}-{place}"
        files = draw_panels([panel], results, stem, shown=lambda _, shown=shown: shown, formats=("svg",))
        needs = {kind for kind in KINDS if any(kind in name for name in (panel.along, *panel.metrics))}
        assert needs or panel.kind in ("curves", "sweep", "map")
        assert bool(files) == (not needs), panel.title
        assert all(path.stat().st_size > 1000 for path in files)


def test_runs_of_one_line_that_differ_in_more_than_their_seed_are_refused_though_no_seed_repeats(
    tmp_path: Path,
) -> None:
    first, second = configs(["parity"], ["full"], 2, training__epochs=4)
    made(tmp_path, first)
    made(tmp_path, second.model_copy(update={"model": second.model.model_copy(update={"blocks": 2})}))
    with pytest.raises(UsageError, match=r"mixes runs that differ in model\.blocks"):
        drawn(Panel("mixed", ("train_loss",)), Results.load(tmp_path))


def test_a_scatter_without_lines_is_one_point(results: Results) -> None:
    (figure,) = drawn(
        Panel("all", ("converged_at",), kind="scatter", along="final.heldout_accuracy", lines=()), results
    )
    assert figure.axes


def test_an_option_that_was_not_given_has_its_default_so_that_one_run_never_stands_in_two_columns() -> None:
    def shuffle(**options: bool) -> object:
        config = {"task": {"name": "stack_manipulation", "options": options}}
        return field_value(SimpleNamespace(config=config), "task.options.shuffle")

    assert shuffle() is shuffle(shuffle=False) is False
    assert shuffle(shuffle=True) is True
    assert field_value(SimpleNamespace(config={"task": {"name": "rows.csv"}}), "task.options.shuffle") is None
