"""Gradients, Hessian-vector products and the largest eigenvalues of the Hessian, for many models at once.

    curvature = Curvature(spec, rows)
    curvature.gradient(parameters)                        (E, P)
    curvature.product(parameters, vectors)                (E, P)
    top_eigenpairs(lambda v: curvature.product(parameters, v), draw, count=2)

A product is exact, not a finite difference: the gradient of (gradient . vector), two backward passes
(`torch.func.grad` of `torch.func.grad`), through the dense attention that torch.func selects. As in training, which
keys top-k keeps is a constant for the derivative: the Hessian is that of the smooth piece around the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad

from semfocus.errors import check_int
from semfocus.model import forward
from semfocus.spec import Spec
from semfocus.training.data import Rows

POSITIONS = {"cpu": 2**13, "cuda": 2**18}  # at once, of all models: derivatives keep every block's activations
STEPS, TOLERANCE = 80, 1e-3
BREAKDOWN = 1e-7  # a remainder this much smaller than the eigenvalues is rounding


class Curvature:
    """The mean loss over examples (of one member) as a function of parameters (E, P), and its derivatives."""

    def __init__(self, spec: Spec, rows: Rows) -> None:
        self.spec, self.rows = spec, rows

    def gradient(self, parameters: Tensor) -> Tensor:
        """(E, P)."""
        total = torch.zeros_like(parameters)
        for first, size in self._chunks(len(parameters)):
            total += grad(self._loss)(parameters, first, size)
        return total

    def product(self, parameters: Tensor, vectors: Tensor) -> Tensor:
        """(E, P): each model's Hessian times its vector."""
        total = torch.zeros_like(parameters)
        for first, size in self._chunks(len(parameters)):
            total += grad(self._along)(parameters, vectors.to(parameters), first, size)
        return total

    def _along(self, parameters: Tensor, vectors: Tensor, first: int, size: int) -> Tensor:
        """The slope along each model's vector, summed over models."""
        return (grad(self._loss)(parameters, first, size) * vectors).sum()

    def _chunks(self, members: int) -> list[tuple[int, int]]:
        budget = POSITIONS.get(self.rows.targets.device.type, 2**13)
        size = max(1, budget // (members * self.spec.length))
        return [(first, min(size, self.rows.count - first)) for first in range(0, self.rows.count, size)]

    def _loss(self, parameters: Tensor, first: int, size: int) -> Tensor:
        """The share of some examples in the sum over models of their mean loss; gradients of models stay separate."""
        tokens, lengths, targets = self.rows.between(first, first + size).every().shared_by(len(parameters))
        logits = forward(self.spec.layout.split(parameters), tokens, lengths, self.spec)
        return self.rows.objective.loss(logits, targets).sum() / self.rows.count


@dataclass(frozen=True)
class Eigenpairs:
    """Of E matrices: the largest eigenvalues (E, count), descending, their vectors (E, count, P) and residuals.

    A residual |A v - value v| bounds how far an eigenvalue lies from the value given.
    """

    values: Tensor
    vectors: Tensor
    residuals: Tensor
    steps: int

    @property
    def converged(self) -> Tensor:
        """(E,) bool."""
        return (self.residuals <= TOLERANCE * self.values.abs().amax(dim=1, keepdim=True)).all(dim=1)


def top_eigenpairs(
    product: Callable[[Tensor], Tensor],
    draw: Callable[[int], Tensor],
    count: int = 1,
    steps: int = STEPS,
    rank: int | None = None,
) -> Eigenpairs:
    """Lanczos with full reorthogonalisation, in float64, on E symmetric matrices in lockstep.

    `product` multiplies vectors (E, P), `draw(i)` gives random ones: the first, and more for a matrix that has no more
    to tell while others go on. `rank`: the dimension, when `steps` may pass it. Ends when every residual is small
    against the largest eigenvalue.
    """
    steps = min(check_int("steps", steps, at_least=max(2, count)), rank or steps)
    first = draw(0).double()
    basis = (first / first.norm(dim=1, keepdim=True)).unsqueeze(1)
    diagonal: list[Tensor] = []
    beside: list[Tensor] = []
    while True:
        image = product(basis[:, -1]).double()
        diagonal.append((basis[:, -1] * image).sum(dim=1))
        rest, size = _remainder(image, basis)
        found = _ritz(diagonal, beside, basis, size, count)
        if len(diagonal) >= steps or (len(diagonal) >= count and bool(found.converged.all())):
            return found
        scale = torch.stack(diagonal).abs().amax(dim=0)
        ended = size <= BREAKDOWN * scale
        if bool(ended.any()):
            other, _ = _remainder(draw(len(diagonal)).double(), basis)
            rest, size = torch.where(ended[:, None], other, rest), torch.where(ended, 0.0, size)
        beside.append(size)
        basis = torch.cat([basis, rest.unsqueeze(1)], dim=1)


def _remainder(vectors: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """What is left of (E, P) beside the basis (E, m, P), scaled to length 1, and how long it was."""
    for _ in range(2):  # once leaves a part of the order of rounding times what was removed
        vectors = vectors - torch.einsum("em,emp->ep", torch.einsum("emp,ep->em", basis, vectors), basis)
    size = vectors.norm(dim=1)
    return vectors / size.clamp(min=torch.finfo(torch.float64).tiny)[:, None], size


def _ritz(diagonal: list[Tensor], beside: list[Tensor], basis: Tensor, size: Tensor, count: int) -> Eigenpairs:
    matrix = torch.diag_embed(torch.stack(diagonal, dim=1))
    if beside:
        off = torch.stack(beside, dim=1)
        matrix = matrix + torch.diag_embed(off, 1) + torch.diag_embed(off, -1)
    values, rotations = torch.linalg.eigh(matrix)
    values, rotations = values.flip(-1)[:, :count], rotations.flip(-1)[..., :count]
    vectors = torch.einsum("emc,emp->ecp", rotations, basis)
    return Eigenpairs(values, vectors, size[:, None] * rotations[:, -1].abs(), len(diagonal))
