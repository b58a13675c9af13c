"""What comparisons lack, and what they have less of by design."""

from __future__ import annotations

from pathlib import Path

from semfocus.analysis.gaps import fewer_seeds, gaps
from semfocus.analysis.records import Record
from semfocus.analysis.results import Results
from semfocus.recipes import seeds
from semfocus.report.verdict_table import markdown
from tests.analysis.made import run


def arm(mechanism: str, count: int, without: int | None = None) -> list[Record]:
    return [run("parity", mechanism, seed) for i, seed in enumerate(seeds(count)) if i != without]


def results(*arms: list[Record]) -> Results:
    return Results(Path(), [record for records in arms for record in records])


def test_arms_with_half_the_seeds_of_the_headline_lack_nothing_and_are_said_to_have_fewer() -> None:
    found = results(arm("full", 20), arm("topk:5", 20), arm("banded:5", 10), arm("block_local:5", 10))
    assert gaps(found) == []
    assert fewer_seeds(found) == ["parity: the first 10 of 20 seeds alone: banded:5, block_local:5"]
    text = markdown(found, gaps(found), fewer_seeds(found))
    assert "## What comparisons lack\n\nNothing.\n\n## Fewer seeds by design\n\n- parity: the first 10" in text


def test_a_seed_that_an_arm_has_lost_is_missing_and_those_it_was_never_given_are_not() -> None:
    for place in (2, 9):  # within the arm, and at its end, where what is left is a shorter row of first seeds
        found = results(arm("full", 20), arm("banded:5", 10), arm("block_local:5", 10, without=place))
        assert gaps(found) == [f"parity: block_local:5 has no ended run of seed {seeds(10)[place]}"]
        assert fewer_seeds(found) == ["parity: the first 10 of 20 seeds alone: banded:5"]


def test_the_headline_arm_that_has_lost_one_is_missing_that_one() -> None:
    found = results(arm("full", 20, without=15), arm("topk:5", 20), arm("banded:5", 10))
    assert gaps(found) == [f"parity: full has no ended run of seed {seeds(20)[15]}"]


def test_a_run_that_was_begun_and_has_not_ended_is_missing_and_so_are_arms_too_short_to_decide_anything() -> None:
    begun = [run("parity", "banded:5", seed, state="interrupted") for seed in seeds(11)[10:]]
    assert gaps(results(arm("full", 11), arm("banded:5", 10), begun)) == [
        f"parity: banded:5 has no ended run of seed {seeds(11)[10]}"
    ]
    (text,) = gaps(results(arm("full", 10), arm("banded:5", 5)))
    assert text.startswith("parity: banded:5 has no ended run of seeds ")
    assert len(text.split(",")) == 5


def test_other_seeds_than_those_of_studies_are_missing_wherever_another_arm_has_them() -> None:
    full, topk = ([run("parity", name, seed) for seed in range(n)] for name, n in (("full", 20), ("topk:5", 10)))
    found = results(full, topk)
    (text,) = gaps(found)
    assert text.endswith("seeds 10, 11, 12, 13, 14, 15, 16, 17, 18, 19")
    assert fewer_seeds(found) == []
