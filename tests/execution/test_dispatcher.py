"""The driver of a cluster against an engine that is made up: what goes out when, what is lost, what counts."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from semfocus.archive.contents import read_files
from semfocus.archive.parcel import unwrap, wrap
from semfocus.errors import CorruptData, Locked, StorageError, UsageError
from semfocus.execution import train
from semfocus.execution.cluster import flights, packing
from semfocus.execution.cluster.dispatcher import Dispatcher
from semfocus.execution.cluster.flights import shortest_first
from semfocus.execution.cluster.losing import LostWorker
from semfocus.execution.cluster.messages import Adopted, DifferentBuilds, Gone, Message, Work
from semfocus.execution.cluster.packing import Settings
from semfocus.execution.cohorts import open_runs, plan_jobs
from semfocus.store import RunStore
from semfocus.store.board import open_board, read_boards
from tests.training.helpers import runtime, tiny, trained

CONFIGS = [tiny(seed, mechanism, epochs=4) for mechanism in ("full", "topk:3") for seed in (1, 2)]


class MadeUp:
    """An engine whose machines do what a test says; `finished` holds runs that were trained beforehand."""

    name = "made-up"

    def __init__(self, finished: Path, slots: int = 2) -> None:
        self.finished, self.room = finished, slots
        self.sent: list[Work] = []
        self.parcels: dict[str, bytes | None] = {}
        self.said: list[Message | Gone] = []
        self.forgotten: list[str] = []
        self.avoided: list[str] = []
        self.alive: list[Adopted] = []
        self.on_submit: Callable[[Work], None] = self.succeed

    def slots(self, share: float) -> int:
        return self.room

    def adopt(self) -> list[Adopted]:
        return self.alive

    def submit(self, work: Work, parcel: bytes | None, share: float) -> None:
        self.sent.append(work)
        self.parcels[work.attempt] = parcel
        self.on_submit(work)

    def poll(self, seconds: float) -> list[Message | Gone]:
        said, self.said = self.said, []
        return said

    def stop(self, attempts: Sequence[str]) -> None: ...
    def forget(self, attempt: str) -> None:
        self.forgotten.append(attempt)

    def avoid(self, place: str) -> None:
        self.avoided.append(place)

    def detach(self) -> bool:
        return False

    def say(self, work: Work, kind: str, parcel: bytes | None = None, /, **body: Any) -> None:
        self.said.append(Message(work.attempt, kind, body, parcel))

    def begin(self, work: Work, node: str = "one", torch: str | None = None) -> None:
        versions = work.versions | ({"torch": torch} if torch else {})
        self.say(work, "began", node=node, place=f"id of {node}", pid=1, device="cpu", versions=versions)

    def bring(self, work: Work, ids: Sequence[str] | None = None, checkpoints: str = "kept") -> None:
        runs = [RunStore(self.finished).open(run_id) for run_id in ids or work.ids]
        files = {run.id: read_files(run, checkpoints) for run in runs}
        self.say(work, "runs", wrap(files, dict.fromkeys(files, "done")))

    def succeed(self, work: Work) -> None:
        self.begin(work)
        self.bring(work)
        self.say(work, "ended", failed=[], held=[])


class Bench:
    """A store with runs to train, and an engine."""

    def __init__(self, tmp_path: Path, cohort_size: int = 2, **settings: Any) -> None:
        self.expected = trained(CONFIGS, tmp_path / "finished", cohort_size=cohort_size)
        self.store = RunStore(tmp_path / "runs")
        self.jobs = plan_jobs(CONFIGS, self.store)
        open_runs(self.jobs, self.store)
        self.engine = MadeUp(tmp_path / "finished")
        self.now = 0.0
        self.settings = Settings(**{"hand_back": True} | settings)
        self.cohorts = [self.jobs[i : i + cohort_size] for i in range(0, 4, cohort_size)]

    def dispatcher(self) -> Dispatcher:
        return Dispatcher(
            self.cohorts, self.store, runtime(), self.engine, self.settings, lambda progress: None, lambda: self.now
        )

    def run(self) -> list[str]:
        return self.dispatcher().run()

    def assert_all_there(self) -> None:
        for job, run in zip(self.jobs, self.expected, strict=True):
            assert job.state == "done"
            assert job.run.metrics() == run.metrics()
            assert job.run.holder() is None


def test_runs_come_back_as_archives_and_every_lock_is_free_afterwards(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert bench.run() == []
    bench.assert_all_there()
    first = bench.engine.sent[0]
    given = dict(unwrap(bench.engine.parcels[first.attempt] or b""))
    assert list(given) == first.ids
    assert read_boards(bench.store.root) == [], "a driver that has ended well leaves nothing"
    assert {path.name for path in bench.store.root.iterdir()} == {*(job.id for job in bench.jobs), "cluster"}


def test_few_attempts_wait_at_the_engine(tmp_path: Path) -> None:
    bench = Bench(tmp_path, cohort_size=1)
    bench.engine.room = 1
    bench.engine.on_submit = lambda work: None
    dispatcher = bench.dispatcher()
    with open_board(bench.store.root, "test") as dispatcher.board:
        dispatcher._submit()
        assert len(bench.engine.sent) == 3, "those at work, and two that wait"
        dispatcher._submit()
        assert len(bench.engine.sent) == 3
        for attempt in list(dispatcher.flights):
            dispatcher._drop(attempt)


def test_the_smallest_study_goes_first_and_in_it_the_longest_cohort(tmp_path: Path) -> None:
    small = [tiny(1, task="parity", epochs=1), tiny(2, task="parity", epochs=3)]
    jobs = plan_jobs([*CONFIGS, *small], RunStore(tmp_path))
    ordered = shortest_first([[job] for job in jobs])
    assert [cohort[0].config.seed for cohort in ordered[:2]] == [2, 1]
    assert {cohort[0].config.task.name for cohort in ordered[:2]} == {"parity"}


def test_a_lost_worker_is_replaced_and_what_it_brings_later_is_refused(tmp_path: Path) -> None:
    """Rows 59 and 60."""
    bench = Bench(tmp_path, lease=10.0)
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
def test_what_a_sick_machine_brings_is_refused_and_its_runs_are_trained_elsewhere(tmp_path: Path, fault: str) -> None:
    bench = Bench(tmp_path)

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


def test_a_run_that_is_refused_again_and_again_is_given_up_with_the_reason(tmp_path: Path) -> None:
    bench = Bench(tmp_path, retries=2)
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


def test_a_cohort_that_is_lost_again_and_again_is_split_and_the_run_at_fault_alone_given_up(tmp_path: Path) -> None:
    """Row 63: killed by the kernel for its memory, the siblings go on."""
    bench = Bench(tmp_path, cohort_size=4, retries=2)
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


def test_what_the_engine_knows_to_be_out_of_memory_is_split_at_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, cohort_size=4)

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


def test_losses_count_only_while_a_cohort_gets_no_further(tmp_path: Path) -> None:
    """A machine that is taken away every hour does not end a run of a day."""
    bench = Bench(tmp_path, retries=2)
    stops = trained_in_pieces(tmp_path / "pieces")
    turn = iter(range(len(stops)))

    def preempted(work: Work) -> None:
        if work.ids != [bench.jobs[0].id, bench.jobs[1].id]:
            bench.engine.succeed(work)
            return
        bench.engine.begin(work)
        bench.engine.finished = stops[next(turn)]
        bench.engine.bring(work)
        bench.engine.say(work, "stopped")
        bench.engine.finished = tmp_path / "finished"

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


def test_a_machine_whose_disk_is_full_gets_nothing_more(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
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


def test_when_every_disk_is_full_the_study_ends_with_that(tmp_path: Path) -> None:
    """Each try would fill time, and in the end runs would be called too large for memory."""
    bench = Bench(tmp_path)

    def full_disk(work: Work) -> None:
        bench.engine.begin(work, "the-last")
        bench.engine.room = 0
        bench.engine.say(work, "raised", kind="StorageError", text="cannot write x: No space left", trace="...")

    bench.engine.on_submit = full_disk
    with pytest.raises(StorageError, match="on the-last: cannot write x: No space left; no other machine is left"):
        bench.run()
    assert all(job.run.holder() is None for job in bench.jobs)


def test_a_worker_whose_runs_did_not_arrive_has_not_ended(tmp_path: Path) -> None:
    """What it brought was lost on the way: the runs are trained again, not left out."""
    bench = Bench(tmp_path)
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


def test_runs_that_a_lost_worker_still_holds_are_asked_for_again(tmp_path: Path) -> None:
    """On a shared disk the lock of a worker that was cut off outlives it for a while."""
    bench = Bench(tmp_path, hand_back=False, cohort_size=4)
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


def test_an_error_that_is_not_ours_is_tried_elsewhere_and_in_the_end_raised(tmp_path: Path) -> None:
    """A machine with a broken GPU does not end a study of thirty; a mistake in the code does, after a few tries."""
    bench = Bench(tmp_path, cohort_size=4, retries=3)
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

    again = Bench(tmp_path / "again", cohort_size=4, retries=3)
    again.engine.on_submit = lambda work: again.engine.say(
        work, "raised", kind="ZeroDivisionError", text="division by zero", trace="line 7"
    )
    with pytest.warns(LostWorker), pytest.raises(RuntimeError, match="ZeroDivisionError: division by zero"):
        again.run()
    assert len(again.engine.sent) == 3
    assert all(job.run.holder() is None for job in again.jobs)


def test_an_attempt_of_an_earlier_driver_is_watched_though_one_of_its_runs_has_ended_early(tmp_path: Path) -> None:
    """Members of a cohort may reach their goal, or diverge, before the others."""
    bench = Bench(tmp_path, hand_back=False, cohort_size=4)
    train(CONFIGS[:1], bench.store.root, runtime())
    bench.cohorts = [bench.jobs[1:]]
    bench.engine.alive = [Adopted("0" * 16, [job.id for job in bench.jobs])]
    train(CONFIGS[1:], bench.store.root, runtime())
    bench.engine.said = [Message("0" * 16, "ended", {"failed": [], "held": []}, None)]
    assert bench.run() == []
    assert bench.engine.sent == []


def test_an_adopted_attempt_that_never_speaks_is_given_up(tmp_path: Path) -> None:
    bench = Bench(tmp_path, hand_back=False, cohort_size=4, lease=10.0)
    bench.engine.alive = [Adopted("0" * 16, [job.id for job in bench.jobs])]

    def poll(seconds: float) -> list[Message | Gone]:
        bench.now += 4.0
        said, bench.engine.said = bench.engine.said, []
        return said

    def in_place(work: Work) -> None:
        train(CONFIGS, bench.store.root, runtime())
        bench.engine.begin(work)
        bench.engine.say(work, "ended", failed=[], held=[])

    bench.engine.poll, bench.engine.on_submit = poll, in_place  # type: ignore[method-assign]
    with pytest.warns(LostWorker, match="was not heard of for 10 s"):
        assert bench.run() == []
    bench.assert_all_there()


def test_locks_are_given_back_when_a_run_cannot_be_read_to_be_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path)

    def torn(run: Any, checkpoints: str) -> Any:
        raise CorruptData("torn")

    monkeypatch.setattr(packing, "read_files", torn)
    with pytest.raises(CorruptData, match="torn"):
        bench.run()
    assert all(job.run.holder() is None for job in bench.jobs)


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        (0, {2: 1.0, 4: 0.5, 9: 0.25, 100: 0.125}),
        (1, {2: 1.0, 4: 0.5, 9: 0.5, 100: 0.5}),  # two cohorts: half of it is enough for each
        (2, {2: 1.0, 4: 1.0, 9: 1.0, 100: 1.0}),  # a part would leave the other one idle
    ],
)
def test_a_small_cohort_gets_a_part_of_a_gpu_where_there_are_more_cohorts_than_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: int, expected: dict[int, float]
) -> None:
    bench = Bench(tmp_path, device="cuda")
    bench.engine.slots = lambda share: int(gpus / share)  # type: ignore[method-assign]
    shares = {}
    for limit in (2, 4, 9, 100):
        monkeypatch.setattr(flights, "cohort_limit", lambda config, task, device, limit=limit: limit)
        shares[limit] = bench.dispatcher()._share(bench.jobs[:2])
    assert shares == expected
    assert Dispatcher(bench.cohorts, bench.store, runtime(), bench.engine, Settings(True), print)._share([]) == 1.0


def test_as_many_cohorts_go_out_as_find_room_by_their_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few wait at the engine, also where each needs a whole GPU."""
    bench = Bench(tmp_path, cohort_size=1, device="cuda")
    asked: list[float] = []
    bench.engine.slots = lambda share: asked.append(share) or 1  # type: ignore[method-assign, func-returns-value]
    bench.engine.on_submit = lambda work: None
    monkeypatch.setattr(flights, "cohort_limit", lambda *args: 1)
    dispatcher = bench.dispatcher()
    with open_board(bench.store.root, "test") as dispatcher.board:
        dispatcher._submit()
        for attempt in list(dispatcher.flights):
            dispatcher._drop(attempt)
    assert set(asked) == {1.0}
    assert len(bench.engine.sent) == 3


def test_an_error_of_a_worker_arrives_as_itself(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.engine.on_submit = lambda work: bench.engine.say(
        work, "raised", kind="UsageError", text="on one: plugin 'x' cannot be found", trace="line 7"
    )
    with pytest.raises(UsageError, match="on one: plugin 'x' cannot be found"):
        bench.run()
    assert all(job.run.holder() is None for job in bench.jobs)
    (board,) = read_boards(bench.store.root)
    assert "line 7" in board.logs[0].read_text()


def test_a_run_that_is_held_elsewhere_is_left_to_its_holder_and_the_rest_trained(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with bench.jobs[0].run.lock():
        assert bench.run() == []
    assert [job.state for job in bench.jobs] == ["new", "done", "done", "done"]
    with pytest.raises(Locked, match="held by process"), bench.jobs[0].run.lock(), bench.jobs[0].run.lock():
        pass


def test_another_build_of_torch_is_named_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path)

    def other(work: Work) -> None:
        bench.engine.begin(work, torch="2.11.0+cu130")
        bench.engine.bring(work)
        bench.engine.say(work, "ended", failed=[], held=[])

    bench.engine.on_submit = other
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        bench.run()
    (warning,) = [w for w in told if issubclass(w.category, DifferentBuilds)]
    assert "one has torch 2.11.0+cu130" in str(warning.message)


def test_attempts_of_an_earlier_driver_are_watched_and_not_sent_again(tmp_path: Path) -> None:
    """Row 61, where jobs live without a driver: in place, so that the runs are there when they end."""
    bench = Bench(tmp_path, hand_back=False)
    own = [job.id for job in bench.jobs[:2]]
    bench.engine.alive = [Adopted("0" * 16, own), Adopted("1" * 16, ["feedfeedfeedfeed"])]
    bench.engine.said = [Message("0" * 16, "ended", {"failed": [], "held": []}, None)]

    def in_place(work: Work) -> None:
        bench.engine.begin(work)
        train(CONFIGS, bench.store.root, runtime())
        bench.engine.say(work, "ended", failed=[], held=[])

    bench.engine.on_submit = in_place
    assert bench.run() == []
    assert [work.ids for work in bench.engine.sent] == [[job.id for job in bench.jobs[2:]]]


def test_a_driver_that_starts_again_goes_on_from_the_run_directories(tmp_path: Path) -> None:
    """Row 61: the head restarts, or the driver was killed."""
    bench = Bench(tmp_path)

    def first_only(work: Work) -> None:
        if len(bench.engine.sent) == 1:
            bench.engine.succeed(work)
        else:
            raise KeyboardInterrupt

    bench.engine.on_submit = first_only
    with pytest.raises(KeyboardInterrupt):
        bench.run()
    assert all(job.run.holder() is None for job in bench.jobs)
    bench.engine.on_submit = bench.engine.succeed
    bench.engine.said.clear()
    bench.engine.sent.clear()
    done = [job.id for job in bench.jobs if job.state == "done"]
    bench.run()
    assert not {*done} & {run_id for work in bench.engine.sent for run_id in work.ids}
    bench.assert_all_there()


def test_a_board_says_who_trains_what(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
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
