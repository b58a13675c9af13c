"""A cluster that is made up, and a store with runs for its machines to train."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from semfocus.archive.contents import read_files
from semfocus.archive.parcel import wrap
from semfocus.execution.cluster.dispatcher import Dispatcher
from semfocus.execution.cluster.messages import Adopted, Gone, Message, Work
from semfocus.execution.cluster.packing import Settings
from semfocus.execution.cohorts import open_runs, plan_jobs
from semfocus.store import RunDirectory, RunStore
from tests.training.helpers import runtime, tiny

CONFIGS = [tiny(seed, mechanism, epochs=4) for mechanism in ("full", "topk:3") for seed in (1, 2)]


class BenchOf(Protocol):
    """A bench in a folder of the test; its runs are those of CONFIGS, trained in cohorts of this size."""

    def __call__(self, folder: str = "runs", cohort_size: int = 2, **settings: Any) -> Bench: ...


class MadeUp:
    """An engine whose machines do what a test says; `finished` holds runs that were trained beforehand."""

    name = "made-up"

    def __init__(self, finished: Path, slots: int = 2) -> None:
        self.finished, self.room = finished, slots
        self.sent: list[Work] = []
        self.parcels: dict[str, bytes | None] = {}
        self.said: list[Message | Gone] = []
        self.forgotten: list[str] = []
        self.avoided: list[str] = []
        self.alive: list[Adopted] = []
        self.on_submit: Callable[[Work], None] = self.succeed

    def slots(self, share: float) -> int:
        return self.room

    def adopt(self) -> list[Adopted]:
        return self.alive

    def submit(self, work: Work, parcel: bytes | None, share: float) -> None:
        self.sent.append(work)
        self.parcels[work.attempt] = parcel
        self.on_submit(work)

    def poll(self, seconds: float) -> list[Message | Gone]:
        said, self.said = self.said, []
        return said

    def stop(self, attempts: Sequence[str]) -> None: ...
    def forget(self, attempt: str) -> None:
        self.forgotten.append(attempt)

    def avoid(self, place: str) -> None:
        self.avoided.append(place)

    def detach(self) -> bool:
        return False

    def say(self, work: Work, kind: str, parcel: bytes | None = None, /, **body: Any) -> None:
        self.said.append(Message(work.attempt, kind, body, parcel))

    def begin(self, work: Work, node: str = "one", torch: str | None = None) -> None:
        versions = work.versions | ({"torch": torch} if torch else {})
        self.say(work, "began", node=node, place=f"id of {node}", pid=1, device="cpu", versions=versions)

    def bring(self, work: Work, ids: Sequence[str] | None = None, checkpoints: str = "kept") -> None:
        runs = [RunStore(self.finished).open(run_id) for run_id in ids or work.ids]
        files = {run.id: read_files(run, checkpoints) for run in runs}
        self.say(work, "runs", wrap(files, dict.fromkeys(files, "done")))

    def succeed(self, work: Work) -> None:
        self.begin(work)
        self.bring(work)
        self.say(work, "ended", failed=[], held=[])


class Bench:
    """A store with runs to train, and an engine."""

    def __init__(self, folder: Path, expected: Sequence[RunDirectory], cohort_size: int = 2, **settings: Any) -> None:
        self.expected = expected
        self.store = RunStore(folder)
        self.jobs = plan_jobs(CONFIGS, self.store)
        open_runs(self.jobs, self.store)
        self.engine = MadeUp(expected[0].path.parent)
        self.now = 0.0
        self.settings = Settings(**{"hand_back": True} | settings)
        self.cohorts = [self.jobs[i : i + cohort_size] for i in range(0, 4, cohort_size)]

    def dispatcher(self) -> Dispatcher:
        return Dispatcher(
            self.cohorts, self.store, runtime(), self.engine, self.settings, lambda progress: None, lambda: self.now
        )

    def run(self) -> list[str]:
        return self.dispatcher().run()

    def assert_all_there(self) -> None:
        for job, run in zip(self.jobs, self.expected, strict=True):
            assert job.state == "done"
            assert job.run.metrics() == run.metrics()
            assert job.run.holder() is None
