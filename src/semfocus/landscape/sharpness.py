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
from semfocus.landscape.directions import normal_vector
from semfocus.landscape.losses import STEPS, Curvature, top_eigenpairs
from semfocus.landscape.trained_model import TrainedModel, find_run, open_trained_model
from semfocus.measurements import Sharpness, keep, read
from semfocus.store import RunDirectory
from semfocus.training.runtime import Runtime, numerics

CERTIFIED_ROWS = 200  # enough for the order of the bound; norms in float64 are slow


def measure_sharpness(
    run: str | Path | RunDirectory,
    rows: int | None = 1000,
    runtime: Runtime = Runtime(),
    *,
    seed: int = 0,
    lanczos_steps: int = STEPS,
    out: Path | str | None = None,
) -> Sharpness:
    """Measure the sharpness and store it with the run. A stored one with the same settings is read.

    `gradient_norm` is that of the mean training loss, `hessian_top` the largest eigenvalue of its Hessian by Lanczos,
    `residual` a bound on the error of that; `certified` bounds the gradient over `certified_rows` examples.
    """
    check_int("seed", seed, at_least=0)
    if rows is not None:
        check_int("rows", rows, at_least=1)
    directory, device = find_run(run, out), runtime.torch_device()
    steps = tuple(sorted(directory.intact_steps()))
    if not steps:
        raise UsageError(f"run {directory.id} has no checkpoint yet; train it first")
    model = open_trained_model(directory, steps=steps, device=device)
    model = model if rows is None else model.first(rows)
    asked = {"steps": list(steps), "rows": model.rows.count, "seed": seed, "lanczos_steps": lanczos_steps}
    shown = _sound(directory)
    if shown is not None and shown.settings == asked:
        return shown
    known = _sound(directory, asked)
    if known is not None:
        return keep(directory, known)
    with numerics("fp32", runtime.threads or runtime.num_threads()):
        payload = asked | {"epochs": model.epochs} | _measured(model, seed, lanczos_steps) | _certified(model)
    return keep(directory, Sharpness.from_payload(payload, math.inf))


def _sound(run: RunDirectory, settings: dict[str, Any] | None = None) -> Sharpness | None:
    """The stored sharpness; None if there is none, or it is damaged."""
    try:
        return read(run, Sharpness, settings, largest=math.inf)
    except CorruptData:
        return None


def _measured(model: TrainedModel, seed: int, lanczos_steps: int) -> dict[str, Any]:
    curvature, spec, parameters = Curvature(model.spec, model.rows), model.spec, model.parameters
    gradient = curvature.gradient(parameters)
    top = top_eigenpairs(
        lambda vectors: curvature.product(parameters, vectors),
        lambda i: normal_vector(spec, seed, f"landscape/lanczos/{i}").to(parameters.device).expand(len(parameters), -1),
        steps=lanczos_steps,
        rank=spec.layout.num_parameters,
    )
    return {
        "gradient_norm": _plain(gradient.double().norm(dim=1).tolist()),
        "hessian_top": _plain(top.values[:, 0].tolist()),
        "residual": _plain(top.residuals[:, 0].tolist()),
    }


def _certified(model: TrainedModel) -> dict[str, Any]:
    few = model.first(CERTIFIED_ROWS)
    try:
        bounds = [certify_model(few.spec, vector, few.rows).parameters for vector in few.parameters]
    except UsageError as error:
        return {"certified": None, "certified_why_not": str(error)}
    return {"certified": _plain(bounds), "certified_rows": few.rows.count}


def _plain(values: list[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]
