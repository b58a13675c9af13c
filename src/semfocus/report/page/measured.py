"""The page's section on measurements of trained runs: how they attend, and the loss around them.

    section = measured(results)
    section.groups             for each group of comparable runs its panels: figures and tables
    section.over               panels over all tasks
    section.faults             measurements that are not what their name says

One line a mechanism, the median over seeds. Runs that were measured in another way than most of their group (other
rows, another split, checkpoint or grid), or with another k than most of their mechanism, are left out, and the panel
says how many.
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
from semfocus.measurements.store import KINDS
from semfocus.report.figures.diagnosis import draw_dispersion_along_training, draw_mask_stability
from semfocus.report.figures.landscape import draw_sharpness, draw_slopes
from semfocus.report.page.measured_panels import (
    AT,
    WORDS,
    cross_task_panels,
    left_out_note,
    surfaces_panel,
    table_panels,
)
from semfocus.report.page.pictures import digest, picture

MOST_BYTES = 3_200_000  # of all pictures; enough for eight tasks with everything measured
NO_ROOM = "Left out, for the page would grow too large; a report of these runs alone has them."
ALIKE = {
    "dispersion": ("split", "rows"),
    "mask_stability": ("split", "rows", "checkpoint", "noise"),
    "sharpness": ("rows",),
    **{surface_name(directions): ("grid", "extent", "rows", "squares") for directions in DIRECTIONS},
}
WITHIN = ("k",)  # in which runs of one mechanism have to agree; mechanisms are measured with their own k
FINEST = 1001  # points along a side of a surface that a page draws
Json = dict[str, Any]
M = TypeVar("M", bound=Measurement)
Runs = dict[str, dict[int, M]]  # by mechanism and seed


@dataclass(frozen=True)
class Section:
    """The panels of the page's section on measurements."""

    groups: list[Json] = field(default_factory=list)
    over: list[Json] = field(default_factory=list)
    faults: list[tuple[str, str]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.groups or self.over)


def measured(results: Results) -> Section:
    """The panels of everything that was measured; empty when nothing was."""
    documents, faults = _drawable(results.measurements)
    over = cross_task_panels(results.records, documents)
    groups, room = [], MOST_BYTES - _size(over)
    for place, group in enumerate(results.groups):
        panels, wrong = _panels(results, group, documents, pictures=room > 0)
        faults += wrong
        if _size(panels) > room:
            panels, room = _panels(results, group, documents, pictures=False)[0], 0
        if panels:
            room -= _size(panels)
            groups.append({"name": group.name, "anchor": f"measured-{place}", "panels": panels})
    return Section(groups, over, faults)


def _size(panels: Iterable[Json]) -> int:
    return sum(len(panel.get("light", "")) + len(panel.get("dark", "")) for panel in panels)


def _drawable(measurements: Measurements) -> tuple[Measurements, list[tuple[str, str]]]:
    """The measurements that can be drawn, and a fault for each surface whose grid is too fine."""
    fine = [
        (run, name)
        for run, kept in measurements.items()
        for name, one in kept.items()
        if isinstance(one, SurfaceMeta) and one.grid > FINEST
    ]
    drawn = {
        run: {name: one for name, one in kept.items() if (run, name) not in fine} for run, kept in measurements.items()
    }
    why = f"it has no grid of 2 to {FINEST} points a side"
    return drawn, [(run, f"the measurement {name!r} is not shown: {why}") for run, name in fine]


def _panels(
    results: Results, group: Group, documents: Measurements, pictures: bool
) -> tuple[list[Json], list[tuple[str, str]]]:
    """The panels of one group; without `pictures` only tables, which are small."""
    kinds = {name: _alike(group, documents, name) for name in KINDS}
    tables = table_panels(group.task, *kinds["dispersion"])
    if not pictures:
        left_out = {"title": "Figures", "note": NO_ROOM}
        return [*tables, left_out] if any(runs for runs, _ in kinds.values()) else [], []
    panels: list[Json | None] = []
    panels.append(_with(kinds["dispersion"], _training))
    panels += tables
    panels.append(_with(kinds["mask_stability"], _masks))
    faults: list[tuple[str, str]] = []
    for directions in DIRECTIONS:
        runs, left_out = kinds[surface_name(directions)]
        if runs:
            drawn, wrong = surfaces_panel(results.root, group, directions, runs, left_out)
            panels += [drawn, _slopes(directions, runs, left_out)]
            faults += wrong
    panels.append(_with(kinds["sharpness"], _sharpness))
    return [panel for panel in panels if panel is not None], faults


def _alike(group: Group, documents: Measurements, name: str) -> tuple[Runs[Any], int]:
    """The group's documents of one kind, measured as most of them were, and how many were not."""
    known = [(run, documents[run.id][name]) for run in group.records if name in documents.get(run.id, {})]
    agreed = _of_one_way(known, ALIKE[name])
    runs: Runs[Any] = {}
    left_out = len(known) - len(agreed)
    for mechanism in dict.fromkeys(run.mechanism for run, _ in agreed):
        own = [(run, document) for run, document in agreed if run.mechanism == mechanism]
        alike = _of_one_way(own, WITHIN)
        left_out += len(own) - len(alike)
        runs[mechanism] = {run.seed: document for run, document in alike}
    return runs, left_out


def _of_one_way(known: Sequence[tuple[Record, M]], fields: Sequence[str]) -> list[tuple[Record, M]]:
    """The measurements whose values of these fields are the most common ones."""
    ways = [{field: getattr(one, field) for field in fields if hasattr(one, field)} for _, one in known]
    usual = commonest(ways)
    return [one for one, way in zip(known, ways, strict=True) if way == usual]


def _with(kind: tuple[Runs[Any], int], panel: Callable[[Runs[Any], int], Json | None]) -> Json | None:
    runs, left_out = kind
    return panel(runs, left_out) if runs else None


def seeds_note(runs: Runs[Any], left_out: int) -> str:
    """How many seeds a panel rests on, and how many runs it leaves out."""
    counts = {len(seeds) for seeds in runs.values()}
    many = f"{min(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    seeds = "One seed." if counts == {1} else f"Median over {many} seeds."
    return seeds + left_out_note(left_out)


def _training(runs: Runs[Dispersion], left_out: int) -> Json | None:
    lines = [{"mechanism": name, "checkpoints": _median_checkpoints(own.values())} for name, own in runs.items()]
    if not any(len(line["checkpoints"]) > 1 for line in lines):
        return None
    split = next(iter(next(iter(runs.values())).values())).split
    text = (
        f"By epoch, 0 being the initialisation: largest minus smallest score of a query ({split} rows), over all keys "
        f"and over the k heaviest, at percentile {AT}; and how far the next key lies below. "
        f"{seeds_note(runs, left_out)}"
    )
    draw = partial(draw_dispersion_along_training, lines, at=AT)
    return picture("Dispersion over training", text, draw, key=digest("training", lines))


def _median_checkpoints(documents: Iterable[Dispersion]) -> dict[str, Json]:
    """One checkpoint for each epoch, each number the median over the runs that have it."""
    by_epoch: dict[float, list[Checkpoint]] = {}
    for document in documents:
        own = {checkpoint.epoch: checkpoint for checkpoint in document.checkpoints.values()}
        for epoch, checkpoint in own.items():
            by_epoch.setdefault(epoch, []).append(checkpoint)
    names = ("delta_full", "delta_heavy", "separation")
    return {
        f"{epoch:g}": {"epoch": epoch, **{name: {AT: _median(c.at(name, AT) for c in those)} for name in names}}
        for epoch, those in sorted(by_epoch.items())
    }


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _masks(runs: Runs[MaskStability], left_out: int) -> Json | None:
    lines = []
    for name, own in runs.items():
        those = list(own.values())
        borders = those[0].by_separation.borders
        those = [one for one in those if one.by_separation.borders == borders]
        kept = _columns([one.kept for one in those])
        rows = [_columns(list(parts)) for parts in zip(*(one.by_separation.kept for one in those), strict=True)]
        if all(share is None for share in kept):
            continue
        shares = {"noise": those[0].noise, "kept": kept, "by_separation": {"borders": borders, "kept": rows}}
        lines.append({"mechanism": name, "measured": shares})
    text = (
        "The share of the k heaviest keys that stay when Gaussian noise is added to the input embeddings: by its size, "
        f"and by how far a query's next key lies below the kept ones. {seeds_note(runs, left_out)}"
    )
    draw = partial(draw_mask_stability, lines)
    return picture("Stability of the masks", text, draw, key=digest("masks", lines)) if lines else None


def _columns(rows: Sequence[Sequence[float | None]]) -> list[float | None]:
    return [_median(column) for column in zip(*rows, strict=True)]


def _slopes(directions: str, runs: Runs[SurfaceMeta], left_out: int) -> Json:
    measured = {name: list(own.values()) for name, own in runs.items()}
    text = (
        f"Differences between neighbouring points of the surface ({WORDS[directions]}) inside growing squares. Above "
        f"as the paper has them; below per true distance, which alone compares models of different norm. "
        f"{seeds_note(runs, left_out)} Bands: all seeds."
    )
    key = digest("slopes", [directions, _documents(runs)])
    return picture("Slopes of the loss surface", text, partial(draw_slopes, measured), key=key)


def _sharpness(runs: Runs[Sharpness], left_out: int) -> Json:
    measured = {name: list(own.values()) for name, own in runs.items()}
    text = (
        "Norm of the gradient of the mean training loss and the largest eigenvalue of its Hessian, at the kept "
        "checkpoints, a line a run; where a bound is certified, the share of it that the gradient attains."
    )
    note = text + left_out_note(left_out)
    return picture(
        "Sharpness along training",
        note,
        partial(draw_sharpness, measured),
        key=digest("sharpness", _documents(runs)),
    )


def _documents(runs: Runs[Any]) -> dict[str, list[Json]]:
    return {name: [one.document for one in own.values()] for name, own in runs.items()}
