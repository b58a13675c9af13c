"""Packed texts: outputs, gradients and information are those of each text on its own; bad boundaries are refused."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from semfocus import TopK, attend, explain
from semfocus.attention.operator import BACKENDS
from semfocus.counter_rng import fold_in
from semfocus.errors import UsageError
from tests.conformance.cases import MECHANISMS, close, qkv
from tests.conftest import DEVICE

SIZES_Q, SIZES_K = [5, 0, 7, 5, 1, 3, 0], [5, 4, 7, 5, 1, 9, 0]
SELF = [5, 0, 7, 5, 1, 3, 11]


def boundaries(sizes: list[int], dtype=torch.int32) -> Tensor:
    return torch.tensor([0, *torch.tensor(sizes).cumsum(0)], dtype=dtype, device=DEVICE)


def pieces(tensor: Tensor, sizes: list[int], dim: int) -> list[Tensor]:
    return list(tensor.split(sizes, dim))


def one_by_one(qkv, sizes_q, sizes_k, mechanism, *, mask=None, seed=None, places=None, **options) -> Tensor:
    """Each text by a call of its own."""
    parts = [pieces(each, sizes, -2) for each, sizes in zip(qkv, (sizes_q, sizes_k, sizes_k), strict=True)]
    starts_q, starts_k = boundaries(sizes_q).tolist(), boundaries(sizes_k).tolist()
    outs = []
    for text, given in enumerate(zip(*parts, strict=True)):
        own = options | ({"backend": None} if 0 in (given[0].shape[-2], given[1].shape[-2]) else {})
        if mask is not None:
            rows = slice(None) if mask.shape[-2] == 1 else slice(starts_q[text], starts_q[text + 1])
            own["mask"] = mask[..., rows, starts_k[text] : starts_k[text + 1]]
        if seed is not None:
            own["seed"] = fold_in(seed, torch.zeros((), dtype=torch.int64, device=DEVICE), len(sizes_q))[text]
        if places is not None:
            own["q_positions"] = own["k_positions"] = places[..., starts_q[text] : starts_q[text + 1]]
        outs.append(attend(*given, mechanism, **own))
    return torch.cat(outs, dim=-2)


def agree(mechanism, sizes_q=SELF, sizes_k=None, *, lead=(2, 3), dtype=torch.float64, width=5, **options) -> None:
    """Packed and one by one: the same output and gradients, of a float mask and of sinks too."""
    sizes_k = sizes_k or sizes_q
    given = [tensor.to(dtype) for tensor in qkv(sum(sizes_q), sum(sizes_k), lead=lead, width=width)]
    if options.get("enable_gqa"):
        given[1:] = (tensor[:, :1] for tensor in given[1:])
    leaves = [tensor.clone().requires_grad_() for tensor in given]
    leaves += [o for o in options.values() if isinstance(o, Tensor) and o.is_floating_point() and o.requires_grad]
    places = options.pop("places", None)
    positions = {} if places is None else {"q_positions": places, "k_positions": places}
    cu = {"cu_seqlens_q": boundaries(sizes_q)}
    if sizes_k != sizes_q:
        cu["cu_seqlens_k"] = boundaries(sizes_k, torch.int64)
    packed = attend(*leaves[:3], mechanism, **cu, **positions, **options)
    alone = one_by_one(leaves[:3], sizes_q, sizes_k, mechanism, places=places, **options)
    slope = torch.linspace(-1, 2, packed.numel(), dtype=dtype, device=DEVICE).view(packed.shape)
    ours, theirs = (
        [out, *torch.autograd.grad((out * slope).sum() + out.square().sum(), leaves)] for out in (packed, alone)
    )
    for mine, wanted in zip(ours, theirs, strict=True):
        close(mine, wanted)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
@pytest.mark.parametrize("backend", [*(name for name in BACKENDS if name not in ("triton", "long", "threshold")), None])
def test_packed_texts_are_what_each_is_alone(mechanism, backend) -> None:
    refusals = []
    for options in ({}, {"causal": True}):
        for sizes in ((SELF,), (SIZES_Q, SIZES_K)):
            try:
                agree(mechanism, *sizes, backend=backend, **options)
            except UsageError as refusal:
                refusals.append(str(refusal))
    assert all("cannot serve" in refusal or "causal=True" in refusal for refusal in refusals)
    if len(refusals) == 4:
        pytest.skip(refusals[0])


def mask(*shape: int, floats: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    drawn = torch.rand(shape, generator=generator, dtype=torch.float64).to(DEVICE)
    return drawn.masked_fill(drawn > 0.7, float("-inf")) if floats else drawn > 0.4


TOTAL = sum(SELF)
OPTIONS = {
    "mask": {"mask": mask(2, 1, TOTAL, TOTAL)},
    "mask for all queries": {"mask": mask(3, 1, TOTAL)},
    "float mask": {"mask": mask(3, TOTAL, TOTAL, floats=True)},
    "float mask with a gradient": {"mask": mask(3, 1, TOTAL, floats=True).requires_grad_()},
    "caps and sinks": {"softcap": 1.1, "sinks": torch.randn(3, dtype=torch.float64, device=DEVICE, requires_grad=True)},
    "grouped heads": {"enable_gqa": True},
    "scale": {"scale": 0.3, "causal": True},
    "dropout": {"dropout_p": 0.4, "seed": torch.tensor(5, device=DEVICE)},
    "dropout by head": {"dropout_p": 0.4, "seed": torch.arange(3, device=DEVICE)},
    "straight through": {"straight_through": True},
    "normaliser": {"normaliser": "entmax:1.5"},
    "positions": {"causal": True, "places": torch.tensor([-1, -1, *range(TOTAL - 2)], device=DEVICE)},
}


@pytest.mark.parametrize("mechanism", ["full", "topk:3", "topk:2+1s+2w", "banded:3", "randomk:2+1r", "topk:3~0.5"])
@pytest.mark.parametrize("name", OPTIONS)
def test_options_mean_for_each_text_what_they_mean_alone(mechanism: str, name: str) -> None:
    if mechanism.startswith("randomk") and "seed" not in OPTIONS[name]:
        pytest.skip("covered without a seed")
    agree(mechanism, **OPTIONS[name])


def test_a_row_without_batch_or_heads_and_wide_batches_are_packed_alike() -> None:
    agree("topk:3", lead=())
    agree("topk:3", lead=(2,))
    agree("topk:3", lead=(2, 1, 3, 2), dropout_p=0.2, seed=torch.arange(2, device=DEVICE))


@pytest.mark.parametrize("mechanism", ["topk:3", "full", "topk:2+1s+1w"])
@pytest.mark.parametrize("causal", [False, True])
def test_kernels_serve_packed_texts(mechanism: str, causal: bool) -> None:
    sizes = [9, 0, 70, 9] if mechanism == "topk:3" else [9, 0, 20, 9]
    agree(mechanism, sizes, lead=(1, 2), dtype=torch.float32, width=16, backend="triton", causal=causal)


def test_a_text_sees_nothing_of_another_and_draws_what_does_not_depend_on_it() -> None:
    q, k, v = qkv(12, 12)
    cu, seed = boundaries([5, 7]), torch.tensor(3, device=DEVICE)
    out = attend(q, k, v, TopK(3), cu_seqlens_q=cu, dropout_p=0.5, seed=seed)
    for tensor in (q, k, v):
        tensor[..., :5, :] = float("nan")
    spoiled = attend(q, k, v, TopK(3), cu_seqlens_q=cu, dropout_p=0.5, seed=seed)
    assert torch.equal(spoiled[..., 5:, :], out[..., 5:, :])
    assert spoiled[..., :5, :].isnan().all()


def test_dropout_from_a_generator_differs_from_text_to_text_and_repeats() -> None:
    q, k, v = (tensor[..., :1, :].expand(2, 3, 12, -1) for tensor in qkv(12, 12))
    cu = boundaries([6, 6])

    def drawn(start: int) -> Tensor:
        generator = torch.Generator(DEVICE).manual_seed(start)
        return attend(q, k, v, dropout_p=0.5, generator=generator, cu_seqlens_q=cu)

    first = drawn(1)
    assert torch.equal(first, drawn(1))
    assert not torch.equal(first, drawn(2))
    assert not torch.allclose(first[..., :6, :], first[..., 6:, :])


@pytest.mark.parametrize("backend", ["reference", "dense", "chunked", None])
def test_information_names_keys_by_their_place_in_the_row(backend) -> None:
    q, k, v = qkv(sum(SIZES_Q), sum(SIZES_K))
    cu = {"cu_seqlens_q": boundaries(SIZES_Q), "cu_seqlens_k": boundaries(SIZES_K)}
    out, info = attend(q, k, v, TopK(3), return_info=True, backend=backend, **cu)
    close(info.dense_weights(k.shape[-2]) @ v, out)
    assert torch.equal(info.in_degree.sum(-1), (info.indices >= 0).sum((-1, -2)))
    starts = cu["cu_seqlens_q"].tolist()
    of_keys = cu.get("cu_seqlens_k", cu["cu_seqlens_q"]).tolist()
    for text, (first, last) in enumerate(pairwise(starts)):
        inside = info.indices[..., first:last, :]
        assert ((inside == -1) | ((inside >= of_keys[text]) & (inside < of_keys[text + 1]))).all()
    assert info.lse.shape == (2, 3, q.shape[-2])


def test_gradients_pass_gradcheck_and_their_gradients_too() -> None:
    given = [tensor.requires_grad_() for tensor in qkv(6, 6, lead=(1, 1), width=3)]

    def call(*given: Tensor) -> Tensor:
        return attend(*given, TopK(2), cu_seqlens_q=boundaries([2, 0, 4]))

    assert torch.autograd.gradcheck(call, given, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, given, fast_mode=True)


def test_no_text_at_all_and_empty_texts_alone_are_empty_and_differentiable() -> None:
    for sizes in ([], [0], [0, 0, 0]):
        given = [tensor.requires_grad_() for tensor in qkv(0, 0)]
        out = attend(*given, TopK(3), cu_seqlens_q=boundaries(sizes))
        assert out.shape == (2, 3, 0, 7)
        out.sum().backward()
    _, info = attend(*qkv(0, 0), TopK(3), cu_seqlens_q=boundaries([0, 0]), return_info=True)
    assert info.indices.shape[:-1] == (2, 3, 0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_compiled_function_computes_packed_texts_between_its_graphs(compiler: str) -> None:
    q, k, v = qkv(12, 12, dtype=torch.float32)
    cu = boundaries([5, 7])
    compiled = torch.compile(lambda *given: attend(*given, TopK(3), cu_seqlens_q=cu) * 2, backend=compiler)
    close(compiled(q, k, v), attend(q, k, v, TopK(3), cu_seqlens_q=cu) * 2)


def test_texts_of_one_size_take_one_call_and_the_longest_is_explained(monkeypatch) -> None:
    from semfocus.attention import operator

    calls = []
    choose = operator.choose_backend
    monkeypatch.setattr(operator, "choose_backend", lambda inputs, info: calls.append(inputs) or choose(inputs, info))
    q, k, v = qkv(1223, 1223, lead=(1, 1))
    cu = boundaries([5, 400, 5, 0, 400, 5, 400, 8])
    attend(q, k, v, TopK(3), cu_seqlens_q=cu)
    assert sorted(tuple(inputs.q.shape[:-1]) for inputs in calls) == [
        (1, 1, 1, 0), (1, 1, 1, 8), (3, 1, 1, 5), (3, 1, 1, 400)
    ]  # fmt: skip
    told = explain(q, k, v, TopK(3), cu_seqlens_q=cu)
    assert told.backend == choose(max(calls, key=lambda inputs: inputs.num_keys), False)
    assert str(told).startswith(
        "8 packed texts in 4 calls, the longest: topk:3: 3x1x1 heads, 400 queries over 400 keys"
    )


BAD = {
    "decrease": ([0, 7, 4, 12], r"cu_seqlens_q\[2\] = 4 is below cu_seqlens_q\[1\] = 7: text 1 .* overlap"),
    "overrun": ([0, 7, 13], "cu_seqlens_q ends at 13 of 12 queries, beyond them: the last entry must be 12"),
    "end early": ([0, 7, 11], r"ends at 11 .* belongs? to no text; cut them off"),
    "begin late": ([2, 7, 12], r"cu_seqlens_q\[0\] = 2 must be 0"),
    "begin before": ([-3, 7, 12], r"cu_seqlens_q\[0\] = -3 must be 0"),
    "negative": ([0, -1, 12], r"cu_seqlens_q\[1\] = -1 is below cu_seqlens_q\[0\] = 0"),
    "two dimensions": ([[0, 12]], r"shape \(1, 2\)"),
    "nothing": ([], r"shape \(0,\)"),
    "huge": ([0, 2**62, 12], "is below"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("backend", [None, "dense", "triton"])
def test_boundaries_that_are_none_are_refused_before_anything_is_computed(monkeypatch, name: str, backend) -> None:
    values, words = BAD[name]
    for each in list(BACKENDS):
        monkeypatch.setitem(BACKENDS, each, None)  # ty: ignore
    q, k, v = qkv(12, 12, dtype=torch.float32)
    cu = torch.tensor(values, dtype=torch.int64, device=DEVICE)
    for call in (attend, explain):
        with pytest.raises(UsageError, match=words):
            call(q, k, v, TopK(2), cu_seqlens_q=cu, backend=backend if call is attend else None)
        with pytest.raises(UsageError, match=words.replace("_q", "_k").replace("queries", "keys")):
            call(q, k, v, TopK(2), cu_seqlens_q=boundaries([12]), cu_seqlens_k=cu)


def test_boundaries_of_another_type_or_number_are_refused_by_name() -> None:
    q, k, v = qkv(12, 12)
    good = boundaries([5, 7])
    for bad, given in ((good.double(), "float64"), ([0, 12], "list"), (good.bool(), "bool"), (good.short(), "int16")):
        with pytest.raises(TypeError, match=f"cu_seqlens_q has dtype .*{given}; it must be an int32 or int64 tensor"):
            attend(q, k, v, TopK(2), cu_seqlens_q=bad)  # ty: ignore
    with pytest.raises(UsageError, match="cu_seqlens_q has 3 entries and cu_seqlens_k 2"):
        attend(q, k, v, TopK(2), cu_seqlens_q=good, cu_seqlens_k=boundaries([12]))
    with pytest.raises(UsageError, match="cu_seqlens_k is given and cu_seqlens_q is not"):
        attend(q, k, v, TopK(2), cu_seqlens_k=good)
    with pytest.raises(UsageError, match="12 queries over 9 keys: give cu_seqlens_k"):
        attend(q, k[..., :9, :], v[..., :9, :], TopK(2), cu_seqlens_q=good)
    with pytest.raises(UsageError, match="device meta"):
        attend(q, k, v, TopK(2), cu_seqlens_q=good.to("meta"))
    with pytest.raises(UsageError, match="lengths with cu_seqlens_q"):
        attend(q, k, v, TopK(2), cu_seqlens_q=good, lengths=torch.tensor(4))
    with pytest.raises(UsageError, match=r"mask has shape \(5,\)"):
        attend(q, k, v, TopK(2), cu_seqlens_q=good, mask=torch.ones(5, dtype=torch.bool, device=DEVICE))
    with pytest.raises(UsageError, match="12 tokens"):
        attend(q, k, v, TopK(2), cu_seqlens_q=good, k_positions=torch.arange(5))
    with pytest.raises(UsageError, match="same number of keys"):
        attend(q, k, v[..., :9, :], TopK(2), cu_seqlens_q=good)
    with pytest.raises(UsageError, match="seed or generator"):
        attend(q, k, v, dropout_p=0.1, cu_seqlens_q=good, seed=torch.tensor(1), generator=torch.Generator())
    with pytest.raises(UsageError, match="densse"):
        attend(*qkv(0, 0), cu_seqlens_q=boundaries([0]), backend="densse")
    with pytest.raises(TypeError, match="k must be a tensor"):
        attend(q, None, v, cu_seqlens_q=good)  # ty: ignore
