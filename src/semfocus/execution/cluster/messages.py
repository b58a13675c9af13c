"""What a driver and its workers tell each other: plain JSON and archives of runs, so that nothing is unpickled.

driver -> worker    `Work`: one attempt at a cohort
worker -> driver    `Message`: began, beat, progress, runs, log; last of all ended, stopped or raised
engine -> driver    waiting, for a machine; `Gone`: a worker that will say nothing more
"""

from __future__ import annotations

import json
import os
import platform
import warnings
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from semfocus.config import RunConfig
from semfocus.training.runtime import Runtime

LAST_WORDS = ("ended", "stopped", "raised")
REPORTS = ("beat", "progress")  # a later one says it all


@dataclass(frozen=True)
class Work:
    """One attempt at a cohort; the id is new for every attempt, so that two can never be taken for one another."""

    attempt: str
    ids: list[str]
    configs: list[dict[str, Any]]
    root: str  # the driver's store
    board: str  # the driver's folder in it, whose lock the driver holds while it lives
    runtime: dict[str, Any]
    threads: int  # unless the runtime or an earlier session says otherwise
    versions: dict[str, str]
    plugins: list[str]
    path: list[str]  # where the driver finds modules
    hand_back: bool  # train on the worker's own disk, and bring the runs; else write into `root`
    probe: tuple[str, str] | None = None  # a file of the driver, and what it says: whoever reads it shares its disk
    data: dict[str, str] = field(default_factory=dict)  # data files by name, and their SHA-256 sums
    lock_patience: float = 0.0  # seconds to wait for the locks of a worker that was lost
    lease: float = 60.0  # seconds without contact after which an attempt is over
    beat: float = 1.0  # seconds between two messages

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def decode(text: str) -> Work:
        fields = json.loads(text)
        fields["probe"] = tuple(fields["probe"]) if fields["probe"] else None
        return Work(**fields)

    def run_configs(self) -> list[RunConfig]:
        return [RunConfig.model_validate(fields) for fields in self.configs]

    def make_runtime(self) -> Runtime:
        kept: dict[str, Any] = {name: tuple(self.runtime[name]) for name in ("keep_epochs", "keep_shares")}
        return Runtime(**self.runtime | kept)


@dataclass(frozen=True)
class Message:
    """A worker's word. `kind` says which fields `body` has."""

    attempt: str
    kind: str
    body: dict[str, Any]
    parcel: bytes | None = None  # runs, as `semfocus.archive.parcel` wraps them


@dataclass(frozen=True)
class Gone:
    """An attempt whose worker, or whose machine, is no more."""

    attempt: str
    reason: str
    out_of_memory: bool = False
    log: str = ""


class NobodyListens(RuntimeError):
    """What a worker has told may have come to nobody, nor will what it tells from now on: it saves and ends."""


@dataclass(frozen=True)
class Adopted:
    """An attempt of an earlier driver that is still alive."""

    attempt: str
    ids: list[str]


class Transport(Protocol):
    """An engine that brings work to machines."""

    name: str

    def slots(self, share: float) -> int:
        """How many cohorts that need this share of a device can train at a time."""
        ...

    def adopt(self) -> list[Adopted]:
        """Attempts of an earlier driver that are still alive, and that this one goes on watching."""
        ...

    def submit(self, work: Work, parcel: bytes | None, share: float) -> None:
        """Hand over an attempt; `share` of a device is enough for its cohort."""
        ...

    def poll(self, seconds: float) -> list[Message | Gone]:
        """What has happened; wait for at most these seconds."""
        ...

    def stop(self, attempts: Sequence[str]) -> None:
        """Ask for these to save and end. What waits for a machine need not begin."""
        ...

    def forget(self, attempt: str) -> None:
        """End this one by force; whatever it says from now on does not count."""
        ...

    def avoid(self, place: str) -> None:
        """Send nothing more to this machine, nor count it among the slots."""
        ...

    def detach(self) -> bool:
        """Leave all attempts alone from now on; False where they cannot live without a driver."""
        ...


def versions() -> dict[str, str]:
    """The versions that must agree between driver and workers, and torch's, by which results may differ in bits."""
    import torch

    from semfocus import __version__

    return {"semfocus": __version__, "torch": torch.__version__, "python": platform.python_version()}


class DifferentBuilds(UserWarning):
    """Machines whose torch differs: results then differ in their last bits."""


def warn_of_build(node: str, build: str, others: Collection[str]) -> None:
    warnings.warn(
        f"{node} has torch {build}, and others have {', '.join(sorted(others))}: results of different builds are equal "
        "to rounding, not to the bit; each run's status says which it had",
        DifferentBuilds,
        stacklevel=2,
    )


def new_attempt() -> str:
    return os.urandom(8).hex()
