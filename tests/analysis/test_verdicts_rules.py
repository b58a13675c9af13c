"""What all verdicts share: which runs are compared, what parts come to, and that order makes no difference."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

from semfocus.analysis.intervals import Interval
from semfocus.analysis.verdicts import CLAIMS, judge
from semfocus.analysis.verdicts.evidence import Claim, Part, conclude, merged
from semfocus.analysis.verdicts.settings import choose, settings_from
from tests.analysis.made import arm, both, measure, run, verdict


def _outcome(*parts: Part) -> str:
    return conclude(Claim("C1", "", "", lambda settings, measurements: []), parts).outcome


def _part(decision, p: float | None = 0.001, known: bool = False) -> Part:
    return Part("x", decision, p, known=known)


def test_the_four_outcomes_follow_from_the_parts() -> None:
    assert _outcome(_part("yes"), _part("yes")) == "holds"
    assert _outcome(_part("yes"), _part("undecided")) == "holds in part"
    assert _outcome(_part("yes"), _part("no")) == "holds in part"
    assert _outcome(_part("no"), _part("undecided")) == "does not hold"
    assert _outcome(_part("undecided"), _part("undecided")) == "not enough data"
    assert _outcome() == "not enough data"


def test_in_part_is_decided_after_holm_and_the_whole_without() -> None:
    assert _outcome(_part("yes", 0.03), _part("undecided")) == "not enough data"
    assert _outcome(_part("yes", 0.02), _part("undecided")) == "holds in part"
    assert _outcome(_part("yes", 0.03), _part("yes", 0.04)) == "holds"


def test_a_part_known_from_another_claim_is_needed_and_proves_nothing() -> None:
    assert _outcome(_part("yes", known=True), _part("undecided")) == "not enough data"
    assert _outcome(_part("no", known=True), _part("undecided")) == "not enough data"
    assert _outcome(_part("undecided", known=True), _part("yes")) == "holds in part"
    assert _outcome(_part("yes", known=True), _part("yes")) == "holds"
    assert _outcome(_part("yes", 0.03), *[_part("undecided", known=True)] * 9) == "holds in part"  # not in Holm


def test_merged_parts_are_as_strong_as_the_weakest() -> None:
    strong, weak = Part("a", "yes", 0.001, "2x"), Part("b", "yes", 0.04, "3x", Interval(1, 2))
    both_shown = merged("ab", [strong, weak])
    assert (both_shown.decision, both_shown.p, both_shown.interval) == ("yes", 0.04, Interval(1, 2))
    assert merged("ab", [strong, Part("b", "no", why="slower")]).decision == "no"
    assert merged("ab", [strong, Part("b", "undecided", why="few")]).why == "b: few"


def test_the_guide_has_every_rule_word_for_word() -> None:
    guide = " ".join((Path(__file__).parents[2] / "docs" / "verdicts.md").read_text().split())
    for claim in CLAIMS:
        assert f"**{claim.id}.** *{claim.statement}* {claim.rule}" in guide


def test_judge_gives_every_claim_once_and_in_order() -> None:
    assert [verdict.claim for verdict in judge([])] == [f"C{i}" for i in range(1, 15)]
    assert {verdict.outcome for verdict in judge([])} == {"not enough data"}
    assert all(claim.rule and claim.statement.endswith(".") for claim in CLAIMS)


def test_the_order_of_runs_changes_no_verdict() -> None:
    records = both(60, 20, ("even_pairs", "parity", "listops")) + arm("even_pairs", "banded:5", None)
    payload = {"k": 5, "checkpoints": {"last": {"delta": dict.fromkeys(("75", "90", "95", "100"), 3.0)}}}
    measured = measure(records, "dispersion", lambda record: payload)
    shuffled = random.Random(1).sample(records, len(records))
    assert judge(shuffled, measured) == judge(records, measured)
    assert judge(records)[0].runs == 60


def test_runs_of_different_recipes_lengths_or_rows_are_never_mixed() -> None:
    kinds = [{}, {"task.train_rows": 2000}, {"model.blocks": 3}, {"training.epochs": 90}, {"precision": "tf32"}]
    records = [run("even_pairs", "full", 1, changes=kind) for kind in kinds]
    records.append(run("even_pairs", "full", 1, recipe="clean"))
    records.append(run("even_pairs", "full", 1, changes={"task.options": {"length": 20}}))
    assert len(settings_from(records)) == len(records)
    assert len(settings_from([run("even_pairs", m, s) for m in ("full", "topk:5") for s in (1, 2)])) == 1
    few_of_each = [r for kind in kinds for r in both(60, 20, ["even_pairs"], seeds=4, changes=kind)]
    assert "4 paired seeds" in verdict("C1", few_of_each).because


def test_the_papers_settings_come_first_then_the_clean_recipe_then_the_nearest() -> None:
    paper, clean = both(60, 20, ["even_pairs"]), both(60, 20, ["even_pairs"], recipe="clean")
    small = both(60, 20, ["even_pairs"], seeds=20, changes={"model.blocks": 3, "training.batch_size": 50})
    pick = lambda records: choose(settings_from(records), "even_pairs")  # noqa: E731
    assert pick(small + clean + paper).note() == ""
    assert pick(small + clean).note() == "clean recipe"
    assert pick(small).note() == "model.blocks = 3, training.batch_size = 50"
    assert "settings: even_pairs: model.blocks = 3" in verdict("C1", small).because


def test_runs_with_every_quirk_of_the_authors_come_before_clean_ones_and_are_not_called_clean() -> None:
    paper, clean, authors = (both(60, 20, ["listops"], recipe=name) for name in ("paper", "clean", "authors"))
    assert choose(settings_from(authors + paper), "listops").note() == ""
    assert choose(settings_from(authors + clean), "listops").note() == "more of the authors' quirks"


def test_a_setting_with_too_few_seeds_gives_way_to_one_with_enough() -> None:
    records = both(60, 20, ["even_pairs"], seeds=2) + both(60, 20, ["even_pairs"], recipe="clean")
    assert choose(settings_from(records), "even_pairs").note() == "clean recipe"


def test_a_run_that_has_not_ended_says_nothing() -> None:
    records = both(60, 20, ["even_pairs"], state="interrupted")
    assert verdict("C1", records).runs == 0


def test_a_diverged_run_counts_as_never_there_even_if_it_was_there_before() -> None:
    sound = arm("even_pairs", "full", 60)
    lost = arm("even_pairs", "topk:5", 20, state="diverged")
    assert "slower" in verdict("C1", sound + lost).because


def test_labels_studies_and_paths_do_not_select() -> None:
    records = both(60, 20, ["even_pairs"])
    for i, record in enumerate(records):
        record.config["label"] = f"study {i}"
    assert len(settings_from(records)) == 1


def test_a_verdict_for_machines_is_plain_json_also_with_an_open_interval() -> None:
    judged = verdict("C1", both(None, 20, ["even_pairs"]))
    assert judged.outcome == "holds in part"
    assert judged.interval is not None
    assert judged.interval[1] == math.inf
    assert json.loads(json.dumps(judged.to_dict(), allow_nan=False))["interval"][1] is None


@pytest.mark.parametrize(
    "config",
    [
        {"task": {"name": "parity", "options": 3}, "model": "x", "data": [], "sizes": None},
        {"task": {"name": "parity", "options": {"length": "many"}}, "data": {"task": 7, "options": {"x": [1]}}},
        {
            "task": {"name": "parity"},
            "data": {"task": "parity", "options": {"length": [1, 2]}},
            "model": {"blocks": {}},
        },
    ],
)
def test_a_strangers_configuration_is_judged_without_a_crash(config) -> None:
    rest = {"attention": {"mechanism": "full"}, "training": {"epochs": 1000}, "seed": 1}
    records = both(60, 20, ["parity"])
    for seed in range(8):
        made = run("parity", "full", seed)
        made.config.clear()
        made.config.update(config | rest | {"seed": seed})
        records.append(made)
    assert len(judge(records)) == 14
