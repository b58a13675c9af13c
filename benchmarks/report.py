"""How long does a page take, and how large is it? A thousand synthetic runs of two hundred epochs.

    python benchmarks/report.py                    # 1000 runs x 200 epochs
    python benchmarks/report.py --runs 100

The runs are written first and not timed. Loading with aggregation, and the whole page, are measured each in a process
of its own, so that the peak memory is its own. Exits with 1 when a limit is exceeded.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from semfocus import recipes

TASKS = ("even_pairs", "parity", "missing_duplicate", "stack_manipulation", "cycle_navigation")
MECHANISMS = (
    *recipes.COMPACT, "topk:9", "banded:9", "block_local:9", "banded:5+3g",
    *(f"topk:{k}" for k in (1, 3, 15, 20, 40)),
    "bottomk:5", "randomk:5", "banded:9+1g", "block_local:9+1g", "banded:9+3g",
)  # fmt: skip
MIB = 2**20


class Limit(NamedTuple):
    """Limits for a thousand runs on two cores."""

    seconds: float
    mebibytes: float
    page_bytes: float = math.inf


class Measurement(NamedTuple):
    """What a job took; `cpu` is the CPU time, which other processes do not change."""

    seconds: float
    cpu: float
    mebibytes: float
    result: int


LIMITS = {"load and aggregate": Limit(5, 1024), "page": Limit(20, math.inf, 8e6)}


def write_store(root: Path, count: int, epochs: int) -> None:
    """Write runs as training does: ten seeds for each of twenty mechanisms on five tasks, then more seeds."""
    from semfocus.store import RunStore
    from semfocus.training.loading import document

    seeds = max(1, -(-count // (len(TASKS) * len(MECHANISMS))))
    configs = [
        recipes.configure(task, mechanism, seed).model_copy(
            update={"training": recipes.configure(task, mechanism, seed).training.model_copy(update={"epochs": epochs})}
        )
        for seed in recipes.seeds(seeds)
        for task in TASKS
        for mechanism in MECHANISMS
    ][:count]
    tasks = {name: recipes.configure(name, "full", 0).task.build() for name in TASKS}
    documents = {
        config.run_id(tasks[config.task.name]): document(config, tasks[config.task.name]) for config in configs
    }
    for index, run in enumerate(RunStore(root).create_or_open_all(documents)):
        generator = np.random.default_rng(index)
        midpoint = epochs * generator.uniform(0.02, 1.5)
        with run.lock() as writer:
            (run.path / "metrics.jsonl").write_text(_metrics(generator, midpoint, epochs))
            (run.path / "timing.jsonl").write_text(_timing(epochs))
            writer.write_status("done", device="cpu", torch="2.13.0", threads=1, compiled=False)


def _metrics(generator: np.random.Generator, midpoint: float, epochs: int) -> str:
    """Return metrics.jsonl of a run whose learning curve is logistic with this midpoint."""
    lines = []
    noise = generator.normal(size=(epochs, 2))
    for epoch in range(1, epochs + 1):
        learned = 1 / (1 + math.exp(-(epoch - midpoint) / 6))
        row = {
            "epoch": epoch, "step": 200 * epoch, "lr": 0.1 * 0.9995**epoch,
            "train_loss": 0.7 * (1 - learned) + abs(noise[epoch - 1, 0]) / 50,
            "train_accuracy": float(np.clip(0.5 + learned / 2 + noise[epoch - 1, 0] / 200, 0, 1)),
            "heldout_loss": 0.75 * (1 - learned) + abs(noise[epoch - 1, 1]) / 30,
            "heldout_accuracy": float(np.clip(0.5 + learned / 2.2 + noise[epoch - 1, 1] / 100, 0, 1)),
        }  # fmt: skip
        lines.append(json.dumps(row))
    return "\n".join(lines) + "\n"


def _timing(epochs: int) -> str:
    return "".join(
        json.dumps({"step": 200 * e, "seconds": 0.5 * e, "evaluation_seconds": 0.1}) + "\n"
        for e in range(1, epochs + 1)
    )


def load(root: str, out: str) -> int:
    """Read every run and compare the mechanisms of every group; return the number of groups."""
    from semfocus.analysis.results import Results
    from semfocus.report.figures.lines import series

    groups = Results.load(Path(root)).groups
    for group in groups:
        _ = group.comparison
        for mechanism in group.mechanisms:
            for metric in group.records[0].objective.columns:
                series(group.runs(mechanism), metric)
    return len(groups)


def page(root: str, out: str) -> int:
    """Write the page; return its size in bytes."""
    from semfocus.report.page.page import write_page

    return write_page(Path(root), Path(out)).stat().st_size


def measure(job: Callable[[str, str], int], root: Path, out: Path) -> Measurement:
    """Run a job in a fresh process; starting Python is not counted, importing what the job needs is."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_timed, (job, str(root), str(out)))


def _timed(job: Callable[[str, str], int], root: str, out: str) -> Measurement:
    start, busy = time.perf_counter(), time.process_time()
    result = job(root, out)
    seconds, cpu = time.perf_counter() - start, time.process_time() - busy
    return Measurement(seconds, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB, result)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=200)
    chosen = parser.parse_args()
    passed = True
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "runs"
        write_store(root, chosen.runs, chosen.epochs)
        print(f"{chosen.runs} runs x {chosen.epochs} epochs\n")
        print("| step | seconds | at most | CPU seconds | peak MiB | at most | page, MB | below |\n" + "|---" * 8 + "|")
        for name, job in (("load and aggregate", load), ("page", page)):
            limit = LIMITS[name]
            seconds, cpu, memory, result = measure(job, root, Path(folder) / "report.html")
            size = result if job is page else 0
            passed &= seconds <= limit.seconds and memory <= limit.mebibytes and size < limit.page_bytes
            cells = [name, f"{seconds:.2f}", f"{limit.seconds:g}", f"{cpu:.2f}", f"{memory:.0f}"]
            cells += [f"{limit.mebibytes:g}" if limit.mebibytes < math.inf else "", f"{size / 1e6:.2f}" if size else ""]
            print("| " + " | ".join([*cells, f"{limit.page_bytes / 1e6:g}" if size else ""]) + " |")
    print("\nwithin the limits" if passed else "\na limit is exceeded", file=sys.stderr)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
