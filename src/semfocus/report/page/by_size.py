"""Epochs and accuracy by the number of keys kept, for groups with several sizes of one mechanism."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from semfocus.analysis.groups import Group
from semfocus.analysis.records import Record
from semfocus.measurements import Measurements
from semfocus.report.figures.declared import draw_panels
from semfocus.report.figures.lines import QUARTILES, Quantiles
from semfocus.report.figures.panel_values import MECHANISM, TASK
from semfocus.report.figures.places import sizes_of
from semfocus.report.page.pictures import PictureMaker, PictureSpec, digest

TITLE = "By the number of keys kept"
NOTE = "In how many epochs models learn, and how many rows not seen they are right on at the end."


@dataclass(frozen=True)
class _BySize:
    """The panel as a declared one."""

    metrics: tuple[str, ...]
    title: str = ""
    kind: str = "sweep"
    along: str = MECHANISM
    lines: tuple[str, ...] = (TASK,)
    each: tuple[str, ...] = ()
    quantiles: Quantiles = QUARTILES


@dataclass(frozen=True, eq=False)
class _OfGroup:
    """One group as results."""

    root: Path
    records: Sequence[Record]
    groups: Sequence[Group]
    measurements: Measurements


def by_size_picture(group: Group, picture: PictureMaker) -> dict[str, Any] | None:
    """The drawn figure; None where the group is no sweep, or none of its runs has ended."""
    sizes = sizes_of(group.mechanisms)
    ended = [record for record in group.records if record.ended and record.metrics]
    if not any(record.mechanism in sizes for record in ended):
        return None
    metric = ended[0].objective.learned.metric.column("heldout")
    panel = _BySize(("converged_at", f"final.{metric}"))
    values = [[run.mechanism, run.seed, run.horizon, run.converged_at, str(run.final(metric))] for run in ended]
    draw = partial(draw_panels, [panel], _OfGroup(Path(), ended, [group], {}))
    return picture(PictureSpec(TITLE, NOTE, draw, key=digest("by size", [group.name, values])))
