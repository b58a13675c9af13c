"""The results of a store, read once: runs, groups, measurements, verdicts, and what could not be read.

    results = Results.load("runs")
    results.records            every run that can be read, in any state
    results.groups             comparable runs in groups, each with its comparison
    results.verdicts           the paper's claims, and open questions
    results.faults             everything that is not shown as a run or a measurement, and why

Groups, measurements and verdicts are computed when first asked for, and then kept. Nothing in the store is changed.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from semfocus.analysis.comparability import setting_text, task_name
from semfocus.analysis.comparison import Comparison
from semfocus.analysis.groups import Group, Grouping, base_first, group_records
from semfocus.analysis.records import Fault, Measurements, Record, read_records, read_run_measurements
from semfocus.analysis.verdicts import Verdict, judge
from semfocus.analysis.verdicts.settings import TASKS
from semfocus.errors import CorruptData, StorageError, UsageError
from semfocus.store import RunDirectory, RunStore
from semfocus.store.board import BOARD
from semfocus.store.directory import CONFIG, LOCK, METRICS, STATUS
from semfocus.store.measurements import FOLDER
from semfocus.store.runs import CLUSTER

STATES = ("done", "running", "interrupted", "diverged", "failed", "empty")  # the order in which they are shown
BOARD_EVERY = 10  # seconds between two looks at who trains what
LATEST_S = datetime(9999, 1, 1, tzinfo=UTC).timestamp()
Stamps = dict[str, tuple[int, int]]  # file -> (time of the last change in ns, size)


@dataclass(frozen=True, eq=False)
class Results:
    """Runs of one store, and everything that follows from them."""

    root: Path
    records: list[Record]
    unreadable: list[Fault] = field(default_factory=list)  # entries of the store that are not runs

    @classmethod
    def load(cls, store: RunStore | Path | str, ids: Sequence[str] | None = None) -> Results:
        """Read a store, in the order of names; or only the runs of these ids, in their order.

        A damaged run is reported among the faults and does not affect the others.
        """
        store = store if isinstance(store, RunStore) else RunStore(store)
        if not store.root.is_dir():
            raise UsageError(f"{store.root} is not a directory of runs; make some: semfocus compare even_pairs --quick")
        return cls(store.root, *read_records(store.entries(ids)))

    def only(self, ids: Collection[str]) -> Results:
        """The same for the runs of these ids alone."""
        return Results(self.root, [record for record in self.records if record.id in ids])

    @property
    def runs(self) -> list[RunDirectory]:
        """The directories of the records."""
        return [RunDirectory(self.root / record.id) for record in self.records]

    @cached_property
    def _grouping(self) -> Grouping:
        return group_records(self.records)

    @property
    def groups(self) -> list[Group]:
        """The runs in groups of comparable ones."""
        return self._grouping.groups

    @property
    def comparisons(self) -> list[Comparison]:
        """The comparison of each group."""
        return [group.comparison for group in self.groups]

    @cached_property
    def _measured(self) -> tuple[Measurements, list[Fault]]:
        return read_run_measurements(self.runs)

    @property
    def measurements(self) -> Measurements:
        """Measurements by run id and name, of the runs that have any."""
        return self._measured[0]

    @property
    def faults(self) -> list[Fault]:
        """Unreadable entries, copies of runs, and damaged measurements."""
        return [*self.unreadable, *self._grouping.repeated, *self._measured[1]]

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """A verdict on each claim of the paper, then on each open question."""
        return judge(self.records, self.measurements)

    @property
    def paper_verdicts(self) -> list[Verdict]:
        """The verdicts on the paper's claims."""
        return [verdict for verdict in self.verdicts if not verdict.is_open_question]

    @property
    def open_verdicts(self) -> list[Verdict]:
        """The verdicts on open questions of which some part was run."""
        return [verdict for verdict in self.verdicts if verdict.is_open_question and verdict.judged[0]]

    @property
    def has_paper_tasks(self) -> bool:
        """Whether any run is about a task of the paper, so that its claims can be judged at all."""
        return any(task_name(group.settings) in TASKS for group in self.groups)

    @property
    def mechanisms(self) -> list[str]:
        """All mechanisms in display order."""
        return base_first(record.mechanism for record in self.records)

    @property
    def states(self) -> dict[str, int]:
        """The number of runs in each state that occurs."""
        states = [record.state for record in self.records]
        return {state: states.count(state) for state in dict.fromkeys((*STATES, *states)) if state in states}

    @cached_property
    def as_of(self) -> datetime | None:
        """When a file of these runs, or of an unreadable entry, changed last."""
        names = [*(record.id for record in self.records), *(fault.name for fault in self.unreadable)]
        times = [changed // 10**9 for changed, _ in file_stamps(self.root, names).values()]
        times = [seconds for seconds in times if 0 <= seconds <= LATEST_S]  # a file may bear any time
        return datetime.fromtimestamp(max(times), UTC) if times else None

    def overview(self) -> list[dict[str, Any]]:
        """A row of plain values for each entry of the store; `why` says what is wrong with an unreadable one.

        `settings` are those in which runs of one task differ, as in the names of groups: `blocks 6, heads 2`.
        """
        settings = {record.id: group.details for group in self.groups for record in group.records}
        rows = [_overview_row(record, settings.get(record.id, "")) for record in self.records]
        rows += [{"id": fault.name, "state": fault.kind, "why": fault.what} for fault in self.unreadable]
        return sorted(rows, key=lambda row: row["id"])


def _overview_row(record: Record, settings: str) -> dict[str, Any]:
    training = record.config["training"]
    if training.get("tuned"):  # rows of one group differ in it, each mechanism having a rate of its own
        settings = ", ".join(filter(None, (settings, setting_text("training.lr", training.get("lr")))))
    return {
        "id": record.id,
        "state": record.state,
        "why": record.why,
        "task": record.config["task"]["name"],
        "settings": settings,
        "mechanism": record.mechanism,
        "seed": record.seed,
        "epoch": record.final("epoch") or 0,
        "epochs": record.horizon,
        "train_accuracy": record.final("train_accuracy"),
        "heldout_accuracy": record.final("heldout_accuracy"),
        "converged_at": record.converged_at,
        "seconds": record.seconds,
    }


def file_stamps(
    root: Path, names: Iterable[str] | None = None, files: Sequence[str] = (CONFIG, METRICS, STATUS, FOLDER)
) -> Stamps:
    """When each of these files of each run changed last. No file is opened."""
    stamps: Stamps = {}
    for name in _names(root) if names is None else names:
        for file in files:
            try:
                status = os.lstat(root / name / file)
            except OSError:
                continue
            stamps[f"{name}/{file}"] = (status.st_mtime_ns, status.st_size)
    return stamps


def fingerprint(root: Path) -> object:
    """A value that changes whenever `Results.load(root)` would.

    A run is in the state running while a process holds its lock, and the end of that process changes no file, so the
    locks that are held are part of the value. A lock's own stamp shows that it was taken and released in between.
    """
    locks = file_stamps(root, files=[LOCK])
    held = [name for name in locks if _is_held((root / name).parent)]
    return file_stamps(root), locks, held, _board_stamps(root)


def _board_stamps(root: Path) -> list[tuple[str, int]]:
    """When drivers of a cluster last wrote who trains what, to a few seconds: they do so all the time."""
    return [
        (path.parent.name, int(path.stat().st_mtime / BOARD_EVERY))
        for path in sorted((root / CLUSTER).glob(f"*/{BOARD}"))
    ]


def _is_held(path: Path) -> bool:
    try:
        return RunDirectory(path).holder() is not None
    except (CorruptData, StorageError, UsageError):  # not a run, or the lock is not a plain file: a fault says so
        return False


def _names(root: Path) -> list[str]:
    try:
        return sorted(os.listdir(root))
    except OSError:
        return []
