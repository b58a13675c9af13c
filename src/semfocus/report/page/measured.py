"""The page's section on measurements of trained runs: how they attend, and the loss around them.

    section = measured(results)
    section.groups             for each group of comparable runs its panels: figures and tables
    section.cross_task         panels across tasks
    section.faults             measurements that cannot be shown, and why

A panel has one line for each mechanism: the median over seeds. Runs are left out if their measurement was made with
other settings than most of their group (examples, split, checkpoint or grid), or with another k than most of their
mechanism. The panel says how many.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from semfocus.analysis.consistent_settings import commonest
from semfocus.analysis.groups import Group
from semfocus.analysis.records import Record
from semfocus.analysis.results import Results
from semfocus.measurements import (
    Dispersion,
    MaskStability,
    Measurement,
    Measurements,
    Sharpness,
    SurfaceMeta,
    surface_name,
)
from semfocus.measurements.kinds import DIRECTIONS, Checkpoint
from semfocus.report.figures.diagnosis import draw_dispersion_along_training, draw_mask_stability
from semfocus.report.figures.landscape import draw_sharpness, draw_slopes
from semfocus.report.page.measured_panels import (
    DIRECTION_TEXTS,
    PERCENTILE,
    Fault,
    cross_task_panels,
    left_out_note,
    surfaces_panel,
    table6_panels,
)
from semfocus.report.page.pictures import PictureMaker, PictureSpec, digest, picture
from semfocus.report.text import seeds_text

MAX_BYTES = 3_200_000  # of all pictures; enough for eight tasks with everything measured
NO_ROOM = "Left out, for the page would grow too large; a report of these runs alone has them."
# The settings in which the measurements of one panel agree.
SHARED_SETTINGS = {
    "dispersion": ("split", "rows"),
    "mask_stability": ("split", "rows", "checkpoint", "noise"),
    "sharpness": ("rows",),
    **{surface_name(directions): ("grid", "extent", "rows", "squares") for directions in DIRECTIONS},
}
SHARED_WITHIN_MECHANISM = ("k",)  # each mechanism is measured with its own k
MAX_GRID = 1001  # points along a side of a surface
Json = dict[str, Any]
M = TypeVar("M", bound=Measurement)
Runs = dict[str, dict[int, M]]  # mechanism -> seed -> measurement


@dataclass(frozen=True)
class Section:
    """The panels of the page's section on measurements."""

    groups: list[Json] = field(default_factory=list)
    cross_task: list[Json] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.groups or self.cross_task)


def measured(results: Results, picture: PictureMaker = picture, max_bytes: int = MAX_BYTES) -> Section:
    """The panels of all measurements, their pictures within `max_bytes`; empty if there are none."""
    measurements, faults = _drawable(results.measurements)
    cross_task = [picture(spec) for spec in cross_task_panels(results.records, measurements)]
    groups, room = [], max_bytes - _size(cross_task)
    for place, group in enumerate(results.groups):
        kinds = {name: _consistent(group, measurements, name) for name in SHARED_SETTINGS}
        if not any(runs for runs, _ in kinds.values()):
            continue
        panels: list[Json] = []
        if room > 0:
            specs, group_faults = _panels(results, group, kinds)
            panels = [picture(spec) if isinstance(spec, PictureSpec) else spec for spec in specs]
            faults += group_faults
        if room <= 0 or _size(panels) > room:
            panels, room = [*table6_panels(group.task, *kinds["dispersion"]), {"title": "Figures", "note": NO_ROOM}], 0
        if panels:
            room -= _size(panels)
            groups.append({"name": group.name, "anchor": f"measured-{place}", "panels": panels})
    return Section(groups, cross_task, faults)


def _size(panels: Iterable[Json]) -> int:
    return sum(len(panel.get("light", "")) + len(panel.get("dark", "")) for panel in panels)


def _drawable(measurements: Measurements) -> tuple[Measurements, list[Fault]]:
    """The measurements that can be drawn, and a fault for each surface whose grid is too fine."""
    too_fine = [
        (run, name)
        for run, by_name in measurements.items()
        for name, one in by_name.items()
        if isinstance(one, SurfaceMeta) and one.grid > MAX_GRID
    ]
    drawable = {
        run: {name: one for name, one in by_name.items() if (run, name) not in too_fine}
        for run, by_name in measurements.items()
    }
    why = f"it has no grid of 2 to {MAX_GRID} points a side"
    return drawable, [(run, f"the measurement {name!r} is not shown: {why}") for run, name in too_fine]


def _panels(
    results: Results, group: Group, kinds: dict[str, tuple[Runs[Any], int]]
) -> tuple[list[Json | PictureSpec], list[Fault]]:
    """The tables and undrawn pictures of one group, and the surfaces that cannot be read."""
    panels: list[Json | PictureSpec | None] = []
    panels.append(_if_measured(kinds["dispersion"], _dispersion_picture))
    panels += table6_panels(group.task, *kinds["dispersion"])
    panels.append(_if_measured(kinds["mask_stability"], _mask_stability_picture))
    faults: list[Fault] = []
    for directions in DIRECTIONS:
        runs, left_out = kinds[surface_name(directions)]
        if runs:
            surfaces, unreadable = surfaces_panel(results.root, group, directions, runs, left_out)
            panels += [surfaces, _slopes_picture(directions, runs, left_out)]
            faults += unreadable
    panels.append(_if_measured(kinds["sharpness"], _sharpness_picture))
    return [panel for panel in panels if panel is not None], faults


def _consistent(group: Group, measurements: Measurements, name: str) -> tuple[Runs[Any], int]:
    """The group's measurements of one kind that share the most common settings, and the number of others."""
    every = [(run, measurements[run.id][name]) for run in group.records if name in measurements.get(run.id, {})]
    consistent = _most_common(every, SHARED_SETTINGS[name])
    left_out = len(every) - len(consistent)
    runs: Runs[Any] = {}
    for mechanism in dict.fromkeys(run.mechanism for run, _ in consistent):
        own = [(run, one) for run, one in consistent if run.mechanism == mechanism]
        kept = _most_common(own, SHARED_WITHIN_MECHANISM)
        left_out += len(own) - len(kept)
        runs[mechanism] = {run.seed: one for run, one in kept}
    return runs, left_out


def _most_common(measured_runs: Sequence[tuple[Record, M]], fields: Sequence[str]) -> list[tuple[Record, M]]:
    """The runs whose measurement has the most common values of these fields."""
    settings = [{field: getattr(one, field) for field in fields if hasattr(one, field)} for _, one in measured_runs]
    usual = commonest(settings)
    return [pair for pair, own in zip(measured_runs, settings, strict=True) if own == usual]


def _if_measured(
    kind: tuple[Runs[Any], int], panel: Callable[[Runs[Any], int], PictureSpec | None]
) -> PictureSpec | None:
    runs, left_out = kind
    return panel(runs, left_out) if runs else None


def seeds_note(runs: Runs[Any], left_out: int) -> str:
    """The number of seeds behind a panel, and the number of runs it leaves out."""
    counts = {len(seeds) for seeds in runs.values()}
    seeds = "One seed." if counts == {1} else f"Median over {seeds_text(counts)}."
    return seeds + left_out_note(left_out)


def _dispersion_picture(runs: Runs[Dispersion], left_out: int) -> PictureSpec | None:
    lines = [
        {"mechanism": name, "checkpoints": _median_checkpoints(by_seed.values())} for name, by_seed in runs.items()
    ]
    if not any(len(line["checkpoints"]) > 1 for line in lines):
        return None
    split = next(iter(next(iter(runs.values())).values())).split
    note = (
        f"By epoch, 0 being the initialisation: largest minus smallest score of a query ({split} rows), over all keys "
        f"and over the k heaviest, at percentile {PERCENTILE}; and how far the next key lies below. "
        f"{seeds_note(runs, left_out)}"
    )
    draw = partial(draw_dispersion_along_training, lines, at=PERCENTILE)
    return PictureSpec("Dispersion over training", note, draw, digest("training", lines))


def _median_checkpoints(measurements: Iterable[Dispersion]) -> dict[str, Json]:
    """One checkpoint for each epoch; each number is the median over the runs that have it."""
    by_epoch: dict[float, list[Checkpoint]] = {}
    for one in measurements:
        of_run = {checkpoint.epoch: checkpoint for checkpoint in one.checkpoints.values()}  # "last" is an epoch too
        for epoch, checkpoint in of_run.items():
            by_epoch.setdefault(epoch, []).append(checkpoint)
    names = ("delta_full", "delta_heavy", "separation")
    return {
        f"{epoch:g}": {
            "epoch": epoch,
            **{name: {PERCENTILE: _median(c.at(name, PERCENTILE) for c in checkpoints)} for name in names},
        }
        for epoch, checkpoints in sorted(by_epoch.items())
    }


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _mask_stability_picture(runs: Runs[MaskStability], left_out: int) -> PictureSpec | None:
    lines = []
    for name, by_seed in runs.items():
        borders = next(iter(by_seed.values())).by_separation.borders
        same_borders = [one for one in by_seed.values() if one.by_separation.borders == borders]
        kept = _column_medians([one.kept for one in same_borders])
        if all(share is None for share in kept):
            continue
        by_interval = zip(*(one.by_separation.kept for one in same_borders), strict=True)
        separated = {"borders": borders, "kept": [_column_medians(list(shares)) for shares in by_interval]}
        shares = {"noise": same_borders[0].noise, "kept": kept, "by_separation": separated}
        lines.append({"mechanism": name, "measured": shares})
    note = (
        "The share of the k heaviest keys that stay when Gaussian noise is added to the input embeddings: by its size, "
        f"and by how far a query's next key lies below the kept ones. {seeds_note(runs, left_out)}"
    )
    draw = partial(draw_mask_stability, lines)
    return PictureSpec("Stability of the masks", note, draw, digest("masks", lines)) if lines else None


def _column_medians(rows: Sequence[Sequence[float | None]]) -> list[float | None]:
    return [_median(column) for column in zip(*rows, strict=True)]


def _slopes_picture(directions: str, runs: Runs[SurfaceMeta], left_out: int) -> PictureSpec:
    note = (
        f"Differences between neighbouring points of the surface ({DIRECTION_TEXTS[directions]}) inside growing "
        "squares. Above as the paper has them; below per true distance, which alone compares models of different norm. "
        f"{seeds_note(runs, left_out)} Bands: all seeds."
    )
    key = digest("slopes", [directions, _documents(runs)])
    return PictureSpec("Slopes of the loss surface", note, partial(draw_slopes, _by_mechanism(runs)), key)


def _sharpness_picture(runs: Runs[Sharpness], left_out: int) -> PictureSpec:
    note = (
        "Norm of the gradient of the mean training loss and the largest eigenvalue of its Hessian, at the kept "
        "checkpoints, a line a run; where a bound is certified, the share of it that the gradient attains."
        f"{left_out_note(left_out)}"
    )
    key = digest("sharpness", _documents(runs))
    return PictureSpec("Sharpness along training", note, partial(draw_sharpness, _by_mechanism(runs)), key)


def _by_mechanism(runs: Runs[M]) -> dict[str, list[M]]:
    return {name: list(by_seed.values()) for name, by_seed in runs.items()}


def _documents(runs: Runs[Any]) -> dict[str, list[Json]]:
    return {name: [one.document for one in by_seed.values()] for name, by_seed in runs.items()}
