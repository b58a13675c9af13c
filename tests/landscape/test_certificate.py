"""Gradients and finite changes of the loss of trained models stay within the certified constants."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from semfocus.errors import UsageError
from semfocus.landscape.certificate import (
    certify_model,
    constant_of,
    embedded,
    gradients,
    group_masks,
    looseness,
    mean_loss,
    trace,
)
from semfocus.landscape.trained_model import TrainedModel, open_trained_model
from semfocus.randomness import stream
from semfocus.store import RunDirectory
from tests.landscape.conftest import KINDS
from tests.training.helpers import begin, tiny

kinds = pytest.mark.parametrize(("norm", "mechanism"), KINDS)
Kind = Callable[[str, str], RunDirectory]


def _trained(run: RunDirectory, rows: int = 6) -> TrainedModel:
    return open_trained_model(run).first(rows)


def _noise(shape: tuple[int, ...], name: str) -> Tensor:
    return torch.special.ndtri(torch.from_numpy(stream(0, name).uniform(shape)).clamp(1e-12, 1 - 1e-12))


@kinds
def test_the_traced_model_is_the_model(norm: str, mechanism: str, run_of_kind: Kind) -> None:
    model = _trained(run_of_kind(norm, mechanism))
    matrix = model.parameters.double()
    expected = mean_loss(model.spec, matrix, model.rows)
    traced = trace(model.spec, model.parameters[0], model.rows)
    labels = model.rows.targets[0].long()
    assert torch.nn.functional.cross_entropy(traced.logits[0], labels).item() == pytest.approx(
        expected.item(), rel=1e-12
    )
    kept = traced.masks[0].sum(dim=-1)
    assert (kept == (3 if mechanism == "topk:3" else model.spec.length)).all()


@kinds
def test_no_gradient_of_a_trained_model_exceeds_its_certificate(norm: str, mechanism: str, run_of_kind: Kind) -> None:
    model = _trained(run_of_kind(norm, mechanism))
    shares = looseness(model.spec, model.parameters[0], model.rows)
    assert set(shares) == {"input", *group_masks(model.spec)}
    assert all(0 < share <= 1 for share in shares.values()), shares
    assert shares["head"] > 0.1  # the last layer's bound is nearly met: a certificate of nothing would not be
    everything = certify_model(model.spec, model.parameters[0], model.rows)
    assert gradients(model.spec, model.parameters[0], model.rows)[1].norm().item() <= everything.parameters


@kinds
@pytest.mark.parametrize("size", [1e-4, 0.1])
def test_finite_steps_from_a_trained_model_stay_within_the_certificate_of_both_ends(
    norm: str, mechanism: str, size: float, run_of_kind: Kind
) -> None:
    model = _trained(run_of_kind(norm, mechanism), rows=2)
    spec, rows, row = model.spec, model.rows, model.parameters[0].double()
    start = embedded(spec, row, rows)
    changed = 0
    here = trace(spec, row, rows, masks_may_change=True)
    before = mean_loss(spec, row.unsqueeze(0), rows)
    for group, mask in [("input", None), *group_masks(spec).items()]:
        if mask is None:
            step = size * _noise(tuple(start.shape), "input")
            other, x = row, start + step
            # One row's loss is certified, and the mean moves by the mean over rows of their distances at most.
            distance = step[0].flatten(1).norm(dim=1).mean().item()
        else:
            step = size * row.norm() / math.sqrt(len(row)) * _noise((len(row),), group) * mask
            other, x, distance = row + step, None, step.norm().item()
        there = trace(spec, other, rows, masks_may_change=True, x=x)
        both = here.covering(there)
        change = abs(mean_loss(spec, other.unsqueeze(0), rows, x) - before).item()
        bound = constant_of(both.certify(), group)
        assert change <= bound * distance * (1 + 1e-9) + 1e-12, group
        assert change > 0, group
        changed += not all(torch.equal(a, b) for a, b in zip(here.masks, there.masks, strict=True))
    if size > 1e-3:
        assert (changed > 0) == (mechanism == "topk:3"), "no step of the kind this test is about"


def test_a_step_that_changes_masks_needs_the_separation(run_of_kind: Kind) -> None:
    model = _trained(run_of_kind("pre", "topk:3"), rows=2)
    row = model.parameters[0].double()
    here = trace(model.spec, row, model.rows, masks_may_change=True)
    other = trace(model.spec, row * 1.5, model.rows, masks_may_change=True)
    both = here.covering(other)
    assert any(not torch.equal(a, b) for a, b in zip(here.masks, other.masks, strict=True))
    assert all(head.separation is not None for block in both.blocks for head in block.heads)
    same = here.covering(replace(other, masks=here.masks))
    assert all(head.separation is None for block in same.blocks for head in block.heads)
    assert both.certify().input > same.certify().input


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_padded_rows_and_global_tokens_are_certified_too(pooling: str) -> None:
    config = tiny(1, "banded:3+1g", rows=(4, 2), model={"blocks": 2, "pooling": pooling})
    task = {"name": "listops", "options": {"min_length": 5, "max_length": 30, "max_depth": 3}}
    config = config.model_copy(update={"task": config.task.model_copy(update=task)})
    cohort = begin([config])
    assert cohort.train.lengths is not None
    shares = looseness(cohort.spec, cohort.parameters[0], cohort.train)
    assert all(share <= 1 for share in shares.values()), shares
    assert shares["head"] > 0.1


def test_each_parameter_belongs_to_one_group() -> None:
    spec = begin([tiny(1, model={"blocks": 2, "heads": 2})]).spec
    count = torch.stack(list(group_masks(spec).values())).sum(dim=0)
    assert count.max() == 1
    assert count.sum().item() == spec.layout.num_parameters


def test_the_groups_of_attention_contain_the_parameters_of_their_name(run_of_kind: Kind) -> None:
    model = _trained(run_of_kind("pre", "full"), rows=2)
    masks, layout = group_masks(model.spec), model.spec.layout
    bias = layout.split(gradients(model.spec, model.parameters[0], model.rows)[1].unsqueeze(0))["blocks.0.qkv.bias"]
    keys = layout.split(masks["blocks.0.key"].unsqueeze(0))["blocks.0.qkv.bias"]
    assert bias[keys].abs().max() < 1e-12 < bias[~keys].abs().min()  # a bias of all keys moves no softmax
    # Without values there is nothing to choose between, so that queries do not matter; values still do.
    row = model.parameters[0].double() * ~masks["blocks.1.value"]
    gradient = gradients(model.spec, row, model.rows)[1]
    assert not gradient[masks["blocks.1.query"]].any()
    assert gradient[masks["blocks.1.value"]].any()


@pytest.mark.parametrize(
    ("mechanism", "changes", "words"),
    [
        ("bottomk:3", {}, "no certificate is known for bottomk:3"),
        ("topk:3+1s", {}, "no certificate is known for topk:3"),
        ("full", {"attention": {"normaliser": "sigmoid"}}, "normaliser = sigmoid"),
        ("full", {"model": {"dropout_in_evaluation": True}}, "dropout_in_evaluation"),
    ],
)
def test_models_without_a_certificate_are_refused(mechanism: str, changes: dict, words: str) -> None:
    cohort = begin([tiny(1, mechanism, **changes)])
    with pytest.raises(UsageError, match=words.replace("+", "\\+")):
        certify_model(cohort.spec, cohort.parameters[0], cohort.train)
