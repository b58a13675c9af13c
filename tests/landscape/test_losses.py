"""Losses, gradients, Hessian-vector products and eigenvalues of many models at once equal those of each model alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from semfocus.config import TaskConfig
from semfocus.landscape.directions import normal_vector
from semfocus.landscape.losses import Curvature, Losses, Plan, plan, top_eigenpairs
from semfocus.model.encoder import Encoder
from semfocus.model.forward import forward
from semfocus.spec import Spec, initial
from semfocus.training import data
from semfocus.training.cohort import Cohort
from semfocus.training.data import Rows
from tests.training.helpers import CPU, begin, tiny

SMALL = {"blocks": 1, "d_model": 4, "d_mlp": 3}


def _spec_and_rows(padded: bool, mechanism: str = "topk:3") -> tuple[Spec, Rows, data.Batch]:
    config = tiny(1, mechanism, rows=(23, 4))
    if padded:
        options = {"min_length": 5, "max_length": 30, "max_depth": 3}
        config = config.model_copy(
            update={"task": TaskConfig(name="listops", options=options, train_rows=23, heldout_rows=4)}
        )
    task = config.task.build()
    spec = Spec(config.model, config.attention, task.vocab_size, task.num_classes, task.seq_len)
    batch, _ = data.load(config, task)
    return spec, data.stack([batch], spec, CPU), batch


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("mechanism", ["full", "topk:3", "banded:3+1g"])
def test_the_loss_of_each_of_many_models_equals_its_loss_alone(padded: bool, mechanism: str) -> None:
    spec, rows, batch = _spec_and_rows(padded, mechanism)
    assert (rows.lengths is not None) == padded
    parameters = torch.stack([initial(spec, seed) for seed in range(3)])
    losses = Losses(spec, rows, Plan(members=3, rows=5))  # the last of five chunks is short
    losses.matrix.copy_(parameters)
    values = losses()
    for i in range(3):
        logits = Encoder(spec, parameters[i])(batch.tokens, batch.lengths)
        assert values[i].item() == pytest.approx(functional.cross_entropy(logits, batch.labels).item(), rel=1e-5)
    assert torch.equal(losses(), values)


def test_examples_are_shared_by_the_members_and_not_copied() -> None:
    _, rows, _ = _spec_and_rows(True)
    for part in rows.every().shared_by(4):
        assert part is not None
        assert part.shape[0] == 4
        assert part.stride(0) == 0


@pytest.mark.parametrize("count", [1, 7, 23, 5000])
def test_a_plan_covers_all_rows_in_chunks_of_nearly_equal_size(count: int) -> None:
    spec, _, _ = _spec_and_rows(False)
    planned = plan(spec, count, CPU, positions=2048)
    chunks = -(-count // planned.rows)
    assert planned.rows * chunks >= count
    assert planned.rows * chunks - count < chunks
    assert planned.rows * planned.members * spec.length <= max(2048, planned.members * spec.length)


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
    """Over the rows of the first member: 13, in two chunks for two models, the last of them short."""
    return Curvature(cohort.spec, cohort.train.only([0]), positions=2 * 8 * 10)


def _draws(cohort: Cohort, members: int):
    return lambda i: normal_vector(cohort.spec, 0, f"test/{i}").expand(members, -1)


@pytest.mark.parametrize("mechanism", ["full", "topk:3"])
def test_top_eigenpairs_are_those_of_the_dense_hessian_for_every_member(mechanism: str) -> None:
    cohort = _cohort(mechanism)
    parameters = cohort.parameters.double()
    curvature = _curvature(cohort)
    top = top_eigenpairs(
        lambda v: curvature.product(parameters, v),
        _draws(cohort, 2),
        count=2,
        steps=100,
        rank=cohort.spec.layout.num_parameters,
    )
    assert top.converged.all()
    assert top.steps < 100
    for member in range(2):
        dense = torch.func.jacrev(torch.func.grad(lambda row: _loss(cohort, row)))(parameters[member])
        assert (dense - dense.T).abs().max() < 1e-12
        exact, vectors = torch.linalg.eigh(dense)
        for i in range(2):
            value, vector = top.values[member, i].item(), top.vectors[member, i]
            # A symmetric matrix has an eigenvalue within the residual of each value.
            residual = (dense @ vector - value * vector).norm().item()
            assert residual == pytest.approx(top.residuals[member, i].item(), abs=1e-9)
            assert value == pytest.approx(exact[-1 - i].item(), rel=1e-5)
            assert abs(vector @ vectors[:, -1 - i]).item() == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("activation", ["relu", "gelu", "mish"])
@pytest.mark.parametrize("mechanism", ["full", "topk:3", "banded:3+1g"])
def test_products_and_gradients_are_those_of_the_plain_loss(mechanism: str, activation: str) -> None:
    cohort = _cohort(mechanism, activation)
    parameters, curvature = cohort.parameters.double(), _curvature(cohort)
    vectors = torch.cat([normal_vector(cohort.spec, i, "test") for i in range(2)])
    gradient, product = curvature.gradient(parameters), curvature.product(parameters, vectors)
    for member in range(2):
        slope = torch.func.grad(lambda row: _loss(cohort, row))
        assert torch.allclose(gradient[member], slope(parameters[member]), atol=1e-12)
        # So small a step that no mask and no kink lies within it.
        step = 1e-7 * vectors[member]
        difference = (slope(parameters[member] + step) - slope(parameters[member] - step)) / 2e-7
        assert (difference - product[member]).norm() < 1e-5 * product[member].norm()


def test_long_sequences_on_a_cpu_have_second_derivatives() -> None:
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


def test_lanczos_gives_the_largest_eigenvalue_not_the_largest_magnitude() -> None:
    matrix = torch.diag(torch.tensor([-9.0, 1.0, 2.0, 0.5], dtype=torch.float64))
    assert _lanczos(matrix[None], count=2, rank=4).values[0].tolist() == pytest.approx([2.0, 1.0])


def test_a_matrix_with_an_exhausted_krylov_space_keeps_its_eigenvalue() -> None:
    generator = torch.Generator().manual_seed(1)
    random = torch.randn(30, 30, generator=generator, dtype=torch.float64)
    hard, flat = random + random.T, torch.zeros(30, 30, dtype=torch.float64)
    one = 5 * torch.outer(random[0], random[0]) / random[0].norm() ** 2
    negative = -torch.eye(30, dtype=torch.float64)  # one product tells all; a vector of zeros would add a 0
    top = _lanczos(torch.stack([hard, flat, one, negative]), rank=30)
    exact = torch.linalg.eigvalsh(hard)[-1].item()
    assert top.values[:, 0].tolist() == pytest.approx([exact, 0.0, 5.0, -1.0], rel=1e-4, abs=1e-12)
    assert top.converged.all()
    assert top.vectors[2, 0] @ one @ top.vectors[2, 0] == pytest.approx(5.0)


def test_too_few_steps_show_in_the_residual() -> None:
    spectrum = torch.linspace(0, 1, 200, dtype=torch.float64)
    top = _lanczos(torch.diag(spectrum)[None], steps=4)
    assert top.steps == 4
    assert not top.converged.any()
    assert abs(top.values[0, 0].item() - 1) <= top.residuals[0, 0].item() + 0.01
