"""Jobs of SLURM as files on a disk that machines share, and whether such a disk is fit for it."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from semfocus.errors import UsageError
from semfocus.execution.cluster import slurm_jobs
from semfocus.execution.cluster.messages import Gone, Message, Work, new_attempt, versions
from semfocus.execution.cluster.shared_disk import lock_problem, unseen_lock
from semfocus.execution.cluster.slurm_attempt import WORDS, SlurmAttempt
from semfocus.execution.cluster.slurm_jobs import JobsRefused, SlurmOptions, SlurmTransport
from semfocus.execution.cohorts import open_runs, plan_jobs
from semfocus.store import RunStore, atomic
from semfocus.store.board import BOARD, open_board
from tests.training.helpers import runtime, tiny


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("36 25 0:32 / /shared rw - nfs4 host:/x rw,vers=4.2", ""),
        ("36 25 0:32 / /shared rw - nfs host:/x rw,nolock", "nfs at /shared: nolock.*mount it without"),
        ("36 25 0:32 / /shared rw - nfs host:/x rw,local_lock=flock", "local_lock=flock"),
        ("36 25 0:32 / /shared rw - lustre host:/x rw,flock", ""),
        ("36 25 0:32 / /shared rw - lustre host:/x rw", "mount it with the option flock"),
        ("36 25 0:32 / /other rw - nfs host:/x rw,nolock", ""),
    ],
)
def test_a_disk_whose_locks_other_machines_do_not_see_is_refused(tmp_path: Path, line: str, reason: str) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"25 1 254:1 / / rw - ext4 /dev/vda rw\n{line}\n")
    problem = lock_problem(Path("/shared/runs"), mounts)
    assert bool(problem) == bool(reason)
    assert re.search(reason, problem)


@contextmanager
def writing(board: Path) -> Iterator[None]:
    """As a driver that lives."""
    over = threading.Event()

    def write() -> None:
        while not over.wait(0.02):
            atomic.write_text(board / BOARD, "{}")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_lock_of_a_living_driver_that_is_not_seen_is_a_reason_to_refuse(tmp_path: Path) -> None:
    """As on any file system whose locks are local to a machine, whatever its name and options."""
    board = tmp_path / "cluster" / ("ab" * 8)
    board.mkdir(parents=True)
    (board / "lock").write_text("{}")  # held on another machine, by a lock that stays there
    atomic.write_text(board / BOARD, "{}")
    with writing(board):
        assert f"locks in {tmp_path} do not hold between machines" in unseen_lock(board, patience=60)
    assert unseen_lock(board, patience=0.2) == "", "its driver has died"
    assert unseen_lock(tmp_path / "cluster" / ("cd" * 8), patience=60) == "", "its driver has ended"
    with open_board(tmp_path, "test") as held, writing(held.folder):
        assert unseen_lock(held.folder, patience=60) == ""


class Jobs:
    """Jobs that a test plays, and which of them SLURM knows."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.alive: dict[str, str] = {}
        monkeypatch.setattr(slurm_jobs, "_ask", lambda command: self._answer(command))
        monkeypatch.setattr(slurm_jobs, "LOOK_SECONDS", 0.0)
        monkeypatch.setattr(slurm_jobs, "GRACE_SECONDS", 0.0)
        self.root, self.transport = root, self.driver(root)

    def driver(self, root: Path) -> SlurmTransport:
        return SlurmTransport(root, "slurm", SlurmOptions(), slots=2, cpus=1, is_local=False)

    def _answer(self, command: list[str]) -> str:
        return "".join(f"{job} {state}\n" for job, state in self.alive.items()) if command[0] == "squeue" else ""

    def submit(self, job: str) -> SlurmAttempt:
        attempt = self.wait()
        self.transport.waiting.clear()
        self.transport.jobs[attempt] = job
        folder = self.transport.folder / attempt
        atomic.write_json(folder / slurm_jobs.JOB, {"job": job})
        self.alive[job] = "R"
        return SlurmAttempt(str(folder))

    def wait(self) -> str:
        """An attempt that is to be submitted."""
        config = tiny()
        work = Work(
            attempt=new_attempt(), ids=[config.run_id(config.task.build())], configs=[config.model_dump(mode="json")],
            root=str(self.root), board=str(self.root), runtime=asdict(runtime()), threads=1, versions=versions(),
            plugins=[], path=[], hand_back=False,
        )  # fmt: skip
        self.transport.submit(work, None, 1.0)
        return work.attempt

    def poll(self) -> list[tuple[str, str]]:
        words = self.transport.poll(0.0)
        return [(self.transport.jobs[word.attempt], "gone" if isinstance(word, Gone) else word.kind) for word in words]


def beat(job: SlurmAttempt) -> None:
    job._tell([Message(Path(job.folder).name, "beat", {})])


def test_a_job_that_vanishes_is_noticed_while_others_speak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Jobs(tmp_path, monkeypatch)
    loud, dead = jobs.submit("1"), jobs.submit("2")
    beat(loud)
    assert jobs.poll() == [("1", "beat")]
    del jobs.alive["2"]
    beat(loud)
    assert sorted(jobs.poll()) == [("1", "beat"), ("2", "gone")]
    assert dead.folder != loud.folder


def test_a_last_word_that_comes_just_before_a_job_ends_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Jobs(tmp_path, monkeypatch)
    job = jobs.submit("1")
    real = jobs.transport._alive

    def ends(asked: dict[str, str]) -> dict[str, str]:
        job._tell([Message(Path(job.folder).name, "ended", {"failed": [], "held": []})])
        jobs.alive.clear()
        return real(asked)

    monkeypatch.setattr(jobs.transport, "_alive", ends)
    assert jobs.poll() == [("1", "ended")]


def test_half_a_line_of_a_job_that_was_killed_does_not_hide_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = Jobs(tmp_path, monkeypatch)
    job = jobs.submit("1")
    words = Path(job.folder) / WORDS
    words.write_bytes(json.dumps(["log", {"text": "x" * 50}]).encode()[:20])
    assert jobs.poll() == []
    job()  # queued again by SLURM; its run is not there, and it says so
    assert [kind for _, kind in jobs.poll()] == ["began", "raised"]


def test_the_next_driver_takes_over_jobs_that_live_and_sweeps_up_after_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = Jobs(tmp_path, monkeypatch)
    living, dead = jobs.submit("1"), jobs.submit("2")
    del jobs.alive["2"]
    (adopted,) = jobs.driver(tmp_path).adopt()
    assert adopted.attempt == os.path.basename(living.folder)
    assert not Path(dead.folder).exists()


def test_a_job_that_is_queued_again_waits_for_the_locks_of_its_first_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine crashed, and a file server keeps the locks of a dead machine for a while."""
    jobs, store = Jobs(tmp_path, monkeypatch), RunStore(tmp_path)
    (run,) = plan_jobs([tiny()], store)
    open_runs([run], store)
    job, words = jobs.submit("1"), list[Message]()
    with run.run.lock():
        job()
        words += [word for word in jobs.transport.poll(0.0) if isinstance(word, Message)]
        assert words[-1].body == {"failed": [], "held": [run.id]}, "another one trains it"
        monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
        again = threading.Thread(target=job)
        again.start()
        again.join(1.0)
        assert again.is_alive()
    again.join(60)
    assert run.state == "done"


def test_a_slurm_that_takes_no_more_jobs_for_now_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its controller is restarted, or a limit of jobs is reached: what runs goes on, what waits comes later."""
    jobs = Jobs(tmp_path, monkeypatch)
    refusals = ["Invalid partition", "", "Unable to contact slurm controller", ""]

    class Engine:
        @contextmanager
        def batch(self) -> Iterator[None]:
            yield
            if reason := refusals.pop(0):
                raise RuntimeError(reason)

        def submit(self, attempt: SlurmAttempt) -> SimpleNamespace:
            jobs.alive[str(len(jobs.alive))] = "R"
            return SimpleNamespace(job_id=len(jobs.alive) - 1)

    monkeypatch.setattr(jobs.transport, "_engine", Engine)
    monkeypatch.setattr(slurm_jobs, "REFUSED_SECONDS", 0.0)
    first = jobs.wait()
    with pytest.raises(UsageError, match="does not take the jobs: Invalid partition; look at the options"):
        jobs.poll()
    jobs.poll()
    second = jobs.wait()
    with pytest.warns(JobsRefused, match="Unable to contact slurm controller"):
        jobs.poll()
    assert [*jobs.transport.jobs] == [first]
    jobs.poll()
    assert [*jobs.transport.jobs] == [first, second]
    assert refusals == []
