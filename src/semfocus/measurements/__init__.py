"""WHAT was measured on trained runs: one typed model for each kind, and one store for all of them.

`fields` checks single values, `kinds` has a type for each kind, `surface` a surface with its losses and slopes, `store`
keeps measurements with their runs and reads them back.
"""

from collections.abc import Mapping

from semfocus.measurements.by_length import LengthCurve, Smoothness
from semfocus.measurements.by_step import Induction
from semfocus.measurements.fields import Malformed
from semfocus.measurements.kinds import (
    Dispersion,
    KeptKeys,
    MaskStability,
    Measurement,
    Sharpness,
    SurfaceMeta,
)
from semfocus.measurements.samples import Sample
from semfocus.measurements.store import keep, keep_surface, read, read_all, read_surface, surface_name
from semfocus.measurements.surface import SQUARES, Surface, grid_axis, slopes

Measurements = Mapping[str, Mapping[str, Measurement]]
"""Measurements of many runs, by run id and plain name."""

__all__ = [
    "SQUARES",
    "Dispersion",
    "Induction",
    "KeptKeys",
    "LengthCurve",
    "Malformed",
    "MaskStability",
    "Measurement",
    "Measurements",
    "Sample",
    "Sharpness",
    "Smoothness",
    "Surface",
    "SurfaceMeta",
    "grid_axis",
    "keep",
    "keep_surface",
    "read",
    "read_all",
    "read_surface",
    "slopes",
    "surface_name",
]
