"""What a machine does with an attempt: train its cohort, say how it goes, and bring the runs.

    last = Attempt(work, parcel, bring, tell).run()     the messages that are left to tell, the last is how it ended

The cohort trains in a thread. This one tells the driver of it every second, which is also the heartbeat by which the
driver knows that it lives: `tell` returns whether the attempt still counts. When it does not, or when the driver has
not been reached for the time of its lease, training saves and stops.

The runs are written in the driver's store where its disk is shared, else in a directory that no other attempt has.
"""

from __future__ import annotations

import contextlib
import io
import os
import platform
import queue
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from semfocus.archive.contents import ENDED, read_files
from semfocus.archive.merge import Arrivals
from semfocus.archive.parcel import unwrap, wrap
from semfocus.errors import SemfocusError, UsageError
from semfocus.execution.cluster.data_files import local_path, with_local_data
from semfocus.execution.cluster.messages import REPORTS, Message, NobodyListens, Work, versions
from semfocus.execution.cluster.shared_disk import lock_problem, shares_disk, unseen_lock
from semfocus.execution.cohorts import COHORT_BYTES, cohort_limit, plan_jobs
from semfocus.plugins import load_plugins
from semfocus.store import RunStore
from semfocus.training.progress import Progress
from semfocus.training.runtime import Runtime
from semfocus.training.session import Job, train_cohort
from semfocus.training.signals import Interruption

Tell = Callable[[list[Message]], bool]
Bring = Callable[[str], bytes]
FIRST_BEAT = 0.2  # seconds
LOCK_POLL = 0.2


class Attempt:
    """A cohort in training, and what was not told of it yet."""

    def __init__(self, work: Work, parcel: bytes | None, bring: Bring, tell: Tell, place: str = "") -> None:
        """`place` is what the engine calls this machine."""
        self.work, self.parcel, self.bring, self.tell, self.place = work, parcel, bring, tell, place
        self.outbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.interruption = Interruption()
        self.latest: Message | None = None  # progress that was not told yet
        self.handed: dict[str, tuple[int, str]] = {}  # by run, the newest step and the state that were handed over
        self.handed_at = time.monotonic()
        self.thread = threading.Thread(target=self._train, name="semfocus-train", daemon=True)
        self.last: Message | None = None
        self.log = _Log()

    def run(self) -> list[Message]:
        """Train; the messages that are left to tell, of which the last is how it ended."""
        self._say("began", place=self.place, **identity())
        thread, unsent = self.thread, list[Message]()
        heard, wait = time.monotonic(), FIRST_BEAT
        with contextlib.redirect_stdout(self.log), contextlib.redirect_stderr(self.log):
            thread.start()
            while thread.is_alive():
                thread.join(wait)
                wait = self.work.beat
                if not thread.is_alive():
                    break
                unsent += self._waiting()
                try:
                    if not self.tell(unsent):
                        self.stop()
                    heard, unsent = time.monotonic(), []
                except (OSError, RuntimeError) as error:  # the driver cannot be reached just now: later, or at the end
                    unsent = [message for message in unsent if message.kind not in REPORTS]
                    if isinstance(error, NobodyListens):
                        self.handed.clear()  # all runs come with the last words
                    if isinstance(error, NobodyListens) or time.monotonic() - heard > self.work.lease:
                        self.stop()
        assert self.last is not None
        return [*unsent, *self._waiting(), self.last]

    def stop(self) -> None:
        """Save at the next step, and end."""
        self.interruption.signal = self.interruption.signal or signal.SIGTERM

    def stop_and_wait(self) -> None:
        """The same, and return when all is saved."""
        self.stop()
        self.thread.join()

    def _say(self, kind: str, parcel: bytes | None = None, **body: Any) -> None:
        self.outbox.put(Message(self.work.attempt, kind, body, parcel))

    def _waiting(self) -> list[Message]:
        messages = []
        with contextlib.suppress(queue.Empty):
            while True:
                messages.append(self.outbox.get_nowait())
        latest, self.latest = self.latest, None
        if latest is not None:
            messages.append(latest)
        text = self.log.take()
        if text:
            messages.append(Message(self.work.attempt, "log", {"text": text}))
        return messages or [Message(self.work.attempt, "beat", {})]

    def _train(self) -> None:
        kind, body = "ended", {}
        try:
            with ExitStack() as stack:
                body = self._train_here(stack)
            if self.interruption.signal:
                kind, body = "stopped", {}
        except BaseException as error:  # whatever it is, the driver must hear of it
            kind = "raised"
            body = {"kind": type(error).__name__, "text": str(error), "trace": traceback.format_exc()}
        self.last = Message(self.work.attempt, kind, body)

    def _train_here(self, stack: ExitStack) -> dict[str, Any]:
        """Which runs cannot be trained, and which are held by somebody else."""
        work = self.work
        with _naming_this_machine():
            _check_versions(work)
            sys.path[:] = [*sys.path, *(folder for folder in work.path if folder not in sys.path)]
            load_plugins(work.plugins)
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"semfocus-{work.attempt}-")))
            store = self._store(scratch)
            paths = {
                name: local_path(name, digest, lambda name=name: self.bring(name), scratch)
                for name, digest in work.data.items()
            }
            jobs = plan_jobs(with_local_data(work.run_configs(), paths), store)
            if [job.id for job in jobs] != work.ids:
                raise UsageError("the same configurations make other runs here: plugins or data files are not the same")
            runtime = self._runtime(jobs)
        self._await_locks(jobs)
        failed: list[str] = []
        for cohort in _that_fit(jobs, runtime):
            if not self.interruption.signal:
                failed += train_cohort(cohort, runtime, lambda p: self._on_progress(p, jobs), self.interruption)
        self._hand_back(jobs)
        return {"failed": failed, "held": [job.id for job in jobs if job.state not in ENDED and job.id not in failed]}

    def _store(self, scratch: Path) -> RunStore:
        work = self.work
        if work.hand_back:
            store = RunStore(scratch / "runs")
            assert self.parcel is not None
            with Arrivals(store) as arrivals:
                for run_id, files in unwrap(self.parcel):
                    arrivals.add(run_id, files)
                arrivals.place().raise_if_refused()
            self.handed = {run_id: self._stand(store, run_id) for run_id in work.ids}
            return store
        problem = lock_problem(Path(work.root)) or unseen_lock(Path(work.board))
        if problem:
            raise UsageError(problem)
        if work.probe is not None and not shares_disk(work.probe):
            raise UsageError(
                f"{work.root} is not the directory that the driver writes to; give runs a place on a disk that all "
                "machines share (--out), or on Ray let workers hand their runs back (--executor ray:shared=no)"
            )
        return RunStore(work.root)

    def _runtime(self, jobs: Sequence[Job]) -> Runtime:
        runtime = self.work.make_runtime()
        runtime = runtime.as_before(jobs[0].run.status() if jobs[0].run.path.is_dir() else None)
        return replace(runtime, threads=runtime.threads or self.work.threads, jobs=1)

    def _await_locks(self, jobs: Sequence[Job]) -> None:
        """A worker that was lost may hold its locks until its file server, or its kernel, knows that it is dead."""
        end = time.monotonic() + self.work.lock_patience
        while time.monotonic() < end and not self.interruption.signal:
            if not any(job.run.holder() for job in jobs):
                return
            time.sleep(LOCK_POLL)

    def _on_progress(self, progress: Progress, jobs: Sequence[Job]) -> None:
        self.latest = Message(self.work.attempt, "progress", encode_progress(progress))
        if time.monotonic() - self.handed_at >= self.work.beat:
            self._hand_back(jobs)
            self.handed_at = time.monotonic()

    def _hand_back(self, jobs: Sequence[Job]) -> None:
        """Bring every run that has ended, or has a new checkpoint, since it was brought last."""
        if not self.work.hand_back:
            return
        files, states = {}, {}
        for job in jobs:
            if self.handed.get(job.id, (0, ""))[1] in ENDED:
                continue
            stand = self._stand(RunStore(job.run.path.parent), job.id)
            if stand != self.handed.get(job.id):
                self.handed[job.id] = stand
                # A run that has ended comes with every checkpoint that it keeps.
                files[job.id] = read_files(job.run, "kept")
                states[job.id] = stand[1] if stand[1] in ENDED else "interrupted"
        if files:
            self._say("runs", wrap(files, states))

    @staticmethod
    def _stand(store: RunStore, run_id: str) -> tuple[int, str]:
        run = store.open(run_id)
        steps, state = run.checkpoint_steps(), str((run.status() or {}).get("state"))
        return (steps[0] if steps else -1, state if state in (*ENDED, "failed") else "")


def identity() -> dict[str, Any]:
    """Who this worker is."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return {
        "node": socket.gethostname(), "pid": os.getpid(), "versions": versions(),
        "device": gpu or platform.processor() or platform.machine(),
    }  # fmt: skip


def encode_progress(progress: Progress) -> dict[str, Any]:
    return {
        "members": [[member.run.id, member.last] for member in progress.members],
        "going_on": progress.going_on, "step": progress.step, "total_steps": progress.total_steps,
        "steps_per_epoch": progress.steps_per_epoch, "seconds": progress.seconds,
        "session_steps": progress.session_steps,
    }  # fmt: skip


def _check_versions(work: Work) -> None:
    here, there = versions()["semfocus"], work.versions["semfocus"]
    if here != there:
        raise UsageError(f"semfocus is {here} here and {there} at the driver; install the same on every machine")


@contextlib.contextmanager
def _naming_this_machine() -> Iterator[None]:
    """Errors of this machine say which one it is."""
    try:
        yield
    except SemfocusError as error:
        error.args = (f"on {socket.gethostname()}: {error}",)
        raise


def _that_fit(jobs: Sequence[Job], runtime: Runtime) -> Iterator[Sequence[Job]]:
    """The cohort, in pieces where the device that it landed on is too small for the whole."""
    device = runtime.torch_device()
    size = len(jobs)
    if device.type == "cuda" and runtime.cohort_size is None:
        half = torch.cuda.get_device_properties(device).total_memory // 2
        limits = {"cuda": min(COHORT_BYTES["cuda"], half)}
        size = min(size, cohort_limit(jobs[0].config, jobs[0].task, "cuda", limits))
    for start in range(0, len(jobs), size):
        yield jobs[start : start + size]


class _Log(io.TextIOBase):
    """What the code of an attempt prints, until it is taken."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._parts.append(text)
        return len(text)

    def take(self) -> str:
        parts, self._parts = self._parts, []
        return "".join(parts)
