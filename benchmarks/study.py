"""How long does a whole study take, from the command to the page? Wall-clock of `semfocus run`, in a fresh process.

    python benchmarks/study.py even_pairs --device cuda               # six mechanisms, ten seeds, 100 epochs
    python benchmarks/study.py rows_of_40 --device cuda               # the study `headline`: seven tasks, 560 runs
    python benchmarks/study.py listops --device cuda                  # full and top-5, twenty seeds
    python benchmarks/study.py even_pairs --device cuda --alone       # one cohort of one mechanism at a time
    python benchmarks/study.py even_pairs --scale smoke               # anywhere: shows that it works

One line a task: runs, seconds of its command, microseconds of a member's training step with everything counted in
(start, compilation, evaluation, checkpoints, page). Run it twice with another `--out` to see what the compilers' caches
on disk save.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MAIN = "from semfocus.cli import main; main()"
STUDIES: dict[str, tuple[list[str], list[str]]] = {  # arguments of `semfocus run`, and tasks, one command each
    "even_pairs": (["figure_1", "--seeds", "10"], ["even_pairs"]),
    "rows_of_40": (
        ["headline", "--seeds", "10"],
        ["even_pairs", "missing_duplicate", "stack_manipulation", "modular_arithmetic", "solve_equation",
         "cycle_navigation", "parity"],
    ),
    "listops": (["figure_1", "--attention", "full,topk:5", "--seeds", "20"], ["listops"]),
}  # fmt: skip


def runs_and_steps(store: Path) -> tuple[int, int]:
    """Runs in a store, and the steps they made."""
    steps = [json.loads(path.read_text())["step"] for path in store.glob("*/status.json")]
    return len(steps), sum(steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--tasks", nargs="+", help="only these of the study's tasks")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="tf32", choices=["tf32", "fp32"])
    parser.add_argument("--scale", default="paper")
    parser.add_argument("--alone", action="store_true", help="one cohort at a time, of one mechanism")
    parser.add_argument("--out", type=Path, help="the store; a new temporary one unless given")
    options = parser.parse_args()
    arguments, tasks = STUDIES[options.study]
    root = options.out or Path(tempfile.mkdtemp(prefix="study-"))
    print("| task | runs | command, s | us a member-step, all in |\n|---|---|---|---|", flush=True)
    total = 0.0
    for task in options.tasks or tasks:
        store = root / task
        command = [sys.executable, "-c", MAIN, "run", *arguments, "--tasks", task, "--scale", options.scale]
        command += ["--device", options.device, "--set", f"precision={options.precision}", "--out", str(store)]
        command += ["--no-mix", "--jobs", "1"] if options.alone else []
        started = time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds = time.monotonic() - started
        runs, steps = runs_and_steps(store)
        print(f"| {task} | {runs} | {seconds:.1f} | {1e6 * seconds / max(steps, 1):.1f} |", flush=True)
        total += seconds
    print(f"\nall: {total:.0f} s; runs in {root}")


if __name__ == "__main__":
    main()
