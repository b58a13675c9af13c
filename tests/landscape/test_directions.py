"""Planes through a model."""

from __future__ import annotations

import pytest
import torch

from semfocus.errors import UsageError
from semfocus.landscape.directions import hessian_plane, normal_vector, path_plane, random_plane
from semfocus.spec import Spec, initial
from tests.training.helpers import begin, tiny


@pytest.fixture(scope="module")
def spec() -> Spec:
    return begin([tiny(1, "topk:3", model={"blocks": 2, "heads": 2})]).spec


def test_a_random_direction_has_the_norm_of_each_parameter_tensor_queries_keys_and_values_apart(spec: Spec) -> None:
    row = initial(spec, 3)
    plane = random_plane(spec, row, seed=5)
    own = spec.layout.split(row.unsqueeze(0))
    for direction in plane.directions:
        parts = spec.layout.split(direction.unsqueeze(0))
        for name, tensor in own.items():
            pairs = [(tensor, parts[name])]
            if ".qkv." in name:
                pairs = list(zip(tensor.chunk(3, dim=-1), parts[name].chunk(3, dim=-1), strict=True))
            for mine, other in pairs:
                assert other.norm().item() == pytest.approx(mine.norm().item(), rel=1e-5), name
    assert plane.lengths == pytest.approx([row.norm().item()] * 2, rel=1e-5)


def test_directions_follow_from_the_seed_alone_and_differ_from_each_other(spec: Spec) -> None:
    row = initial(spec, 3)
    first, again, other = (random_plane(spec, row, seed).directions for seed in (5, 5, 6))
    assert torch.equal(first, again)
    for a, b in ((first[0], first[1]), (first[0], other[0])):
        assert abs(torch.nn.functional.cosine_similarity(a, b, dim=0)) < 0.2


def test_columns_between_parameters_and_tensors_of_zeros_do_not_move(spec: Spec) -> None:
    row = initial(spec, 3)
    assert not spec.layout.split(row.unsqueeze(0))["readout.bias"].any()
    direction = random_plane(spec, row, seed=5).directions[:1]
    assert not spec.layout.split(direction)["readout.bias"].any()
    assert torch.equal(spec.layout.join(spec.layout.split(direction).values()), direction)


def test_draws_are_standard_normal(spec: Spec) -> None:
    drawn = torch.cat([part.flatten() for part in spec.layout.split(normal_vector(spec, 0, "test")).values()])
    assert abs(drawn.mean().item()) < 0.1
    assert abs(drawn.std().item() - 1) < 0.1


def test_a_direction_of_zero_norm_is_refused(spec: Spec) -> None:
    with pytest.raises(UsageError, match="direction 1 \\(random\\) has norm 0"):
        random_plane(spec, torch.zeros(spec.layout.size), seed=1)
    with pytest.raises(UsageError, match="direction 2 \\(hessian\\) has norm 0"):
        hessian_plane(torch.ones(3), torch.tensor([[1.0, 0, 0], [0, 0, 0]]), (1.0, 0.0))


def test_the_path_gives_its_principal_directions_and_where_its_checkpoints_lie() -> None:
    last = torch.tensor([3.0, 4.0, 0.0, 0.0])
    steps = torch.tensor([[-8.0, 0, 1, 0], [-4, 0, 2, 0], [-2, 0, 1, 0], [0, 0, 0, 0]])
    plane = path_plane(last, last + steps)
    for direction in plane.directions:
        assert direction.norm().item() == pytest.approx(5.0)
        assert direction[[1, 3]].abs().max().item() < 1e-6
    assert abs(plane.directions[0, 0]) > abs(plane.directions[1, 0])
    assert sum(plane.values) == pytest.approx(1.0)
    assert plane.path is not None
    back = last + plane.path.float() @ plane.directions
    assert torch.allclose(back, last + steps, atol=1e-5)


def test_a_path_that_spans_no_plane_is_refused() -> None:
    last = torch.tensor([1.0, 2.0, 3.0])
    with pytest.raises(UsageError, match="2 different checkpoints; its two principal directions need three"):
        path_plane(last, torch.stack([last + 1, last, last]))
    line = torch.stack([last + i * torch.tensor([1.0, 1.0, 0.0]) for i in (3, 2, 1, 0)])
    with pytest.raises(UsageError, match="lie on one line"):
        path_plane(last, line)
