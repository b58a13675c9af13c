"""Runtime: invalid settings are refused, and a resumed run keeps those of its first session."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

from semfocus.errors import UsageError
from semfocus.training import Runtime, parse_epochs, parse_shares
from semfocus.training.runtime import Evaluations, numerics


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "gpu"}, "device = 'gpu' is not one of auto, cpu, cuda, mps"),
        ({"device": "cpu:x"}, "device = 'cpu:x' is not one of"),
        ({"threads": 0}, "threads = 0 must be at least 1"),
        ({"threads": 1.5}, "threads = 1.5 must be a whole number"),
        ({"cohort_size": 0}, "cohort_size = 0 must be at least 1"),
        ({"evaluate_every": 0}, "evaluate_every = 0 must be a positive number"),
        ({"evaluate_every": float("nan")}, "evaluate_every = nan"),
        ({"evaluate_every": float("inf")}, "evaluate_every = inf"),
        ({"checkpoint_seconds": float("nan")}, "checkpoint_seconds = nan must be zero or more"),
        ({"checkpoint_seconds": -1}, "checkpoint_seconds = -1 must be zero or more"),
        ({"keep_epochs": (-1,)}, "keep_epochs = -1 must be at least 0"),
        ({"keep_shares": (1.5,)}, "keep_shares = 1.5 must be a number from 0 to 1"),
        ({"compile": "maybe"}, "compile = 'maybe' is not one of auto, on, off"),
    ],
)
def test_an_invalid_setting_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Runtime(**options).torch_device()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the device")
def test_a_missing_device_is_refused_with_the_available_ones() -> None:
    with pytest.raises(UsageError, match="'cuda' is not there on this machine; there is: cpu"):
        Runtime(device="cuda").torch_device()


def test_threads_and_compile_are_taken_from_the_first_session_unless_given() -> None:
    before = {"threads": 3, "compiled": False, "device": "cpu"}
    assert Runtime(device="cpu").as_before(before) == Runtime(device="cpu", threads=3, compile="off")
    chosen = Runtime(device="cpu", threads=2, compile="on")
    assert chosen.as_before(before) == chosen
    assert Runtime(device="cpu").as_before(None) == Runtime(device="cpu")
    elsewhere = before | {"device": "cuda", "compiled": True}
    assert Runtime(device="cpu").as_before(elsewhere).compile == "auto"


def test_the_next_session_keeps_the_epochs_that_an_earlier_one_kept() -> None:
    more = Runtime(device="cpu", keep_epochs=(3, 0)).as_before({"kept_epochs": [5, 3]})
    assert more.keep_epochs == (0, 3, 5)
    shares = Runtime(device="cpu", keep_shares=(0.5,)).as_before({"kept_shares": [0, 0.25, 0.5]})
    assert shares.keep_shares == (0.0, 0.25, 0.5)
    for strange in ("0.5", [2.0], [None], [True]):
        assert Runtime(device="cpu").as_before({"kept_shares": strange}).keep_shares == ()
    for strange in (5, ["1"], [-1], [True], {"1": 2}, None):
        assert Runtime(device="cpu", keep_epochs=(3,)).as_before({"kept_epochs": strange}).keep_epochs == (3,)


def test_epochs_are_written_as_numbers_or_as_a_ladder() -> None:
    assert parse_epochs("20, 0,1,1") == (0, 1, 20)
    assert parse_epochs("") == ()
    assert parse_epochs("ladder") == (0, 1, 2, 5, 10, 20, 50, 100, 200, 500)
    assert parse_epochs("ladder,3")[:4] == (0, 1, 2, 3)
    for wrong in ("1.5", "-1", "steps", "1;2"):
        with pytest.raises(UsageError, match="is not an epoch; write for example 0,1,20, ladder or 10%,50%"):
            parse_epochs(wrong)


def test_threads_and_tf32_are_restored_after_a_run_and_after_an_error() -> None:
    def settings() -> tuple[Any, ...]:
        return torch.get_num_threads(), torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32

    def fail() -> None:
        with numerics("tf32", 2):
            assert settings() == (2, True, True)
            raise RuntimeError

    before = settings()
    with pytest.raises(RuntimeError):
        fail()
    assert settings() == before


def _evaluated(evaluations: Evaluations) -> list[int]:
    steps, step = [], 0
    while step < evaluations.last:
        step = evaluations.next_after(step)
        steps.append(step)
    return steps


@pytest.mark.parametrize("epochs", [1, 99, 100, 101, 250, 600, 1000])
def test_evaluations_are_a_hundredth_of_the_way_apart(epochs: int) -> None:
    evaluations = Runtime(device="cpu").evaluations(5, 5 * epochs)
    steps = _evaluated(evaluations)
    assert len(steps) == evaluations.count()
    assert steps[:100] == [5 * epoch for epoch in range(1, min(epochs, 100) + 1)]
    assert steps[-1] == 5 * epochs
    assert all(step % 5 == 0 and step - before <= 5 + before / 100 for before, step in pairwise(steps))
    assert epochs < 1000 or len(steps) < 300
    # A run that goes on from any step meets the same evaluations.
    assert all(evaluations.next_after(step) == min(s for s in steps if s > step) for step in range(5 * epochs))


def test_a_run_without_end_is_evaluated_from_its_first_epoch_on() -> None:
    evaluations = Runtime(device="cpu").evaluations(5, 5 * 10**6)
    assert evaluations.next_after(0) == 5
    assert evaluations.count() < 20_000


@pytest.mark.parametrize(("every", "steps"), [(1.0, [5, 10, 15]), (0.5, [2, 5, 8, 10, 12, 15]), (2.0, [10, 15])])
def test_an_interval_in_epochs_is_kept(every: float, steps: list[int]) -> None:
    evaluations = Runtime(device="cpu", evaluate_every=every).evaluations(5, 15)
    assert _evaluated(evaluations) == steps
    assert evaluations.count() == len(steps)


@pytest.mark.parametrize(
    ("per_epoch", "steps", "evaluated"),
    [
        (1000, 1000, [250, 500, 750, 1000]),  # a single long epoch
        (10, 30, [8, 15, 22, 30]),
        (10, 40, [10, 20, 30, 40]),  # as many epochs as that: one an epoch, as ever
        (2, 2, [1, 2]),  # no more than there are steps
    ],
)
def test_a_run_of_few_epochs_is_evaluated_as_often_as_its_objective_asks(per_epoch, steps, evaluated) -> None:
    evaluations = Runtime(device="cpu").evaluations(per_epoch, steps, 4)
    assert _evaluated(evaluations) == evaluated
    assert evaluations.count() == len(evaluated)


def test_checkpoints_are_kept_by_epoch_and_by_share_of_training() -> None:
    kept = Runtime(device="cpu", keep_epochs=(0, 2, 20), keep_shares=(0.0, 0.1, 0.5, 1.0))
    assert kept.kept_steps(10, 60) == (0, 6, 20, 30, 60)
    assert kept.kept_steps(3, 3) == (0, 2, 3)


def test_shares_of_training_stand_beside_epochs() -> None:
    assert parse_shares("0,10%, 2.5%,50%,20") == (0.025, 0.1, 0.5)
    assert parse_epochs("0,10%, 2.5%,50%,20") == (0, 20)
    assert parse_shares("") == parse_shares("ladder") == ()
    for wrong in ("101%", "%", "-1%", "1e1%", "nan%"):
        with pytest.raises(UsageError, match="is not a share of training; write for example 10%,50%"):
            parse_shares(wrong)
