"""The report shows every kind of measurement that is stored."""

from __future__ import annotations

import re
from pathlib import Path

from semfocus.analysis.results import Results
from semfocus.diagnostics import measure_mask_stability, measure_run
from semfocus.landscape import SurfaceSettings, measure_sharpness, measure_surface
from semfocus.report.page.measured import measured
from semfocus.store import RunDirectory
from semfocus.training import Runtime


def test_every_measurement_of_real_runs_becomes_a_panel(runs: list[RunDirectory]) -> None:
    runtime = Runtime(threads=1, compile="off")
    for run in runs[:2]:
        measure_run(run, k=3, rows=20, checkpoint="all")
        measure_mask_stability(run, k=3, rows=10)
        measure_surface(run, SurfaceSettings(grid=5, rows=10), runtime)
        measure_surface(run, SurfaceSettings(grid=5, rows=10, directions="path", extent=0.5), runtime)
        measure_sharpness(run, 10, runtime, lanczos_steps=4)
    shown = measured(Results.load(Path(runs[0].path.parent)))
    assert shown.faults == []
    (group,) = shown.groups
    assert [panel["title"] for panel in group["panels"]] == [
        "Dispersion over training", "Table 6, topk:3", "Stability of the masks", "Loss surface",
        "Slopes of the loss surface", "Loss surface", "Slopes of the loss surface", "Sharpness along training",
    ]  # fmt: skip
    assert shown.cross_task == []  # one task is no picture
    (table,) = [panel for panel in group["panels"] if "rows" in panel]
    assert {line["from"] for line in table["rows"]} == {"two models, 1 pair", "one model, 1 seed"}  # k is not 5
    assert all(re.fullmatch(r"∞|[\d.e+-]+", cell) for line in table["rows"] for cell in line["cells"])
