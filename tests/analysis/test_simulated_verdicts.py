"""Whole verdicts on simulated studies whose truth is known; docs/verdicts.md has all of them, with more repetitions."""

from __future__ import annotations

import pytest

FEW = 15


@pytest.fixture(scope="module")
def shares(verdict_simulation):
    """The share of repetitions with each outcome, of the simulated study of this name."""
    kinds = ("WORLDS", "MEASURED_WORLDS", "TEXT_WORLDS", "OPEN_WORLDS", "OPEN_TEXT_WORLDS")
    every = [world for kind in kinds for world in getattr(verdict_simulation, kind)]
    worlds = {world.key: world for world in every}
    return lambda name: verdict_simulation.outcomes(worlds[name], FEW)


def test_seven_slower_tasks_refute_c1_however_fast_the_eighth(shares) -> None:
    assert shares("C1/2x on one, 0.7x on seven")["does not hold"] == 1


def test_small_gains_are_not_refuted_and_larger_ones_mostly_shown(shares) -> None:
    assert shares("C1/1.15x on all")["does not hold"] == 0
    assert shares("C1/1.3x on all")["holds"] > 0.5


def test_groups_of_seeds_and_censoring_mislead_neither_way(shares) -> None:
    assert shares("C1/1x, 30 % of runs three times as slow")["holds"] == 0
    assert shares("C2/1.3x, 8.83x, 60 % of full censored")["does not hold"] == 0
    assert shares("C5/30 % of full stuck, 30 % of top-k; 2x")["holds"] == 0


@pytest.mark.parametrize(
    ("name", "outcome"),
    [("all of a 3x lead gained and lost", "holds"), ("none gained, none lost", "does not hold")],
)
def test_an_intervention_tells_cause_from_company(shares, name: str, outcome: str) -> None:
    assert shares(f"C13/{name}")[outcome] > 0.9


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("C15/2x in all ways, controls 0.7x", "holds"),
        ("C15/2x but LSH, 0.7x; controls 0.7x", "mixed"),
        ("C16/2x, 1x under sigmoid alone", "does not hold"),
        ("C17/15 points less than full and the others", "does not hold"),
        ("C18/n^0.25 and n^0.40", "does not hold"),
        ("C14/2x in the figures, 1.2x in pre-training", "holds"),
        ("C14/0.7x and 4 points worse; 0.9x and 3 % worse", "does not hold"),
        ("C19/1.2x with every arm, the band 0.8x", "holds"),
        ("C19/1.2x but topk:32, 0.9x; the band 0.8x", "mixed"),
        ("C19/0.9x and 3 % worse, the band 1.2x", "does not hold"),
        ("C20/1.3x, 1.2x, 1.1x, 1.02x", "holds"),
        ("C20/1.02x, 1.1x, 1.2x, 1.3x", "does not hold"),
        ("C21/0.5x", "does not hold"),
        ("C22/both 1.5x sooner", "holds"),
    ],
)
def test_questions_are_answered_where_effects_are_large(shares, name: str, outcome: str) -> None:
    assert shares(name)[outcome] == 1


@pytest.mark.parametrize(
    "name",
    [
        "C15/no lead of top-5", "C17/all guess", "C20/1.3x and 1.1x at two sizes", "C21/no arm learns to recall",
        "C22/no head copies",
    ],
)  # fmt: skip
def test_open_questions_stay_open_where_there_is_nothing_to_compare(shares, name: str) -> None:
    assert shares(name)["not decided"] == 1
