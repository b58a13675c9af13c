"""C6, C7 and C8 on runs made by hand: C1 and C5 under other settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from semfocus.analysis.records import Record
from semfocus.analysis.verdicts.pairs import sooner_to_loss
from semfocus.analysis.verdicts.robustness import ADAM_DECAY, ADAM_RATES, BLOCKS, DECAYS, FIRST_FOUR, HEADS, RATES
from semfocus.analysis.verdicts.settings import TASKS, settings_from
from tests.analysis.made import arm, both, run, verdict


def _case(changes, full: float = 60, topk: float = 20, tasks=("listops",), **more) -> list[Record]:
    """Accuracies and losses of top-k are ahead of full attention's, or behind."""
    return [
        run(task, mechanism, seed, at=at + 0.3 * (seed % 5), loss_at=at + 0.3 * (seed % 5), changes=changes, **more)
        for task in tasks
        for mechanism, at in (("full", full), ("topk:5", topk))
        for seed in range(10)
    ]


def test_c6_needs_every_activation_and_is_not_carried_by_relu_alone() -> None:
    relu, gelu = both(60, 20), _case({"model.activation": "gelu"}, tasks=TASKS)
    mish = _case({"model.activation": "mish"}, tasks=FIRST_FOUR)
    assert verdict("C6", relu + gelu + mish).outcome == "holds"
    assert verdict("C6", relu + gelu + mish).scope == ""
    assert verdict("C6", relu + gelu).scope == "48 of 60 parts run"
    assert verdict("C6", relu).outcome == "not decided"
    slow = _case({"model.activation": "gelu"}, 20, 60, TASKS)
    assert verdict("C6", relu + slow).outcome == "mixed"  # as well, but neither faster nor earlier
    worse = [r for m, heldout, at in (("full", 0.9, 20), ("topk:5", 0.8, 60)) for task in TASKS
             for r in arm(task, m, at, heldout=heldout, changes={"model.activation": "gelu"})]  # fmt: skip
    assert verdict("C6", worse).outcome == "does not hold"


def test_c7_judges_each_depth_and_number_of_heads() -> None:
    blocks = [record for n in BLOCKS for record in _case({"model.blocks": n})]
    heads = [record for n in HEADS for record in _case({"model.heads": n})]
    assert verdict("C7", blocks + heads).outcome == "holds"
    assert verdict("C7", blocks).scope == "12 of 21 parts run"
    assert verdict("C7", _case({"model.blocks": 10})).outcome == "not decided"
    assert verdict("C7", _case({"model.blocks": 15}, 20, 60)).outcome == "does not hold"


def test_c8_judges_each_rate_decay_and_adam() -> None:
    cases = [{"training.lr": rate} for rate in RATES] + [{"training.decay": decay} for decay in DECAYS]
    adam = {"training.optimizer": "adam", "training.decay": ADAM_DECAY}
    cases += [adam | {"training.lr": rate} for rate in ADAM_RATES]
    records = [record for case in cases for record in _case(case)]
    assert verdict("C8", records).outcome == "holds"
    assert verdict("C8", _case({"training.lr": 1.0})).outcome == "not decided"
    assert verdict("C8", _case(adam | {"training.lr": 1e-3}, 20, 60)).outcome == "does not hold"


def test_an_ablation_of_something_else_is_not_taken_for_this_one() -> None:
    assert verdict("C7", _case({"model.blocks": 15, "training.lr": 2.25})).outcome == "not decided"


def test_c8_decides_by_training_loss_where_neither_arm_reaches_95_per_cent() -> None:
    """Under decay 0.9 both arms stop at 60 %: the loss that both reach still tells who gets there sooner."""
    decayed = {"training.decay": 0.9}
    slow = [
        _losses(m, s, (1.9, 1.5, 1.2, last), changes=decayed)
        for s in range(10)
        for m, last in (("full", 1.2), ("topk:5", 1.0))
    ]
    faster = [_losses(m, s, losses, changes=decayed) for s in range(10) for m, losses in (
        ("full", (1.9, 1.5, 1.3, 1.2)), ("topk:5", (1.2, 1.1, 1.0, 0.9)))]  # fmt: skip
    aspect = "listops, decay 0.9: sooner to a training loss"
    assert aspect in verdict("C8", faster).because.split(" shown: ")[1].split(" undecided")[0]
    assert aspect in verdict("C8", slow).because.split(" undecided: ")[1]


def test_neither_arm_learning_is_not_applicable_and_not_a_race_between_noises() -> None:
    changes = {"training.optimizer": "adam", "training.lr": 1e-5, "training.decay": ADAM_DECAY}
    records = [_losses(m, s, losses, 0.1, changes) for s in range(10) for m, losses in (
        ("full", (2.3030, 2.3029, 2.3028, 2.3027)), ("topk:5", (2.3026, 2.3025, 2.3025, 2.3024)))]  # fmt: skip
    assert (
        "not applicable: listops, adam lr 1e-05: sooner to a training loss (neither arm learns"
        in verdict("C8", records).because
    )


def _losses(
    mechanism: str, seed: int, losses, accuracy: float = 0.6, changes: Mapping[str, Any] = {}, state: str = "done"
) -> Record:
    """A run of ListOps with these training losses at a quarter, half, three quarters and the end."""
    made = run("listops", mechanism, seed, changes=changes, state=state)
    horizon = made.horizon
    rows = [
        {
            **made.metrics[-1],
            "epoch": horizon * (i + 1) / 4,
            "step": i + 1,
            "train_loss": loss,
            "train_accuracy": accuracy,
        }
        for i, loss in enumerate(losses)
    ]
    return Record(made.id, made.config, rows, state, 1.0)


def _race(*pairs) -> tuple[list[float], list[float], list[bool]]:
    """Epochs of both arms, and whether top-k gets there, for the losses of full and top-k of each seed."""
    records = [
        _losses(mechanism, seed, losses, state="diverged" if losses[-1] == math.inf else "done")
        for seed, pair in enumerate(pairs)
        for mechanism, losses in zip(("full", "topk:5"), pair, strict=True)
    ]
    (setting,) = settings_from(records)
    part = sooner_to_loss("", setting)
    return part


def test_the_level_is_the_larger_of_the_lowest_losses_and_no_lower_than_that_of_a_model_that_has_learned() -> None:
    """full: 100, 150, 200 epochs to 1.0; top-k is there at 50, although it gets lower and comes back up."""
    part = _race(*[((1.5, 1.4, 1.2, 1.0), (1.0, 0.5, 0.4, 0.8))] * 6)
    assert part.effect == "4x"  # 200 / 50
    noise = _race(*[((0.04, 0.03, 0.02, 0.001), (0.05, 0.002, 0.0009, 0.0008))] * 6)
    assert noise.effect == "1x"  # both have learned at once; what follows is noise
    swapped = _race(*[((1.0, 0.5, 0.4, 0.8), (1.5, 1.4, 1.2, 1.0))] * 6)
    assert (part.decision, swapped.decision) == ("yes", "no")


def test_a_run_that_diverged_never_gets_there_and_has_no_say_in_the_level() -> None:
    part = _race(*[((1.5, 1.4, 1.2, 1.0), (0.1, 0.01, 0.001, math.inf))] * 6)
    assert part.decision == "no"
    both_lost = _race(*[((1.5, 1.4, 1.2, math.inf), (0.1, 0.01, 0.001, math.inf))] * 6)
    assert both_lost.decision == "undecided"
