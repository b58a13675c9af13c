"""Cohorts side by side on this machine, each in a process of its own: small models gain little from more threads.

    ProcessExecutor(Runtime(jobs=4)).run(cohorts, store, on_progress)

A process trains one cohort, tells its progress through a pipe, and ends. It holds the locks of its runs and saves as
ever, so that nothing depends on this process: should that die, the others notice, save and stop. A cohort whose
process is killed goes on from its checkpoint, once, when all others are through and it has the machine to itself.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import traceback
import warnings
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from semfocus import errors
from semfocus.config import RunConfig
from semfocus.errors import Locked, SemfocusError
from semfocus.execution.cohorts import plan_jobs
from semfocus.execution.executor import Executor, RunOutcome, outcomes_of, register_executor
from semfocus.plugins import load_plugins, plugin_modules
from semfocus.store import RunStore
from semfocus.tasks.table import DataWarning
from semfocus.training.progress import Callback, Progress
from semfocus.training.runtime import Runtime
from semfocus.training.session import ENDED, Job, note_failure, train_cohort
from semfocus.training.signals import WORKER, Interrupted, Interruption, hear, held, listening

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of mallopt
POLL_SECONDS = 0.2  # seconds between two looks at whether a signal has come


class LostProcess(UserWarning):
    """A process that ended without a word; its cohort is tried once more."""


@register_executor
class ProcessExecutor(Executor):
    """Trains `runtime.jobs` cohorts at a time, each in a process of its own."""

    name = "processes"

    def run(self, cohorts: Sequence[Sequence[Job]], store: RunStore, on_progress: Callback) -> list[RunOutcome]:
        at_once = max(1, min(self.runtime.num_jobs(), len(cohorts)))
        return outcomes_of(cohorts, WorkerPool(cohorts, at_once, store, self.runtime, on_progress).run())


@dataclass(frozen=True)
class _Worker:
    cohort: Sequence[Job]
    process: BaseProcess
    pipe: Connection
    again: bool  # whether an earlier one was lost


class WorkerPool:
    """The processes at work, and what waits for one."""

    def __init__(
        self,
        cohorts: Sequence[Sequence[Job]],
        at_once: int,
        store: RunStore,
        runtime: Runtime,
        on_progress: Callback,
        context: Any = None,
    ) -> None:
        self.waiting, self.lost = deque(cohorts), deque[Sequence[Job]]()
        self.at_once, self.store, self.runtime, self.on_progress = at_once, store, runtime, on_progress
        self.threads = max(1, runtime.num_threads() // at_once)
        self.workers: list[_Worker] = []
        self.failed: list[str] = []
        self.context = context or multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["semfocus.training.session"])  # torch is imported once for all

    def run(self) -> list[str]:
        """Train every cohort; the ids of runs that cannot be trained here."""
        with listening() as interruption:
            try:
                while (self.waiting or self.lost or self.workers) and not interruption.signal:
                    self.start_workers()
                    self._listen(interruption)
            finally:
                self._stop()
            if interruption.signal:
                raise Interrupted(interruption.signal)
        return self.failed

    def start_workers(self) -> None:
        """Fill the places that are free."""
        while self.waiting and len(self.workers) < self.at_once:
            self._spawn(self.waiting.popleft(), again=False)
        if self.lost and not self.workers:
            self._spawn(self.lost.popleft(), again=True)

    def _spawn(self, cohort: Sequence[Job], again: bool) -> None:
        runtime = self.runtime.as_before(cohort[0].run.status())
        runtime = replace(runtime, threads=runtime.threads or self.threads, jobs=1)
        here, there = self.context.Pipe(duplex=False)
        work = Work([job.config for job in cohort], self.store.root, runtime, plugin_modules(), list(sys.path))
        process = self.context.Process(target=_work, args=(there, work), daemon=True, name=WORKER)
        resource_tracker.ensure_running()  # it would let signals through if it were started below
        with held():  # the process listens only after its imports, which take seconds
            process.start()
        there.close()  # now the worker alone has it, and its end is the pipe's end
        self.workers.append(_Worker(cohort, process, here, again))

    def _listen(self, interruption: Interruption) -> None:
        """Hear what there is to hear, for a moment."""
        for pipe in wait([worker.pipe for worker in self.workers], timeout=POLL_SECONDS):
            worker = next(worker for worker in self.workers if worker.pipe is pipe)
            try:
                message = worker.pipe.recv()
            except (EOFError, OSError):
                self._reap(worker)
                self._on_crash(worker)
                continue
            if isinstance(message, Progress):
                self.on_progress(message)
                continue
            self._reap(worker)
            if isinstance(message, _Raised):
                raise message.rebuilt()
            if isinstance(message, _Stopped):
                interruption.signal = message.signal
            else:
                self.failed += message

    def _reap(self, worker: _Worker) -> None:
        worker.process.join()
        worker.pipe.close()
        self.workers.remove(worker)

    def _on_crash(self, worker: _Worker) -> None:
        ids = ", ".join(job.id for job in worker.cohort)
        how = _how(worker.process.exitcode)
        if worker.again:
            self.failed += _record(worker.cohort, f"its process {how}, twice; out of memory?")
            return
        warnings.warn(
            f"the process that trained {ids} {how}; they go on from their checkpoint when the others are through",
            LostProcess,
            stacklevel=4,
        )
        self.lost.append(worker.cohort)

    def _stop(self) -> None:
        """Ask those still at work to save and end, and wait until they have; in a hurry, just end them."""
        try:
            for worker in self.workers:
                worker.process.terminate()
            while self.workers:
                for pipe in wait([worker.pipe for worker in self.workers]):
                    worker = next(worker for worker in self.workers if worker.pipe is pipe)
                    try:
                        worker.pipe.recv()  # or it would wait for somebody to listen
                    except (EOFError, OSError):
                        self._reap(worker)
        except KeyboardInterrupt:
            for worker in self.workers:
                worker.process.kill()
            raise


@dataclass(frozen=True)
class _Stopped:
    """A worker's last word: it was asked to stop, by this signal, and has saved."""

    signal: int


@dataclass(frozen=True)
class _Raised:
    """A worker's last word: an error, as texts, since not every error survives being sent."""

    kind: str
    text: str
    trace: str

    def rebuilt(self) -> Exception:
        return raised(self.kind, self.text, self.trace)


def raised(kind: str, text: str, trace: str) -> Exception:
    """The same error if it is one of ours, else one that shows where it came from."""
    cls = getattr(errors, kind, None)
    if not (isinstance(cls, type) and issubclass(cls, SemfocusError)):
        return RuntimeError(f"in a process of its own: {kind}: {text}\n{trace}")
    error = cls.__new__(cls, text)
    error.args = (text,)
    return error


@dataclass(frozen=True)
class Work:
    """What a worker is given: a cohort as configurations, since a task need not survive being sent."""

    configs: list[RunConfig]
    root: Path
    runtime: Runtime
    plugins: list[str]  # modules whose import registers what the configurations name
    path: list[str]  # where this process finds modules


def _work(pipe: Connection, work: Work) -> None:
    """What a worker does: train one cohort, tell how it goes, then how it ended."""

    def on_progress(progress: Progress) -> None:
        try:
            pipe.send(progress)
        except OSError:  # nobody is there any more: save, and stop
            os.kill(os.getpid(), signal.SIGTERM)

    keep_memory()
    warnings.simplefilter("ignore", DataWarning)  # the process that planned this has shown them
    last: Any
    try:
        sys.path[:] = [*sys.path, *(folder for folder in work.path if folder not in sys.path)]
        load_plugins(work.plugins)
        jobs = plan_jobs(work.configs, RunStore(work.root))
        with listening() as interruption:
            hear()
            last = train_cohort(jobs, work.runtime, on_progress, interruption)
            if interruption.signal:
                raise Interrupted(interruption.signal)
    except Interrupted as error:
        last = _Stopped(error.exit_code - 128)
    except KeyboardInterrupt:
        last = _Stopped(signal.SIGINT)
    except Exception as error:
        last = _Raised(type(error).__name__, str(error), traceback.format_exc())
    with suppress(OSError):
        pipe.send(last)


def keep_memory() -> None:
    """Let malloc use freed memory again instead of giving it back: to get it anew takes a fifth of an evaluation.

    The process ends with its cohort, and its memory with it. Only glibc knows how.
    """
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        for option, size in ((MMAP_THRESHOLD, 2**25), (TRIM_THRESHOLD, 2**30)):
            libc.mallopt(option, size)


def _how(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        return f"was killed by {signal.Signals(-exitcode).name}"
    return f"ended with exit code {exitcode}"


def _record(cohort: Sequence[Job], reason: str) -> list[str]:
    """Write down why these runs failed; the ids of those that had not ended."""
    ids = []
    with ExitStack() as locks:
        for job in cohort:
            with suppress(Locked):
                writer = locks.enter_context(job.run.lock())
                if (writer.status() or {}).get("state") not in ENDED:
                    note_failure(writer, reason)
                    ids.append(job.id)
    return ids
