"""Gradients, Hessian-vector products and Lanczos, against a dense Hessian of the same tiny model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from semfocus.landscape.directions import normal_row
from semfocus.landscape.hessian import Curvature, top_eigenpairs
from semfocus.model import forward
from semfocus.training.cohort import Cohort
from tests.training.helpers import begin, tiny

SMALL = {"blocks": 1, "d_model": 4, "d_mlp": 3}


def _cohort(mechanism: str, activation: str = "gelu") -> Cohort:
    model = SMALL | {"activation": activation}
    return begin([tiny(seed, mechanism, rows=(13, 2), model=model) for seed in (1, 2)])


def _loss(cohort: Cohort, row: Tensor) -> Tensor:
    """Written out plainly: the mean loss of the first member's rows."""
    rows = cohort.train
    lengths = None if rows.lengths is None else rows.lengths[:1]
    logits = forward(cohort.spec.layout.split(row.unsqueeze(0)), rows.tokens[:1].long(), lengths, cohort.spec)
    return functional.cross_entropy(logits[0], rows.targets[0].long())


def _curvature(cohort: Cohort) -> Curvature:
    return Curvature(cohort.spec, cohort.train.only([0]))


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the 13 rows come in two pieces, the last of them short."""
    monkeypatch.setattr("semfocus.landscape.hessian.POSITIONS", {"cpu": 2 * 8 * 10})


def _draws(cohort: Cohort, members: int):
    return lambda i: normal_row(cohort.spec, 0, f"test/{i}").expand(members, -1)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("mechanism", ["full", "topk:3"])
def test_top_eigenpairs_are_those_of_the_dense_hessian_for_every_member(mechanism: str) -> None:
    cohort = _cohort(mechanism)
    parameters = cohort.parameters.double()
    curvature = _curvature(cohort)
    found = top_eigenpairs(
        lambda v: curvature.product(parameters, v),
        _draws(cohort, 2),
        count=2,
        steps=100,
        rank=cohort.spec.layout.num_parameters,
    )
    assert found.converged.all()
    assert found.steps < 100
    for member in range(2):
        dense = torch.func.jacrev(torch.func.grad(lambda row: _loss(cohort, row)))(parameters[member])
        assert (dense - dense.T).abs().max() < 1e-12
        exact, vectors = torch.linalg.eigh(dense)
        for i in range(2):
            value, vector = found.values[member, i].item(), found.vectors[member, i]
            # A symmetric matrix has an eigenvalue within the residual of each value.
            residual = (dense @ vector - value * vector).norm().item()
            assert residual == pytest.approx(found.residuals[member, i].item(), abs=1e-9)
            assert value == pytest.approx(exact[-1 - i].item(), rel=1e-5)
            assert abs(vector @ vectors[:, -1 - i]).item() == pytest.approx(1.0, abs=1e-3)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("activation", ["relu", "gelu", "mish"])
@pytest.mark.parametrize("mechanism", ["full", "topk:3", "banded:3+1g"])
def test_products_and_gradients_are_those_of_the_plain_loss(mechanism: str, activation: str) -> None:
    cohort = _cohort(mechanism, activation)
    parameters, curvature = cohort.parameters.double(), _curvature(cohort)
    vectors = torch.cat([normal_row(cohort.spec, i, "test") for i in range(2)])
    gradient, product = curvature.gradient(parameters), curvature.product(parameters, vectors)
    for member in range(2):
        slope = torch.func.grad(lambda row: _loss(cohort, row))
        assert torch.allclose(gradient[member], slope(parameters[member]), atol=1e-12)
        # So small a step that no mask and no kink lies within it.
        step = 1e-7 * vectors[member]
        difference = (slope(parameters[member] + step) - slope(parameters[member] - step)) / 2e-7
        assert (difference - product[member]).norm() < 1e-5 * product[member].norm()


def test_long_rows_on_a_cpu_have_second_derivatives_too() -> None:
    """There attention would be computed from lists of keys, which can be differentiated only once."""
    config = tiny(1, "topk:3", rows=(3, 2), model=SMALL)
    config = config.model_copy(update={"task": config.task.model_copy(update={"options": {"length": 300}})})
    cohort = begin([config])
    product = Curvature(cohort.spec, cohort.train).product(cohort.parameters, torch.ones_like(cohort.parameters))
    assert product.isfinite().all()
    assert product.any()


def _lanczos(matrices: Tensor, count: int = 1, **options):
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(64, *matrices.shape[:2], generator=generator, dtype=torch.float64)
    return top_eigenpairs(lambda v: torch.einsum("eij,ej->ei", matrices, v), lambda i: draws[i], count, **options)


def test_lanczos_takes_the_largest_not_the_largest_in_size() -> None:
    matrix = torch.diag(torch.tensor([-9.0, 1.0, 2.0, 0.5], dtype=torch.float64))
    assert _lanczos(matrix[None], count=2, rank=4).values[0].tolist() == pytest.approx([2.0, 1.0])


def test_a_matrix_that_is_used_up_early_waits_for_the_others_unchanged() -> None:
    generator = torch.Generator().manual_seed(1)
    random = torch.randn(30, 30, generator=generator, dtype=torch.float64)
    hard, flat = random + random.T, torch.zeros(30, 30, dtype=torch.float64)
    one = 5 * torch.outer(random[0], random[0]) / random[0].norm() ** 2
    negative = -torch.eye(30, dtype=torch.float64)  # one product tells all; a vector of zeros would add a 0
    found = _lanczos(torch.stack([hard, flat, one, negative]), rank=30)
    exact = torch.linalg.eigvalsh(hard)[-1].item()
    assert found.values[:, 0].tolist() == pytest.approx([exact, 0.0, 5.0, -1.0], rel=1e-4, abs=1e-12)
    assert found.converged.all()
    assert found.vectors[2, 0] @ one @ found.vectors[2, 0] == pytest.approx(5.0)


def test_too_few_steps_are_told_by_the_residual() -> None:
    spectrum = torch.linspace(0, 1, 200, dtype=torch.float64)
    found = _lanczos(torch.diag(spectrum)[None], steps=4)
    assert found.steps == 4
    assert not found.converged.any()
    assert abs(found.values[0, 0].item() - 1) <= found.residuals[0, 0].item() + 0.01
