"""Figures of the theory and of the landscape: they say what the numbers say, and the same each time."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from semfocus.errors import UsageError
from semfocus.measurements import Sharpness, Surface, SurfaceMeta, grid_axis
from semfocus.measurements.surface import SQUARES
from semfocus.report.figures.landscape import draw_sharpness, draw_slopes
from semfocus.report.figures.surfaces import Scale, draw_surfaces
from semfocus.report.figures.theory import (
    draw_attention_looseness,
    draw_model_looseness,
    draw_regions,
    draw_softmax_looseness,
    share_where,
)
from semfocus.theory import region
from semfocus.theory.looseness import AttentionRow, SoftmaxRow
from tests.measurements import payloads

SVG: dict[str, Any] = {"formats": ("svg",)}


def surface(bottom: float = 0.5, top: float = 2.0, grid: int = 9, **fields: Any) -> Surface:
    up, across = np.meshgrid(grid_axis(grid, 1.0), grid_axis(grid, 1.0), indexing="ij")
    losses = bottom + (top - bottom) * (across**2 + up**2) / 2
    meta = SurfaceMeta.from_payload(payloads.surface([1.0, 1.0], grid=grid, **fields))
    return Surface(meta, {"losses": losses})


def slopes(factor: float, squares: tuple[float, ...] = SQUARES) -> SurfaceMeta:
    values = {str(p): [None, *(factor * p * square for square in squares[1:])] for p in (50, 75, 95, 99)}
    return SurfaceMeta.from_payload(payloads.surface([], squares=list(squares), per_step=values, per_distance=values))


@pytest.mark.parametrize(("delta", "share"), [(1.2, 0.0), (2.0, 0.34), (4.0, 0.80), (8.0, 0.94)])
def test_shares_of_the_reachable_triangle_are_those_of_the_guide(delta: float, share: float) -> None:
    assert share_where(region(delta), "w") == pytest.approx(share, abs=0.005)


def test_x_holds_less_often_the_more_queries_share_a_key_and_w_does_not_care() -> None:
    shares = [share_where(region(4.0, beta), "x") for beta in (1.0, 4.0, 32.0)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > shares[-1] > 0
    assert share_where(region(4.0, 32.0), "w") == share_where(region(4.0), "w")
    assert share_where(region(4.0), "w", reachable=False) != share_where(region(4.0), "w")


@pytest.mark.parametrize("condition", ["w", "x"])
def test_regions_name_every_dispersion_and_say_where_the_condition_never_holds(condition: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"dispersions": (0.5, 2.0, 8.0), "sink_ratios": (1.0, 8.0)}
    written = draw_regions(condition, tmp_path / "regions", **options, **SVG)
    text = written[0].read_text()
    for words in ("δ full 0.5", "δ full 2", "δ full 8", f"{condition.upper()} &lt; 1", "nowhere for δ full ≤ 0.5"):
        assert words in text, words
    assert ("nowhere for δ full ≤ 2" in text) == (condition == "x")  # with beta = 8
    assert ("β = 8" in text) == (condition == "x")
    again = draw_regions(condition, tmp_path / "again", **options, **SVG)
    assert again[0].read_text() == text


def test_every_figure_comes_in_three_formats_and_on_either_ground(tmp_path: Path) -> None:
    rows = [AttentionRow("full", "x", 10.0, 4, {"paper": 1.069, "certified": 0.947})]
    light = draw_attention_looseness(rows, tmp_path / "light")
    assert [path.suffix for path in light] == [".svg", ".pdf", ".png"]
    dark = draw_attention_looseness(rows, tmp_path / "dark", theme="dark", **SVG)
    assert "#15171c" in dark[0].read_text()
    assert "#15171c" not in light[0].read_text()


def test_looseness_draws_every_form_and_the_line_that_none_may_pass(tmp_path: Path) -> None:
    shares = {"paper": 1.57, "simple": 0.8, "sharp": 0.7, "certified": 1.0}
    rows = [
        SoftmaxRow(norm, delta, 5, gap, 0.3, shares) for norm in (1, 2) for delta in (0.1, 3.0) for gap in (None, 4.0)
    ]
    text = draw_softmax_looseness(rows, tmp_path / "softmax", **SVG)[0].read_text()
    for words in ("paper", "simple", "sharp", "certified", "fixed", "1-norm, δ = 3", "#c0392b"):
        assert words in text, words
    attention = [AttentionRow("full", "x", 10.0, 4, {"paper": 1.069, "certified": 0.947})]
    text = draw_attention_looseness(attention, tmp_path / "attention", **SVG)[0].read_text()
    assert "full, in X, |W| = 10" in text
    models = {"full": {"input": 1e-3, "blocks.0.query": 2e-4}, "topk:5": {"input": 1e-4, "blocks.0.query": 1e-5}}
    text = draw_model_looseness(models, tmp_path / "models", **SVG)[0].read_text()
    assert "0.query" in text
    assert "topk:5" in text


def test_surfaces_share_one_scale_from_the_lowest_to_the_highest_loss_of_all() -> None:
    both = Scale.of([surface(0.5, 2.0), surface(0.4, 1.0)])
    assert (both.low, both.high, both.logarithmic) == (pytest.approx(0.4), pytest.approx(2.0), False)
    wide = Scale.of([surface(0.5, 2.0), surface(0.001, 1.0)])
    assert wide.logarithmic
    assert wide.height(np.array([0.01, math.inf, math.nan])).tolist() == pytest.approx(
        [-2, math.nan, math.nan], nan_ok=True
    )
    assert not Scale.of([surface(0.0, 2.0)]).logarithmic
    flat = Scale.of([surface(1.0, 1.0)])
    assert flat.high > flat.low


def test_losses_that_are_not_finite_are_drawn_red_and_counted(tmp_path: Path) -> None:
    spoiled = surface()
    spoiled.losses[0, 0], spoiled.losses[3, 4] = math.nan, math.inf
    text = draw_surfaces({"full": surface(), "topk:5": spoiled}, tmp_path / "s", **SVG)[0].read_text()
    assert "2 of 81 not finite (red)" in text
    assert "#c0392b" in text
    nothing = surface()
    nothing.losses[:] = math.nan
    with pytest.raises(UsageError, match="no loss on any of the grids is finite"):
        draw_surfaces({"full": nothing}, tmp_path / "none", **SVG)
    beside = draw_surfaces({"full": surface(), "topk:5": nothing}, tmp_path / "beside", **SVG)
    assert "81 of 81 not finite" in beside[0].read_text()


def test_a_path_is_drawn_into_its_plane_and_other_planes_do_not_mix(tmp_path: Path) -> None:
    walked = surface(directions="path")
    path = np.array([[0.9, 0.1], [0.4, -0.2], [7.0, 0.0], [0.0, 0.0]])
    walked = Surface(walked.meta, {"losses": walked.losses, "path": path})
    with_path = draw_surfaces({"full": walked}, tmp_path / "path", **SVG)[0].read_text()
    plain = Surface(walked.meta, {"losses": walked.losses})
    without = draw_surfaces({"full": plain}, tmp_path / "no", **SVG)[0].read_text()
    assert len(with_path) > len(without)
    with pytest.raises(UsageError, match="different directions share no scale: path, random"):
        draw_surfaces({"full": walked, "topk:5": surface()}, tmp_path / "mixed", **SVG)


def test_slopes_and_sharpness_name_mechanisms_once_and_skip_what_is_not_known(tmp_path: Path) -> None:
    measured = {"topk:5": [slopes(1.0), slopes(2.0)], "full": [slopes(3.0)]}
    text = draw_slopes(measured, tmp_path / "slopes", title="<b>", **SVG)[0].read_text()
    assert text.count(">topk:5<") == 1
    assert "<b>" not in text
    assert "99th percentile" in text
    with pytest.raises(UsageError, match="measured on different squares"):
        draw_slopes({"full": [slopes(1.0), slopes(1.0, SQUARES[:4])]}, tmp_path / "x", **SVG)
    payload = payloads.sharpness(epochs=[0.0, 1.0, 20.0], gradient_norm=[0.5, None, 0.1], hessian_top=[9.0, -1.0, 3.0])
    run = Sharpness.from_payload(payload)
    bounded = Sharpness.from_payload(payload | {"certified": [90.0, 80.0, None]})
    text = draw_sharpness({"full": [run], "topk:5": [bounded]}, tmp_path / "sharp", **SVG)[0].read_text()
    assert "gradient / certified bound" in text
    assert "certified" not in draw_sharpness({"full": [run]}, tmp_path / "plain", **SVG)[0].read_text()
