"""What is recommended of several k, on runs made by hand: decided, a hint, or that focus does not help."""

from __future__ import annotations

from dataclasses import replace

import pytest

from semfocus.analysis.accuracy import Accuracies
from semfocus.analysis.comparison import compare_records
from semfocus.analysis.recommend import Recommendation, recommend
from semfocus.recipes import ladder
from semfocus.training.objective import BALANCED_ACCURACY, Learned
from tests.analysis.made import run


def _advice(arms: dict[str, tuple[float | None, float]], seeds: int = 10) -> Recommendation:
    """Each mechanism with its epoch of convergence (None: never), a little later with each seed, and its accuracy."""
    records = [
        run("even_pairs", mechanism, seed, at=None if at is None else at + seed, heldout=heldout, heldout_at=50)
        for mechanism, (at, heldout) in arms.items()
        for seed in range(seeds)
    ]
    return recommend(compare_records("own", records, {"chance": 0.5}))


def test_the_fastest_k_that_is_as_accurate_is_recommended_with_its_p() -> None:
    advice = _advice({"full": (40, 0.9), "topk:2": (10, 0.7), "topk:4": (20, 0.91), "topk:8": (39, 0.9)})
    assert (advice.mechanism, advice.is_decided) == ("topk:4", True)
    assert "topk:4 is the one to take: it learns" in advice.text
    assert "after Holm over 3 comparisons" in advice.text
    assert "held-out accuracy is +1.0 points" in advice.text


def test_few_seeds_give_a_hint_that_does_not_repeat_how_many_would_decide() -> None:
    advice = _advice({"full": (40, 0.9), "topk:2": (10, 0.9), "topk:4": (20, 0.9)}, seeds=3)
    assert (advice.mechanism, advice.is_decided) == ("topk:2", False)
    assert "looks best" in advice.text
    assert advice.text.endswith("A hint, not a proof: too few seeds.")  # the findings above it say how many it takes


def test_runs_that_had_all_learned_at_their_first_evaluation_say_nothing_about_speed() -> None:
    """Full attention was recommended because no k was seen to be faster than one epoch."""
    records = [run("even_pairs", name, seed, at=1) for name in ("full", "topk:2", "topk:4") for seed in range(10)]
    comparison = compare_records("own", records, {"chance": 0.5})
    advice = recommend(comparison)
    assert (advice.mechanism, advice.is_decided) == ("", False)
    assert "all had learned at their first evaluation" in advice.text
    assert "--evaluate-every 0.1, with another --out" in comparison.sentences()[-1]
    later = [*records[:-1], run("even_pairs", "topk:4", 9, at=2)]
    assert "first evaluat" not in " ".join(compare_records("own", later, {"chance": 0.5}).sentences())


@pytest.mark.parametrize(
    ("arms", "why"),
    [
        (
            {"full": (20, 0.9), "topk:2": (30, 0.9), "topk:4": (20, 0.9)},
            "none of topk:2, topk:4 learns faster than full",
        ),
        ({"full": (40, 0.9), "topk:2": (10, 0.7)}, "as fast, but its held-out accuracy is -20.0 points"),
        ({"full": (20, 0.9), "topk:2": (None, 0.5)}, "none of topk:2 learns faster"),
    ],
)
def test_full_attention_is_recommended_where_no_k_is_faster_and_as_accurate(arms: dict, why: str) -> None:
    advice = _advice(arms)
    assert (advice.mechanism, advice.is_decided) == ("full", True)
    assert advice.text.startswith("Focus does not help here: ")
    assert why in advice.text


def test_a_difference_within_chance_is_no_reason() -> None:
    records = [
        run(
            "even_pairs",
            mechanism,
            seed,
            at=20 + (3 if (seed % 2 == 0) == (mechanism == "full") else 0) + (mechanism == "full"),
        )
        for mechanism in ("full", "topk:4")
        for seed in range(10)
    ]
    advice = recommend(compare_records("own", records, {}))
    assert advice.mechanism == "full"
    assert "beyond chance (best: topk:4" in advice.text


@pytest.mark.parametrize(("seeds", "said"), [(10, "topk:4 is the one to take"), (3, "topk:4 looks best")])
def test_a_k_that_is_no_faster_and_more_accurate_is_recommended(seeds: int, said: str) -> None:
    """It was told that focus does not help where full attention fits the rows and fails on new ones."""
    advice = _advice({"full": (20, 0.7), "topk:2": (20, 0.71), "topk:4": (20, 0.95)}, seeds)
    assert (advice.mechanism, advice.is_decided) == ("topk:4", seeds == 10)
    assert said in advice.text
    assert "accuracy is +25.0 points against full attention" in advice.text
    slower = _advice({"full": (10, 0.7), "topk:4": (40, 0.95)})
    assert slower.mechanism == "full"


def test_a_k_that_is_more_accurate_and_slower_is_said_to_take_longer() -> None:
    """It was said to learn 0.667x as fast."""
    advice = _advice({"full": (20, 0.7), "topk:2": (30, 0.7), "topk:4": (30, 0.95)}, seeds=3)
    assert "topk:4 looks best: it takes 1.4" in advice.text
    assert "x as many epochs as full attention, and its held-out accuracy is +25.0 points" in advice.text


def test_where_balanced_accuracy_is_learned_it_decides_on_unseen_rows_too() -> None:
    """A k that names the frequent class more often had the higher accuracy."""
    records = [
        run("even_pairs", mechanism, seed, at=20 + seed, heldout=heldout, heldout_at=50)
        for mechanism, heldout in (("full", 0.9), ("topk:2", 0.95), ("topk:4", 0.9))
        for seed in range(10)
    ]
    plain = compare_records("own", records, {"majority": 0.9})
    assert recommend(plain).mechanism == "topk:2"
    balanced = {"full": 0.8, "topk:2": 0.5, "topk:4": 0.95}
    arms = [
        replace(arm, others={"heldout_balanced_accuracy": _constant(balanced[arm.mechanism])}) for arm in plain.arms
    ]
    advice = recommend(replace(plain, arms=tuple(arms), learned=Learned(BALANCED_ACCURACY)))
    assert advice.mechanism == "topk:4"
    assert "held-out balanced accuracy is +15.0 points against full attention" in advice.text


def _constant(share: float) -> Accuracies:
    return Accuracies.of({seed: share + seed / 1e4 for seed in range(10)})


def test_nothing_is_recommended_where_nothing_learned_or_nothing_is_there() -> None:
    advice = _advice({"full": (None, 0.5), "topk:2": (None, 0.5)})
    assert (advice.mechanism, advice.is_decided) == ("", False)
    assert "nothing reached 95% training accuracy" in advice.text
    assert recommend(compare_records("own", [], {})).mechanism == ""
    assert "it takes ended runs of full attention and of some k" in _advice({"topk:2": (10, 0.9)}).text


def test_the_ladder_of_k_fits_the_sequence() -> None:
    assert ladder(40) == ["topk:2", "topk:4", "topk:8", "topk:16"]
    assert ladder(10) == ["topk:2", "topk:4"]
    assert ladder(2) == ["topk:2"]
