"""Levels of accuracy other than 95 %: who is first at each, and where the epochs to 95 % go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semfocus.analysis.groups import Group, group_records
from semfocus.analysis.levels import half_way, speed_at, wait_and_rise
from semfocus.config import RunConfig
from semfocus.experiments import rebuild
from semfocus.report import levels_table
from semfocus.report.figures.drawing import keeping_figures
from semfocus.report.figures.levels import draw_levels
from tests.report.helpers import configs, record

# epochs to 80 % and to 95 %: banded starts late and overtakes, block-local never gets to 95 %
PLACES = {"full": (2, 20), "topk:5": (1, 18), "banded:5": (4, 10), "block_local:5": (3, None)}


def rows_through(config: RunConfig, first: int, second: int | None) -> list[dict[str, Any]]:
    """Metrics that reach 80 % and 95 % in these epochs, a little later at another seed."""
    late = config.seed % 3
    measured = []
    for epoch in range(1, 41):
        there = second is not None and epoch >= second + late
        share = 0.96 if there else 0.85 if epoch >= first else 0.5
        measured.append({"epoch": epoch, "step": 200 * epoch, "train_accuracy": share, "heldout_accuracy": share,
                         "train_loss": 1 - share, "heldout_loss": 1 - share, "lr": 0.1})  # fmt: skip
    return measured


@pytest.fixture(scope="module")
def group() -> Group:
    wanted = configs(("even_pairs",), PLACES, 6, training__epochs=40)
    runs = [record(one, measured=rows_through(one, *PLACES[one.attention.mechanism])) for one in wanted]
    return group_records(runs).groups[0]


def test_the_order_of_mechanisms_may_change_with_the_level(group: Group) -> None:
    low, high = (speed_at(group, "banded:5", level).speed.estimate for level in (0.8, 0.95))
    assert low == pytest.approx(0.5)
    assert high is not None
    assert high > 1.5


def test_a_level_that_few_runs_reach_has_no_ratio(group: Group) -> None:
    assert speed_at(group, "block_local:5", 0.8).is_known
    assert not speed_at(group, "block_local:5", 0.95).is_known
    row = next(line for line in levels_table.markdown([group]).splitlines() if line.startswith("| 95 %"))
    assert row.endswith("| never |")
    assert "block_local:5 |" not in levels_table.markdown([group]).split("the rest: it")[1]


def test_levels_are_not_compared_where_runs_stop_at_one() -> None:
    """Beyond it nobody gets, and the table said `never`."""

    def compared(**changes: Any) -> bool:
        wanted = configs(("even_pairs",), PLACES, 6, training__epochs=40, **changes)
        runs = [record(one, measured=rows_through(one, *PLACES[one.attention.mechanism])) for one in wanted]
        return rebuild._is_compared(group_records(runs).groups[0])

    assert compared()
    assert not compared(training__stop_accuracy=0.95)
    assert not compared(training__patience=5)


def test_wait_and_rise_add_up_to_the_epochs_to_95_per_cent(group: Group) -> None:
    assert half_way(group) == pytest.approx((0.5 + 0.95) / 2)
    times = wait_and_rise(group, "topk:5")
    assert times.wait == (2, 1)
    totals = [sum(pair) for pair in zip(times.wait, times.rise, strict=True)]
    speed = speed_at(group, "topk:5", 0.95)
    assert totals == [pytest.approx(arm.epochs.mean()) for arm in (speed.full, speed.other)]


def test_the_figure_has_a_line_and_a_band_for_each_mechanism_but_full(group: Group) -> None:
    with keeping_figures() as figures:
        draw_levels([group], Path("unused"))
    (panel,) = figures[0].axes
    lines = {line.get_label(): line for line in panel.lines if not line.get_label().startswith("_")}
    assert [*lines] == ["topk:5", "banded:5", "block_local:5"]
    assert max(lines["banded:5"].get_xdata()) > 0.95
    assert max(lines["block_local:5"].get_xdata()) < 0.86
    assert len(panel.collections) == 3
