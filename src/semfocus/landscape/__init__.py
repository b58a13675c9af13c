"""HOW STEEP it is: the loss around a trained model, and its gradient and curvature along training.

    found = measure_surface(run, SurfaceSettings(grid=51, rows=1000))
    found.losses                                 (51, 51), stored with the run; an interrupted one is taken up again
    measure_sharpness(run)["hessian_top"]        one number a kept checkpoint

`trained_model` is a model with its rows, `losses` evaluates many models at once, `directions` spans planes, `surface`
walks a grid, `slopes` reads it, `hessian` multiplies and diagonalises, `certificate` measures what the theory's
bounds need. `stored` reads surfaces back without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from semfocus.lazy import attach

if TYPE_CHECKING:
    from semfocus.landscape.certificate import certify_model
    from semfocus.landscape.hessian import top_eigenpairs
    from semfocus.landscape.sharpness import measure_sharpness
    from semfocus.landscape.slopes import slopes
    from semfocus.landscape.stored import Surface, read_surface
    from semfocus.landscape.surface import SurfaceSettings, default_extent, measure_surface
    from semfocus.landscape.trained_model import TrainedModel, open_subject

__all__ = [
    "Surface",
    "SurfaceSettings",
    "TrainedModel",
    "certify_model",
    "default_extent",
    "measure_sharpness",
    "measure_surface",
    "open_subject",
    "read_surface",
    "slopes",
    "top_eigenpairs",
]

_HOMES = {
    "certificate": ("certify_model",),
    "hessian": ("top_eigenpairs",),
    "sharpness": ("measure_sharpness",),
    "slopes": ("slopes",),
    "stored": ("Surface", "read_surface"),
    "trained_model": ("TrainedModel", "open_subject"),
    "surface": ("SurfaceSettings", "default_extent", "measure_surface"),
}
__getattr__, __dir__ = attach(
    __name__, {name: f"semfocus.landscape.{home}" for home, names in _HOMES.items() for name in names}
)
