from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from semfocus.analysis import ConvergenceTimes, Interval, Ratio, SpeedUp, Unpaired, speed_up
from semfocus.errors import UsageError

ROOT = Path(__file__).parents[2]
FULL = {1: 54.0, 2: 27.0, 3: 85.0, 4: 61.0}
TOPK = {1: 4.0, 2: 3.0, 3: 8.0, 4: 4.5}
NEVER = dict.fromkeys(FULL)


def times(epochs: dict, horizon: float = 100) -> ConvergenceTimes:
    return ConvergenceTimes.of(epochs, horizon=horizon)


def test_the_ratio_of_restricted_means_counts_censored_runs_at_the_horizon() -> None:
    result = speed_up(times(FULL | {2: None}), times(TOPK))
    assert result.ratio.value == pytest.approx((54 + 100 + 85 + 61) / (4 + 3 + 8 + 4.5))
    assert result.ratio.sign == "="
    assert (result.reached_full, result.reached_other, result.pairs) == (3, 4, 4)


def test_the_interval_is_a_jackknife_t_on_the_log_ratio_worked_by_hand() -> None:
    full, other = np.array([54, 27, 85, 61.0]), np.array([4, 3, 8, 4.5])
    without = [np.log(np.delete(full, i).mean() / np.delete(other, i).mean()) for i in range(4)]
    error = math.sqrt(3 / 4 * sum((value - np.mean(without)) ** 2 for value in without))
    centre, reach = math.log(full.mean() / other.mean()), 3.182446305284263 * error
    interval = speed_up(times(FULL), times(TOPK)).interval
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx(
        (math.exp(centre - reach), math.exp(centre + reach)), rel=1e-9
    )


def test_swapping_the_arms_inverts_the_speed_up_and_its_interval() -> None:
    one, two = speed_up(times(FULL), times(TOPK)), speed_up(times(TOPK), times(FULL))
    assert one.ratio.value is not None
    assert two.ratio.value == pytest.approx(1 / one.ratio.value)
    assert one.interval is not None
    assert two.interval is not None
    assert (two.interval.low, two.interval.high) == pytest.approx((1 / one.interval.high, 1 / one.interval.low))


def test_pairing_narrows_the_interval_when_seeds_move_together() -> None:
    together = speed_up(times(FULL), times({seed: e / 10 for seed, e in FULL.items()})).interval
    crossed = speed_up(times(FULL), times({1: 6.1, 2: 8.5, 3: 2.7, 4: 5.4})).interval
    assert together is not None
    assert crossed is not None
    assert (together.low, together.high) == pytest.approx((10, 10))
    assert crossed.high / crossed.low > 2


def test_a_full_arm_that_never_arrives_leaves_a_lower_bound() -> None:
    result = speed_up(times(NEVER), times(TOPK))
    assert result.estimate == pytest.approx(100 / 4.875)
    assert result.interval is not None
    assert result.ratio == Ratio(result.interval.low, ">=")
    assert result.ratio.text == ">= 9.59x"
    assert 1.25 < result.interval.low < 100 / 4.875
    assert result.interval.high == math.inf
    assert result.equivalence() == "different"
    assert result.non_inferiority() == "yes"


def test_another_arm_that_never_arrives_leaves_an_upper_bound() -> None:
    result = speed_up(times(FULL), times(NEVER))
    assert result.estimate == pytest.approx(56.75 / 100)
    assert result.interval is not None
    assert result.interval.low == 0
    assert result.ratio == Ratio(result.interval.high, "<=")
    assert result.interval.high > 56.75 / 100
    assert result.non_inferiority() in ("no", "undecided")


def test_two_arms_that_never_arrive_leave_nothing() -> None:
    result = speed_up(times(NEVER), times(NEVER))
    assert result.ratio == result.median_ratio == Ratio(None, "undefined")
    assert result.interval is None
    assert result.why == "neither arm gets there by the horizon"
    assert result.equivalence() == result.non_inferiority() == "undecided"
    assert result.ratio.text == "undefined"


def test_medians_have_their_own_ratio_and_bounds() -> None:
    assert speed_up(times(FULL), times(TOPK)).median_ratio == Ratio(pytest.approx(57.5 / 4.25), "=")
    mostly_never = {1: None, 2: None, 3: 80.0, 4: None}
    result = speed_up(times(mostly_never), times(TOPK))
    assert result.ratio.sign == "="
    assert result.median_ratio == Ratio(pytest.approx(100 / 4.25), ">=")
    assert speed_up(times(FULL), times(mostly_never)).median_ratio.sign == "<="


def test_only_shared_seeds_enter_and_the_others_are_listed() -> None:
    result = speed_up(times(FULL | {9: 1.0}), times(TOPK | {7: 99.0}))
    assert result.left_out == (Unpaired(7, "full"), Unpaired(9, "other"))
    same = speed_up(times(FULL), times(TOPK))
    assert (result.ratio, result.interval, result.median_ratio) == (same.ratio, same.interval, same.median_ratio)


def test_results_do_not_depend_on_the_order_of_runs() -> None:
    backwards = speed_up(times(dict(reversed(FULL.items()))), times(dict(reversed(TOPK.items()))))
    assert backwards == speed_up(times(FULL), times(TOPK))


@pytest.mark.parametrize("n", [0, 1, 2])
def test_few_seeds_give_a_ratio_at_most_and_no_interval(n: int) -> None:
    result = speed_up(times(FULL).only(range(1, n + 1)), times(TOPK).only(range(1, n + 1)))
    assert result.interval is None
    assert (result.ratio.value is None) == (n == 0)
    assert f"not enough data: {n} paired seed" in result.why
    assert result.equivalence() == "undecided"


def test_disjoint_seeds_are_no_data() -> None:
    result = speed_up(times(FULL), times({8: 1.0}))
    assert result.pairs == 0
    assert len(result.left_out) == 5
    assert result.ratio.sign == "undefined"


def test_arms_that_mostly_never_arrive_are_not_called_equivalent() -> None:
    rare = {seed: (90.0 + seed if seed < 3 else None) for seed in range(10)}
    result = speed_up(times(rare), times({seed: rare[seed] and rare[seed] - 1 for seed in rare}))
    assert result.interval is not None
    assert 0.8 < result.interval.low <= result.interval.high < 1.25
    assert result.equivalence() == result.non_inferiority() == "undecided"


def test_arms_that_arrive_together_are_equivalent() -> None:
    result = speed_up(times(FULL), times({seed: e + 1 for seed, e in FULL.items()}))
    assert result.equivalence() == "equivalent"
    assert result.non_inferiority() == "yes"


def test_a_ratio_reads_as_people_write_it() -> None:
    assert Ratio(8.834, "=").text == "8.83x"
    assert Ratio(0.54, "<=").text == "<= 0.54x"


def test_different_horizons_are_refused() -> None:
    with pytest.raises(UsageError, match="horizon"):
        speed_up(times(FULL), times(TOPK, horizon=99))


def test_a_slower_arm_fails_non_inferiority() -> None:
    slow = SpeedUp(Ratio(0.5, "="), Interval(0.4, 0.6), Ratio(0.5, "="), 10, 10, 10, ())
    assert slow.non_inferiority() == "no"
    assert slow.equivalence() == "different"


def test_counted_from_0_epochs_are_those_completed_before_as_in_the_paper() -> None:
    full, topk = times({1: 54.0, 2: 53.5, 3: 54.0}), times({1: 7.0, 2: 6.25, 3: 6.75})
    assert speed_up(full, topk, counted_from=0).ratio.text == "8.83x"  # 53 / 6
    assert speed_up(full, topk).ratio.text == "8.07x"
    at_once = speed_up(full, times({1: 0.5, 2: 1.0, 3: 0.75}), counted_from=0)
    assert (at_once.ratio.text, at_once.interval) == ("undefined", None)
    assert "epoch 0" in at_once.why


def test_counted_from_0_our_even_pairs_are_8_84x() -> None:
    """The published results of this project: 7.69x counted from 1."""
    arms = json.loads((ROOT / "results/compare/even_pairs.json").read_text())["mechanisms"]
    full, topk = (
        ConvergenceTimes.of(dict(zip(arm["seeds"], arm["epochs"], strict=True)), horizon=100)
        for name in ("full", "topk:5")
        for arm in arms
        if arm["mechanism"] == name
    )
    counted = speed_up(full, topk, counted_from=0)
    assert counted.interval is not None
    assert (counted.ratio.text, speed_up(full, topk).ratio.text) == ("8.84x", "7.69x")
    assert (counted.interval.low, counted.interval.high) == pytest.approx((5.94, 13.17), abs=0.05)
