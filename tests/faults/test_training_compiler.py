"""Where torch's compiler fails, runs train without it, to the same numbers; whoever asked for it gets its error."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch._dynamo.exc import TorchDynamoException

from semfocus.execution import train
from semfocus.model.forward_fns import ForwardFns
from semfocus.training.session import CompilerFailed
from tests.training.helpers import run_of, runtime, states, tensors, tiny, trained

CONFIGS = [tiny(seed) for seed in range(2)]


@pytest.fixture
def _broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that pays for every run, and fails on each."""

    def fail(*_: object) -> torch.Tensor:
        raise TorchDynamoException("Scalar -107513874153472 is out of range for type int32\nand more")

    monkeypatch.setattr("semfocus.training.runtime._worth_compiling", lambda *_: True)
    monkeypatch.setattr(ForwardFns, "compiled", staticmethod(lambda: ForwardFns(block=fail)))


@pytest.mark.usefixtures("_broken")
@pytest.mark.filterwarnings("default")
def test_runs_on_which_the_compiler_fails_train_without_it(tmp_path: Path) -> None:
    expected = trained(CONFIGS, tmp_path / "eager")
    with pytest.warns(CompilerFailed, match="failed on full with softmax .*out of range.*2 runs train without it"):
        outcomes = train(CONFIGS, tmp_path / "auto", runtime(compile="auto"))
    assert states(outcomes) == ["done"] * 2
    for outcome, run in zip(outcomes, expected, strict=True):
        assert outcome.run.status()["compiled"] is False
        assert torch.equal(tensors(outcome.run)["parameters"], tensors(run)["parameters"])


@pytest.mark.usefixtures("_broken")
@pytest.mark.filterwarnings("default")
def test_a_compiler_that_was_asked_for_is_not_left_out(tmp_path: Path) -> None:
    with pytest.raises(TorchDynamoException, match="out of range"):
        train(CONFIGS, tmp_path, runtime(compile="on"))
    assert "try --compile off" in run_of(CONFIGS[0], tmp_path).status()["reason"]
    assert states(train(CONFIGS, tmp_path, runtime(compile="off"))) == ["done"] * 2
