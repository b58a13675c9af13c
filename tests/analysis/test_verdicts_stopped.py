"""Runs that stop at a training accuracy: they count where only the epochs until then are read, and nowhere else."""

from __future__ import annotations

import pytest

from semfocus.analysis.records import Record
from semfocus.analysis.verdicts.settings import TASKS, choose, settings_from
from tests.analysis.made import arm, both, run, verdict


def _stopping(level: float, seeds: range, task: str = "parity", full: float = 60, topk: float = 20) -> list[Record]:
    """Full and top-5 at 95 % in these epochs, and no epoch after it."""
    changes = {"training.stop_accuracy": level}
    return [
        run(task, mechanism, seed, at=at + 0.3 * (seed % 5), changes=changes)
        for mechanism, at in (("full", full), ("topk:5", topk))
        for seed in seeds
    ]


def test_further_seeds_that_stop_at_95_decide_c1_together_with_those_that_go_on() -> None:
    """Five pairs of each were two settings of five, too few for anything."""
    whole = both(60, 20, seeds=5)
    assert verdict("C1", whole).outcome == "not decided"
    judged = verdict("C1", whole + [record for task in TASKS for record in _stopping(0.95, range(5, 10), task)])
    assert (judged.outcome, judged.runs) == ("holds", 160)
    assert judged.because.count("with runs that stop at 0.95") == len(TASKS), "said of each task"
    # the very values of ten seeds that go on
    alike = verdict("C1", both(60, 20, seeds=10))
    assert (judged.p, judged.interval) == (alike.p, alike.interval)


def test_of_two_runs_of_a_seed_the_one_that_goes_on_counts() -> None:
    (setting,) = settings_from(both(60, 20, ["parity"], seeds=6))
    pooled = choose(settings_from(both(60, 20, ["parity"], seeds=6) + _stopping(0.95, range(6))), "parity", level=0.95)
    assert pooled is not None
    assert pooled.stopped_at == ()
    assert {name: {seed: r.id for seed, r in runs.items()} for name, runs in pooled.arms.items()} == {
        name: {seed: r.id for seed, r in runs.items()} for name, runs in setting.arms.items()
    }


@pytest.mark.parametrize(("stop", "pairs"), [(0.9, 6), (0.95, 9), (0.99, 9)])
def test_a_run_that_stops_below_the_level_says_nothing_of_it(stop: float, pairs: int) -> None:
    settings = settings_from(both(60, 20, ["parity"], seeds=6) + _stopping(stop, range(6, 9)))
    chosen = choose(settings, "parity", level=0.95)
    assert chosen is not None
    assert len(chosen.seeds("full", "topk:5")) == pairs
    assert choose(settings_from(_stopping(0.9, range(9))), "parity", level=0.95) is None


def test_settings_that_differ_in_more_than_where_runs_stop_stay_apart() -> None:
    changes = {"training.stop_accuracy": 0.95, "model.blocks": 4}
    others = [run("parity", m, seed, changes=changes) for m in ("full", "topk:5") for seed in range(6, 9)]
    chosen = choose(settings_from(both(60, 20, ["parity"], seeds=6) + others), "parity", level=0.95)
    assert chosen is not None
    assert len(chosen.seeds("full", "topk:5")) == 6


def test_a_mask_that_stops_at_95_is_not_said_to_stay_below_100() -> None:
    """Full attention jumps to 100 % in one evaluation, the mask stops at 96 %: the rule called that never."""
    changes = {"training.stop_accuracy": 0.95}
    records = arm("even_pairs", "full", 20, changes=changes)
    records += arm("even_pairs", "banded:5", 50, fits=False, changes=changes)
    never = "some never reach 100 % on even_pairs"
    assert f"{never} (no pair of full and a mask)" in verdict("C3", records).because
    whole = arm("even_pairs", "full", 20) + arm("even_pairs", "banded:5", 50, fits=False)
    assert f"{never} (banded:5 in 0 of 10 runs" in verdict("C3", whole).because


@pytest.mark.parametrize("claim", ["C4", "C5"])
def test_what_is_read_at_the_last_epoch_is_read_of_runs_that_go_on_alone(claim: str) -> None:
    whole = both(60, 20)
    alone, beside = verdict(claim, whole), verdict(claim, whole + _stopping(0.95, range(10, 30)))
    assert beside == alone
