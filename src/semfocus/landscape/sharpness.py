"""Gradient and curvature of the loss along training, at every kept checkpoint of a run.

    measure_sharpness(run).hessian_top      one number for each kept checkpoint

All checkpoints of a run are members of one parameter matrix and are measured together. The gradient comes with the
bound that docs/theory.md certifies for it, where the theory covers the model.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from semfocus.errors import CorruptData, UsageError, check_int
from semfocus.landscape.certificate import certify_model
from semfocus.landscape.directions import normal_row
from semfocus.landscape.losses import STEPS, Curvature, top_eigenpairs
from semfocus.landscape.trained_model import TrainedModel, find_run, open_trained_model
from semfocus.measurements import Sharpness, keep, read
from semfocus.store import RunDirectory
from semfocus.training.runtime import Runtime, numerics

CERTIFIED_ROWS = 200  # norms are measured in float64, row by row; this many show the order of the bound


def measure_sharpness(
    run: str | Path | RunDirectory,
    rows: int | None = 1000,
    runtime: Runtime = Runtime(),
    *,
    seed: int = 0,
    lanczos_steps: int = STEPS,
    out: Path | str | None = None,
) -> Sharpness:
    """Measure and store with the run. What was measured before with the same settings is read.

    `gradient_norm` is that of the mean training loss, `hessian_top` its largest eigenvalue by Lanczos, `residual` how
    far off that can be; `certified` bounds the gradient over `certified_rows` rows.
    """
    check_int("seed", seed, at_least=0)
    if rows is not None:
        check_int("rows", rows, at_least=1)
    found, device = find_run(run, out), runtime.torch_device()
    steps = tuple(sorted(found.checkpoint_steps()))
    if not steps:
        raise UsageError(f"run {found.id} has no checkpoint yet; train it first")
    subject = open_trained_model(found, steps=steps, device=device)
    subject = subject if rows is None else subject.first(rows)
    asked = {"steps": list(steps), "rows": subject.rows.count, "seed": seed, "lanczos_steps": lanczos_steps}
    shown = _sound(found)
    if shown is not None and shown.settings == asked:
        return shown
    known = _sound(found, asked)
    if known is not None:
        return keep(found, known)
    with numerics("fp32", runtime.threads or runtime.num_threads()):
        payload = asked | {"epochs": subject.epochs} | _measured(subject, seed, lanczos_steps) | _certified(subject)
    return keep(found, Sharpness.from_payload(payload, math.inf))


def _sound(run: RunDirectory, settings: dict[str, Any] | None = None) -> Sharpness | None:
    """What was measured before; None where it is damaged, so that it is measured again."""
    try:
        return read(run, Sharpness, settings, largest=math.inf)
    except CorruptData:
        return None


def _measured(subject: TrainedModel, seed: int, lanczos_steps: int) -> dict[str, Any]:
    curvature, spec, parameters = Curvature(subject.spec, subject.rows), subject.spec, subject.parameters
    gradient = curvature.gradient(parameters)
    top = top_eigenpairs(
        lambda vectors: curvature.product(parameters, vectors),
        lambda i: normal_row(spec, seed, f"landscape/lanczos/{i}").to(parameters.device).expand(len(parameters), -1),
        steps=lanczos_steps,
        rank=spec.layout.num_parameters,
    )
    return {
        "gradient_norm": _plain(gradient.double().norm(dim=1).tolist()),
        "hessian_top": _plain(top.values[:, 0].tolist()),
        "residual": _plain(top.residuals[:, 0].tolist()),
    }


def _certified(subject: TrainedModel) -> dict[str, Any]:
    few = subject.first(CERTIFIED_ROWS)
    try:
        bounds = [certify_model(few.spec, row, few.rows).parameters for row in few.parameters]
    except UsageError as error:
        return {"certified": None, "certified_why_not": str(error)}
    return {"certified": _plain(bounds), "certified_rows": few.rows.count}


def _plain(values: list[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]
