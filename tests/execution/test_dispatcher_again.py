"""A driver that starts again: attempts of an earlier one are watched, and what is done stays done."""

from __future__ import annotations

import pytest

from semfocus.execution import train
from semfocus.execution.cluster.losing import LostWorker
from semfocus.execution.cluster.messages import Adopted, Gone, Message, Work
from tests.execution.made_up import CONFIGS, BenchOf
from tests.training.helpers import runtime


def test_attempts_of_an_earlier_driver_are_watched_and_not_sent_again(bench_of: BenchOf) -> None:
    """Row 61, where jobs live without a driver: in place, so that the runs are there when they end."""
    bench = bench_of(hand_back=False)
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


def test_an_attempt_of_an_earlier_driver_is_watched_though_one_of_its_runs_has_ended_early(bench_of: BenchOf) -> None:
    """Members of a cohort may reach their goal, or diverge, before the others."""
    bench = bench_of(hand_back=False, cohort_size=4)
    train(CONFIGS[:1], bench.store.root, runtime())
    bench.cohorts = [bench.jobs[1:]]
    bench.engine.alive = [Adopted("0" * 16, [job.id for job in bench.jobs])]
    train(CONFIGS[1:], bench.store.root, runtime())
    bench.engine.said = [Message("0" * 16, "ended", {"failed": [], "held": []}, None)]
    assert bench.run() == []
    assert bench.engine.sent == []


def test_an_adopted_attempt_that_never_speaks_is_given_up(bench_of: BenchOf) -> None:
    bench = bench_of(hand_back=False, cohort_size=4, lease=10.0)
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


def test_a_driver_that_starts_again_goes_on_from_the_run_directories(bench_of: BenchOf) -> None:
    """Row 61: the head restarts, or the driver was killed."""
    bench = bench_of()

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
