"""Figures of the loss around trained models: their marks."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from semfocus.report import landscape
from semfocus.report.landscape import MARKS, Scale, draw_sharpness


def sharpness_ticks(epochs: list[float], monkeypatch: pytest.MonkeyPatch, place: Path) -> list[str]:
    """The labels of the last panel's epochs."""
    figures: list[Figure] = []
    monkeypatch.setattr(landscape, "save", lambda figure, stem, formats: figures.append(figure) or [stem])
    values = [1.0 + epoch for epoch in epochs]
    draw_sharpness({"full": [{"epochs": epochs, "gradient_norm": values, "hessian_top": values}]}, place)
    (figure,) = figures
    return [label.get_text() for label in figure.axes[-1].get_xticklabels()]


def test_every_kept_epoch_is_labelled_where_there_is_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert sharpness_ticks([0.0, 1.0, 2.0, 5.0, 8.0], monkeypatch, tmp_path) == ["0", "1", "2", "5", "8"]
    many = sharpness_ticks([float(epoch) for epoch in range(101)], monkeypatch, tmp_path)
    assert many[0] == "0"
    assert many[-1] == "100"
    assert len(many) < 16


@pytest.mark.parametrize(("low", "high"), [(1e-14, 3e3), (2e-7, 8.0), (0.1, 40.0), (0.9, 30.0)])
def test_a_logarithmic_colour_bar_has_few_marks_all_of_them_on_it(low: float, high: float) -> None:
    marks = landscape._decades(Scale(low, high, True))
    assert 2 <= len(marks) <= MARKS
    assert all(low <= mark <= high for mark in marks)
