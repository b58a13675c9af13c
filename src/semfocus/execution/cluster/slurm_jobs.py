"""Attempts as jobs of SLURM, or of submitit's local mode: what goes out and comes back are files on the shared disk.

cluster/slurm/<attempt>/    work.json   what to do            words.jsonl     what the job says, in order
                            job.json    the job's id          progress.json   what it said last; the heartbeat
                            stop        save, and end
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semfocus.errors import StorageError, UsageError
from semfocus.execution.cluster.messages import LAST_WORDS, Adopted, Gone, Message, Work
from semfocus.execution.cluster.slurm_attempt import PROGRESS, STOP, WORDS, WORK, SlurmAttempt
from semfocus.store import atomic
from semfocus.store.runs import CLUSTER

FOLDER = "slurm"
JOB = "job.json"
LOOK_SECONDS = 5.0  # between two questions to SLURM
GRACE_SECONDS = 10.0  # for the files of a job that has ended to be seen here
REFUSED_SECONDS = 30.0  # between two tries to submit, after one that failed
OUTAGE_SECONDS = 900.0  # of a SLURM that takes no jobs while none is with it
LOG_BYTES = 20_000
QUEUED = ("PD", "CF", "RQ", "RH", "RF")  # as squeue calls them
ENDED_STATES = ("CD", "CA", "F", "TO", "NF", "OOM", "BF", "DL", "PR")


@dataclass(frozen=True)
class SlurmOptions:
    """What may stand after `slurm:`."""

    partition: str = ""
    time: int = 240  # minutes; a job that needs more is requeued, and goes on
    cpus: int = 1  # of one cohort, and its threads
    gpus: int = 0
    mem_gb: int = 0  # 0: the partition's default
    account: str = ""
    qos: str = ""
    constraint: str = ""
    workers: int = 0  # jobs that may run at a time; 0: as SLURM has room
    queued: int = 100  # jobs that wait or run at a time
    retries: int = 5
    lease: float = 120.0  # seconds
    signal_delay: int = 90  # seconds between the warning and the time limit


class JobsRefused(UserWarning):
    """SLURM takes no jobs for now."""


class SlurmTransport:
    """Attempts as jobs, and what they say as files."""

    def __init__(self, root: Path, name: str, options: SlurmOptions, slots: int, cpus: int, is_local: bool) -> None:
        self.name, self.options, self.room, self.cpus, self.is_local = name, options, slots, cpus, is_local
        self.folder = root / CLUSTER / FOLDER
        atomic.make_directories(self.folder)
        self.waiting: list[str] = []  # to be submitted together
        self.jobs: dict[str, str] = {}  # by attempt, the id of its job
        self.handles: dict[str, Any] = {}  # of processes on this machine
        self.read: dict[str, int] = {}  # bytes of words that were read
        self.seen: dict[str, int] = {}  # when progress was written last
        self.ended: set[str] = set()
        self.missed: dict[str, float] = {}  # since when a job is not known to SLURM
        self.taken_at: float | None = None  # when SLURM last took jobs
        self.refused_at = -REFUSED_SECONDS
        self.looked_at = -LOOK_SECONDS

    def slots(self, share: float) -> int:
        return self.room

    def adopt(self) -> list[Adopted]:
        adopted = []
        known: dict[str, str] = {}
        for path in sorted(self.folder.glob(f"*/{JOB}")):
            with suppress(OSError, ValueError, KeyError):
                known[path.parent.name] = str(json.loads(path.read_text())["job"])
        alive = self._alive(known)
        for attempt, job in known.items():
            if attempt in alive:
                work = Work.decode((self.folder / attempt / WORK).read_text())
                self.jobs[attempt] = job
                adopted.append(Adopted(attempt, work.ids))
            else:
                shutil.rmtree(self.folder / attempt, ignore_errors=True)
        return adopted

    def submit(self, work: Work, parcel: bytes | None, share: float) -> None:
        folder = self.folder / work.attempt
        atomic.make_directories(folder)
        atomic.write_text(folder / WORK, work.encode())
        atomic.write_text(folder / WORDS, "")
        self.waiting.append(work.attempt)

    def poll(self, seconds: float) -> list[Message | Gone]:
        self._submit_waiting()
        words: list[Message | Gone] = []
        for attempt in list(self.jobs):
            words += self._words(attempt)
        now = time.monotonic()
        if now - self.looked_at > (seconds if self.is_local else LOOK_SECONDS):
            self.looked_at = now
            words += self._gone(now)
        if not words:
            time.sleep(seconds)
        return words

    def stop(self, attempts: Sequence[str]) -> None:
        for attempt in attempts:
            with suppress(StorageError):
                atomic.write_text(self.folder / attempt / STOP, "")

    def forget(self, attempt: str) -> None:
        if attempt in self.waiting:
            self.waiting.remove(attempt)
        job, handle = self.jobs.pop(attempt, None), self.handles.pop(attempt, None)
        if attempt in self.ended:
            shutil.rmtree(self.folder / attempt, ignore_errors=True)
        elif job is not None:
            self.stop([attempt])  # should the job not be ended at once, it saves and stops
            if self.is_local:
                with suppress(OSError):
                    handle.cancel() if handle else os.kill(int(job), 2)
            else:
                _ask(["scancel", job])
            (self.folder / attempt / JOB).unlink(missing_ok=True)

    def avoid(self, place: str) -> None:
        """SLURM knows which of its machines are fit for work."""

    def detach(self) -> bool:
        self._submit_waiting()
        return True

    def _submit_waiting(self) -> None:
        now = time.monotonic()
        if not self.waiting or now - self.refused_at < REFUSED_SECONDS:
            return
        engine, attempts = self._engine(), self.waiting
        try:
            with engine.batch():
                jobs = [engine.submit(SlurmAttempt(str(self.folder / attempt))) for attempt in attempts]
            ids = [str(job.job_id) for job in jobs]
        except Exception as error:
            self._refused(error, now)
            return
        self.waiting, self.taken_at = [], now
        for attempt, job, job_id in zip(attempts, jobs, ids, strict=True):
            self.jobs[attempt] = job_id
            if self.is_local:
                self.handles[attempt] = job
            atomic.write_json(self.folder / attempt / JOB, {"job": job_id})

    def _refused(self, error: Exception, now: float) -> None:
        """Raise where SLURM has never taken jobs like these; else a limit is reached, or it is out of order for now."""
        text = str(error).strip() or type(error).__name__
        if self.taken_at is None or (not self.jobs and now - self.taken_at > OUTAGE_SECONDS):
            raise UsageError(
                f"SLURM does not take the jobs: {text[:500]}; look at the options after `slurm:`"
            ) from error
        self.refused_at = now
        warnings.warn(f"SLURM takes no more jobs just now; it is asked again: {text[:500]}", JobsRefused, stacklevel=2)

    def _engine(self) -> Any:
        import submitit

        options = self.options
        engine = submitit.AutoExecutor(
            folder=self.folder / "submitit", cluster="local" if self.is_local else "slurm", slurm_max_num_timeout=1000
        )
        texts = {"partition": options.partition, "account": options.account, "qos": options.qos,
                 "constraint": options.constraint}  # fmt: skip
        given: dict[str, Any] = {f"slurm_{name}": value for name, value in texts.items() if value}
        if options.workers:
            given["slurm_array_parallelism"] = options.workers
        if options.mem_gb:
            given["mem_gb"] = options.mem_gb
        if options.gpus:
            given["gpus_per_node"] = options.gpus
        engine.update_parameters(
            name="semfocus", timeout_min=options.time, nodes=1, tasks_per_node=1, cpus_per_task=self.cpus,
            stderr_to_stdout=True, slurm_signal_delay_s=options.signal_delay,
            slurm_additional_parameters={"requeue": True}, **given,
        )  # fmt: skip
        return engine

    def _words(self, attempt: str) -> list[Message]:
        folder = self.folder / attempt
        words: list[Message] = []
        with suppress(OSError), open(folder / WORDS, "rb") as file:
            file.seek(self.read.get(attempt, 0))
            data = file.read()
            whole = data[: data.rfind(b"\n") + 1]  # the last line may be on its way
            self.read[attempt] = self.read.get(attempt, 0) + len(whole)
            for line in whole.splitlines():
                with suppress(ValueError):  # torn when its job was killed, which began again below
                    words.append(Message(attempt, *json.loads(line)))
        with suppress(OSError):
            changed = os.stat(folder / PROGRESS).st_mtime_ns
            if changed != self.seen.get(attempt):
                self.seen[attempt] = changed
                words.append(Message(attempt, *json.loads((folder / PROGRESS).read_text())))
        if any(word.kind in LAST_WORDS for word in words):
            self.ended.add(attempt)
        return sorted(words, key=lambda word: word.kind in LAST_WORDS)

    def _gone(self, now: float) -> list[Message | Gone]:
        """Jobs that have ended without a last word, and those that SLURM has put back into its queue."""
        alive = self._alive(self.jobs)
        words: list[Message | Gone] = []
        for attempt, job in self.jobs.items():
            if attempt in alive:
                self.missed.pop(attempt, None)
                if alive[attempt] in QUEUED:
                    words.append(Message(attempt, "waiting", {}))
            elif now - self.missed.setdefault(attempt, now) >= (0 if self.is_local else GRACE_SECONDS):
                last = self._words(attempt)  # it may have spoken since they were read
                words += last
                if attempt in self.ended:
                    continue
                state = "" if self.is_local else _state_of(job)
                log = self._log_of(job)
                hint = "" if log else f"; is {self.folder.parent.parent} on a disk that all machines share?"
                reason = f"is no more (job {job}{state and ', ' + state}{hint})"
                words.append(Gone(attempt, reason, "OUT_OF_ME" in state, log))
        return words

    def _alive(self, jobs: dict[str, str]) -> dict[str, str]:
        """The state of each attempt whose job has not ended."""
        if self.is_local:
            return {attempt: "R" for attempt, job in jobs.items() if self._is_process(attempt, job)}
        if not jobs:
            return {}
        listed = _ask(["squeue", "--noheader", "--array", "--format=%i %t", "--me"])
        if listed is None:  # SLURM does not answer just now: nothing is known to be lost
            return dict.fromkeys(jobs, "R")
        states = dict(line.split()[:2] for line in listed.splitlines() if line.strip())
        return {a: states[job] for a, job in jobs.items() if states.get(job, ENDED_STATES[0]) not in ENDED_STATES}

    def _is_process(self, attempt: str, job: str) -> bool:
        handle = self.handles.get(attempt)
        if handle is not None:
            return not handle.done()
        try:
            os.kill(int(job), 0)
            return True
        except OSError:
            return False

    def _log_of(self, job: str) -> str:
        texts = []
        for path in sorted((self.folder / "submitit").glob(f"{job}_*log.*")):
            with suppress(OSError), open(path, "rb") as file:
                file.seek(max(0, path.stat().st_size - LOG_BYTES))
                texts.append(file.read().decode(errors="replace"))
        return "".join(texts)


def _ask(command: list[str]) -> str | None:
    """What a command of SLURM prints; None when it fails."""
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def _state_of(job: str) -> str:
    """`CANCELLED`, `OUT_OF_MEMORY`, ...; empty when SLURM has forgotten it."""
    text = _ask(["scontrol", "show", "job", job]) or ""
    states = [word.partition("=")[2] for word in text.split() if word.startswith("JobState=")]
    return states[-1] if states else ""
