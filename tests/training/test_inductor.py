"""What torch's compiler makes of training on a CPU: C++, where a compiler for it is there."""

from __future__ import annotations

import operator
import shutil
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from semfocus.model import EAGER, ForwardFns
from semfocus.training import Runtime
from semfocus.training.cohort import Cohort
from semfocus.training.evaluation import Evaluator
from semfocus.training.step import TrainStep
from tests.training.helpers import CPU, begin, tiny

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch, about itself

needs_cpp = pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")


def _after(steps: int, mechanism: str, dropout: float, parts: ForwardFns) -> Cohort:
    cohort = begin([tiny(seed, mechanism, model={"dropout": dropout}, lr=1.0) for seed in (1, 2)])
    stepper = TrainStep(cohort, parts)
    stepper.begin_epoch(0, 0)
    stepper.run(steps)
    return cohort


@needs_cpp
@pytest.mark.parametrize("mechanism", ["full", "topk:3"])
def test_steps_compiled_to_cpp_learn_what_plain_ones_learn(mechanism: str) -> None:
    """With dropout, and without: then the blocks are compiled too."""
    parts = ForwardFns.compiled()
    for dropout in (0.1, 0.0):
        plain, compiled = (_after(4, mechanism, dropout, how).parameters for how in (EAGER, parts))
        moved = (plain - _after(0, mechanism, dropout, EAGER).parameters).abs().max()
        assert moved > 0.01
        torch.testing.assert_close(compiled, plain, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("mechanism", ["topk:3", "randomk:3"])
def test_a_step_on_a_cpu_leaves_the_hash_that_overflows_to_numpy(
    mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole numbers that wrap are wrong C++; only the hash shifts bits, so no graph may."""
    graphs: list[int] = []

    def look(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        graphs.append(sum(node.target is operator.rshift for node in graph.graph.nodes))
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=look))
    parts = ForwardFns.compiled()
    cohort = _after(1, mechanism, 0.1, parts)
    Evaluator(cohort, parts).scores()
    assert graphs
    assert not any(graphs)


@needs_cpp
def test_auto_compiles_on_a_cpu_only_long_jobs_of_full_attention_without_dropout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled = ForwardFns()
    monkeypatch.setattr(ForwardFns, "compiled", lambda: compiled)

    def chosen(mechanism: str, dropout: float, rows: int) -> bool:
        spec = begin([tiny(1, mechanism, model={"dropout": dropout})]).spec
        return Runtime(device="cpu").parts(spec, rows, CPU) is compiled

    assert chosen("full", 0.0, 10**12)
    assert not chosen("full", 0.0, 1000)
    assert not chosen("full", 0.1, 10**12)
    assert not chosen("topk:3", 0.0, 10**12)
