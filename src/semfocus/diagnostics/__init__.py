"""HOW a model attends: anybody's model, and the runs in a store, measured and held against the theory.

watching, torch_calls, registry    seeing every attention of a model without changing it
scores, examining, sketch, tally   its numbers, added up by layer and head in fixed memory
launches, gathering                on a GPU many sightings at once, as one problem
diagnosing, sentences, checkpoints what they say about a model; a Hugging Face checkpoint on a text file
runs, norms, conditions            trained runs: the paper's Table 6, stored with the run
masks, keeping                     do kept keys stay under noise; how all of this is stored with a run
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from semfocus.lazy import attach

if TYPE_CHECKING:
    from semfocus.analysis.conditions import Conditions, condition
    from semfocus.analysis.dispersion_vs_speedup import Point, dispersion_against_speed, dispersion_points
    from semfocus.diagnostics.checkpoints import diagnose_checkpoint
    from semfocus.diagnostics.diagnosing import Diagnosis, diagnose
    from semfocus.diagnostics.masks import measure_mask_stability
    from semfocus.diagnostics.runs import MeasuredRun, measure_run, tables

__all__ = [
    "Conditions",
    "Diagnosis",
    "MeasuredRun",
    "Point",
    "condition",
    "diagnose",
    "diagnose_checkpoint",
    "dispersion_against_speed",
    "dispersion_points",
    "measure_mask_stability",
    "measure_run",
    "tables",
]

_HOMES = {
    "analysis.dispersion_vs_speedup": ("Point", "dispersion_against_speed", "dispersion_points"),
    "analysis.conditions": ("Conditions", "condition"),
    "diagnostics.checkpoints": ("diagnose_checkpoint",),
    "diagnostics.diagnosing": ("Diagnosis", "diagnose"),
    "diagnostics.masks": ("measure_mask_stability",),
    "diagnostics.runs": ("MeasuredRun", "measure_run", "tables"),
}
__getattr__, __dir__ = attach(__name__, {name: f"semfocus.{home}" for home, names in _HOMES.items() for name in names})
