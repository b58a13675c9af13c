"""The driver of a cluster whose workers are lost, sick or full: what goes on where, what counts, what is given up."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from semfocus.archive.contents import read_files
from semfocus.archive.parcel import wrap
from semfocus.errors import StorageError
from semfocus.execution import train
from semfocus.execution.cluster.losing import LostWorker
from semfocus.execution.cluster.messages import Gone, Message, Work
from semfocus.store.board import read_boards
from tests.execution.made_up import CONFIGS, BenchOf
from tests.training.helpers import runtime


def test_a_lost_worker_is_replaced_and_what_it_brings_later_is_refused(bench_of: BenchOf) -> None:
    """Rows 59 and 60."""
    bench = bench_of(lease=10.0)
    late: list[Work] = []

    def silent_once(work: Work) -> None:
        if not late:
            late.append(work)
            bench.engine.begin(work, "gone")
            return
        if work.ids == late[0].ids:  # its successor begins, and it comes back: with other rows, and to say they failed
            files = {run.id: read_files(run) for run in bench.expected[:2]}
            wrong = {run_id: own | {"metrics.jsonl": b""} for run_id, own in files.items()}
            bench.engine.say(late[0], "runs", wrap(wrong, dict.fromkeys(wrong, "done")))
            bench.engine.say(late[0], "ended", failed=late[0].ids)
        bench.engine.succeed(work)

    bench.engine.on_submit = silent_once
    dispatcher = bench.dispatcher()
    real = bench.engine.poll

    def poll(seconds: float) -> list[Message | Gone]:
        bench.now += 4.0
        return real(seconds)

    bench.engine.poll = poll  # type: ignore[method-assign]
    with pytest.warns(LostWorker, match=r"on gone that trained .* was not heard of for 10 s: they go on"):
        assert dispatcher.run() == []
    assert dispatcher.late == 2
    assert late[0].attempt in bench.engine.forgotten
    bench.assert_all_there()


@pytest.mark.parametrize("fault", ["another run", "a flipped bit"])
def test_what_a_sick_machine_brings_is_refused_and_its_runs_are_trained_elsewhere(
    bench_of: BenchOf, fault: str
) -> None:
    bench = bench_of()

    def bring_wrong(work: Work) -> None:
        bench.engine.on_submit = bench.engine.succeed
        bench.engine.begin(work, "sick")
        if fault == "another run":
            bench.engine.bring(work, [job.id for job in bench.jobs if job.id not in work.ids])
            return
        bench.engine.bring(work)
        message = bench.engine.said.pop()
        assert isinstance(message, Message)
        parcel = bytearray(message.parcel or b"")
        parcel[len(parcel) // 2] ^= 1
        bench.engine.said.append(Message(work.attempt, "runs", {}, bytes(parcel)))

    bench.engine.on_submit = bring_wrong
    with pytest.warns(LostWorker, match="on sick that trained .* brought what is refused .*: they go on"):
        assert bench.run() == []
    bench.assert_all_there()


def test_a_run_that_is_refused_again_and_again_is_given_up_with_the_reason(bench_of: BenchOf) -> None:
    bench = bench_of(retries=2)
    culprit = bench.jobs[0].id
    other = bench.jobs[2].id

    def wrong(work: Work) -> None:
        bench.engine.begin(work, "sick")
        if culprit in work.ids:
            bench.engine.bring(work, [other])
        else:
            bench.engine.bring(work)
            bench.engine.say(work, "ended", failed=[], held=[])

    bench.engine.on_submit = wrong
    with pytest.warns(LostWorker):
        assert bench.run() == [culprit]
    assert [job.state for job in bench.jobs] == ["failed", "done", "done", "done"]
    reason = (bench.jobs[0].run.status() or {})["reason"]
    assert f"brings run {other}, which it was not given), 2 times in a row" in reason
    assert "memory" not in reason


def test_a_cohort_that_is_lost_again_and_again_is_split_and_the_run_at_fault_alone_given_up(bench_of: BenchOf) -> None:
    """Row 63: killed by the kernel for its memory, the siblings go on."""
    bench = bench_of(cohort_size=4, retries=2)
    culprit = bench.jobs[1].id

    def die(work: Work) -> None:
        if culprit in work.ids:
            bench.engine.begin(work)
            bench.engine.say(work, "log", text="first line\nKilled\n")
            bench.engine.said.append(Gone(work.attempt, "was killed"))
        else:
            bench.engine.succeed(work)

    bench.engine.on_submit = die
    with pytest.warns(LostWorker) as told:
        assert bench.run() == [culprit]
    assert [sum(culprit in work.ids and len(work.ids) == n for work in bench.engine.sent) for n in (4, 2, 1)] == [2] * 3
    assert [job.state for job in bench.jobs] == ["done", "failed", "done", "done"]
    assert "2 times in a row; out of memory?" in (bench.jobs[1].run.status() or {})["reason"]
    assert "Killed" in str(told[0].message)
    (board,) = read_boards(bench.store.root)
    assert board.holder is None
    assert [log.read_text() for log in board.logs] == ["first line\nKilled\n"] * 6


def test_what_the_engine_knows_to_be_out_of_memory_is_split_at_once(bench_of: BenchOf) -> None:
    bench = bench_of(cohort_size=4)

    def die(work: Work) -> None:
        if len(work.ids) > 2:
            bench.engine.said.append(Gone(work.attempt, "was killed", out_of_memory=True))
        else:
            bench.engine.succeed(work)

    bench.engine.on_submit = die
    with pytest.warns(LostWorker, match="in two halves"):
        assert bench.run() == []
    assert [len(work.ids) for work in bench.engine.sent] == [4, 2, 2]
    bench.assert_all_there()


def test_losses_count_only_while_a_cohort_gets_no_further(tmp_path: Path, bench_of: BenchOf) -> None:
    """A machine that is taken away every hour does not end a run of a day."""
    bench = bench_of(retries=2)
    stops, finished = trained_in_pieces(tmp_path / "pieces"), bench.engine.finished
    turn = iter(range(len(stops)))

    def preempted(work: Work) -> None:
        if work.ids != [bench.jobs[0].id, bench.jobs[1].id]:
            bench.engine.succeed(work)
            return
        bench.engine.begin(work)
        bench.engine.finished = stops[next(turn)]
        bench.engine.bring(work)
        bench.engine.say(work, "stopped")
        bench.engine.finished = finished

    bench.engine.on_submit = preempted
    with pytest.warns(LostWorker, match="was asked to stop by its machine: they go on"):
        assert bench.run() == []
    bench.assert_all_there()


def trained_in_pieces(folder: Path) -> list[Path]:
    """Stores in which the first two runs came to steps 5, 10, 15 and their end."""

    class Enough(Exception):
        pass

    stores = []
    for end in (5, 10, 15, 99):

        def stop(progress: Any, end: int = end) -> None:
            if progress.step >= end:
                raise Enough

        place = folder / str(end)
        with suppress(Enough):
            train(CONFIGS[:2], place, runtime(checkpoint_seconds=0), stop)
        stores.append(place)
    return stores


def test_a_machine_whose_disk_is_full_gets_nothing_more(bench_of: BenchOf) -> None:
    bench = bench_of()
    full: list[Work] = []

    def full_disk(work: Work) -> None:
        if full:
            bench.engine.succeed(work)
            return
        full.append(work)
        bench.engine.begin(work, "full-disk")
        bench.engine.say(work, "raised", kind="StorageError", text="cannot write x: No space left", trace="...")

    bench.engine.on_submit = full_disk
    with pytest.warns(LostWorker, match="cannot store runs and gets no more of them"):
        assert bench.run() == []
    assert bench.engine.avoided == ["id of full-disk"]
    bench.assert_all_there()


def test_when_every_disk_is_full_the_study_ends_with_that(bench_of: BenchOf) -> None:
    """Each try would fill time, and in the end runs would be called too large for memory."""
    bench = bench_of()

    def full_disk(work: Work) -> None:
        bench.engine.begin(work, "the-last")
        bench.engine.room = 0
        bench.engine.say(work, "raised", kind="StorageError", text="cannot write x: No space left", trace="...")

    bench.engine.on_submit = full_disk
    with pytest.raises(StorageError, match="on the-last: cannot write x: No space left; no other machine is left"):
        bench.run()
    assert all(job.run.holder() is None for job in bench.jobs)


def test_a_worker_whose_runs_did_not_arrive_has_not_ended(bench_of: BenchOf) -> None:
    """What it brought was lost on the way: the runs are trained again, not left out."""
    bench = bench_of()
    silent: list[Work] = []

    def forgetful(work: Work) -> None:
        if silent:
            bench.engine.succeed(work)
            return
        silent.append(work)
        bench.engine.begin(work)
        bench.engine.bring(work, work.ids[:1])
        bench.engine.say(work, "ended", failed=[], held=[])

    bench.engine.on_submit = forgetful
    with pytest.warns(LostWorker, match="has ended, and not all of its runs are here"):
        assert bench.run() == []
    assert [work.ids for work in bench.engine.sent if work.ids[-1] == silent[0].ids[-1]][1] == silent[0].ids[1:]
    bench.assert_all_there()


def test_runs_that_a_lost_worker_still_holds_are_asked_for_again(bench_of: BenchOf) -> None:
    """On a shared disk the lock of a worker that was cut off outlives it for a while."""
    bench = bench_of(hand_back=False, cohort_size=4)
    turns = iter(["lost", "held", "done"])

    def in_place(work: Work) -> None:
        turn = next(turns)
        if turn == "lost":
            bench.engine.said.append(Gone(work.attempt, "was cut off"))
            return
        bench.engine.begin(work)
        if turn == "done":
            train(CONFIGS, bench.store.root, runtime())
        bench.engine.say(work, "ended", failed=[], held=work.ids if turn == "held" else [])

    bench.engine.on_submit = in_place
    with pytest.warns(LostWorker) as told:
        assert bench.run() == []
    assert "found its runs still held by the worker that was lost: they go on" in str(told[1].message)
    bench.assert_all_there()


def test_an_error_that_is_not_ours_is_tried_elsewhere_and_in_the_end_raised(bench_of: BenchOf) -> None:
    """A machine with a broken GPU does not end a study of thirty; a mistake in the code does, after a few tries."""
    bench = bench_of(cohort_size=4, retries=3)
    sick = iter([True, True, False])

    def fail(work: Work) -> None:
        if next(sick):
            bench.engine.begin(work, "sick")
            bench.engine.say(work, "raised", kind="RuntimeError", text="CUDA error: uncorrectable ECC", trace="line 7")
        else:
            bench.engine.succeed(work)

    bench.engine.on_submit = fail
    with pytest.warns(LostWorker, match="on sick .* failed with RuntimeError: CUDA error: uncorrectable ECC: they go"):
        assert bench.run() == []
    bench.assert_all_there()

    again = bench_of("again", cohort_size=4, retries=3)
    again.engine.on_submit = lambda work: again.engine.say(
        work, "raised", kind="ZeroDivisionError", text="division by zero", trace="line 7"
    )
    with pytest.warns(LostWorker), pytest.raises(RuntimeError, match="ZeroDivisionError: division by zero"):
        again.run()
    assert len(again.engine.sent) == 3
    assert all(job.run.holder() is None for job in again.jobs)
