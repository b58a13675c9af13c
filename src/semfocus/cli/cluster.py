"""`semfocus status`, and leaving a study to a process in the background: `--detach`, or the answer to Ctrl-C."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from semfocus.cli.shared import RunsDirectory, console, say
from semfocus.errors import nearby

if TYPE_CHECKING:
    from rich.table import Table

    from semfocus.store.board import Shown

QUESTION = "\nStop the study here, or leave it to a process in the background? [c]ancel / [d]etach: "


def status_command(directory: RunsDirectory = None) -> None:
    """Show who trains what: drivers at work (also detached ones), their machines, and logs of workers that failed.

    \b
    semfocus run figure_3 --executor ray --detach
    semfocus status
    """
    from semfocus.store import RunStore
    from semfocus.store.board import read_boards

    store = RunStore(directory)
    states = Counter(entry.state for entry in store.entries())
    say(f"{store.root}: " + (", ".join(f"{n} {state}" for state, n in states.items()) or "no runs yet"))
    boards = read_boards(store.root)
    for board in boards:
        _print_board(board)
    if not any(board.holder for board in boards):
        _print_running(store)
    for log in sorted((store.root / "cluster").glob("driver-*.log")):
        _print_log("the output of a detached command", log)


def _print_board(board: Shown) -> None:
    if board.holder is not None:
        say(f"\n{board.engine}, driven by {board.holder}: {board.done} of {board.total} runs done")
        if board.rows:
            console().print(_workers_table(board.rows))
    for log in board.logs:
        _print_log(f"a worker that failed ({board.engine}, driver since {board.since})", log)


def _workers_table(rows: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    from semfocus.report.text import worker_cells

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("on", "device", "trains", "runs", "", "step", "member-steps/s", "left"):
        table.add_column(title, justify="left" if title in ("on", "device", "trains", "") else "right")
    for row in rows:
        table.add_row(*worker_cells(row))
    return table


def _print_running(store: Any) -> None:
    """Runs in training without a driver of a cluster: other executors, and jobs of SLURM that were left alone."""
    for entry in store.entries():
        if entry.state == "running" and entry.config and entry.status:
            task, attention = (entry.config.get(part) or {} for part in ("task", "attention"))
            what = f"{task.get('name', '')} {attention.get('mechanism', '')}"
            say(f"{entry.name}  {what}  {entry.why}")


def _print_log(what: str, path: Path) -> None:
    from semfocus.store.board import read_tail

    say(f"\n{nearby(path)}: {what}")
    for line in read_tail(path):
        say(f"    {line}")


def detach(out: Path | None) -> None:
    """Run this very command in a process of its own, which outlives the terminal."""
    from semfocus.store import RunStore, atomic

    root = RunStore(out).root
    log = root / "cluster" / f"driver-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    arguments = [word for word in sys.argv[1:] if word != "--detach"]
    output = atomic.open_to_append(log)
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "semfocus.cli", *arguments],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    finally:
        os.close(output)
    say(
        f"process {process.pid} on {socket.gethostname()} goes on; its output: {nearby(log)}\n"
        f"look at it: semfocus status {nearby(root)}      stop it: kill {process.pid}"
    )


@contextmanager
def may_detach(table: Any, out: Path | None) -> Iterator[None]:
    """Ctrl-C on a terminal asks whether to cancel or to detach; a study that was left goes on in the background."""
    from semfocus.execution.cluster import leaving

    def ask() -> str:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            return "cancel"
        if table.live is not None:
            table.live.stop()
        typer.echo(QUESTION, nl=False, err=True)
        return "detach" if sys.stdin.readline().strip().lower().startswith("d") else "cancel"

    try:
        with leaving.asking(ask):
            yield
    except leaving.Detached:
        detach(out)
        raise typer.Exit from None
