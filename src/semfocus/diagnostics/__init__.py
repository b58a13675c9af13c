"""HOW a model attends: any model, and the runs in a store, measured and compared with the theory.

capture, patch_transformers                capture every attention call of a model without changing it
scores, attention_stats, sketch            statistics of one call, in bounded memory
batching, aggregate                        several calls at once on a GPU; sums by layer and head
diagnosing, sentences, checkpoints         the diagnosis of a model, or of a Hugging Face checkpoint on a text file
runs, checkpoint_stats, masks              trained runs: dispersion (the paper's Table 6) and masks under noise
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from semfocus.lazy import attach

if TYPE_CHECKING:
    from semfocus.analysis.dispersion_vs_speedup import Point, dispersion_against_speed, dispersion_points
    from semfocus.analysis.table6 import Conditions, condition
    from semfocus.diagnostics.checkpoints import diagnose_checkpoint
    from semfocus.diagnostics.diagnosing import Diagnosis, diagnose
    from semfocus.diagnostics.masks import measure_mask_stability
    from semfocus.diagnostics.runs import MeasuredRun, RunsDiagnosis, diagnose_runs, measure_run, tables

__all__ = [
    "Conditions",
    "Diagnosis",
    "MeasuredRun",
    "Point",
    "RunsDiagnosis",
    "condition",
    "diagnose",
    "diagnose_checkpoint",
    "diagnose_runs",
    "dispersion_against_speed",
    "dispersion_points",
    "measure_mask_stability",
    "measure_run",
    "tables",
]

_HOMES = {
    "analysis.dispersion_vs_speedup": ("Point", "dispersion_against_speed", "dispersion_points"),
    "analysis.table6": ("Conditions", "condition"),
    "diagnostics.checkpoints": ("diagnose_checkpoint",),
    "diagnostics.diagnosing": ("Diagnosis", "diagnose"),
    "diagnostics.masks": ("measure_mask_stability",),
    "diagnostics.runs": ("MeasuredRun", "RunsDiagnosis", "diagnose_runs", "measure_run", "tables"),
}
__getattr__, __dir__ = attach(__name__, {name: f"semfocus.{home}" for home, names in _HOMES.items() for name in names})
