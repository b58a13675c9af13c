"""`explain` says what `attend` does: the same backend, with a reason for each of the others, and no side effect."""

from __future__ import annotations

import inspect
import re

import pytest
import torch

import semfocus
from semfocus import TopK, attend, explain
from semfocus.attention import backends
from semfocus.attention.operator import BACKENDS, AttendOptions, Backend
from semfocus.errors import UsageError
from tests.conformance.cases import MECHANISMS, qkv
from tests.conftest import DEVICE

CALLS = {
    "short": (9, 11, {}),
    "long": (300, 300, {}),
    "long, causal": (300, 300, {"causal": True}),
    "mask": (300, 300, {"mask": torch.ones(300, dtype=torch.bool, device=DEVICE)}),
    "float mask": (300, 300, {"mask": torch.zeros(300, device=DEVICE)}),
    "info": (300, 300, {"return_info": True}),
    "dropout": (300, 300, {"dropout_p": 0.2}),
    "straight through": (300, 300, {"straight_through": True}),
}


def runs(monkeypatch: pytest.MonkeyPatch, *args, **options) -> str:
    """The backend that a call of `attend` is computed by."""
    ran: list[str] = []

    def noting(name: str, backend: Backend) -> Backend:
        def run(inputs, want_info):
            ran.append(name)
            return backend.run(inputs, want_info)

        return Backend(run, backend.refuses)

    with monkeypatch.context() as patch:
        for name, backend in list(BACKENDS.items()):
            patch.setitem(BACKENDS, name, noting(name, backend))
        attend(*args, **options)
    return ran[0]


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_what_is_explained_is_what_runs(monkeypatch, mechanism, name: str) -> None:
    queries, keys, options = CALLS[name]
    if options.get("causal") and not mechanism.serves_causal:
        pytest.skip("it has no causal form")
    tensors = qkv(queries, keys, lead=(1, 2))
    told = explain(*tensors, mechanism, **options)
    assert told.backend == runs(monkeypatch, *tensors, mechanism, **options)
    assert set(told.others) == set(BACKENDS) - {told.backend}
    for other, reason in told.others.items():
        refused = reason.startswith("cannot: ")
        if refused:
            with pytest.raises(UsageError, match=re.escape(reason.removeprefix("cannot: "))):
                attend(*tensors, mechanism, backend=other, **options)
        assert reason
    assert told.backend is not None
    assert told.backend in str(told).splitlines()[1]
    assert repr(told) == str(told)


def test_every_argument_of_attend_is_taken_and_an_unknown_one_refused() -> None:
    parameters = list(inspect.signature(attend).parameters)
    assert list(AttendOptions.__annotations__) == parameters[4:]
    assert list(inspect.signature(explain).parameters)[:4] == parameters[:4]
    with pytest.raises(TypeError, match="no windows"):
        explain(*qkv(), TopK(2), windows=3)  # ty: ignore


def test_a_backend_that_is_asked_for_is_explained_as_attend_would_answer() -> None:
    q, k, v = qkv(300, 300)
    assert explain(q, k, v, TopK(2), backend="reference").backend == "reference"
    told = explain(q, k, v, TopK(2), backend="sdpa")
    assert told.backend is None
    with pytest.raises(UsageError) as refused:
        attend(q, k, v, TopK(2), backend="sdpa")
    assert told.why in str(refused.value)
    with pytest.raises(UsageError, match="dense"):
        explain(q, k, v, TopK(2), backend="dens")


def test_wrong_arguments_are_refused_as_attend_refuses_them() -> None:
    q, k, v = qkv()
    seed, generator = torch.zeros((), dtype=torch.int64, device=DEVICE), torch.Generator(DEVICE)
    for options in (
        {"scale": float("nan")}, {"mask": torch.ones(3, dtype=torch.bool, device=DEVICE)}, {"dropout_p": 1.0},
        {"normaliser": "softmux"}, {"dropout_p": 0.1, "seed": seed, "generator": generator},
    ):  # fmt: skip
        with pytest.raises(Exception) as wanted:
            attend(q, k, v, TopK(2), **options)
        with pytest.raises(type(wanted.value)) as got:
            explain(q, k, v, TopK(2), **options)
        assert str(got.value) == str(wanted.value)


def test_no_random_number_is_drawn_and_nothing_is_computed(monkeypatch) -> None:
    generator = torch.Generator(DEVICE).manual_seed(3)
    before, own = torch.get_rng_state(), generator.get_state()
    for name in BACKENDS:
        monkeypatch.setitem(BACKENDS, name, Backend(None, BACKENDS[name].refuses))  # ty: ignore
    explain(*qkv(300, 300), "randomk:3", dropout_p=0.3)
    explain(*qkv(300, 300), "randomk:3", dropout_p=0.3, generator=generator)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(generator.get_state(), own)


def test_on_a_gpu_the_family_of_kernels_is_named_with_what_the_table_of_regimes_says(monkeypatch) -> None:
    from semfocus.attention.kernels.regimes import REGIMES
    from semfocus.attention.kernels.short import dispatch

    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(dispatch, "refuses_device", lambda device: None)
    q, k, v = (tensor.bfloat16() for tensor in qkv(2048, 2048, lead=(1, 1), width=16))
    with torch.no_grad():
        told = explain(q, k, v, TopK(300))
    assert told.backend == "triton"
    assert set(told.kernels) == {"short", "long", "threshold", "decode"}
    assert told.kernels["threshold"] == f"runs: {REGIMES[-1].why}"
    assert told.kernels["decode"] == "cannot: it takes at most 8 queries a head, not 2048"
    assert "at most 64 keys" in told.kernels["long"]
    assert "kernels threshold" in str(told)


@pytest.mark.parametrize("queries", [1, 8, 9, 300])
@pytest.mark.parametrize("kept", [8, 24, 70])
def test_a_gradient_changes_no_kernels_but_those_for_decoding_into_those_with_the_same_scores(
    monkeypatch, queries: int, kept: int
) -> None:
    """Other kernels could round a score otherwise, and keep other keys where a forward pass is computed again."""
    from semfocus.attention.kernels.short import dispatch

    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(dispatch, "refuses_device", lambda device: None)
    for mechanism in (TopK(kept), TopK(kept, sinks=2)):
        running = []
        for grad in (False, True):
            q, k, v = (tensor.bfloat16() for tensor in qkv(queries, 1500, lead=(1, 1), width=16))
            told = explain(q.requires_grad_(grad), k, v, mechanism, causal=True)
            running.append(next(name for name, why in told.kernels.items() if why.startswith("runs")))
        decoding = queries <= 8 and not mechanism.sinks
        assert running == (["decode", "threshold"] if decoding else [running[0]] * 2)


def test_it_is_exported_and_prints_one_line_for_each_backend() -> None:
    assert semfocus.explain is explain
    told = explain(*qkv(300, 300, lead=(2, 4)), TopK(8), causal=True)
    lines = str(told).splitlines()
    assert lines[0] == f"topk:8, causal: 2x4 heads, 300 queries over 300 keys, 5 wide, float64 on {DEVICE}"
    assert len(lines) == 1 + len(backends.BACKENDS)
