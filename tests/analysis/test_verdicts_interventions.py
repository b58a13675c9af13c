"""C12 and C13 on runs and measurements made by hand: the cause is changed, and what follows from it is judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from semfocus.analysis.records import Record
from semfocus.analysis.verdicts.interventions import HEATED_TASKS, NOISY, NOISY_TASKS, TEMPERATURE, bracket
from semfocus.analysis.verdicts.settings import TASKS
from tests.analysis.made import arm, both, measure, verdict
from tests.measurements import payloads

RISING = lambda i: 1 + i / 10  # noqa: E731


def _masks(gap: Callable[[int], float], kept: Callable[[int], float], noise=(0.1, 0.2)):
    def payload(record: Record) -> dict[str, Any] | None:
        i = TASKS.index(record.config["task"]["name"])
        stability = payloads.mask_stability([kept(i), kept(i) / 2], noise=list(noise), separation={"50": gap(i)})
        return None if record.mechanism != "topk:5" else stability

    return payload


def _noised(noisy: float | None, tasks=NOISY_TASKS, seeds: int = 10) -> list[Record]:
    """Full at 60, top-5 at 20, and top-5 chosen with noise of the scores' unit."""
    return both(60, 20, TASKS, seeds=seeds) + [r for task in tasks for r in arm(task, NOISY, noisy, seeds=seeds)]


def _c12(records: list[Record], payload):
    return verdict("C12", records, measure(records, "mask_stability", payload))


def test_c12_asks_for_stable_masks_where_scores_are_apart_and_for_a_loss_where_the_choice_is_noisy() -> None:
    stable = _masks(RISING, lambda i: i / 10)
    assert _c12(_noised(40), stable).outcome == "holds"
    mixed = _c12(_noised(20), stable)
    assert mixed.outcome == "mixed"
    assert "6 refuted: parity: noisy choice, slower (topk:5~1 1x; 95 % interval 1 to 1)" in mixed.because
    assert _c12(_noised(20), _masks(RISING, lambda i: 1 - i / 10)).outcome == "does not hold"


def test_c12_counts_a_noisy_choice_that_never_learns_as_slower_and_one_that_was_never_run_as_missing() -> None:
    stable = _masks(RISING, lambda i: i / 10)
    assert _c12(_noised(None), stable).outcome == "holds"
    missing = _c12(_noised(40, NOISY_TASKS[:3]), stable)
    assert (missing.outcome, missing.scope) == ("holds", "4 of 7 parts run")
    assert _c12(_noised(40, seeds=5), stable).outcome == "not decided"
    without = verdict("C12", _noised(40))
    assert without.outcome == "not decided"
    assert "6 of 7 shown" in without.because


@pytest.mark.parametrize(("noisy", "decided"), [(24, "refuted"), (27, "shown")])
def test_one_bound_of_0_8_divides_slower_from_not_slower(noisy: float, decided: str) -> None:
    """20 epochs against 24: 0.83x. Against 27: 0.74x."""
    because = _c12(_noised(noisy), _masks(RISING, lambda i: i / 10)).because
    assert f"6 {decided}" in because if decided == "refuted" else "7 of 7 shown" in because


def test_c12_does_not_average_over_different_levels_of_noise() -> None:
    def payload(record: Record) -> dict[str, Any] | None:
        noise = (0.1, 0.2) if record.config["task"]["name"] == "parity" else (0.1, 0.5)
        return _masks(RISING, RISING, noise)(record)

    assert "different levels of noise" in _c12(_noised(40), payload).because


@pytest.mark.parametrize("other", [{"checkpoint": "0"}, {"split": "heldout"}, {"rows": 7}])
def test_c12_leaves_out_masks_that_were_measured_in_another_way(other: dict[str, Any]) -> None:
    records = _noised(40)
    last = max(record.seed for record in records)

    def payload(record: Record) -> dict[str, Any] | None:
        judged = _masks(RISING, lambda i: i / 10)(record)
        usual = {"checkpoint": "last", "split": "train", "rows": 100}
        return None if judged is None else judged | usual | (other if record.seed == last else {})

    judged = _c12(records, payload)
    assert judged.outcome == "holds"
    assert judged.runs == 2 * 9 * len(TASKS) + 10 * len(NOISY_TASKS) + len(NOISY_TASKS)


def test_three_tasks_are_no_correlation() -> None:
    records = [r for r in _noised(40) if r.config["task"]["name"] in TASKS[:3]]
    assert "3 items" in _c12(records, _masks(RISING, lambda i: i / 10)).because


def _heated(
    full: Mapping[float, float | None], topk: Mapping[float, float | None], tasks=HEATED_TASKS, **more: Any
) -> list[Record]:
    """Epochs of both arms by inverse temperature."""
    return [
        record
        for task in tasks
        for mechanism, epochs in (("full", full), ("topk:5", topk))
        for t, at in epochs.items()
        for record in arm(task, mechanism, at, changes={TEMPERATURE: t}, **more)
    ]


def _spread(record: Record, full: float = 3.0, topk: float = 1.1) -> dict[str, Any]:
    """Dispersion before training: proportional to the inverse temperature."""
    t = record.config["attention"]["inverse_temperature"]
    delta = (full if record.mechanism == "full" else topk) * t * (1 + 0.01 * record.seed)
    return payloads.dispersion({"0": payloads.checkpoint(delta=delta), "last": payloads.checkpoint(delta=99.0)})


def _c13(records: list[Record], payload=_spread):
    return verdict("C13", records, measure(records, "dispersion", payload))


NEVER_MINDS = {0.25: 60, 0.5: 60, 1.0: 60}, {1.0: 20, 2.0: 20, 4.0: 20}
ALWAYS_FOLLOWS = {0.25: 20, 0.5: 21, 1.0: 60}, {1.0: 20, 2.0: 58, 4.0: 60}


def test_c13_holds_where_epochs_follow_the_dispersion_and_not_where_they_do_not() -> None:
    held = _c13(_heated(*ALWAYS_FOLLOWS))
    assert held.outcome == "holds"
    assert "100% at inverse temperature 0.25, 96% at inverse temperature 0.5 of the lead gained" in held.because
    denied = _c13(_heated(*NEVER_MINDS))
    assert denied.outcome == "does not hold"
    assert "8 refuted" in denied.because
    assert _c13(_heated(ALWAYS_FOLLOWS[0], NEVER_MINDS[1])).outcome == "mixed"


def test_c13_asks_for_more_than_half_of_the_lead() -> None:
    """Half of the way from 60 to 20 is 34.6, on the logarithm."""
    little = {0.25: 38, 0.5: 40, 1.0: 60}, {1.0: 20, 2.0: 30, 4.0: 31}
    much = {0.25: 31, 0.5: 60, 1.0: 60}, {1.0: 20, 2.0: 38, 4.0: 20}
    assert _c13(_heated(*little)).outcome == "does not hold"
    assert _c13(_heated(*much)).outcome == "holds"


def test_c13_wants_the_dispersion_of_the_other_arm_between_those_that_were_tried() -> None:
    far = _c13(_heated(*ALWAYS_FOLLOWS), lambda record: _spread(record, full=30.0, topk=1.1))
    assert far.outcome == "not decided"
    assert "not between those of full at other temperatures" in far.because
    assert "not measured" in verdict("C13", _heated(*ALWAYS_FOLLOWS)).because
    assert bracket({0.25: 0.75, 0.5: 1.5, 1.0: 3.0}, 1.1) == (0.25, 0.5)
    assert bracket({0.5: 1.5, 1.0: 3.0}, 1.5) == (0.5,)
    assert bracket({0.5: 1.5, 1.0: 3.0}, 1.1) is None


def test_c13_takes_dispersion_at_percentile_95_before_training() -> None:
    def payload(record: Record) -> dict[str, Any]:
        made = _spread(record)
        at = made["checkpoints"]["0"]
        at["delta"] = {percent: 99.0 if percent != "95" else value for percent, value in at["delta"].items()}
        return made

    assert _c13(_heated(*ALWAYS_FOLLOWS), payload).outcome == "holds"


def test_c13_does_not_apply_where_top_5_has_no_lead() -> None:
    level = {0.25: 60, 0.5: 60, 1.0: 60}, {1.0: 60, 2.0: 60, 4.0: 60}
    records = _heated(*ALWAYS_FOLLOWS, tasks=HEATED_TASKS[:3]) + _heated(*level, tasks=HEATED_TASKS[3:])
    judged = _c13(records)
    assert (judged.outcome, judged.judged) == ("holds", (6, 6))
    assert "2 not applicable: modular_arithmetic: full at top-5's dispersion" in judged.because
    assert _c13(_heated(*ALWAYS_FOLLOWS, seeds=5)).outcome == "not decided"


def test_c13_is_not_decided_by_runs_that_never_get_there() -> None:
    """Full attention that fails by the horizon looks faster than it is: nothing is gained by that."""
    lost = _heated({0.25: None, 0.5: None, 1.0: None}, {1.0: 20, 2.0: 20, 4.0: 20}, tasks=["even_pairs"])
    judged = _c13(lost)
    assert "even_pairs: full at top-5's dispersion" in judged.because.split("undecided")[1]
    collapsed = _heated({0.25: None, 0.5: None, 1.0: 60}, {1.0: 20, 2.0: 20, 4.0: 20}, tasks=["even_pairs"])
    assert "2 refuted" in _c13(collapsed).because


def test_temperatures_of_two_precisions_are_never_compared() -> None:
    plain = _heated({1.0: 60}, {1.0: 20})
    changed = [
        record
        for task in HEATED_TASKS
        for mechanism, t in (("full", 0.25), ("full", 0.5), ("topk:5", 2.0), ("topk:5", 4.0))
        for record in arm(task, mechanism, 20, changes={TEMPERATURE: t, "precision": "tf32"})
    ]
    assert _c13(plain + changed).runs == 0
