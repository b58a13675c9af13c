"""C1, C2, C3, C11, C6 to C8 and C14 on runs made by hand: each gives each of its outcomes, for the right reason."""

from __future__ import annotations

import pytest

from semfocus.analysis.intervals import Interval
from semfocus.analysis.paired import PairedTest
from semfocus.analysis.records import Record
from semfocus.analysis.speedup import Ratio, SpeedUp
from semfocus.analysis.verdicts.generalisation import ADAM_RATES, BLOCKS, DECAYS, HEADS, RATES
from semfocus.analysis.verdicts.learning import MASKS
from semfocus.analysis.verdicts.pairs import faster_decision
from semfocus.analysis.verdicts.settings import TASKS
from tests.analysis.made import WIDTH, arm, both, run, verdict


def test_c1_holds_when_every_task_is_faster() -> None:
    judged = verdict("C1", both(60, 20))
    assert judged.outcome == "holds"
    assert judged.p == pytest.approx(2**-9)
    assert judged.runs == 160
    assert judged.interval is not None
    assert 2.8 < judged.interval[0] < judged.interval[1] < 3.2


def test_c1_holds_in_part_when_one_task_is_missing_or_slower() -> None:
    assert verdict("C1", both(60, 20, TASKS[1:])).outcome == "holds in part"
    judged = verdict("C1", both(60, 20, TASKS[1:]) + both(20, 60, TASKS[:1]))
    assert judged.outcome == "holds in part"
    assert "1 refuted: parity (slower" in judged.because


def test_c1_does_not_hold_when_top_k_is_slower_or_the_same() -> None:
    assert verdict("C1", both(20, 60)).outcome == "does not hold"
    same = verdict("C1", [r for t in TASKS for m in ("full", "topk:5") for r in _scattered(t, m)])
    assert same.outcome == "does not hold"
    assert "no gain beyond 1.25x" in same.because


def test_an_arm_is_not_called_faster_where_the_test_and_the_ratio_disagree() -> None:
    against = PairedTest(0.01, -1.0, 10, 10, 2**-9, "exact", ())
    favour = PairedTest(0.01, 1.0, 10, 10, 2**-9, "exact", ())
    larger, smaller = (SpeedUp(Ratio(r, "="), Interval(0.5, 2), Ratio(r, "="), 10, 9, 9, ()) for r in (1.2, 0.9))
    assert faster_decision(against, larger)[0] == "no"
    assert faster_decision(favour, smaller)[0] == "undecided"
    assert faster_decision(favour, larger)[0] == "yes"


def _scattered(task: str, mechanism: str) -> list[Record]:
    """Two arms of which now one is faster, now the other, by little."""
    shift = 1 if mechanism == "full" else -1
    return [run(task, mechanism, seed, at=60 + shift * (-1) ** seed) for seed in range(10)]


@pytest.mark.parametrize("seeds", [1, 2, 5])
def test_few_seeds_claim_nothing_however_large_the_difference(seeds: int) -> None:
    judged = verdict("C1", both(60, 5, seeds=seeds))
    assert judged.outcome == "not enough data"
    assert "at least 6 seeds are needed" in judged.because or "a test needs at least 2" in judged.because


def test_c1_says_nothing_when_no_run_ever_gets_there() -> None:
    judged = verdict("C1", both(None, None))
    assert judged.outcome == "not enough data"
    assert "got there together or not at all" in judged.because


def test_a_lone_task_that_would_pass_alone_must_pass_holm_over_eight() -> None:
    # Six pairs give p = 0.031 on one task. That is not enough for "in part" of eight, but for each of all eight it is.
    assert verdict("C1", both(60, 20, ["parity"], seeds=6)).outcome == "not enough data"
    assert verdict("C1", both(60, 20, ["parity"], seeds=9)).outcome == "holds in part"
    assert verdict("C1", both(60, 20, seeds=6)).outcome == "holds"


def test_c2_wants_about_1_3_on_listops_and_a_large_speed_up_elsewhere() -> None:
    listops, others = both(52, 40, ["listops"]), both(88, 10, ["even_pairs"], spread=0.1)
    assert verdict("C2", listops + others).outcome == "holds"
    assert verdict("C2", listops).outcome == "holds in part"
    assert verdict("C2", others).outcome == "holds in part"
    assert verdict("C2", both(100, 20, ["listops"]) + both(40, 20, TASKS[:-1])).outcome == "does not hold"
    assert verdict("C2", both(40, 20, TASKS[1:-1])).outcome == "not enough data"  # one task might have it
    assert verdict("C2", both(52, 40, ["listops"], seeds=4)).outcome == "not enough data"
    assert verdict("C2", both(40, 20, TASKS[:-1], seeds=5)).outcome == "not enough data"


def _masked(mask_at: float | None, full_at: float | None = 20, tasks=TASKS, masks=MASKS, **more) -> list[Record]:
    records = [record for task in tasks for record in arm(task, "full", full_at)]
    return records + [record for task in tasks for mask in masks for record in arm(task, mask, mask_at, **more)]


def test_c3_holds_when_no_mask_gains_and_one_never_fits() -> None:
    assert verdict("C3", _masked(None)).outcome == "holds"
    judged = verdict("C3", _masked(21))
    assert judged.outcome == "holds in part"  # no gain, but all reach 100 %
    assert "every mask gets there in most of its runs" in judged.because


def test_c3_is_refuted_by_masks_that_win_everywhere() -> None:
    judged = verdict("C3", _masked(5, full_at=60))
    assert judged.outcome == "does not hold"
    assert "faster on every task" in judged.because
    others = [task for task in TASKS if task != "even_pairs"]
    assert verdict("C3", _masked(5, full_at=60, tasks=others)).outcome == "not enough data"


def test_c3_says_nothing_where_full_attention_fails_too() -> None:
    assert verdict("C3", _masked(None, full_at=None)).outcome == "not enough data"
    assert verdict("C3", _masked(None, masks=())).outcome == "not enough data"


def test_c3_does_not_call_two_arms_that_mostly_fail_alike() -> None:
    records = [record for task in TASKS for mechanism in ("full", *MASKS) for record in _mostly_lost(task, mechanism)]
    assert verdict("C3", records).outcome == "not enough data"


def _mostly_lost(task: str, mechanism: str) -> list[Record]:
    """Four of ten runs get there, now earlier, now later than those of another arm."""
    sooner = mechanism == "full"
    return [run(task, mechanism, s, at=50 + (s + sooner) % 2 if s < 4 else None) for s in range(10)]


def _sweep(full: float | None, topk: float | None, widest: float | None, tasks=TASKS, seeds: int = 10) -> list[Record]:
    records = both(full, topk, tasks, seeds=seeds)
    return records + [record for task in tasks for record in arm(task, f"topk:{WIDTH}", widest, seeds=seeds)]


def test_c11_holds_when_the_benefit_is_gone_at_the_full_length() -> None:
    assert verdict("C11", _sweep(60, 20, 61)).outcome == "holds"
    assert verdict("C11", _sweep(60, 20, 61, TASKS[:2])).outcome == "holds in part"
    assert verdict("C11", _sweep(60, 20, 61, seeds=3)).outcome == "not enough data"


def test_c11_does_not_hold_when_keeping_every_key_is_still_faster() -> None:
    judged = verdict("C11", _sweep(60, 20, 15))
    assert judged.outcome == "does not hold"
    assert "16 refuted" in judged.because


def test_c11_calls_two_arms_that_fail_alike_not_equal() -> None:
    assert verdict("C11", _sweep(None, None, None)).outcome == "not enough data"
    few = [r for task in TASKS for m in ("full", "topk:5", f"topk:{WIDTH}") for r in _mostly_lost(task, m)]
    assert verdict("C11", few).outcome == "not enough data"


def _case(changes, full: float = 60, topk: float = 20, tasks=("listops",)) -> list[Record]:
    return both(full, topk, tasks, changes=changes)


def test_c6_needs_every_activation_and_is_not_carried_by_relu_alone() -> None:
    relu, gelu = both(60, 20), _case({"model.activation": "gelu"}, tasks=TASKS)
    mish = _case({"model.activation": "mish"}, tasks=("listops", "parity", "even_pairs", "missing_duplicate"))
    assert verdict("C6", relu + gelu + mish).outcome == "holds"
    assert verdict("C6", relu + gelu).outcome == "holds in part"
    assert verdict("C6", relu).outcome == "not enough data"
    slow = _case({"model.activation": "gelu"}, 20, 60, TASKS)
    assert verdict("C6", slow).outcome == "does not hold"


def test_c7_judges_each_depth_and_number_of_heads() -> None:
    blocks = [record for n in BLOCKS for record in _case({"model.blocks": n})]
    heads = [record for n in HEADS for record in _case({"model.heads": n})]
    assert verdict("C7", blocks + heads).outcome == "holds"
    assert verdict("C7", blocks).outcome == "holds in part"
    assert verdict("C7", _case({"model.blocks": 10})).outcome == "not enough data"
    assert verdict("C7", _case({"model.blocks": 15}, 20, 60)).outcome == "does not hold"


def test_c8_judges_each_rate_decay_and_adam() -> None:
    cases = [{"training.lr": rate} for rate in RATES] + [{"training.decay": decay} for decay in DECAYS]
    adam = {"training.optimizer": "adam", "training.decay": 0.99999}
    cases += [adam | {"training.lr": rate} for rate in ADAM_RATES]
    records = [record for case in cases for record in _case(case)]
    assert verdict("C8", records).outcome == "holds"
    assert verdict("C8", [r for r in records if r.config["training"]["optimizer"] == "sgd"]).outcome == "holds in part"
    assert verdict("C8", _case({"training.lr": 1.0})).outcome == "not enough data"
    assert verdict("C8", _case(adam | {"training.lr": 1e-3}, 20, 60)).outcome == "does not hold"


def test_an_ablation_of_something_else_is_not_taken_for_this_one() -> None:
    assert verdict("C7", _case({"model.blocks": 15, "training.lr": 2.25})).outcome == "not enough data"


def test_c14_compares_losses_on_a_next_token_task_and_needs_one() -> None:
    def text(full: float, topk: float, heldout: float = 0.3) -> list[Record]:
        more = {"at": None, "heldout_at": 1}
        return [
            run("next_token", mechanism, seed, loss_at=at + seed % 3, heldout=level, **more)
            for seed in range(10)
            for mechanism, at, level in (("full", full, 0.3), ("topk:5", topk, heldout))
        ]

    assert verdict("C14", text(60, 20)).outcome == "holds"
    assert verdict("C14", text(60, 20, heldout=0.2)).outcome == "holds in part"
    assert verdict("C14", text(20, 60, heldout=0.2)).outcome == "does not hold"
    assert "called next_token" in verdict("C14", both(60, 20)).because
