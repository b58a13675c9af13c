"""Figures and tables of a diagnosis: nothing is cut off, seeds are one line, percentiles are named."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from matplotlib.collections import FillBetweenPolyCollection
from matplotlib.figure import Figure
from rich.console import Console

from semfocus.cli.shared import console
from semfocus.report.diagnosis_text import LAYER_HEADS, SPREAD_HEADS, condition_table, norm_table, spread_table
from semfocus.report.figures.diagnosis import (
    draw_conditions,
    draw_dispersion_along_training,
    draw_heat_maps,
    draw_mask_stability,
)
from semfocus.report.figures.drawing import keeping_figures
from semfocus.report.page.diagnosis import write_runs_page
from semfocus.report.terminal.tables import rich_table
from semfocus.report.text import TextTable

PERCENTS = ("50", "75", "90", "95", "100")
LONG = "a_task_with_quite_a_long_name"
SEEDS = (153476998, 235510766, 918273645)


def spread(base: float) -> dict[str, float]:
    return {percent: base * (1 + i / 10) for i, percent in enumerate(PERCENTS)}


def layer(number: int) -> dict[str, Any]:
    names = ("delta", "delta_full", "delta_heavy", "separation", "in_degree", "entropy", "jacobian")
    spreads = {name: spread(1.23 + i) for i, name in enumerate(names)}
    bounds = {"jacobian": 0.123456, "full_certified": 0.654321, "heavy_certified": 123456.0}
    sizes = {"gamma": [0.123456], "upsilon": [1.23456e-5], "mlp": 1.23456e7}
    about = {"layer": number, "fewest_keys": 9, "infinite": {"separation": ["50"]}}
    return {**about, **spreads, **sizes, "stability": {"100": bounds}}


def run(mechanism: str, seed: int, task: str = LONG, lift: float = 0.0) -> dict[str, Any]:
    kept = {
        f"{epoch:g}": {"epoch": epoch, "layers": [layer(0), layer(1)]}
        | {name: spread(1 + epoch / 9 + lift) for name in ("delta_full", "delta_heavy", "separation")}
        for epoch in (0.0, 1.0, 8.0)
    }
    return {"task": task, "mechanism": mechanism, "seed": seed, "checkpoints": kept | {"last": kept["8"]}}


def shaken(mechanism: str, seed: int) -> dict[str, Any]:
    groups = {"borders": [0.01, 0.1], "kept": [[0.9, None, 1.0]] * 3}
    return run(mechanism, seed) | {
        "measured": {"noise": [0.01, 0.1, 0.3], "kept": [1.0, 0.9, None], "by_separation": groups}
    }


def row(mechanism: str, seed: int, w: float = 2.0) -> dict[str, Any]:
    cell = {
        "delta_full": 12.3456, "delta_heavy": 5.43215, "separation": 1.23456e-5, "in_degree": 11.0, "w": w, "x": 1.5,
        "w_holds": False, "x_holds": False, "sharper": {"softmax": 1.0, "w": 1.23456e5, "x": 6.54321e4},
        "vacuous": ["full"], "sinks_outside": True, "uneven": False, "infinite": [],
    }  # fmt: skip
    return {
        "way": "one model", "task": LONG, "seed": seed, "mechanism": mechanism, "run": f"{mechanism}{seed}",
        "checkpoint": "last", "epochs": [8.0], "cells": dict.fromkeys(("75", "90", "95", "100"), cell),
    }  # fmt: skip


MECHANISMS = ("full", "topk:5", "banded:5+1g", "block_local:5", "randomk:5")


@pytest.fixture
def drawn() -> Iterator[list[Figure]]:
    """The figures that were drawn, laid out as they would be in a file."""
    with keeping_figures() as figures:
        yield figures


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("kind", ["training", "masks", "conditions"])
def test_no_entry_of_a_legend_is_off_the_canvas(kind: str, theme: str, drawn: list[Figure], tmp_path: Path) -> None:
    if kind == "training":
        draw_dispersion_along_training([run(name, 153476998) for name in MECHANISMS], tmp_path / "x", theme=theme)
    elif kind == "masks":
        draw_mask_stability([shaken(name, 153476998) for name in MECHANISMS], tmp_path / "x", theme=theme)
    else:
        draw_conditions([row(name, 153476998) for name in MECHANISMS], tmp_path / "x", theme=theme)
    (figure,) = drawn
    (legend,) = figure.legends
    assert len(legend.get_texts()) == len(MECHANISMS)
    for text in legend.get_texts():
        box = text.get_window_extent()
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1, text.get_text()
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1, text.get_text()
    bottom = min(panel.get_tightbbox().y0 for panel in figure.axes)
    assert legend.get_window_extent().y1 <= bottom + 1  # nor over the panels


def test_a_name_wider_than_the_figure_is_folded(drawn: list[Figure], tmp_path: Path) -> None:
    draw_dispersion_along_training([run("full", 1, task="word " * 40)], tmp_path / "x")
    (text,) = drawn[0].legends[0].get_texts()
    assert "\n" in text.get_text()
    assert text.get_window_extent().x1 <= drawn[0].bbox.x1


def test_seeds_of_a_mechanism_are_one_median_line_with_a_band(drawn: list[Figure], tmp_path: Path) -> None:
    runs = [run("full", seed, lift=i) for i, seed in enumerate(SEEDS)]
    draw_dispersion_along_training([*runs, run("topk:5", 1)], tmp_path / "x")
    panel = drawn[0].axes[0]
    several, alone = panel.lines
    assert (several.get_label(), alone.get_label()) == (f"{LONG}, full, 3 seeds", f"{LONG}, topk:5, seed 1")
    assert list(several.get_ydata()) == pytest.approx([1.3 * (2 + epoch / 9) for epoch in (0, 1, 8)])
    (band,) = [one for one in panel.collections if isinstance(one, FillBetweenPolyCollection)]
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((1.3, 1.3 * (3 + 8 / 9)))
    draw_conditions([row("full", seed, w=2.0 + i) for i, seed in enumerate(SEEDS)], tmp_path / "x")
    assert drawn[1].axes[0].lines[0].get_label() == f"{LONG}, 3 seeds, full alone"
    assert list(drawn[1].axes[0].lines[0].get_ydata()) == [3.0] * 4


def test_runs_of_one_seed_that_differ_in_something_else_are_lines_apart(drawn: list[Figure], tmp_path: Path) -> None:
    draw_dispersion_along_training([run("full", 1, "parity"), run("full", 1, "parity", lift=1.0)], tmp_path / "x")
    first, second = drawn[0].axes[0].lines
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == [first.get_label(), second.get_label()]
    assert second.get_label() == "parity, full, seed 1 (2)"
    assert first.get_marker() != second.get_marker()


def test_one_mechanism_on_two_tasks_has_two_markers(drawn: list[Figure], tmp_path: Path) -> None:
    draw_dispersion_along_training([run("full", 1, "parity"), run("full", 1, "stack")], tmp_path / "x")
    first, second = drawn[0].axes[0].lines
    assert first.get_marker() != second.get_marker()


def test_maps_and_the_table_of_a_model_name_their_percentiles(drawn: list[Figure], tmp_path: Path) -> None:
    names = ("top_share", "k95", "entropy", "separation", "delta_full", "sink_share")
    heads = [{name: {"50": size, "95": size} for name in names} | {"infinite": {}} for size in (1e-5, 0.7)]
    draw_heat_maps({"k": 2, "layers": [{"heads": heads}]}, tmp_path / "x")
    titles = [panel.get_title(loc="left") for panel in drawn[0].axes[:6]]
    assert [title.rpartition(", ")[2] for title in titles] == ["p50", "p95", "p50", "p50", "p95", "p50"]
    assert all(head.rpartition(" ")[2] in ("p50", "p95", "p100") for head in LAYER_HEADS[1:])
    bars = [[label.get_text() for label in panel.get_yticklabels()] for panel in drawn[0].axes[6:]]
    assert ["1e-05", "0.0026", "0.7"] in bars  # a logarithmic one: few enough to stand apart


def printed(table: TextTable, width: int) -> str:
    text = io.StringIO()
    Console(file=text, width=width, soft_wrap=True).print(rich_table(table))
    return text.getvalue()


@pytest.mark.parametrize("width", [40, 80, 110])
def test_no_number_of_a_printed_table_is_cut(width: int) -> None:
    text = printed(condition_table(row("topk:5", 1)), width)
    numbers = ("12.3", "5.43", "1.23e-05", "11", "2", "1.5", "1.23e+05", "6.54e+04")
    assert "…" not in text
    assert all(text.split().count(number) == 4 for number in numbers)
    runs = [run("full", 153476998)]
    text = printed(norm_table(runs), width)
    assert "…" not in text
    assert all(cell in text.split() for cells in norm_table(runs).rows for cell in cells[1:])


def test_bounds_of_an_older_measurement_are_left_blank_and_its_slopes_are_not() -> None:
    one = run("full", 1, "parity")
    del one["checkpoints"]["8"]["layers"][0]["fewest_keys"]
    older, newer = norm_table([one]).rows
    assert older[0] == "parity, full, seed 1, epoch 8, block 0"
    assert older[-3:] == ["0.123", "", ""]
    assert newer[-3:] == ["0.123", "0.654", "1.23e+05"]


def test_a_row_of_the_last_checkpoint_names_its_epoch_too() -> None:
    assert condition_table(row("topk:5", 1)).title == f"{LONG}, seed 1, topk:5 alone, epoch 8"
    pair = row("topk:5", 1) | {"way": "two models", "epochs": [8.0, 9.5]}
    assert condition_table(pair).title == f"{LONG}, seed 1, full and top-k run, epoch 8 and 9.5"


def test_off_a_terminal_a_line_of_a_table_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    table = norm_table([run("full", 153476998, task="word " * 40)])
    console().print(rich_table(table))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 1 + 2  # the title, the headings, two blocks


def test_how_a_run_attends_is_shown_by_checkpoint_and_block(tmp_path: Path) -> None:
    one = run("full", 1, "parity")
    rows = spread_table(one).rows
    assert [cells[0] for cells in rows] == [f"epoch {epoch}, block {block}" for epoch in (0, 1, 8) for block in (0, 1)]
    shown = dict(zip(SPREAD_HEADS, rows[-1], strict=True))
    assert shown["entropy (nats)"] == "6.23 / 6.85 / 7.48 / 8.1 / 8.72"
    assert shown["softmax slope"] == "7.23 / 7.95 / 8.68 / 9.4 / 10.1"
    del one["checkpoints"]["8"]["layers"][0]["entropy"]  # of an older record
    one["checkpoints"]["8"]["layers"][0]["separation"]["50"] = None
    older = dict(zip(SPREAD_HEADS, spread_table(one).rows[-2], strict=True))
    assert older["entropy (nats)"] == ""
    assert older["Delta_h"].startswith("inf / ")
    page = write_runs_page([one], [row("full", 1)], [], tmp_path / "page.html").read_text()
    assert "parity, full, seed 1: by block" in page
    assert (
        "<h1><bdi>Scores of the kept keys of the same model spread 2.3 times less than those of all keys</bdi>" in page
    )
    assert (
        "for 95\u00a0% of the queries the scores of all keys differ by at most 12.3, those of the heaviest keys by"
        in page
    )
    assert "neither W nor X below 1" in page
    assert "6.23 / 6.85 / 7.48 / 8.1 / 8.72" in page
