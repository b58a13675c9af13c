"""Compiled steps and evaluations give what plain ones give, to rounding."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from semfocus.model import EAGER, ForwardFns
from semfocus.training.evaluation import Evaluator
from semfocus.training.step import TrainStep
from tests.training.helpers import begin, tiny

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch, about itself


def _compare(mechanism: str, **training: Any) -> None:
    configs = [tiny(seed, mechanism, **training) for seed in (1, 2)]
    results = []
    for parts in (EAGER, ForwardFns.compiled()):
        cohort = begin(configs)
        stepper = TrainStep(cohort, parts)
        stepper.begin_epoch(0, 0)
        stepper.run(5)
        results.append((cohort.parameters, Evaluator(cohort, parts).scores()))
    (plain, scores), (compiled, compiled_scores) = results
    assert not torch.allclose(plain, begin(configs).parameters, atol=1e-3)
    torch.testing.assert_close(compiled, plain, rtol=1e-3, atol=1e-5)
    assert compiled_scores.keys() == scores.keys()
    for column, values in scores.items():
        assert compiled_scores[column] == pytest.approx(values, rel=1e-4)


def test_traced_steps_learn_what_plain_ones_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    _compare("topk:3", optimizer="adamw", lr=0.003, weight_decay=0.1)


@pytest.mark.slow
def test_compiled_steps_learn_what_plain_ones_learn() -> None:
    """By plain descent: Adam would blow the rounding of a gradient that is zero up to a step."""
    _compare("topk:3", lr=1.0)
