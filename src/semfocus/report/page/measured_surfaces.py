"""The stored loss surfaces of a group side by side: one seed, one colour scale, full attention first."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from semfocus.analysis.groups import Group, base_first
from semfocus.errors import SemfocusError
from semfocus.measurements import Surface, SurfaceMeta, read_surface
from semfocus.report.figures.surfaces import draw_surfaces
from semfocus.report.page.cross_task_panels import left_out_note
from semfocus.report.page.pictures import digest, picture
from semfocus.store import RunDirectory

ACROSS = 4  # surfaces side by side, at most
WORDS = {
    "random": "along two random directions",
    "path": "along the principal directions of training",
    "hessian": "along the top two eigenvectors of the Hessian",
}
Fault = tuple[str, str]


def surfaces_panel(
    root: Path, group: Group, directions: str, runs: Mapping[str, Mapping[int, SurfaceMeta]], left_out: int
) -> tuple[dict[str, str] | None, list[Fault]]:
    """A picture for the seed of which most mechanisms have a surface, and faults; None when no surface can be read."""
    seeds = sorted({seed for own in runs.values() for seed in own})
    seed = max(seeds, key=lambda seed: sum(seed in own for own in runs.values()))  # of several the first
    ids = {record.mechanism: record.id for record in group.records if record.seed == seed}
    surfaces, faults = {}, []
    for mechanism in base_first(name for name, own in runs.items() if seed in own):
        if len(surfaces) == ACROSS:
            break
        try:
            surface = read_surface(RunDirectory(root / ids[mechanism]), directions)
        except SemfocusError as error:
            faults.append((ids[mechanism], f"its loss surface is not shown: {error}"))
            continue
        if surface is not None and surface.lowest is not None:
            surfaces[mechanism] = surface
    if not surfaces:
        return None, faults
    alike = next(iter(next(iter(runs.values())).values()))
    note = (
        f"Training loss around the trained models (+), {WORDS[directions]}, as long as the parameters themselves at 1; "
        f"seed {seed}, {alike.grid} x {alike.grid} points over {alike.rows} rows, one colour scale "
        f"for all.{left_out_note(left_out)}"
    )
    key = digest(
        "surface", {name: [directions, s.meta.extent] for name, s in surfaces.items()}, *map(_bytes, surfaces.values())
    )
    return picture("Loss surface", note, partial(draw_surfaces, surfaces), key=key, kind="webp"), faults


def _bytes(surface: Surface) -> bytes:
    path = b"" if surface.path is None else np.ascontiguousarray(surface.path).tobytes()
    return np.ascontiguousarray(surface.losses).tobytes() + path
