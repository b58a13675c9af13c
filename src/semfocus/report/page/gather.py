"""Everything a page says, read from a store once: runs in groups, verdicts, faults, and how it was made."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from semfocus.analysis.groups import Group, base_first, grouped
from semfocus.analysis.records import Record, load_records
from semfocus.analysis.verdicts import Verdict, judge
from semfocus.errors import CorruptData, StorageError, UsageError
from semfocus.measurements import Malformed, Measurements, read_all
from semfocus.measurements.store import Unreadable
from semfocus.report.page.provenance import facts_of
from semfocus.store import RunDirectory, RunStore
from semfocus.store.directory import CONFIG, LOCK, METRICS, STATUS
from semfocus.store.measurements import FOLDER

Stamps = dict[str, tuple[int, int]]  # file -> (time of the last change in ns, size)


@dataclass(frozen=True, eq=False)
class Gathered:
    """A store, read."""

    root: Path
    records: list[Record]
    groups: list[Group]
    faults: list[tuple[str, str]]  # what is not shown as a run: its name, and what is wrong
    verdicts: list[Verdict]
    facts: dict[str, list[tuple[str, int]]]
    as_of: datetime | None  # when anything in it changed last
    measurements: Measurements  # of the runs that have any

    @property
    def mechanisms(self) -> list[str]:
        return base_first(record.mechanism for record in self.records)

    @property
    def states(self) -> dict[str, int]:
        """How many runs are in each state, the usual ones first."""
        order = ("done", "running", "interrupted", "diverged", "failed", "empty")
        found = [record.state for record in self.records]
        return {state: found.count(state) for state in dict.fromkeys((*order, *found)) if state in found}


def gather(store_root: Path | str) -> Gathered:
    """Read the store; nothing in it is changed, and nothing bad in it stops this."""
    store = RunStore(store_root)
    loaded = load_records(store)
    sorted_out = grouped(loaded.records)
    runs = [RunDirectory(store.root / record.id) for record in loaded.records]
    stored = {run.id: read_all(run) for run in runs}
    found = {name: kept.measurements for name, kept in stored.items() if kept.measurements}
    damage = [_damage(name, one) for name, kept in stored.items() for one in kept.unreadable]
    times = [changed for changed, _ in stamps(store.root).values()]
    return Gathered(
        store.root,
        loaded.records,
        sorted_out.groups,
        [*_clean(loaded.faults), *_clean(sorted_out.repeated), *_clean(damage)],
        judge(loaded.records, found),
        facts_of(runs),
        datetime.fromtimestamp(max(times) // 10**9, UTC) if times else None,
        found,
    )


def _damage(run: str, one: Unreadable) -> tuple[str, str]:
    if isinstance(one.error, Malformed):
        return run, one.text
    return "measurement", f"a measurement of run {run} is left out: {one.text}"


def stamps(root: Path, files: Sequence[str] = (CONFIG, METRICS, STATUS, FOLDER)) -> Stamps:
    """When each of a run's files changed last. Cheap: nothing is opened."""
    found: Stamps = {}
    for name in _names(root):
        for file in files:
            try:
                seen = os.lstat(root / name / file)
            except OSError:
                continue
            found[f"{name}/{file}"] = (seen.st_mtime_ns, seen.st_size)
    return found


def fingerprint(root: Path) -> object:
    """Differs whenever a page of this store would.

    A run is shown as running while a process holds it, and the end of a process changes no file: who is held is asked
    as well. A lock's own stamp tells of one that was taken and given back between two looks.
    """
    locks = stamps(root, [LOCK])
    held = [name for name in locks if _is_held((root / name).parent)]
    return stamps(root), locks, held


def _is_held(path: Path) -> bool:
    try:
        return RunDirectory(path).holder() is not None
    except (CorruptData, StorageError, UsageError):  # no run, or a lock that is no plain file: the page says so
        return False


def _names(root: Path) -> list[str]:
    try:
        return sorted(os.listdir(root))
    except OSError:
        return []


def _clean(faults: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """A file's name may hold bytes that are no text."""
    return [(shown(name), shown(what)) for name, what in faults]


def shown(text: str) -> str:
    """`text` with what UTF-8 cannot carry written out."""
    return text.encode("utf-8", "backslashreplace").decode()
