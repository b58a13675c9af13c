"""The loss over a grid in a plane through a trained model, many grid points at once.

    found = measure_surface(run, SurfaceSettings(grid=200, rows=None, precision="tf32"), Runtime(device="cuda"))

Finished points are kept with the run every few seconds. The same call goes on where an interrupted one was, with the
same chunks, threads and directions, so that the surface is the one an uninterrupted call would have given. Surfaces of
other settings, and what was finished before, stay as they are.
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
from semfocus.landscape.directions import KINDS, Plane, hessian_plane, normal_row, path_plane, random_plane
from semfocus.landscape.hessian import Curvature, top_eigenpairs
from semfocus.landscape.losses import Losses, Plan, plan
from semfocus.landscape.slopes import SQUARES, slopes
from semfocus.landscape.trained_model import TrainedModel, find_run, open_trained_model
from semfocus.measurements import Surface, SurfaceMeta, grid_axis, keep_surface, read_surface
from semfocus.measurements.kinds import PERCENTILES
from semfocus.measurements.store import read_part, write_part
from semfocus.model import EAGER
from semfocus.store import RunDirectory
from semfocus.training.runtime import Runtime, facts, numerics
from semfocus.training.signals import Interrupted, listening

SAVE_SECONDS = 5.0
AHEAD = 3  # batches that may wait in a GPU's queue: enough to keep it busy, few enough that progress is true
WHOLE = 1.0  # extent: as far as the parameters are from zero
PAST_THE_PATH = 1.1  # of its reach: the first checkpoint then lies inside the grid, not on its border
VALUES = {"path": "share_of_path", "hessian": "eigenvalues"}

Callback = Callable[[int, int], None]  # points done, points wanted


@dataclass(frozen=True, kw_only=True)
class SurfaceSettings:
    """What to look at. `grid` 200 and all `rows` are the paper's; the defaults suit a laptop."""

    grid: int = 51
    extent: float | None = None  # None: 1, and along the path of training a little more than that reaches
    directions: Literal["random", "path", "hessian"] = "random"
    seed: int = 0
    rows: int | None = 1000  # at most, from the first training row on; None: all
    precision: Literal["fp32", "tf32"] = "fp32"

    def __post_init__(self) -> None:
        check_int("grid", self.grid, at_least=5, at_most=2000)
        check_int("seed", self.seed, at_least=0)
        if self.rows is not None:
            check_int("rows", self.rows, at_least=1)
        if self.extent is not None and not (isinstance(self.extent, (int, float)) and 0 < self.extent < math.inf):
            raise UsageError(f"extent = {self.extent!r} must be a positive number")
        if self.directions not in KINDS:
            raise unknown("kind of directions", self.directions, KINDS)
        if self.precision not in ("fp32", "tf32"):
            raise unknown("precision", self.precision, ("fp32", "tf32"))


LAPTOP = SurfaceSettings()


@dataclass
class _Walk:
    """A surface on its way: the losses so far, in the order of the grid's rows, and how they are computed."""

    key: bytes  # what is asked for
    machine: bytes  # what must be the same to go on to the bit
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
        """As kept with the run."""
        side = len(self.axis)
        found = {
            "key": np.frombuffer(self.key, dtype=np.uint8),
            "machine": np.frombuffer(self.machine, dtype=np.uint8),
            "plan": np.array([self.plan.members, self.plan.rows, self.threads, self.done], dtype=np.int64),
            "losses": self.losses.reshape(side, side),
            "directions": self.plane.directions.cpu().numpy(),
        }
        if self.plane.values:
            found["values"] = np.array(self.plane.values, dtype=np.float64)
        if self.plane.path is not None:
            found["path"] = self.plane.path.numpy()
        return found


def measure_surface(
    run: str | RunDirectory,
    settings: SurfaceSettings = LAPTOP,
    runtime: Runtime = Runtime(),
    watcher: Callback = lambda done, wanted: None,
    *,
    again: bool = False,
    positions_at_once: int | None = None,
) -> Surface:
    """Measure the surface and keep it with the run; one that is there already is read (unless `again`).

    Ctrl-C saves what is done and raises Interrupted.
    """
    found, device = find_run(run), runtime.torch_device()
    extent = settings.extent or default_extent(found, settings.directions)
    path = tuple(sorted(found.checkpoint_steps())) if settings.directions == "path" else ()
    subject = open_trained_model(found, device=device)
    subject = subject if settings.rows is None else subject.first(settings.rows)
    key = _digest({**asdict(settings), "extent": extent, "rows": subject.rows.count, "steps": [*path, *subject.steps]})
    stored = None if again else _finished(found, settings, key)
    left = None if again else _left(found, settings, key)
    if stored is not None and left is None:
        return stored
    rows = settings.grid**2 * subject.rows.count // 3  # a third of the work of training on them
    compiled = runtime.parts(subject.spec, rows, device)
    machine = _digest(facts(device, 0, compiled is not EAGER))
    half = None if left is None else _taken_up(left, key, machine, extent, device)
    if stored is not None and half is None:
        return stored
    threads = runtime.threads or (half.threads if half else runtime.num_threads())
    with numerics("fp32", threads):
        walk = half or _begin(found, subject, settings, key, machine, threads, extent, path, positions_at_once)
    with numerics(settings.precision, threads), listening() as interruption:
        losses = Losses(subject.spec, subject.rows, walk.plan, compiled)
        finished = _walk(
            walk, losses, subject.parameters[0], watcher,
            lambda: write_part(found, settings.directions, key.hex(), walk.arrays()),
            lambda: bool(interruption.signal),
        )  # fmt: skip
    if not finished:
        raise Interrupted(interruption.signal)
    surface = _surface(walk, subject, settings)
    keep_surface(found, surface)
    return surface


def default_extent(run: str | RunDirectory, directions: str) -> float:
    """How far to go where nobody says: 1; along the path a little more than its reach, rounded up to two digits."""
    if directions != "path":
        return WHOLE
    found = find_run(run)
    steps = tuple(sorted(found.checkpoint_steps()))
    plane = path_plane(open_trained_model(found).parameters[0], open_trained_model(found, steps=steps).parameters)
    reach = PAST_THE_PATH * plane.reach
    unit = 10.0 ** (math.floor(math.log10(reach)) - 1)
    return float(f"{math.ceil(reach / unit) * unit:.2g}")


@torch.no_grad()
def _walk(
    walk: _Walk,
    losses: Losses,
    centre: Tensor,
    watcher: Callback,
    save: Callable[[], None],
    stop: Callable[[], bool],
) -> bool:
    """Evaluate the points that are missing, and save them every few seconds; False when asked to stop."""
    members, total = walk.plan.members, len(walk.losses)
    places = _coordinates(walk.axis, members, centre.device)
    found = torch.full((len(places),), math.nan, dtype=torch.float64, device=centre.device)
    found[:total] = torch.from_numpy(walk.losses).to(centre.device)
    saved, waiting = time.monotonic(), deque[torch.cuda.Event]()
    first, second = walk.plane.directions
    for begin in range(walk.done, total, members):
        here = places[begin : begin + members]
        # Written out, not a matrix product: that would be rounded to TF32 where losses may be.
        losses.matrix.copy_(centre + here[:, :1] * first + here[:, 1:] * second)
        found[begin : begin + members] = losses()
        if centre.is_cuda:
            waiting.append(torch.cuda.Event())
            waiting[-1].record()
            if len(waiting) > AHEAD:
                waiting.popleft().synchronize()
        walk.done = min(begin + members, total)
        stopped = stop() and walk.done < total
        if stopped or walk.done == total or time.monotonic() - saved > SAVE_SECONDS:
            walk.losses[:] = found[:total].cpu().numpy()
            save()
            saved = time.monotonic()
        watcher(walk.done, total)
        if stopped:
            return False
    return True


def _coordinates(axis: np.ndarray, members: int, device: torch.device) -> Tensor:
    """(n * n and a few, 2): along the first direction, along the second; row by row, the last point repeated."""
    up, across = np.meshgrid(axis, axis, indexing="ij")
    points = np.stack([across.ravel(), up.ravel()], axis=1).astype(np.float32)
    missing = -len(points) % members
    return torch.from_numpy(np.concatenate([points, np.repeat(points[-1:], missing, axis=0)])).to(device)


def _begin(
    run: RunDirectory,
    subject: TrainedModel,
    settings: SurfaceSettings,
    key: bytes,
    machine: bytes,
    threads: int,
    extent: float,
    path: tuple[int, ...],
    positions_at_once: int | None,
) -> _Walk:
    chunks = plan(subject.spec, subject.rows.count, subject.parameters.device, positions_at_once)
    losses = np.full(settings.grid**2, math.nan)
    return _Walk(key, machine, chunks, threads, _plane(run, subject, settings, path), extent, losses)


def _plane(run: RunDirectory, subject: TrainedModel, settings: SurfaceSettings, path: tuple[int, ...]) -> Plane:
    spec, row = subject.spec, subject.parameters[0]
    if settings.directions == "random":
        return random_plane(spec, row, settings.seed)
    if settings.directions == "path":
        return path_plane(row, open_trained_model(run, steps=path).parameters)
    curvature = Curvature(spec, subject.rows)
    found = top_eigenpairs(
        lambda vectors: curvature.product(subject.parameters, vectors),
        lambda i: normal_row(spec, settings.seed, f"landscape/lanczos/{i}").to(row.device),
        count=2,
        rank=spec.layout.num_parameters,
    )
    return hessian_plane(row, found.vectors[0], tuple(found.values[0].tolist()))


def _finished(run: RunDirectory, settings: SurfaceSettings, key: bytes) -> Surface | None:
    """What was measured before, if it is this very surface; one that is damaged is measured anew."""
    for name in (key.hex(), ""):  # earlier versions did not name surfaces apart
        try:
            stored = read_surface(run, settings.directions, name)
        except CorruptData:
            continue
        if stored is not None and stored.meta.key == key.hex():
            return stored
    return None


def _left(run: RunDirectory, settings: SurfaceSettings, key: bytes) -> dict[str, np.ndarray] | None:
    """What an interrupted call has left, if it can be read."""
    try:
        return read_part(run, settings.directions, key.hex())
    except CorruptData:
        return None


def _taken_up(
    arrays: dict[str, np.ndarray], key: bytes, machine: bytes, extent: float, device: torch.device
) -> _Walk | None:
    """To go on with what is left, if it is of the same surface on the same kind of machine."""
    try:
        if bytes(arrays["key"]) != key or bytes(arrays["machine"]) != machine:
            return None
        members, rows, threads, done = arrays["plan"].tolist()
        path = torch.from_numpy(arrays["path"]) if "path" in arrays else None
        directions = torch.from_numpy(arrays["directions"]).to(device)
        plane = Plane(directions, tuple(arrays["values"].tolist()) if "values" in arrays else (), path)
        return _Walk(key, machine, Plan(members, rows), threads, plane, extent, arrays["losses"].ravel().copy(), done)
    except (KeyError, ValueError):
        return None  # it can be measured again, which is what happens now


def _surface(walk: _Walk, subject: TrainedModel, settings: SurfaceSettings) -> Surface:
    arrays = walk.arrays()
    losses = arrays["losses"]
    finite = losses[np.isfinite(losses)]
    document: dict[str, Any] = {
        "grid": settings.grid,
        "extent": float(walk.extent),
        "directions": settings.directions,
        "seed": settings.seed,
        "rows": subject.rows.count,
        "precision": settings.precision,
        "epoch": subject.epochs[0],
        "step": subject.steps[0],
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
