"""Figures of the loss around trained models: their marks."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.axes import Axes

from semfocus.measurements import Sharpness
from semfocus.report.figures.drawing import keeping_figures
from semfocus.report.figures.landscape import draw_sharpness
from semfocus.report.figures.surfaces import MARKS, Scale
from tests.measurements import payloads


def sharpness_panel(epochs: list[float]) -> Axes:
    """The last panel."""
    values = [1.0 + epoch for epoch in epochs]
    payload = payloads.sharpness(epochs=epochs, gradient_norm=values, hessian_top=values)
    with keeping_figures() as figures:
        draw_sharpness({"full": [Sharpness.from_payload(payload)]}, Path("unused"))
    (figure,) = figures
    return figure.axes[-1]


def sharpness_ticks(epochs: list[float]) -> list[str]:
    return [label.get_text() for label in sharpness_panel(epochs).get_xticklabels()]


@pytest.mark.parametrize("epochs", [[0.0], [0.0, 1.0, 8.0], [0.0, 5.0, 1000.0]])
def test_no_axis_runs_through_the_marks_of_the_first_epoch_or_cuts_those_of_the_last(
    epochs: list[float],
) -> None:
    panel = sharpness_panel(epochs)
    panel.get_figure().draw_without_rendering()
    first, last = (panel.transData.transform((epoch, 1.0))[0] for epoch in (epochs[0], epochs[-1]))
    half = 2 * panel.get_figure().dpi / 72  # of a mark
    assert panel.bbox.x0 + half < first <= last < panel.bbox.x1 - half
    assert len(epochs) == 1 or first - panel.bbox.x0 < 0.06 * panel.bbox.width


def test_every_kept_epoch_is_labelled_where_there_is_room() -> None:
    assert sharpness_ticks([0.0, 1.0, 2.0, 5.0, 8.0]) == ["0", "1", "2", "5", "8"]
    many = sharpness_ticks([float(epoch) for epoch in range(101)])
    assert many[0] == "0"
    assert many[-1] == "100"
    assert len(many) < 16


@pytest.mark.parametrize(("low", "high"), [(1e-14, 3e3), (2e-7, 8.0), (0.1, 40.0), (0.9, 30.0)])
def test_a_logarithmic_colour_bar_has_few_marks_all_of_them_on_it(low: float, high: float) -> None:
    marks = Scale(low, high, True).marks()
    assert 2 <= len(marks) <= MARKS
    assert all(low <= mark <= high for mark in marks)
