"""The loss over a grid in a plane through a trained model, many grid points at once.

    surface = measure_surface(run, SurfaceSettings(grid=200, rows=None, precision="tf32"), Runtime(device="cuda"))

Finished points are stored with the run every few seconds. The same call resumes an interrupted one with the same
chunks, threads and directions, so the surface is identical to that of an uninterrupted call. Surfaces of other settings
are not touched.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from semfocus.errors import CorruptData, UsageError, check_int, unknown
from semfocus.landscape.directions import Plane, default_extent, make_plane
from semfocus.landscape.losses import Losses, Plan, plan
from semfocus.landscape.trained_model import TrainedModel, find_run, open_trained_model
from semfocus.measurements import Surface, SurfaceMeta, grid_axis, keep_surface, read_surface
from semfocus.measurements.kinds import DIRECTIONS, PERCENTILES
from semfocus.measurements.store import read_part, write_part
from semfocus.measurements.surface import SQUARES, slopes
from semfocus.model.forward_fns import EAGER
from semfocus.store import RunDirectory
from semfocus.training.runtime import Runtime, facts, numerics
from semfocus.training.signals import Interrupted, listening

SAVE_SECONDS = 5.0
AHEAD = 3  # batches queued on a GPU: enough to keep it busy, few enough for a correct progress bar
VALUES = {"path": "share_of_path", "hessian": "eigenvalues"}

Callback = Callable[[int, int], None]  # points done, points wanted


@dataclass(frozen=True, kw_only=True)
class SurfaceSettings:
    """The grid and the plane. The paper uses `grid` 200 and all `rows`; the defaults are for a laptop."""

    grid: int = 51
    extent: float | None = None  # None: 1, or a little more than the reach of the path of training
    directions: Literal["random", "path", "hessian"] = "random"
    seed: int = 0
    rows: int | None = 1000  # the first training examples; None: all
    precision: Literal["fp32", "tf32"] = "fp32"

    def __post_init__(self) -> None:
        check_int("grid", self.grid, at_least=5, at_most=2000)
        check_int("seed", self.seed, at_least=0)
        if self.rows is not None:
            check_int("rows", self.rows, at_least=1)
        if self.extent is not None and not (isinstance(self.extent, (int, float)) and 0 < self.extent < math.inf):
            raise UsageError(f"extent = {self.extent!r} must be a positive number")
        if self.directions not in DIRECTIONS:
            raise unknown("kind of directions", self.directions, DIRECTIONS)
        if self.precision not in ("fp32", "tf32"):
            raise unknown("precision", self.precision, ("fp32", "tf32"))


LAPTOP = SurfaceSettings()


@dataclass(frozen=True, eq=False)
class _Request:
    """A surface to measure."""

    run: RunDirectory
    model: TrainedModel
    settings: SurfaceSettings
    extent: float
    path: tuple[int, ...]  # training steps of the checkpoints that span the plane; empty for other directions
    key: bytes  # digest of everything that defines the surface


@dataclass
class _Walk:
    """An unfinished surface: the losses so far, in row-major order, and how they are computed."""

    key: bytes
    machine: bytes  # digest of the conditions under which a resumed walk is identical to the bit
    plan: Plan
    threads: int
    plane: Plane
    extent: float
    losses: np.ndarray  # (n * n,)
    done: int = 0

    @property
    def axis(self) -> np.ndarray:
        return grid_axis(math.isqrt(len(self.losses)), self.extent)

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays as they are stored."""
        side = len(self.axis)
        arrays = {
            "key": np.frombuffer(self.key, dtype=np.uint8),
            "machine": np.frombuffer(self.machine, dtype=np.uint8),
            "plan": np.array([self.plan.members, self.plan.rows, self.threads, self.done], dtype=np.int64),
            "losses": self.losses.reshape(side, side),
            "directions": self.plane.directions.cpu().numpy(),
        }
        if self.plane.values:
            arrays["values"] = np.array(self.plane.values, dtype=np.float64)
        if self.plane.path is not None:
            arrays["path"] = self.plane.path.numpy()
        return arrays


def measure_surface(
    run: str | RunDirectory,
    settings: SurfaceSettings = LAPTOP,
    runtime: Runtime = Runtime(),
    on_progress: Callback = lambda done, wanted: None,
    *,
    again: bool = False,
    positions_at_once: int | None = None,
    save_seconds: float = SAVE_SECONDS,
) -> Surface:
    """Measure a surface and store it with the run. A stored surface is read unless `again`.

    Finished points are stored every `save_seconds`. Ctrl-C stores them and raises Interrupted.
    """
    request = _request(find_run(run), settings, runtime.torch_device())
    stored = None if again else _finished(request)
    left = None if again else _unfinished(request)
    if stored is not None and left is None:
        return stored
    model, device = request.model, runtime.torch_device()
    rows = settings.grid**2 * model.rows.count // 3  # evaluation costs a third of training
    compiled = runtime.parts(model.spec, rows, device)
    machine = _digest(facts(device, 0, compiled is not EAGER))
    resumed = None if left is None else _resume(left, request, machine)
    if stored is not None and resumed is None:
        return stored
    threads = runtime.threads or (resumed.threads if resumed else runtime.num_threads())
    with numerics("fp32", threads):
        walk = resumed or _begin(request, machine, threads, positions_at_once)
    with numerics(settings.precision, threads), listening() as interruption:
        losses = Losses(model.spec, model.rows, walk.plan, compiled)
        finished = _walk(
            walk, losses, model.parameters[0], on_progress,
            lambda: write_part(request.run, settings.directions, request.key.hex(), walk.arrays()),
            lambda: bool(interruption.signal),
            save_seconds,
        )  # fmt: skip
    if not finished:
        raise Interrupted(interruption.signal)
    surface = _surface(walk, request)
    keep_surface(request.run, surface)
    return surface


@torch.no_grad()
def _walk(
    walk: _Walk,
    losses: Losses,
    centre: Tensor,
    on_progress: Callback,
    save: Callable[[], None],
    stop: Callable[[], bool],
    save_seconds: float,
) -> bool:
    """Evaluate the missing points and save them every `save_seconds`. Returns False if it was stopped."""
    members, total = walk.plan.members, len(walk.losses)
    points = _coordinates(walk.axis, members, centre.device)
    values = torch.full((len(points),), math.nan, dtype=torch.float64, device=centre.device)
    values[:total] = torch.from_numpy(walk.losses).to(centre.device)
    saved, waiting = time.monotonic(), deque[torch.cuda.Event]()
    first, second = walk.plane.directions
    for begin in range(walk.done, total, members):
        here = points[begin : begin + members]
        # No matrix product: TF32 would round it.
        losses.matrix.copy_(centre + here[:, :1] * first + here[:, 1:] * second)
        values[begin : begin + members] = losses()
        if centre.is_cuda:
            waiting.append(torch.cuda.Event())
            waiting[-1].record()
            if len(waiting) > AHEAD:
                waiting.popleft().synchronize()
        walk.done = min(begin + members, total)
        stopped = stop() and walk.done < total
        if stopped or walk.done == total or time.monotonic() - saved > save_seconds:
            walk.losses[:] = values[:total].cpu().numpy()
            save()
            saved = time.monotonic()
        on_progress(walk.done, total)
        if stopped:
            return False
    return True


def _coordinates(axis: np.ndarray, members: int, device: torch.device) -> Tensor:
    """(n * n + padding, 2): coordinates along both directions, row-major; the last point is repeated as padding."""
    up, across = np.meshgrid(axis, axis, indexing="ij")
    points = np.stack([across.ravel(), up.ravel()], axis=1).astype(np.float32)
    missing = -len(points) % members
    return torch.from_numpy(np.concatenate([points, np.repeat(points[-1:], missing, axis=0)])).to(device)


def _request(run: RunDirectory, settings: SurfaceSettings, device: torch.device) -> _Request:
    model = open_trained_model(run, device=device)
    model = model if settings.rows is None else model.first(settings.rows)
    extent = settings.extent or default_extent(run, settings.directions)
    path = tuple(sorted(run.checkpoint_steps())) if settings.directions == "path" else ()
    key = _digest({**asdict(settings), "extent": extent, "rows": model.rows.count, "steps": [*path, *model.steps]})
    return _Request(run, model, settings, extent, path, key)


def _begin(request: _Request, machine: bytes, threads: int, positions_at_once: int | None) -> _Walk:
    model, settings = request.model, request.settings
    chunks = plan(model.spec, model.rows.count, model.parameters.device, positions_at_once)
    path = open_trained_model(request.run, steps=request.path).parameters if request.path else None
    plane = make_plane(settings.directions, model, settings.seed, path)
    losses = np.full(settings.grid**2, math.nan)
    return _Walk(request.key, machine, chunks, threads, plane, request.extent, losses)


def _finished(request: _Request) -> Surface | None:
    """The stored surface of this key; None if there is none, or it is damaged."""
    key = request.key.hex()
    for name in (key, ""):  # earlier versions kept a single surface, under the plain name
        try:
            stored = read_surface(request.run, request.settings.directions, name)
        except CorruptData:
            continue
        if stored is not None and stored.meta.key == key:
            return stored
    return None


def _unfinished(request: _Request) -> dict[str, np.ndarray] | None:
    """The arrays of an interrupted call; None if there are none, or they are damaged."""
    try:
        return read_part(request.run, request.settings.directions, request.key.hex())
    except CorruptData:
        return None


def _resume(arrays: dict[str, np.ndarray], request: _Request, machine: bytes) -> _Walk | None:
    """The walk of an interrupted call; None if its key or its machine differs."""
    try:
        if bytes(arrays["key"]) != request.key or bytes(arrays["machine"]) != machine:
            return None
        members, rows, threads, done = arrays["plan"].tolist()
        plane = Plane(
            directions=torch.from_numpy(arrays["directions"]).to(request.model.parameters.device),
            values=tuple(arrays["values"].tolist()) if "values" in arrays else (),
            path=torch.from_numpy(arrays["path"]) if "path" in arrays else None,
        )
        losses, chunks = arrays["losses"].ravel().copy(), Plan(members, rows)
        return _Walk(request.key, machine, chunks, threads, plane, request.extent, losses, done)
    except (KeyError, ValueError):
        return None


def _surface(walk: _Walk, request: _Request) -> Surface:
    model, settings, arrays = request.model, request.settings, walk.arrays()
    losses = arrays["losses"]
    finite = losses[np.isfinite(losses)]
    document: dict[str, Any] = {
        "grid": settings.grid,
        "extent": float(walk.extent),
        "directions": settings.directions,
        "seed": settings.seed,
        "rows": model.rows.count,
        "precision": settings.precision,
        "epoch": model.epochs[0],
        "step": model.steps[0],
        "lengths": list(walk.plane.lengths),
        "lowest": float(finite.min()) if len(finite) else None,
        "highest": float(finite.max()) if len(finite) else None,
        "not_finite": int(losses.size - len(finite)),
        "squares": list(SQUARES),
        "percentiles": list(PERCENTILES),
        **slopes(losses, walk.axis, walk.plane.lengths),
        "key": walk.key.hex(),
    }
    name = VALUES.get(settings.directions)
    document |= {name: list(walk.plane.values)} if name else {}
    return Surface(SurfaceMeta.from_payload(document, math.inf), arrays)


def _digest(value: dict[str, Any]) -> bytes:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()
