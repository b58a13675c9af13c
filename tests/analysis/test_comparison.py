"""From runs to a table: who counts, when a run converged, what is said and what is not."""

from __future__ import annotations

import pytest

from semfocus.analysis.comparison import compare_records
from semfocus.analysis.records import Record


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
    speed, hint = compare_records("even_pairs", runs, {}).findings()
    assert (speed.kind, speed.mechanism, speed.reached, speed.base_reached) == ("speed_up", "topk:5", (3, 3), (0, 3))
    assert speed.text == "topk:5 got to 95% (3 of 3 seeds) >= 5x as fast as full attention (0 of 3 seeds)."
    assert speed.predicate(" ", lambda ratio: "very") == (
        " got to 95 % (3 of 3 seeds) very as fast as full attention (0 of 3 seeds)."
    )
    assert (hint.kind, hint.mechanism, hint.comparisons) == ("hint", "", 1)


def test_a_threshold_that_needs_no_learning_is_said_to_show_nothing() -> None:
    runs = [record(mechanism, 1, [0.5, 0.96]) for mechanism in ("full", "topk:5")]
    first = compare_records("mail", runs, {"chance": 0.5, "majority": 0.96}).sentences()[0]
    assert first.startswith("Without learning 96.0% are right: 95% training accuracy shows nothing")
    assert "shows nothing" not in " ".join(compare_records("mail", runs, {"majority": 0.94}).sentences())
