"""The board of a cluster's driver: who trains what, read by other commands, also where somebody else wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from semfocus.execution.cluster.messages import Gone, Message, Work
from semfocus.store.board import read_boards
from tests.execution.made_up import BenchOf


def test_a_board_says_who_trains_what(bench_of: BenchOf) -> None:
    bench = bench_of()
    seen: list[Any] = []

    def look(work: Work) -> None:
        bench.engine.begin(work, "node-7")
        members = [[run_id, {}] for run_id in work.ids]
        numbers = {
            "going_on": 2,
            "step": 5,
            "total_steps": 20,
            "steps_per_epoch": 5,
            "seconds": 2.0,
            "session_steps": 5,
        }
        bench.engine.say(work, "progress", members=members, **numbers)

    bench.engine.on_submit = look
    dispatcher = bench.dispatcher()
    real = bench.engine.poll

    def poll(seconds: float) -> list[Message | Gone]:
        bench.now += 3.0
        boards = read_boards(bench.store.root)
        seen.extend(row for board in boards for row in board.rows)
        if bench.now > 12:
            for work in bench.engine.sent:
                bench.engine.bring(work)
                bench.engine.say(work, "ended", failed=[], held=[])
        return real(seconds)

    bench.engine.poll = poll  # type: ignore[method-assign]
    dispatcher.run()
    training = [row for row in seen if row["state"] == "training"]
    assert training[0]["node"] == "node-7"
    assert training[0]["what"].startswith("even_pairs ")
    assert (training[0]["rate"], training[0]["left"]) == (5.0, 6.0)


def test_a_hostile_board_is_harmless(tmp_path: Path) -> None:
    folder = tmp_path / "cluster" / ("ab" * 8)
    folder.mkdir(parents=True)
    (folder / "board.json").write_text(
        '{"engine": "\\u001b[2Jray", "since": 5, "done": -3, "total": "x", '
        '"rows": [{"node": "\\u001b]0;x", "step": -1}, 7]}'
    )
    (board,) = read_boards(tmp_path)
    assert board.engine == "[2Jray"
    assert (board.since, board.done, board.total) == ("", 0, 0)
    assert board.rows[0]["node"] == "]0;x"
    (folder / "board.json").write_text("[" * 10_000)
    assert read_boards(tmp_path) == []
