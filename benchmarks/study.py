"""How long does a whole study take, from the command to the page? Wall-clock of `semfocus run`, in a fresh process.

    python benchmarks/study.py even_pairs --device cuda               # six mechanisms, ten seeds, 100 epochs
    python benchmarks/study.py rows_of_40 --device cuda               # the study `headline`: seven tasks, 560 runs
    python benchmarks/study.py listops --device cuda                  # full and top-5, twenty seeds
    python benchmarks/study.py even_pairs --device cuda --alone       # one cohort of one mechanism at a time
    python benchmarks/study.py even_pairs --scale smoke               # anywhere: shows that it works
    python benchmarks/study.py rows_of_40 --device cuda --out runs --minutes 9   # again, until all is there

One line: runs that ended, seconds of the command, microseconds of a member's training step with everything counted
in (start, compilation, evaluation, checkpoints, page). With `--minutes` it is stopped then: all is saved, the line
counts the steps of this command alone, and the exit code is that of `semfocus run`, 143. Run it twice with another
`--out` to see what the compilers' caches on disk save.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

MAIN = "from semfocus.cli import main; main()"
STUDIES: dict[str, tuple[list[str], list[str]]] = {  # arguments of `semfocus run`, and tasks
    "even_pairs": (["figure_1", "--seeds", "10"], ["even_pairs"]),
    "rows_of_40": (
        ["headline", "--seeds", "10"],
        ["even_pairs", "missing_duplicate", "stack_manipulation", "modular_arithmetic", "solve_equation",
         "cycle_navigation", "parity"],
    ),
    "listops": (["figure_1", "--attention", "full,topk:5", "--seeds", "20"], ["listops"]),
}  # fmt: skip


def progress(store: Path) -> tuple[int, int, int]:
    """Runs in a store, those of them that have ended, and the steps they have made."""
    statuses = [json.loads(path.read_text()) for path in store.glob("*/status.json")]
    ended = sum(status["state"] in ("done", "diverged") for status in statuses)
    return len(list(store.glob("*/config.json"))), ended, sum(status.get("step", 0) for status in statuses)


def run_for(command: Sequence[str], minutes: float | None) -> int:
    """Run a command and give its exit code; after so many minutes, or when this is stopped, it has to save and end.

    It has a session of its own, so that a signal for both reaches it once: a second one would be taken for haste.
    """
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: process.terminate())
    try:
        return process.wait(None if minutes is None else 60 * minutes)
    except subprocess.TimeoutExpired:
        process.terminate()
        return process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--tasks", nargs="+", help="only these of the study's tasks")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="tf32", choices=["tf32", "fp32"])
    parser.add_argument("--scale", default="paper")
    parser.add_argument("--alone", action="store_true", help="one cohort at a time, of one mechanism")
    parser.add_argument("--out", type=Path, help="the store; a new temporary one unless given")
    parser.add_argument("--minutes", type=float, help="stop after so many; the same command goes on")
    options = parser.parse_args()
    arguments, tasks = STUDIES[options.study]
    tasks = options.tasks or tasks
    store = options.out or Path(tempfile.mkdtemp(prefix="study-"))
    command = [sys.executable, "-c", MAIN, "run", *arguments, "--tasks", ",".join(tasks), "--scale", options.scale]
    command += ["--device", options.device, "--set", f"precision={options.precision}", "--out", str(store)]
    command += ["--no-mix", "--jobs", "1"] if options.alone else []
    before = progress(store)[2]
    started = time.monotonic()
    code = run_for(command, options.minutes)
    seconds = time.monotonic() - started
    runs, ended, after = progress(store)
    print("| tasks | runs | command, s | member-steps | us a member-step, all in |\n|---|---|---|---|---|")
    count = f"{ended}" if ended == runs else f"{ended} of {runs}"
    per_step = f"{1e6 * seconds / (after - before):.1f}" if after > before else ""
    print(f"| {', '.join(tasks)} | {count} | {seconds:.1f} | {after - before} | {per_step} |\n\nruns in {store}")
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
