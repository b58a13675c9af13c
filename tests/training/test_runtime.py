"""Runtime: invalid settings are refused, and a resumed run keeps those of its first session."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from semfocus.errors import UsageError
from semfocus.training import Runtime, parse_epochs
from semfocus.training.runtime import numerics


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
    for strange in (5, ["1"], [-1], [True], {"1": 2}, None):
        assert Runtime(device="cpu", keep_epochs=(3,)).as_before({"kept_epochs": strange}).keep_epochs == (3,)


def test_epochs_are_written_as_numbers_or_as_a_ladder() -> None:
    assert parse_epochs("20, 0,1,1") == (0, 1, 20)
    assert parse_epochs("") == ()
    assert parse_epochs("ladder") == (0, 1, 2, 5, 10, 20, 50, 100, 200, 500)
    assert parse_epochs("ladder,3")[:4] == (0, 1, 2, 3)
    for wrong in ("1.5", "-1", "steps", "1;2"):
        with pytest.raises(UsageError, match="is not an epoch; write for example 0,1,20 or ladder"):
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


@pytest.mark.parametrize(("epochs", "every"), [(1, 1), (100, 1), (300, 1), (301, 2), (600, 2), (750, 3), (1000, 4)])
def test_long_runs_are_evaluated_300_times_at_most_at_the_ends_of_epochs(epochs: int, every: int) -> None:
    evaluations = Runtime(device="cpu").evaluations(5, 5 * epochs)
    assert evaluations.interval == 5 * every
    assert Runtime(device="cpu", evaluate_every=1.0).evaluations(5, 5 * epochs).interval == 5
