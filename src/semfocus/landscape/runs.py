"""Several trained runs that are measured and drawn together: their labels, their task, and one extent for all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from semfocus.config import RunConfig
from semfocus.errors import UsageError
from semfocus.landscape.certificate import looseness
from semfocus.landscape.directions import default_extent
from semfocus.landscape.surface import SurfaceSettings
from semfocus.landscape.trained_model import find_run, open_trained_model
from semfocus.store import RunDirectory
from semfocus.training.loading import config_of

T = TypeVar("T")


class LabelledRun(NamedTuple):
    """A run with a label that no other run of the figure has."""

    label: str  # the mechanism, and the seed where several runs have the same mechanism
    run: RunDirectory
    config: RunConfig

    @property
    def mechanism(self) -> str:
        return self.config.attention.mechanism


def label_runs(names: Iterable[str], out: Path | None) -> list[LabelledRun]:
    """Find runs by path or by the beginning of their id; two runs with one label are an error."""
    configs = {run: config_of(run) for run in (find_run(name, out) for name in names)}
    mechanisms = [config.attention.mechanism for config in configs.values()]
    labelled: list[LabelledRun] = []
    for run, config in configs.items():
        mechanism = config.attention.mechanism
        label = mechanism if mechanisms.count(mechanism) == 1 else f"{mechanism}, seed {config.seed}"
        twin = next((other.run.id for other in labelled if other.label == label), None)
        if twin is not None:
            raise UsageError(f"two of the runs are both {label}: {twin} and {run.id}; give one of them")
        labelled.append(LabelledRun(label, run, config))
    return labelled


def shared_task(runs: Sequence[LabelledRun]) -> str:
    """The task of all runs; an error where they have several."""
    names = {Path(one.config.task.name).stem for one in runs}
    if len(names) > 1:
        raise UsageError(f"these runs are of different tasks: {', '.join(sorted(names))}; draw each task apart")
    return names.pop()


def by_mechanism(runs: Sequence[LabelledRun], values: Iterable[T]) -> dict[str, list[T]]:
    """One value for each run, grouped by mechanism."""
    groups: dict[str, list[T]] = {}
    for one, value in zip(runs, values, strict=True):
        groups.setdefault(one.mechanism, []).append(value)
    return groups


def with_shared_extent(settings: SurfaceSettings, runs: Sequence[LabelledRun]) -> SurfaceSettings:
    """The largest default extent where none is set: surfaces are compared only if they reach equally far."""
    if settings.extent is not None:
        return settings
    return replace(settings, extent=max(default_extent(one.run, settings.directions) for one in runs))


def row_limit(rows: int) -> int | None:
    """The number of training rows to take at most; None, for 0: all of them."""
    if rows < 0:
        raise UsageError(f"rows = {rows} must be the number of training rows to take, or 0 for all of them")
    return rows or None


def looseness_by_mechanism(runs: Sequence[LabelledRun], rows: int) -> dict[str, dict[str, float]]:
    """For each mechanism and group of parameters: the largest gradient of its runs as a share of its certificate."""
    shares: dict[str, dict[str, float]] = {}
    for one in runs:
        model = open_trained_model(one.run).first(rows)
        own = looseness(model.spec, model.parameters[0], model.rows)
        known = shares.setdefault(one.mechanism, own)
        shares[one.mechanism] = {group: max(share, known.get(group, 0.0)) for group, share in own.items()}
    if len({len(groups) for groups in shares.values()}) > 1:
        raise UsageError("these runs have different numbers of blocks, so that their groups differ; give them apart")
    return shares
