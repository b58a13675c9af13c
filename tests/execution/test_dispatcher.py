"""The driver of a cluster against an engine that is made up: what goes out when, what comes back, what is raised."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from semfocus.archive.parcel import unwrap
from semfocus.errors import CorruptData, Locked, UsageError
from semfocus.execution.cluster import flights, packing
from semfocus.execution.cluster.dispatcher import Dispatcher
from semfocus.execution.cluster.flights import shortest_first
from semfocus.execution.cluster.messages import DifferentBuilds, Work
from semfocus.execution.cluster.packing import Settings
from semfocus.execution.cohorts import plan_jobs
from semfocus.store import RunStore
from semfocus.store.board import open_board, read_boards
from tests.execution.made_up import CONFIGS, BenchOf
from tests.training.helpers import runtime, tiny


def test_runs_come_back_as_archives_and_every_lock_is_free_afterwards(bench_of: BenchOf) -> None:
    bench = bench_of()
    assert bench.run() == []
    bench.assert_all_there()
    first = bench.engine.sent[0]
    given = dict(unwrap(bench.engine.parcels[first.attempt] or b""))
    assert list(given) == first.ids
    assert read_boards(bench.store.root) == [], "a driver that has ended well leaves nothing"
    assert {path.name for path in bench.store.root.iterdir()} == {*(job.id for job in bench.jobs), "cluster"}


def test_few_attempts_wait_at_the_engine(bench_of: BenchOf) -> None:
    bench = bench_of(cohort_size=1)
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


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        (0, {2: 1.0, 4: 0.5, 9: 0.25, 100: 0.125}),
        (1, {2: 1.0, 4: 0.5, 9: 0.5, 100: 0.5}),  # two cohorts: half of it is enough for each
        (2, {2: 1.0, 4: 1.0, 9: 1.0, 100: 1.0}),  # a part would leave the other one idle
    ],
)
def test_a_small_cohort_gets_a_part_of_a_gpu_where_there_are_more_cohorts_than_gpus(
    bench_of: BenchOf, monkeypatch: pytest.MonkeyPatch, gpus: int, expected: dict[int, float]
) -> None:
    bench = bench_of(device="cuda")
    bench.engine.slots = lambda share: int(gpus / share)  # type: ignore[method-assign]
    shares = {}
    for limit in (2, 4, 9, 100):
        monkeypatch.setattr(flights, "cohort_limit", lambda config, task, device, limit=limit: limit)
        shares[limit] = bench.dispatcher()._share(bench.jobs[:2])
    assert shares == expected
    assert Dispatcher(bench.cohorts, bench.store, runtime(), bench.engine, Settings(True), print)._share([]) == 1.0


def test_as_many_cohorts_go_out_as_find_room_by_their_share(bench_of: BenchOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few wait at the engine, also where each needs a whole GPU."""
    bench = bench_of(cohort_size=1, device="cuda")
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


def test_locks_are_given_back_when_a_run_cannot_be_read_to_be_sent(
    bench_of: BenchOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = bench_of()

    def torn(run: Any, checkpoints: str) -> Any:
        raise CorruptData("torn")

    monkeypatch.setattr(packing, "read_files", torn)
    with pytest.raises(CorruptData, match="torn"):
        bench.run()
    assert all(job.run.holder() is None for job in bench.jobs)


def test_an_error_of_a_worker_arrives_as_itself(bench_of: BenchOf) -> None:
    bench = bench_of()
    bench.engine.on_submit = lambda work: bench.engine.say(
        work, "raised", kind="UsageError", text="on one: plugin 'x' cannot be found", trace="line 7"
    )
    with pytest.raises(UsageError, match="on one: plugin 'x' cannot be found"):
        bench.run()
    assert all(job.run.holder() is None for job in bench.jobs)
    (board,) = read_boards(bench.store.root)
    assert "line 7" in board.logs[0].read_text()


def test_a_run_that_is_held_elsewhere_is_left_to_its_holder_and_the_rest_trained(bench_of: BenchOf) -> None:
    bench = bench_of()
    with bench.jobs[0].run.lock():
        assert bench.run() == []
    assert [job.state for job in bench.jobs] == ["new", "done", "done", "done"]
    with pytest.raises(Locked, match="held by process"), bench.jobs[0].run.lock(), bench.jobs[0].run.lock():
        pass


def test_another_build_of_torch_is_named_once(bench_of: BenchOf) -> None:
    bench = bench_of()

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
