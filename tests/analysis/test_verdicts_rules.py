"""What all verdicts share: which runs are compared, what parts come to, and that order makes no difference."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest

from semfocus.analysis.intervals import Interval
from semfocus.analysis.verdicts import CLAIMS, judge
from semfocus.analysis.verdicts.evidence import Claim, Part, Verdict, conclude, merged
from semfocus.analysis.verdicts.power import seeds_to_decide
from semfocus.analysis.verdicts.settings import choose, settings_from
from tests.analysis.made import arm, both, measure, run, verdict


def _outcome(*parts: Part) -> str:
    return _concluded(*parts).outcome


def _concluded(*parts: Part) -> Verdict:
    return conclude(Claim("C1", "", "", lambda settings, measurements: []), parts)


def _part(decision, p: float | None = 0.001, known: bool = False, aspect: str = "", run: bool = True, **more) -> Part:
    return Part("x", decision, p, known=known, aspect=aspect, runs=frozenset({"run"} if run else ()), **more)


def test_the_four_outcomes_follow_from_the_parts() -> None:
    assert _outcome(_part("yes"), _part("yes")) == "holds"
    assert _outcome(_part("yes"), _part("undecided")) == "not decided"
    assert _outcome(_part("no"), _part("undecided")) == "does not hold"
    assert _outcome(_part("undecided"), _part("undecided")) == "not decided"
    assert _outcome() == "not decided"


def test_a_case_that_is_refuted_wins_within_an_aspect_and_makes_a_claim_of_several_mixed() -> None:
    assert _outcome(*[_part("yes")] * 7, _part("no")) == "does not hold"
    assert _outcome(_part("yes", aspect="faster"), _part("no", aspect="as well")) == "mixed"
    assert (
        _outcome(_part("yes", 0.03, aspect="faster"), _part("no", aspect="as well")) == "does not hold"
    )  # Holm over 2
    assert (
        _outcome(_part("yes", aspect="a"), _part("undecided", aspect="a"), _part("no", aspect="b")) == "does not hold"
    )
    assert _outcome(_part("no", aspect="a"), _part("no", aspect="b")) == "does not hold"


def test_refutations_are_adjusted_over_all_that_was_run_and_what_shows_a_claim_is_not() -> None:
    assert _outcome(_part("no", 0.04), *[_part("yes")] * 7) == "not decided"  # 8 x 0.02 > 0.05
    assert _outcome(_part("no", 0.01), *[_part("yes")] * 7) == "does not hold"
    assert _outcome(_part("no", 0.04), *[_part("undecided", None, run=False)] * 7) == "does not hold"
    assert _outcome(_part("yes", 0.03), _part("yes", 0.04)) == "holds"
    alone = _concluded(_part("no", 0.04), *[_part("yes")] * 7).because
    assert "1 refuted alone, but not after Holm over all that was run" in alone


def test_what_was_never_run_is_named_and_at_most_half_of_an_aspect_may_be_missing() -> None:
    never = _part("undecided", None, run=False, why="no pair")
    judged = _concluded(_part("yes"), never)
    assert (judged.outcome, judged.scope) == ("holds", "1 of 2 parts run")
    assert "1 never run: x (no pair)" in judged.because
    assert judged.outcome_text == "holds, 1 of 2 parts run"
    assert _outcome(_part("yes"), never, never) == "not decided"
    assert _outcome(_part("yes", aspect="a"), replace(never, aspect="b")) == "not decided"


def test_what_does_not_apply_is_neither_for_nor_against() -> None:
    apart = _part("not applicable", None, why="neither arm does better than guessing")
    assert _outcome(_part("yes"), apart, apart) == "holds"
    assert _outcome(_part("no"), apart) == "does not hold"
    assert _outcome(apart) == "not decided"
    assert "2 not applicable: x, x (neither arm" in _concluded(_part("yes"), apart, apart).because


def test_a_part_known_from_another_claim_is_needed_and_proves_nothing() -> None:
    assert _outcome(_part("yes", known=True), _part("undecided")) == "not decided"
    assert _outcome(_part("no", known=True), _part("undecided")) == "not decided"
    assert _outcome(_part("no", known=True), _part("yes")) == "not decided"
    assert _outcome(_part("yes", known=True)) == "not decided"
    assert _outcome(_part("yes", known=True), _part("yes")) == "holds"
    assert _outcome(_part("no", 0.04), *[_part("yes", known=True)] * 9) == "does not hold"  # not in Holm


def test_merged_parts_are_as_strong_as_the_weakest() -> None:
    ran = frozenset({"run"})
    strong, weak = Part("a", "yes", 0.001, "2x", runs=ran), Part("b", "yes", 0.04, "3x", Interval(1, 2), ran)
    both_shown = merged("ab", [strong, weak])
    assert (both_shown.decision, both_shown.p, both_shown.interval) == ("yes", 0.04, Interval(1, 2))
    against = merged("ab", [strong, Part("b", "no", 0.01, why="slower", runs=ran)])
    assert (against.decision, against.p, against.why) == ("no", 0.02, "b: slower")  # Bonferroni over two
    assert merged("ab", [strong, Part("b", "undecided", why="few", runs=ran)]).why == "b: few"
    alone = merged("ab", [strong, Part("b", "undecided", why="no pair")])
    assert (alone.decision, alone.setting) == ("yes", "b never run")
    assert not merged("ab", [Part("b", "undecided", why="no pair")]).was_run


def test_a_verdict_that_is_not_decided_says_how_many_seeds_would() -> None:
    judged = _concluded(_part("yes"), _part("undecided", 0.2, seeds=33), _part("undecided", 0.2, seeds=27))
    assert judged.seeds == 33
    assert judged.outcome_text == "not decided, about 33 seeds would decide"
    assert "(about 33 seeds would decide); x (about 27 seeds would decide)" in judged.because
    assert _concluded(_part("undecided", seeds=33), _part("undecided")).seeds is None  # no number is known for all
    assert _concluded(_part("yes"), _part("undecided", None, run=False)).seeds is None


@pytest.mark.parametrize(
    ("distance", "seeds"), [(0.5, 10), (0.2, 18), (0.1, 65), (0.05, 252), (0.01, None), (0.0, None)]
)
def test_the_number_of_seeds_is_that_of_a_t_test_with_power_80(distance: float, seeds: int | None) -> None:
    spread, n = 0.2821, 9  # of one seed, and seeds so far
    reach = 2.306004 * spread / 3
    estimated = seeds_to_decide(distance, Interval(distance - reach, distance + reach), n, [0.0])
    assert estimated == seeds


def test_runs_of_two_precisions_are_never_compared_and_a_verdict_on_both_says_so() -> None:
    tf32 = {"precision": "tf32"}
    apart = arm("parity", "full", 60) + arm("parity", "topk:5", 20, changes=tf32)
    assert verdict("C1", apart).runs == 0
    records = both(60, 20, ["parity"]) + both(60, 20, ["even_pairs"], changes=tf32)
    assert "precision: fp32 in 1 parts; tf32 in 1 parts" in verdict("C1", records).because


def test_the_guide_has_every_rule_word_for_word() -> None:
    guide = " ".join((Path(__file__).parents[2] / "docs" / "verdicts.md").read_text().split())
    for claim in CLAIMS:
        assert f"**{claim.id}.** *{claim.statement}* {claim.rule}" in guide


def test_judge_gives_every_claim_once_and_in_order() -> None:
    assert [verdict.claim for verdict in judge([])] == [f"C{i}" for i in range(1, 23)]
    assert [verdict.claim for verdict in judge([]) if verdict.is_open_question] == [f"C{i}" for i in range(15, 23)]
    assert {verdict.outcome for verdict in judge([])} == {"not decided"}
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
    judged = verdict("C1", both(None, 20))
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
    assert len(judge(records)) == len(CLAIMS)
