"""Names beside marks: none lies on another, on a mark, on the rule or off the panel, however near the marks are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox

from semfocus.analysis.correlation import spearman
from semfocus.analysis.masks_vs_speedup import MaskPoint
from semfocus.analysis.speedup import Ratio, SpeedUp
from semfocus.report.figures.drawing import keeping_figures
from semfocus.report.figures.scatter import draw_dispersion_vs_speedup, draw_masks_vs_speedup

TASKS = (
    "missing_duplicate", "even_pairs", "parity", "listops", "modular_arithmetic", "compute_sqrt", "cycle_navigation",
    "stack_manipulation",
)  # fmt: skip
MARK = 7  # points
Points = Sequence[tuple[str, float, float]]


def cluster(count: int, width: float) -> Points:
    """So many near points, and two far from them."""
    near = [(t, 0.3 + width * math.sin(2 * i), 1.9 + 25 * width * math.cos(3 * i)) for i, t in enumerate(TASKS[:count])]
    return [*near, ("far_below", 0.9, 0.4), ("far_above", 0.5, 12.0)]


def drawn_panels(points: Points) -> list[tuple[Axes, Points]]:
    """The panel of dispersions and both of masks, each with the marks on it."""
    x, y = ({name: value[i] for name, *value in points} for i in (0, 1))
    gains = [SpeedUp(Ratio(speed, "="), None, Ratio(speed, "="), 5, 5, 5, ()) for _, _, speed in points]
    masks = [MaskPoint(name, kept, 100 * y, True, gain, 5) for (name, kept, y), gain in zip(points, gains, strict=True)]
    with keeping_figures() as figures:
        draw_dispersion_vs_speedup(points, spearman(x, y), Path("unused"))
        draw_masks_vs_speedup(masks, Path("unused"))
    panels = [panel for figure in figures for panel in figure.axes]
    return list(zip(panels, (points, [(name, x, 100 * y) for name, x, y in points], points), strict=True))


@pytest.mark.parametrize("width", [0.0, 0.002])
@pytest.mark.parametrize("count", [2, 3, 8])
def test_names_lie_on_no_other_name_or_mark(count: int, width: float) -> None:
    for panel, points in drawn_panels(cluster(count, width)):
        figure = panel.get_figure()
        figure.set_dpi(180)  # as it is saved, which is not as it was measured
        figure.draw_without_rendering()
        names = [text for text in panel.texts if isinstance(text, Annotation)]
        assert sorted(text.get_text() for text in names) == sorted(name for name, _, _ in points)
        boxes = [Text.get_window_extent(text) for text in names]  # without the lines to them
        assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
        half = MARK / 2 * figure.dpi / 72
        places = [panel.transData.transform((x, y)) for _, x, y in points]
        marks = [Bbox.from_extents(x - half, y - half, x + half, y + half) for x, y in places]
        assert not any(box.overlaps(mark) for box in boxes for mark in marks)
        assert all(panel.bbox.contains(*corner) for box in boxes for corner in box.corners())


def test_a_name_has_a_line_only_where_marks_are_crowded() -> None:
    for count, lines in ((3, 0), (8, 8)):
        for panel, _ in drawn_panels(cluster(count, 0.002)):
            assert sum(text.arrow_patch is not None for text in panel.texts) == lines
