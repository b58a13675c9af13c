"""Measurements made in another way than most do not count, and the run is named with what was different."""

from __future__ import annotations

from typing import Any

import pytest

from semfocus.analysis.consistent_settings import MeasuredWith, consistent_settings, measured_with
from semfocus.analysis.records import Record
from semfocus.measurements import MaskStability
from tests.measurements import payloads


def record(name: str) -> Record:
    config = {"task": {"name": "parity"}, "attention": {"mechanism": "full"}, "seed": 0, "training": {"epochs": 1}}
    return Record(name, config, [], "done", 1.0)


def run(name: str, **settings: Any) -> MeasuredWith:
    return MeasuredWith(record(name), settings or None)


def test_the_way_of_most_pairs_wins_and_the_others_are_named() -> None:
    usual = {"split": "train", "rows": 100}
    pairs = [
        (run("a", **usual), run("b", **usual, k=5)),
        (run("c", **usual), run("d", **usual, k=5)),
        (run("e", **usual), run("f", split="train", rows=7, k=5)),
        (run("g", **usual), run("h")),
    ]
    kept = consistent_settings({"parity": pairs}, ("split", "k"), ("rows",))
    assert kept.runs == {"a", "b", "c", "d"}
    assert kept.shared == {"split": "train", "k": 5}
    assert [(one.record.id, one.why) for one in kept.left_out["parity"]] == [("f", "rows = 7, not 100")]


def test_what_must_agree_everywhere_is_decided_over_all_tasks_and_the_rest_task_by_task() -> None:
    tasks = {
        "parity": [(run("a", split="train", rows=100),), (run("b", split="train", rows=100),)],
        "listops": [(run("c", split="train", rows=20),)],
        "even_pairs": [(run("d", split="heldout", rows=100),)],
    }
    kept = consistent_settings(tasks, ("split",), ("rows",))
    assert kept.runs == {"a", "b", "c"}
    assert [one.why for one in kept.left_out["even_pairs"]] == ["split = heldout, not train"]
    assert kept.left_out["listops"] == ()


def test_a_pair_that_disagrees_is_no_pair_even_when_there_is_no_other() -> None:
    kept = consistent_settings({"parity": [(run("a", rows=100), run("b", rows=200))]}, (), ("rows",))
    assert kept.runs == frozenset()
    assert [(one.record.id, one.why) for one in kept.left_out["parity"]] == [("b", "rows = 200, not 100")]


def test_nothing_measured_leaves_nothing_and_blames_nobody() -> None:
    kept = consistent_settings({"parity": [(run("a"), run("b"))]}, ("split",), ("rows",))
    assert (kept.runs, kept.shared, kept.left_out) == (frozenset(), {}, {"parity": ()})


@pytest.mark.parametrize(("checkpoints", "wins"), [(("0", "last"), "last"), (("9", "20"), "20"), ((None, "0"), "0")])
def test_of_checkpoints_that_are_as_common_the_later_wins(checkpoints: tuple[str | None, ...], wins: str) -> None:
    runs = [(run(str(i), checkpoint=checkpoint),) for i, checkpoint in enumerate(checkpoints)]
    assert consistent_settings({"parity": runs}, ("checkpoint",), ()).shared == {"checkpoint": wins}


def test_a_measurement_that_does_not_say_its_checkpoint_is_of_the_last() -> None:
    measurements = {"a": {"mask_stability": MaskStability.from_payload(payloads.mask_stability([0.5]))}}
    measured = measured_with(record("a"), measurements, "mask_stability", ("split", "checkpoint"))
    assert measured.settings == {"split": "train", "checkpoint": "last"}
    assert measured_with(record("b"), measurements, "mask_stability", ("split",)).settings is None
