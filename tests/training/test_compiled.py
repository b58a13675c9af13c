"""Compiled training on a CPU, traced or by C++, learns what eager training learns, to rounding."""

from __future__ import annotations

import operator
import shutil
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from semfocus.config import AttentionConfig, ModelConfig
from semfocus.model.block import block_parameters
from semfocus.model.forward import forward, hidden
from semfocus.model.forward_fns import EAGER, ForwardFns
from semfocus.model.head import head_loss, head_parameters, weighted_loss
from semfocus.model.inputs import Padding
from semfocus.model.layers import linear
from semfocus.spec import Spec, initial
from semfocus.tasks import NO_TARGET
from semfocus.training import Runtime
from semfocus.training.cohort import Cohort
from semfocus.training.evaluation import Evaluator
from semfocus.training.objective import get_objective
from semfocus.training.step import TrainStep
from tests.training.helpers import CPU, begin, tiny

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch, about itself

PLAIN: dict[str, Any] = {"blocks": 1, "d_model": 8, "d_mlp": 8, "dropout": 0.0, "final_norm": True}

needs_cpp = pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")


def _compare(mechanism: str, **training: Any) -> None:
    configs = [tiny(seed, mechanism, **training) for seed in (1, 2)]
    results = []
    for parts in (EAGER, ForwardFns.compiled()):
        cohort = begin(configs)
        train_step = TrainStep(cohort, parts)
        train_step.begin_epoch(0, 0)
        train_step.run(5)
        results.append((cohort.parameters, Evaluator(cohort, parts).scores()))
    (plain, scores), (compiled, compiled_scores) = results
    assert not torch.allclose(plain, begin(configs).parameters, atol=1e-3)
    torch.testing.assert_close(compiled, plain, rtol=1e-3, atol=1e-5)
    assert compiled_scores.keys() == scores.keys()
    for column, values in scores.items():
        assert compiled_scores[column] == pytest.approx(values, rel=1e-4)


def test_traced_steps_learn_what_eager_steps_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    _compare("topk:3", optimizer="adamw", lr=0.003, weight_decay=0.1)


@pytest.mark.slow
def test_compiled_steps_learn_what_eager_steps_learn() -> None:
    """By gradient descent: Adam would turn the rounding of a zero gradient into a full step."""
    _compare("topk:3", lr=1.0)


def _after(steps: int, mechanism: str, dropout: float, parts: ForwardFns) -> Cohort:
    cohort = begin([tiny(seed, mechanism, model={"dropout": dropout}, lr=1.0) for seed in (1, 2)])
    train_step = TrainStep(cohort, parts)
    train_step.begin_epoch(0, 0)
    train_step.run(steps)
    return cohort


@needs_cpp
@pytest.mark.parametrize("mechanism", [pytest.param("full", marks=pytest.mark.slow), "topk:3"])
def test_steps_compiled_to_cpp_learn_what_eager_steps_learn(mechanism: str) -> None:
    """Without dropout the blocks are compiled too."""
    parts = ForwardFns.compiled()
    for dropout in (0.1, 0.0):
        plain, compiled = (_after(4, mechanism, dropout, how).parameters for how in (EAGER, parts))
        moved = (plain - _after(0, mechanism, dropout, EAGER).parameters).abs().max()
        assert moved > 0.01
        torch.testing.assert_close(compiled, plain, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("mechanism", ["topk:3", "topk:3~0.5", "randomk:3"])
def test_a_compiled_step_on_a_cpu_computes_the_hash_that_overflows_in_numpy(
    mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signed overflow is undefined in C++. Only the hash shifts bits, so no graph may contain a shift."""
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


def test_a_compiled_loss_is_the_plain_one() -> None:
    """Of 16-bit logits at every position, with its gradient."""
    objective, generator = get_objective("next_token"), torch.Generator().manual_seed(2)
    logits = torch.randn(2, 3, 5, 40, generator=generator).bfloat16()
    targets = torch.randint(40, (2, 3, 5), generator=generator)
    targets[:, :, -1] = NO_TARGET
    weights, answers = torch.tensor([1.0, 1.0, 0.0]), []
    for loss in (weighted_loss, torch.compile(weighted_loss, dynamic=False, backend="aot_eager", fullgraph=True)):
        leaf = logits.clone().requires_grad_()
        value = loss(objective.loss, leaf, targets, weights, weights.sum())
        answers.append((value, *torch.autograd.grad(value.sum(), leaf)))
    for mine, other in zip(*answers, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)
    assert answers[0][0].dtype == torch.float32


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_step_with_head_and_loss_in_one_program_is_the_plain_one(precision: str, tied: bool) -> None:
    """As on a GPU, where logits of a large vocabulary stay inside; without a break of the graph."""
    spec = replace(decoder("full"), model=ModelConfig(**{**PLAIN, "tied_head": tied}))
    row = initial(spec, 1).unsqueeze(0)
    generator = torch.Generator().manual_seed(2)
    tokens, targets = torch.randint(9, (2, 1, 3, 16), generator=generator)
    weights, objective = torch.tensor([1.0, 1.0, 0.0]), get_objective("next_token")
    whole = torch.compile(head_loss, dynamic=False, backend="aot_eager", fullgraph=True)
    answers = []
    for apart in (True, False):
        leaves = {name: view.detach().requires_grad_() for name, view in spec.layout.split(row).items()}
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16", cache_enabled=False):
            if apart:
                logits = forward(leaves, tokens, None, spec)
            else:
                x = hidden(leaves, tokens, None, spec, None, EAGER)
                own = *head_parameters(leaves, spec), spec, objective.loss
                loss = whole(x, None, *own, targets, weights, weights.sum())
        if apart:
            loss = weighted_loss(objective.loss, logits, targets, weights, weights.sum())
        assert loss.dtype == torch.float32
        answers.append((loss, *torch.autograd.grad(loss.sum(), list(leaves.values()))))
    bound = 1e-6 if precision == "fp32" else 1e-2
    for mine, other in zip(*answers, strict=True):
        torch.testing.assert_close(mine, other, rtol=bound, atol=bound)


class Operations(TorchDispatchMode):
    """Which of torch's operations are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_single_model_multiplies_as_one_product_beside_a_cpu(has_bias: bool) -> None:
    """Torch's compiler pads an odd vocabulary for tensor cores in `mm` and in `bmm` of several, not in `bmm` of one."""
    names, shapes = [], []
    for members in (1, 2):
        x, weight = torch.empty(members, 3, 5, 4, device="meta"), torch.empty(members, 4, 9, device="meta")
        with Operations() as called:
            product = linear(x, weight, torch.empty(members, 9, device="meta") if has_bias else None)
        names.append({"mm", "addmm", "bmm", "baddbmm"} & {*called.names})
        shapes.append(product.shape)
    assert names == ([{"addmm"}, {"baddbmm"}] if has_bias else [{"mm"}, {"bmm"}])
    assert shapes == [(1, 3, 5, 9), (2, 3, 5, 9)]


def test_every_stage_of_a_plan_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own limit of eight programs of one function would leave the later stages to Python, without a word."""
    compiled: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        compiled.append(len(inputs))
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    parts, stages = ForwardFns.compiled(), range(1, 13)
    x, generator = torch.zeros(1, 2, 16, 8), torch.Generator().manual_seed(1)
    for k in stages:
        spec = decoder(f"topk:{k}")
        split = spec.layout.split(torch.randn(1, spec.layout.size, generator=generator))
        weights = [split[f"blocks.0.{name}"] for name in block_parameters(spec)]
        before = len(compiled)
        parts.block(x, weights, Padding(), None, spec, 1e-5, False)
        assert len(compiled) > before, f"stage {k} runs without a compiler"


def decoder(mechanism: str) -> Spec:
    return Spec(
        ModelConfig(**PLAIN), AttentionConfig(mechanism=mechanism), 9, 9, 16, is_causal=True, predicts_positions=True
    )
