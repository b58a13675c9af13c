"""What a driver sends out: the work of an attempt, and the runs with it where no disk is shared.

packer = Packer(store, runtime, Settings(hand_back=True), configs)
transport.submit(packer.work(attempt, load, board), packer.parcel(load.jobs), share)
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from semfocus.archive.contents import read_files
from semfocus.archive.parcel import wrap
from semfocus.config import RunConfig
from semfocus.execution.cluster.data_files import files_of
from semfocus.execution.cluster.flights import Load
from semfocus.execution.cluster.messages import Work, versions
from semfocus.plugins import plugin_modules
from semfocus.store import RunStore
from semfocus.training.runtime import Runtime
from semfocus.training.session import Job


@dataclass(frozen=True)
class Settings:
    """How a cluster is driven; the defaults suit a real one."""

    hand_back: bool  # workers bring runs; else they write into the store, whose disk they share
    retries: int = 5  # losses in a row, without a new checkpoint, after which a cohort is split and a run given up
    lease: float = 60.0  # seconds without a word after which a worker is given up
    beat: float = 1.0  # seconds between two words
    threads: int = 1  # of a cohort, where nothing else is said
    probe: tuple[str, str] | None = None
    device: str = "cpu"


class Packer:
    """Packs the attempts of one study."""

    def __init__(self, store: RunStore, runtime: Runtime, settings: Settings, configs: Iterable[RunConfig]) -> None:
        self.store, self.runtime, self.settings = store, runtime, settings
        self.versions, self.plugins, self.data = versions(), plugin_modules(), files_of(configs)

    def work(self, attempt: str, load: Load, board: Path) -> Work:
        settings = self.settings
        names = {job.config.task.name for job in load.jobs}
        return Work(
            attempt=attempt,
            ids=[job.id for job in load.jobs],
            configs=[job.config.model_dump(mode="json") for job in load.jobs],
            root=str(self.store.root),
            board=str(board),
            runtime=asdict(replace(self.runtime, device=settings.device)),
            threads=settings.threads,
            versions=self.versions,
            plugins=self.plugins,
            path=list(sys.path),
            hand_back=settings.hand_back,
            probe=settings.probe,
            data={name: digest for name, digest in self.data.items() if name in names},
            lock_patience=settings.lease if load.losses else 0.0,
            lease=settings.lease,
            beat=settings.beat,
        )

    def parcel(self, jobs: Sequence[Job]) -> bytes | None:
        """The runs as they stand; None where workers see them."""
        if not self.settings.hand_back:
            return None
        return wrap({job.id: read_files(job.run, "kept") for job in jobs}, {job.id: "interrupted" for job in jobs})
