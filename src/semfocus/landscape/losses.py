"""The mean loss of many models at once, its gradients, and the largest eigenvalues of its Hessian.

    losses = Losses(spec, rows, plan(spec, rows.count, device))
    losses.matrix.copy_(parameters)
    losses()                                              (M,)
    curvature = Curvature(spec, rows)
    curvature.gradient(parameters)                        (E, P)
    curvature.product(parameters, vectors)                (E, P)
    top_eigenpairs(lambda v: curvature.product(parameters, v), draw, count=2)

Models are the members of one parameter matrix. Examples are shared by all members, taken a chunk at a time and
expanded over the members, not copied. Dropout is off. On a GPU a chunk of `Losses` is one captured graph, and nothing
waits for the device.

A Hessian-vector product is exact: the gradient of (gradient . vector), by two backward passes (`torch.func.grad` of
`torch.func.grad`) through dense attention, which torch.func needs. As in training, the keys that top-k keeps are
constants for the derivative: the Hessian is that of the smooth piece around the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad

from semfocus.errors import check_int
from semfocus.model.forward import forward
from semfocus.model.forward_fns import EAGER, ForwardFns
from semfocus.spec import Spec
from semfocus.training.data import MappedRows, Rows
from semfocus.training.evaluation import capture_graph

# Of all members together: as many as fit into the cache of a CPU, or fill a GPU.
POSITIONS = {"cpu": 2**13, "cuda": 2**21}
MEMBERS = {"cpu": 8, "cuda": 64}
SHARE_OF_MEMORY = 0.5  # of the free memory of a GPU; the compiler and the allocator need the rest
POSITIONS_WITH_GRADIENTS = {
    "cpu": 2**13,
    "cuda": 2**18,
}  # at once, of all models; backward passes store the activations of every block
STEPS, TOLERANCE = 80, 1e-3
BREAKDOWN = 1e-7  # a remainder below this times the eigenvalues is rounding


@dataclass(frozen=True)
class Plan:
    """Sizes of a chunk: models, and examples of each."""

    members: int
    rows: int


def plan(spec: Spec, rows: int, device: torch.device, positions: int | None = None) -> Plan:
    """Chunks that fill the device and fit into its free memory, of equal size, so that little work is wasted."""
    members = MEMBERS.get(device.type, 8)
    budget = positions or POSITIONS.get(device.type, 2**14)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        budget = min(budget, int(free * SHARE_OF_MEMORY) // bytes_per_position(spec))
    most = max(1, min(rows, budget // (members * spec.length)))
    return Plan(members, -(-rows // -(-rows // most)))


def bytes_per_position(spec: Spec) -> int:
    """An upper estimate of the memory that a forward pass holds for one position."""
    model = spec.model
    return 4 * (12 * model.d_model + 4 * model.d_mlp + 4 * model.heads * (model.head_dim + 2 * spec.length))


class Losses:
    """The mean losses (M,), float64 on the device, of the models in `matrix` (M, P)."""

    def __init__(self, spec: Spec, rows: Rows | MappedRows, plan: Plan, parts: ForwardFns = EAGER) -> None:
        self.spec, self.plan, self.parts = spec, plan, parts
        device = rows.device
        self.rows, self.count = rows, rows.count
        self.only_member = torch.zeros(1, 1, dtype=torch.int64, device=device)
        self.matrix = torch.zeros(plan.members, spec.layout.size, device=device)
        self.total = torch.zeros(plan.members, dtype=torch.float64, device=device)
        self.first = torch.zeros((), dtype=torch.int64, device=device)
        self.graph: torch.cuda.CUDAGraph | None = None

    @torch.no_grad()
    def __call__(self) -> Tensor:
        if self.matrix.is_cuda and self.graph is None and not self.rows.on_host:
            self.graph = capture_graph(self._chunk, warm_up=2)
        self.total.zero_()
        self.first.zero_()
        for _ in range(-(-self.count // self.plan.rows)):
            if self.graph is None:
                self._chunk()
            else:
                self.graph.replay()
        return self.total / self.count

    def _chunk(self) -> None:
        index = self.first + torch.arange(self.plan.rows, device=self.first.device)
        examples = self.rows.take(self.only_member, index.clamp(max=self.count - 1).unsqueeze(0))
        tokens, lengths, targets = examples.shared_by(self.plan.members)
        logits = forward(self.spec.layout.split(self.matrix), tokens, lengths, self.spec, None, self.parts)
        losses = self.rows.objective.loss(logits, targets)  # (M, B)
        self.total += torch.where(index < self.count, losses.double(), 0.0).sum(dim=1)
        self.first += self.plan.rows


class Curvature:
    """The mean loss over examples (of one member) as a function of parameters (E, P), and its derivatives."""

    def __init__(self, spec: Spec, rows: Rows | MappedRows, positions: int | None = None) -> None:
        self.spec, self.rows = spec, rows
        self.positions = positions or POSITIONS_WITH_GRADIENTS.get(rows.device.type, 2**13)

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
        """The directional derivative along each model's vector, summed over models."""
        return (grad(self._loss)(parameters, first, size) * vectors).sum()

    def _chunks(self, members: int) -> list[tuple[int, int]]:
        size = max(1, self.positions // (members * self.spec.length))
        return [(first, min(size, self.rows.count - first)) for first in range(0, self.rows.count, size)]

    def _loss(self, parameters: Tensor, first: int, size: int) -> Tensor:
        """The part of some examples in the mean loss, summed over models: the gradient of each model stays its own."""
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

    `product` multiplies vectors (E, P). `draw(i)` gives random ones: the start, and a new one for each matrix whose
    Krylov space is exhausted while others continue. `rank` is the dimension, if `steps` may exceed it. The iteration
    ends when every residual is small relative to the largest eigenvalue.
    """
    steps = min(check_int("steps", steps, at_least=max(2, count)), rank or steps)
    first = draw(0).double()
    basis = (first / first.norm(dim=1, keepdim=True)).unsqueeze(1)
    diagonal: list[Tensor] = []
    off_diagonal: list[Tensor] = []
    while True:
        image = product(basis[:, -1]).double()
        diagonal.append((basis[:, -1] * image).sum(dim=1))
        rest, size = _remainder(image, basis)
        pairs = _ritz(diagonal, off_diagonal, basis, size, count)
        if len(diagonal) >= steps or (len(diagonal) >= count and bool(pairs.converged.all())):
            return pairs
        scale = torch.stack(diagonal).abs().amax(dim=0)
        exhausted = size <= BREAKDOWN * scale
        if bool(exhausted.any()):
            other, _ = _remainder(draw(len(diagonal)).double(), basis)
            rest, size = torch.where(exhausted[:, None], other, rest), torch.where(exhausted, 0.0, size)
        off_diagonal.append(size)
        basis = torch.cat([basis, rest.unsqueeze(1)], dim=1)


def _remainder(vectors: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """The part of vectors (E, P) orthogonal to the basis (E, m, P), as unit vectors, and its length (E,)."""
    for _ in range(2):  # after one pass the error is rounding times the removed part
        vectors = vectors - torch.einsum("em,emp->ep", torch.einsum("emp,ep->em", basis, vectors), basis)
    size = vectors.norm(dim=1)
    return vectors / size.clamp(min=torch.finfo(torch.float64).tiny)[:, None], size


def _ritz(diagonal: list[Tensor], off_diagonal: list[Tensor], basis: Tensor, size: Tensor, count: int) -> Eigenpairs:
    matrix = torch.diag_embed(torch.stack(diagonal, dim=1))
    if off_diagonal:
        off = torch.stack(off_diagonal, dim=1)
        matrix = matrix + torch.diag_embed(off, 1) + torch.diag_embed(off, -1)
    values, rotations = torch.linalg.eigh(matrix)
    values, rotations = values.flip(-1)[:, :count], rotations.flip(-1)[..., :count]
    vectors = torch.einsum("emc,emp->ecp", rotations, basis)
    return Eigenpairs(values, vectors, size[:, None] * rotations[:, -1].abs(), len(diagonal))
