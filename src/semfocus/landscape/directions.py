"""Two directions in parameter space that span a plane through a trained model.

    random     normal draws, each parameter tensor scaled to the norm of that tensor in the model
    path       the two principal directions of training, from the kept checkpoints
    hessian    the eigenvectors of the two largest eigenvalues of the loss's Hessian

Every direction is as long as the parameter vector of the model (random ones by their own rule, the others are scaled):
a step of 1 goes as far as the parameters are from zero, in every plane.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from semfocus.errors import UsageError
from semfocus.landscape.losses import Curvature, top_eigenpairs
from semfocus.landscape.trained_model import TrainedModel, find_run, open_trained_model
from semfocus.randomness import stream
from semfocus.spec import Spec
from semfocus.store import RunDirectory

WHOLE = 1.0  # extent: as far as the parameters are from zero
PAST_THE_PATH = 1.1  # times its reach: the first checkpoint then lies inside the grid, not on its border
FLAT = 1e-6  # a principal direction that holds less than this share of the path is rounding


@dataclass(frozen=True)
class Plane:
    """Two directions (2, P) in float32."""

    directions: Tensor
    values: tuple[float, ...] = ()  # of "path": their shares of it; of "hessian": their eigenvalues
    path: Tensor | None = None  # (n, 2) where checkpoints lie in the plane, oldest first

    @property
    def lengths(self) -> tuple[float, float]:
        first, second = self.directions.double().contiguous().norm(dim=1).tolist()
        return first, second

    @property
    def reach(self) -> float:
        """The largest coordinate of the path; 0 where there is none."""
        return 0.0 if self.path is None else float(self.path.abs().max())


def make_plane(directions: str, model: TrainedModel, seed: int, checkpoints: Tensor | None = None) -> Plane:
    """The plane through the first parameters of `model`; "path" takes `checkpoints` (n, P), oldest first."""
    spec, vector = model.spec, model.parameters[0]
    if directions == "random":
        return random_plane(spec, vector, seed)
    if checkpoints is not None:
        return path_plane(vector, checkpoints)
    curvature = Curvature(spec, model.rows)
    top = top_eigenpairs(
        lambda vectors: curvature.product(model.parameters, vectors),
        lambda i: normal_vector(spec, seed, f"landscape/lanczos/{i}").to(vector.device),
        count=2,
        rank=spec.layout.num_parameters,
    )
    return hessian_plane(vector, top.vectors[0], tuple(top.values[0].tolist()))


def default_extent(run: str | RunDirectory, directions: str) -> float:
    """The extent where none is set: 1; along the path a little more than its reach, rounded up to two digits."""
    if directions != "path":
        return WHOLE
    run = find_run(run)
    steps = tuple(sorted(run.checkpoint_steps()))
    plane = path_plane(open_trained_model(run).parameters[0], open_trained_model(run, steps=steps).parameters)
    reach = PAST_THE_PATH * plane.reach
    unit = 10.0 ** (math.floor(math.log10(reach)) - 1)
    return float(f"{math.ceil(reach / unit) * unit:.2g}")


def random_plane(spec: Spec, vector: Tensor, seed: int) -> Plane:
    """Streams are named by parameter: one seed gives the same draws to all parameters of the same name and shape."""
    drawn = torch.cat([normal_vector(spec, seed, f"landscape/direction/{i}") for i in range(2)])
    for direction, own in zip(_tensors(spec, drawn), _tensors(spec, vector.double().cpu().unsqueeze(0)), strict=True):
        size = direction.flatten(1).norm(dim=1).clamp(min=torch.finfo(torch.float64).tiny)
        direction *= (own.norm() / size).view(-1, *[1] * (direction.ndim - 1))
    return Plane(_nonzero(drawn, "random").float().to(vector.device))


def path_plane(vector: Tensor, checkpoints: Tensor) -> Plane:
    """From checkpoints (n, P), oldest first; the plane goes through the last, which is `vector`."""
    away = checkpoints.double().cpu() - vector.double().cpu()
    moved = away[away.norm(dim=1) > 0]
    if len(moved) < 2:
        raise UsageError(
            f"the path has {len(moved) + 1} different checkpoints; its two principal directions need three: "
            "keep some along training (keep_epochs=(0, 1, 2, 5, 10))"
        )
    _, sizes, axes = torch.linalg.svd(moved, full_matrices=False)
    if sizes[1] < FLAT * sizes[0]:
        raise UsageError("the checkpoints lie on one line, so that the path's second direction has zero norm")
    scaled = axes[:2] * vector.double().norm().cpu()
    _nonzero(scaled, "path")
    share = (sizes**2 / (sizes**2).sum())[:2].tolist()
    places = away @ scaled.T / scaled.norm(dim=1) ** 2
    return Plane(scaled.float().to(vector.device), tuple(share), places)


def hessian_plane(vector: Tensor, vectors: Tensor, values: tuple[float, ...]) -> Plane:
    """From eigenvectors (2, P) of length 1 and their eigenvalues."""
    scaled = _nonzero(vectors.double() * vector.double().norm().to(vectors.device), "hessian")
    return Plane(scaled.float().to(vector.device), values)


def normal_vector(spec: Spec, seed: int, name: str) -> Tensor:
    """(1, P) standard normal draws in float64, zero in the columns between parameters."""
    parts = []
    for parameter, shape in spec.layout.shapes.items():
        uniform = torch.from_numpy(stream(seed, f"{name}/{parameter}").uniform((1, *shape)))
        parts.append(torch.special.ndtri(uniform.clamp(2.0**-54, 1 - 2.0**-53)))
    return spec.layout.join(parts)


def _tensors(spec: Spec, matrix: Tensor) -> Iterator[Tensor]:
    """Views of each parameter tensor; the joint projection of queries, keys and values counts as three."""
    for name, tensor in spec.layout.split(matrix).items():
        yield from tensor.chunk(3, dim=-1) if ".qkv." in name else (tensor,)


def _nonzero(directions: Tensor, kind: str) -> Tensor:
    for i, length in enumerate(directions.norm(dim=1).tolist()):
        if not 0 < length < float("inf"):
            raise UsageError(
                f"direction {i + 1} ({kind}) has norm {length:g}: no plane goes through it; the model's parameters "
                "must be finite and not all zero"
            )
    return directions
