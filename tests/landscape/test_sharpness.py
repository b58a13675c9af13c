"""Gradient and curvature at every kept checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from semfocus.errors import Diverged, UsageError
from semfocus.landscape import measure_sharpness, open_trained_model
from semfocus.landscape.certificate import mean_loss
from semfocus.measurements import Sharpness, keep, read
from semfocus.store import RunDirectory, RunStore
from semfocus.training.loading import document
from tests.training.helpers import RUNTIME, tiny, trained

Kind = Callable[[str, str], RunDirectory]


@pytest.mark.parametrize("mechanism", ["full", "topk:3"])
def test_each_checkpoint_has_its_own_gradient_and_top_eigenvalue(mechanism: str, run_of_kind: Kind) -> None:
    run = run_of_kind("pre", mechanism)
    sharpness = measure_sharpness(run, 20, RUNTIME)
    assert sharpness.epochs == [0.0, 1.0, 2.0, 4.0, 6.0]
    assert sharpness.rows == 20
    assert read(run, Sharpness) == sharpness
    assert len({round(value, 6) for value in sharpness.gradient_norm}) == 5
    for place in (0, 4):
        model = open_trained_model(run, steps=(sharpness.document["steps"][place],)).first(20)
        row = model.parameters.double().requires_grad_()
        gradient = torch.autograd.grad(mean_loss(model.spec, row, model.rows), row)[0]
        assert sharpness.gradient_norm[place] == pytest.approx(gradient.norm().item(), rel=1e-4)
        assert sharpness.document["residual"][place] <= 2e-3 * sharpness.hessian_top[place]
        assert sharpness.gradient_norm[place] <= sharpness.certified[place]


def test_a_stored_sharpness_is_read_and_other_rows_are_measured(own_run: RunDirectory) -> None:
    few, every = (_marked(own_run, measure_sharpness(own_run, rows, RUNTIME)) for rows in (10, None))
    assert (few.rows, every.rows) == (10, 43)
    assert measure_sharpness(own_run, 10, RUNTIME) == few
    assert read(own_run, Sharpness) == few  # the last one asked for is shown
    assert measure_sharpness(own_run, None, RUNTIME) == every


def _marked(run: RunDirectory, sharpness: Sharpness) -> Sharpness:
    """Store it with an entry that a new measurement would not have."""
    return keep(run, Sharpness.from_payload(sharpness.document | {"mark": "stored"}))


def test_a_model_without_a_certificate_is_measured_without_a_bound(tmp_path: Path) -> None:
    (run,) = trained([tiny(1, "bottomk:3", epochs=1)], tmp_path)
    sharpness = measure_sharpness(run, 10, RUNTIME)
    assert sharpness.certified is None
    assert "bottomk:3" in sharpness.document["certified_why_not"]
    assert all(value > 0 for value in sharpness.gradient_norm)


def test_runs_without_a_model_are_refused(tmp_path: Path) -> None:
    config = tiny(1)
    task = config.task.build()
    empty = RunStore(tmp_path).create_or_open(config.run_id(task), document(config, task))
    with pytest.raises(UsageError, match="no checkpoint yet"):
        measure_sharpness(empty, 10, RUNTIME)
    (lost,) = trained([tiny(2, lr=1e38, clip=None)], tmp_path)
    with pytest.raises(Diverged):
        measure_sharpness(lost, 10, RUNTIME)
    with pytest.raises(UsageError, match="rows = 0"):
        measure_sharpness(empty, 0, RUNTIME)
