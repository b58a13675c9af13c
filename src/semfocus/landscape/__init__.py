"""HOW STEEP it is: the loss around a trained model, and its gradient and curvature along training.

    surface = measure_surface(run, SurfaceSettings(grid=51, rows=1000))
    surface.losses                               (51, 51), stored with the run; an interrupted call is resumed
    measure_sharpness(run).hessian_top           one number for each kept checkpoint

`trained_model` opens a model with its training examples, `losses` has the loss, gradient and Hessian of many models at
once, `directions` spans planes, `surface` evaluates a grid, `certificate` measures what the theory's bounds need and
compares them with gradients, `sharpness` measures every kept checkpoint, `runs` labels runs that are drawn together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from semfocus.lazy import attach

if TYPE_CHECKING:
    from semfocus.landscape.certificate import certify_model
    from semfocus.landscape.directions import default_extent
    from semfocus.landscape.losses import top_eigenpairs
    from semfocus.landscape.sharpness import measure_sharpness
    from semfocus.landscape.surface import SurfaceSettings, measure_surface
    from semfocus.landscape.trained_model import TrainedModel, open_trained_model
    from semfocus.measurements import Surface, read_surface, slopes

__all__ = [
    "Surface",
    "SurfaceSettings",
    "TrainedModel",
    "certify_model",
    "default_extent",
    "measure_sharpness",
    "measure_surface",
    "open_trained_model",
    "read_surface",
    "slopes",
    "top_eigenpairs",
]

_HOMES = {
    "landscape.certificate": ("certify_model",),
    "landscape.directions": ("default_extent",),
    "landscape.losses": ("top_eigenpairs",),
    "landscape.sharpness": ("measure_sharpness",),
    "landscape.trained_model": ("TrainedModel", "open_trained_model"),
    "measurements": ("Surface", "read_surface", "slopes"),
    "landscape.surface": ("SurfaceSettings", "measure_surface"),
}
__getattr__, __dir__ = attach(__name__, {name: f"semfocus.{home}" for home, names in _HOMES.items() for name in names})
