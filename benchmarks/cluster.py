"""What does a cluster cost? Overhead of a run, scaling over workers, and the driver alone with a thousand machines.

    python benchmarks/cluster.py --runs 1000                          # of one second: serial, Ray with 1, 2, 4 workers
    python benchmarks/cluster.py --runs 1000 --rounds 4 --workers 2   # in four rounds, by turns: half an hour
    python benchmarks/cluster.py --runs 100 --shared no               # workers bring their runs as archives
    python benchmarks/cluster.py --simulate                           # up to 1000 workers, whose trainers are timers

A run waits for one second in its steps (benchmarks/timed_task.py), so that four workers on two cores are as good as
four machines; what is left is the machinery. Overhead is the time beyond that of the serial executor divided by the
workers. Driver time is the processor time of the driver's process.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import itertools
import os
import platform
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from semfocus.archive.parcel import unwrap, wrap
from semfocus.config import ModelConfig, RunConfig, TaskConfig, TrainingConfig
from semfocus.execution import train
from semfocus.execution.cluster.dispatcher import Dispatcher
from semfocus.execution.cluster.messages import Adopted, Gone, Message, Work
from semfocus.execution.cluster.packing import Settings
from semfocus.execution.cohorts import form_cohorts, open_runs, plan_jobs
from semfocus.execution.executor import make_executor
from semfocus.plugins import load_plugin
from semfocus.store import RunStore, safe_json
from semfocus.training import Runtime

RUNTIME = Runtime(device="cpu", threads=1, compile="off", cohort_size=1)
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  # as the serial executor
SIZES = ((10, 1_000), (100, 10_000), (1_000, 100_000))


def config(seed: int, task: str) -> RunConfig:
    return RunConfig(
        task=TaskConfig(name=task, options={"length": 8}, train_rows=50, heldout_rows=10),
        model=ModelConfig(blocks=1, d_model=8, d_mlp=8, dropout=0.0),
        training=TrainingConfig(epochs=1, batch_size=10),
        seed=seed,
    )


@contextlib.contextmanager
def folder(memory: bool = False) -> Iterator[Path]:
    """A temporary store; in memory where the disk is not what is measured."""
    place = tempfile.mkdtemp(
        prefix="semfocus-cluster-", dir="/dev/shm" if memory and Path("/dev/shm").is_dir() else None
    )
    try:
        yield Path(place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def timed(configs: Sequence[RunConfig], executor: str) -> tuple[float, float]:
    """Seconds of the clock, and of the driver's processor."""
    with folder() as out:
        began, worked = time.perf_counter(), time.process_time()
        outcomes = train(configs, out, RUNTIME, executor=executor)
        took = time.perf_counter() - began, time.process_time() - worked
        assert all(outcome.state == "done" for outcome in outcomes)
        return took


@dataclass(frozen=True)
class Taken:
    """What one executor took for one round of runs."""

    seconds: float
    driver: float = 0.0  # seconds of its processor
    start: float = 0.0  # seconds, once

    def overhead(self, serial: Taken, workers: int) -> float:
        return self.seconds * workers / serial.seconds - 1


def taken(workers: int, configs: Sequence[RunConfig], shared: str) -> Taken:
    """By so many workers of a Ray that is started for it; by the serial executor for 0."""
    if not workers:
        return Taken(*timed(configs, "serial"))
    executor = f"ray:workers={workers},shared={shared}"
    began = time.perf_counter()
    cluster = make_executor(executor, RUNTIME)
    try:
        # Each worker imports torch once; that is part of the start, as Ray's own is.
        timed([config(10_000_000 + seed, "timed") for seed in range(2 * workers)], executor)
        start = time.perf_counter() - began
        return Taken(*timed(configs, executor), start)
    finally:
        cluster.close()


def overhead(runs: int, shared: str, workers: Sequence[int], rounds: int) -> None:
    """Serial and Ray in turn, the other way round every other time: what drifts meanwhile cancels in the median."""
    load_plugin(str(Path(__file__).with_name("timed_task.py")))
    size = runs // rounds
    how = "in place" if shared == "yes" else "brought as archives"
    print(f"{rounds} rounds of {size} runs of one second, {how}\n")
    print("| round | executor | seconds | a run, s | overhead | driver, ms a run | start, once, s | load before |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    rows: dict[int, list[Taken]] = {count: [] for count in (0, *workers)}
    for number in range(rounds):
        configs = [config(number * size + seed, "timed") for seed in range(size)]
        loads = {}
        for count in list(rows)[:: -1 if number % 2 else 1]:
            loads[count] = os.getloadavg()[0]
            rows[count].append(taken(count, configs, shared))
        serial = rows[0][-1]
        print(f"| {number + 1} | serial | {serial.seconds:.1f} | {serial.seconds / size:.3f} | | | | {loads[0]:.1f} |")
        for count in workers:
            row = rows[count][-1]
            print(
                f"| {number + 1} | ray, {count} workers | {row.seconds:.1f} | {row.seconds * count / size:.3f} "
                f"| {row.overhead(serial, count):.1%} | {row.driver / size * 1e3:.1f} | {row.start:.1f} "
                f"| {loads[count]:.1f} |",
                flush=True,
            )
    print("\n| median of rounds | a run, s | overhead | from, to | driver, ms a run | start, once, s |")
    print("|---|---|---|---|---|---|")
    print(f"| serial | {median(row.seconds for row in rows[0]) / size:.3f} | | | | |")
    for count in workers:
        beyond = [row.overhead(serial, count) for row, serial in zip(rows[count], rows[0], strict=True)]
        print(
            f"| ray, {count} workers | {median(row.seconds for row in rows[count]) * count / size:.3f} "
            f"| {median(beyond):.1%} | {min(beyond):.1%}, {max(beyond):.1%} "
            f"| {median(row.driver for row in rows[count]) / size * 1e3:.1f} "
            f"| {median(row.start for row in rows[count]):.1f} |"
        )


class Timers:
    """An engine whose workers are timers: attempts end in the order of their times, and bring finished runs."""

    name = "timers"

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.ends: list[tuple[float, int, Work, bytes]] = []
        self.now, self.count, self.rng = 0.0, itertools.count(), random.Random(1)
        self.spent, self.worked = 0.0, 0.0  # seconds and processor time of the workers' part, not the driver's
        self.seen = 0

    def slots(self, share: float) -> int:
        return self.workers

    def adopt(self) -> list[Adopted]:
        return []

    def submit(self, work: Work, parcel: bytes | None, share: float) -> None:
        assert parcel is not None
        heapq.heappush(self.ends, (self.now + self.rng.uniform(60, 600), next(self.count), work, parcel))
        self.seen = max(self.seen, len(self.ends))

    def poll(self, seconds: float) -> list[Message | Gone]:
        began, worked = time.perf_counter(), time.process_time()
        words: list[Message | Gone] = []
        for _ in range(min(10, len(self.ends))):
            self.now, _, work, parcel = heapq.heappop(self.ends)
            hello = {"node": "timer", "place": "", "pid": 1, "device": "cpu", "versions": work.versions}
            words.append(Message(work.attempt, "began", hello))
            words.append(Message(work.attempt, "runs", {}, finished(parcel)))
            words.append(Message(work.attempt, "ended", {"failed": [], "held": []}))
        self.spent += time.perf_counter() - began
        self.worked += time.process_time() - worked
        return words

    def stop(self, attempts: Sequence[str]) -> None: ...
    def forget(self, attempt: str) -> None: ...
    def avoid(self, place: str) -> None: ...
    def detach(self) -> bool:
        return False


def finished(parcel: bytes) -> bytes:
    """The runs of a parcel as they would come back: with a row of metrics and a last status."""
    runs = {}
    for run_id, files in unwrap(parcel):
        row = {"epoch": 1, "step": 5, "lr": 0.1, "train_loss": 0.5, "train_accuracy": 0.9, "heldout_accuracy": 0.8}
        status = {"format": 2, "state": "done", "step": 5, "steps": 5, "cohort": [run_id], "reason": "all epochs made"}
        runs[run_id] = files | {
            "metrics.jsonl": safe_json.encode_row(row, "row") + b"\n",
            "timing.jsonl": safe_json.encode_row({"step": 5, "seconds": 1.0}, "row") + b"\n",
            "status.json": safe_json.encode_row(status, "status") + b"\n",
        }
    return wrap(runs, dict.fromkeys(runs, "done"))


def resident() -> float:
    """MiB of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def simulate(sizes: Sequence[tuple[int, int]]) -> None:
    print("trainers are timers; the scheduler, the archives and the store are real; the store is in memory\n")
    print("| workers | runs | open, s | drive, s | ms a run | processor, ms a run | memory, MiB | at engine |")
    print("|---|---|---|---|---|---|---|---|")
    for workers, runs in sizes:
        with folder(memory=True) as out:
            before, began = resident(), time.perf_counter()
            store = RunStore(out)
            jobs = plan_jobs([config(seed, "even_pairs") for seed in range(runs)], store)
            cohorts = form_cohorts(jobs, RUNTIME)
            open_runs(jobs, store)
            opened = time.perf_counter() - began
            engine = Timers(workers)
            began, worked = time.perf_counter(), time.process_time()
            settings = Settings(hand_back=True)
            failed = Dispatcher(cohorts, store, RUNTIME, engine, settings, lambda progress: None).run()
            drive = time.perf_counter() - began - engine.spent
            processor = time.process_time() - worked - engine.worked
            assert not failed
            assert all(job.state == "done" for job in jobs[:: max(1, runs // 1000)])
            print(
                f"| {workers} | {runs} | {opened:.0f} | {drive:.0f} | {drive / runs * 1e3:.2f} "
                f"| {processor / runs * 1e3:.2f} | {resident() - before:.0f} | {engine.seen} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--shared", choices=("yes", "no"), default="yes")
    parser.add_argument("--rounds", type=int, default=1, help="serial and Ray by turns; the runs are shared out")
    parser.add_argument("--workers", default="1,2,4", help="numbers of workers, separated by commas")
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--most", type=int, default=100_000, help="runs of the largest simulation")
    options = parser.parse_args()
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    print(
        f"{' '.join(['python', *sys.argv])}\n{os.cpu_count()} cores, {platform.machine()}, load {load:.1f} before; "
        f"Python {platform.python_version()}, torch {torch.__version__}\n"
    )
    if options.simulate:
        simulate([(workers, runs) for workers, runs in SIZES if runs <= options.most])
    else:
        overhead(options.runs, options.shared, [int(count) for count in options.workers.split(",")], options.rounds)


if __name__ == "__main__":
    main()
