"""What the page says and draws, before it is markup: headlines claim only what runs show, charts stay small."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from semfocus.analysis.groups import group_records
from semfocus.report.page import payload
from semfocus.report.page.payload import charts, thinned
from semfocus.report.page.summary import About, summarise
from tests.report.helpers import configs, record, records


def test_thinned_epochs_keep_both_ends_and_are_denser_at_the_start() -> None:
    epochs = np.arange(1, 1001, dtype=float)
    kept = thinned(epochs, 100)
    assert len(kept) <= 100
    assert (kept[0], kept[-1]) == (1, 1000)
    assert len(kept[kept <= 100]) > 25
    assert thinned(epochs[:50], 100) is not None
    assert len(thinned(epochs[:50], 100)) == 50


def test_what_is_embedded_is_thinned_to_a_budget_and_rounded() -> None:
    groups = group_records([record(config) for config in configs(training__epochs=100, seeds=2)]).groups
    (whole,) = charts(groups, ["full", "topk:5"])
    assert len(whole["epochs"]) == 100
    (thin,) = charts(groups, ["full", "topk:5"], curve_numbers=0, seed_numbers=0)
    assert len(thin["epochs"]) <= payload.FEWEST_POINTS
    assert len(thin["seedEpochs"]) <= payload.FEWEST_SEED_POINTS
    first = [run.metrics[0]["train_accuracy"] for run in groups[0].runs("full")]
    assert thin["arms"][0]["curves"]["train_accuracy"][0][0] == round(float(np.median(first)), 4)
    assert len(json.dumps(thin)) < len(json.dumps(whole)) / 2


@pytest.mark.parametrize(
    ("kept", "headline"),
    [
        ([], "No runs yet"),
        (["topk:5"], "No run of full attention to compare with"),
        (["full", "banded:5"], "No mechanism needs fewer epochs than full attention beyond chance"),
    ],
)
def test_the_headline_claims_nothing_that_the_runs_do_not_show(kept: list[str], headline: str) -> None:
    runs = records(mechanisms=kept, seeds=10) if kept else []
    assert summarise(group_records(runs).groups).headline == headline


def test_few_seeds_are_a_hint_and_many_are_a_finding() -> None:
    few = summarise(group_records(records(seeds=3)).groups).headline
    assert "a hint, too few seeds for a proof" in few
    assert "beyond chance" not in few
    many = summarise(group_records(records(seeds=10)).groups)
    assert many.headline.startswith("topk:5 needs ")
    assert "hint" not in many.headline
    two = summarise(group_records([*records(seeds=10), *records(tasks=["parity"], seeds=10)]).groups)
    assert "beyond chance in 2 of 2 comparisons" in two.headline


def test_few_seeds_without_a_lead_are_no_proof_of_no_difference() -> None:
    said = summarise(group_records(records(mechanisms=["full", "banded:5"], seeds=3)).groups).headline
    assert said == "No mechanism is seen to need fewer epochs than full attention; too few seeds to be sure"


def test_where_all_learn_at_once_the_headline_says_that_nothing_follows_about_speed() -> None:
    quick = records(tasks=["parity"], mechanisms=["full", "topk:5"], seeds=10)
    quick = [replace(r, metrics=[row | {"train_accuracy": 1.0} for row in r.metrics]) for r in quick]
    assert summarise(group_records(quick).groups).headline.startswith("All had learned at the first evaluation")


def test_what_was_asked_names_the_seeds_that_each_mechanism_has() -> None:
    """Of 20 seeds of two mechanisms and 10 of the others the page said "20 seeds each"."""
    runs = [*records(mechanisms=["full"], seeds=4), *records(mechanisms=["topk:5"], seeds=2)]
    assert "with 2 to 4 seeds each" in summarise(group_records(runs).groups).asked


def test_runs_that_have_not_ended_decide_nothing() -> None:
    runs = [record(config, "running") for config in configs(training__epochs=20)]
    assert summarise(group_records(runs).groups).headline == "No run has ended yet"


def test_mechanisms_that_share_a_finding_share_a_sentence_in_the_plural_and_nothing_is_said_twice() -> None:
    """A page said "Nothing learned: no conclusion." twice, and "full and topk:5 is right on ..."."""
    flat = [{"epoch": 1, "step": 200, "lr": 0.1, "train_loss": 0.7, "train_accuracy": 0.5,
             "heldout_loss": 0.7, "heldout_accuracy": 0.4}]  # fmt: skip
    runs = [record(config, measured=flat) for config in configs(mechanisms=["full", "topk:5"], seeds=2)]
    found = summarise(group_records(runs).groups, About("sweep", "A sweep", "Which?")).findings
    assert sum("Nothing learned" in line for line in found) == 1
    assert any(line.startswith("full and topk:5 are right on 40.0 % of the rows they have not seen") for line in found)
