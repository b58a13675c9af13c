"""Looks that can be told apart, and a figure that says what the numbers say."""

from __future__ import annotations

from pathlib import Path

from semfocus.analysis.comparison import compare_records
from semfocus.report.curves import draw_curves
from semfocus.report.style import look
from semfocus.report.tables import epochs_text
from semfocus.studies.recipes import COMPACT
from tests.analysis.test_comparison import record


def test_every_mechanism_of_a_comparison_has_its_own_colour_and_dash() -> None:
    looks = [look(mechanism) for mechanism in (*COMPACT, "bottomk:5", "randomk:5")]
    assert len({shape.colour for shape in looks}) == len(looks)
    assert len({(str(shape.dash), shape.marker) for shape in looks}) == len(looks)  # told apart in grey
    assert look("topk:5") == look("topk:9")


def test_the_figure_is_written_twice_over_and_is_the_same_each_time(tmp_path: Path) -> None:
    runs = [record(m, s, a) for s in range(3) for m, a in (("full", [0.5] * 10), ("topk:5", [0.5, 1.0]))]
    found = compare_records("<b>task</b>", runs, {"chance": 0.5, "majority": 0.5})
    written = draw_curves(found, runs, tmp_path / "curves")
    assert [path.suffix for path in written] == [".svg", ".png"]
    svg = written[0].read_text()
    assert "<b>task" not in svg
    assert "chance, majority" in svg
    assert draw_curves(found, runs, tmp_path / "again")[0].read_text() == svg


def test_epochs_are_written_as_median_and_range_or_never() -> None:
    runs = [record("full", s, [0.5] * (s + 1) + [1.0]) for s in range(3)] + [record("topk:5", 0, [0.5])]
    found = compare_records("parity", runs, {})
    assert epochs_text(found.arm("full")) == ("3", "2-4")
    assert epochs_text(found.arm("topk:5")) == ("never", "")
