"""From runs to a table: who counts, when a run converged, what is said and what is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from semfocus.analysis.accuracy import Accuracies
from semfocus.analysis.comparison import compare_records
from semfocus.analysis.records import Record
from semfocus.report.text import baseline_text


def record(mechanism: str, seed: int, accuracies: list[float], state: str = "done", horizon: int = 10) -> Record:
    metrics = [
        {
            "epoch": i + 1,
            "step": i + 1,
            "train_loss": 1.0,
            "train_accuracy": a,
            "heldout_loss": 1.0,
            "heldout_accuracy": a,
        }
        for i, a in enumerate(accuracies)
    ]
    config = {
        "attention": {"mechanism": mechanism},
        "seed": seed,
        "training": {"epochs": horizon},
        "task": {"name": "even_pairs"},
    }
    return Record(f"{mechanism}{seed}", config, metrics, state, 1.0)


def test_convergence_is_the_first_epoch_at_95_percent_not_the_last() -> None:
    assert record("full", 1, [0.5, 0.95, 0.7, 0.99]).converged_at == 2
    assert record("full", 1, [0.5, 0.949]).converged_at is None


def test_a_diverged_run_counts_as_never_there_and_an_unfinished_one_does_not_count() -> None:
    runs = [
        record("full", 1, [0.5] * 4 + [1.0]),
        record("full", 2, [0.5], state="diverged"),
        record("full", 3, [1.0], state="interrupted"),
        record("topk:5", 1, [1.0]),
    ]
    comparison = compare_records("even_pairs", runs, {"chance": 0.5})
    assert comparison.arm("full").times.seeds == (1, 2)
    assert comparison.arm("full").reached == 1
    assert comparison.arm("full").diverged == 1
    assert comparison.unfinished == ("full3",)


def test_three_seeds_are_called_a_hint_and_ten_decide() -> None:
    def runs(seeds: int) -> list[Record]:
        slow, fast = [0.5] * 8 + [1.0], [0.5, 1.0]
        return [record(m, s, a) for s in range(seeds) for m, a in (("full", slow), ("topk:5", fast))]

    hint = compare_records("even_pairs", runs(3), {})
    assert "A hint, not a proof" in " ".join(hint.sentences())
    proof = compare_records("even_pairs", runs(10), {})
    assert "Beyond chance" in " ".join(proof.sentences())
    assert proof.arm("topk:5").p == pytest.approx(2 ** (1 - 10))
    assert proof.arm("topk:5").speed_up.ratio.value == pytest.approx(9 / 2)


def test_where_the_test_split_was_measured_it_answers_what_is_right_on_unseen_rows() -> None:
    """Held-out rows decide when a run stops; the answer in words was theirs, and the test split only a column."""
    runs = [record(m, s, [0.5, 1.0]) for s in range(3) for m in ("full", "topk:5")]
    for place, run in enumerate(runs):
        share = 0.75 if run.mechanism == "full" else 0.85
        runs[place] = replace(run, metrics=[{**row, "test_accuracy": share} for row in run.metrics])
    comparison = compare_records("own", runs, {"chance": 0.5})
    assert comparison.arm("full").unseen.median == 0.75
    full, topk, _ = comparison.sentences()
    assert full.endswith("it is right on 75.0% of the test rows it has not seen.")
    assert "right on 85.0% of the test rows it has not seen, on average 10.0 points more than full" in topk


def test_what_needs_no_learning_on_test_rows_is_the_majority_of_these() -> None:
    """96.5 % of test rows looked learned beside the 90 % of the other rows, where 97 % of them are of one class."""
    runs = [record(m, s, [0.5, 1.0]) for s in range(3) for m in ("full", "topk:5")]
    plain = compare_records("mail", runs, {"chance": 0.5, "majority": 0.9})
    shares = {"train": 0.9, "heldout": 0.88, "test": 0.97}
    held_out = replace(plain, facts={"majority_share": shares})
    assert (held_out.unseen_baseline, baseline_text(held_out)) == (0.9, "majority 90.0%")
    arms = [replace(arm, others={"test_accuracy": Accuracies.of(dict.fromkeys(range(3), 0.965))}) for arm in plain.arms]
    tested = replace(held_out, arms=tuple(arms))
    assert (tested.baseline, tested.unseen_baseline) == (0.9, 0.97)
    assert baseline_text(tested) == "majority 90.0% (of the test rows 97.0%)"
    assert all("right on 96.5% of the test rows" in text for text in tested.sentences()[:2])
    assert all("97.0% needs no learning" in text for text in tested.sentences()[:2])


def test_a_bound_on_the_wrong_side_of_1_is_no_claim() -> None:
    """`on average <= 1.1x more than full attention` was said of a mechanism that learned where full never did."""
    slow = [0.5] * 9
    runs = [record("full", s, [*slow, 0.5]) for s in range(3)]
    runs += [record("topk:2", s, [*slow, 1.0 if s == 0 else 0.5]) for s in range(3)]
    said = compare_records("own", runs, {}).sentences()[1]
    assert "(median; 1 of 3 seeds), which full attention never did (0 of 3 seeds); it is right" in said


def test_one_epoch_is_not_called_epochs() -> None:
    runs = [record(m, 1, [0.5], horizon=1) for m in ("full", "topk:5")]
    assert "within 1 epoch." in compare_records("own", runs, {}).sentences()[0]


def test_a_mechanism_that_never_gets_there_gives_a_bound_and_is_said_so() -> None:
    runs = [record(m, s, a) for s in range(3) for m, a in (("full", [0.5, 1.0]), ("banded:5", [0.5] * 10))]
    comparison = compare_records("even_pairs", runs, {})
    assert comparison.arm("banded:5").speed_up.ratio.sign == "<="
    assert any("banded:5 never reached 95%" in line for line in comparison.sentences())


def test_without_full_attention_nothing_is_claimed() -> None:
    comparison = compare_records("even_pairs", [record("topk:5", 1, [1.0])], {})
    assert comparison.arm("topk:5").speed_up is None
    assert "nothing to compare with" in comparison.sentences()[0]


def test_the_result_for_machines_is_plain_json() -> None:
    import json

    runs = [record(m, s, a) for s in range(3) for m, a in (("full", [0.5] * 10), ("topk:5", [0.5, 1.0]))]
    text = json.dumps(compare_records("even_pairs", runs, {"chance": 0.5}).to_dict(), allow_nan=False)
    assert json.loads(text)["mechanisms"][1]["epochs"] == [2.0, 2.0, 2.0]


def test_findings_are_values_and_their_text_is_written_from_them() -> None:
    runs = [record(m, s, a) for s in range(3) for m, a in (("full", [0.5] * 10), ("topk:5", [0.5, 1.0]))]
    base, speed, hint = compare_records("even_pairs", runs, {"chance": 0.5}).findings()
    assert (base.kind, base.mechanism, base.reached) == ("base", "full", (0, 3))
    assert (speed.kind, speed.mechanism, speed.reached, speed.base_reached) == ("speed_up", "topk:5", (3, 3), (0, 3))
    assert speed.text == (
        "topk:5 reached 95% training accuracy in 2 epochs (median; 3 of 3 seeds), on average at least 5x fewer than "
        "full attention (0 of 3 seeds); it is right on 100.0% of the rows it has not seen, on average 50.0 points "
        "more than full attention."
    )
    assert speed.predicate(" ").startswith(" reached 95 % training accuracy in 2 epochs (median; 3 of 3 seeds)")
    assert (hint.kind, hint.mechanism, hint.comparisons) == ("hint", "", 1)


def test_a_threshold_that_needs_no_learning_is_said_to_show_nothing() -> None:
    runs = [record(mechanism, 1, [0.5, 0.96]) for mechanism in ("full", "topk:5")]
    first = compare_records("mail", runs, {"chance": 0.5, "majority": 0.96}).sentences()[0]
    assert first.startswith("Without learning 96.0% are right: 95% training accuracy shows nothing")
    assert "shows nothing" not in " ".join(compare_records("mail", runs, {"majority": 0.94}).sentences())


def test_each_mechanism_is_said_to_be_right_or_not_on_rows_it_has_not_seen() -> None:
    """Half of the question was answered: who learns faster, but not who is right on unseen rows."""
    accuracies = {"full": [0.5, 1.0, 0.8], "topk:5": [1.0, 1.0, 0.9], "banded:5": [0.5, 0.5, 0.51]}
    runs = [record(m, s, [0.96, a[s]]) for s in range(3) for m, a in accuracies.items()]
    full, topk, banded, _ = compare_records("even_pairs", runs, {"chance": 0.5, "majority": 0.52}).sentences()
    assert "right on 80.0% of the rows it has not seen." in full
    assert "right on 100.0% of the rows it has not seen, on average 20.0 points more than full attention" in topk
    assert "which may be chance (" in topk
    assert "points less than full attention" in banded
    assert banded.endswith("; 52.0% needs no learning."), "the best of what needs no learning"


def test_where_nothing_learned_there_is_no_conclusion_about_speed() -> None:
    runs = [record(m, s, [0.5] * 10) for s in range(10) for m in ("full", "topk:5")]
    said = compare_records("even_pairs", runs, {"chance": 0.5}).sentences()
    assert said[0] == "Nothing learned: no conclusion. None of 20 runs reached 95% training accuracy within 10 epochs."
    assert said[1] == "full is right on 50.0% of the rows it has not seen; 50.0% needs no learning."
    assert not any("beyond chance" in line for line in said)


def test_a_mechanism_that_needs_more_epochs_is_not_said_to_need_0_5x_fewer() -> None:
    slow, fast = [0.5] * 7 + [1.0], [0.5] * 3 + [1.0]
    runs = [record(m, s, a) for s in range(3) for m, a in (("full", fast), ("topk:5", slow), ("topk:9", fast))]
    said = compare_records("even_pairs", runs, {}).sentences()
    assert "topk:5 reached 95% training accuracy in 8 epochs (median; 3 of 3 seeds), on average 2x more than" in said[1]
    assert "on average as many as full attention" in said[2]


def test_epochs_have_their_seconds_beside_them() -> None:
    runs = [record("full", s, [0.5, 0.5, 1.0, 1.0]) for s in range(3)]  # one second for four epochs
    comparison = compare_records("even_pairs", runs, {})
    assert comparison.arm("full").seconds_to_learn == pytest.approx(0.75)
    assert comparison.to_dict()["mechanisms"][0]["seconds_per_epoch"] == 0.25
    assert compare_records("even_pairs", [record("full", 1, [0.5])], {}).arm("full").seconds_to_learn is None
