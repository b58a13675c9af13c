"""Every registered mechanism on every backend against the oracle in float64: outputs, gradients, kept sets.

A new mechanism or backend is tested here without another line: both are read from their registries.
"""

from __future__ import annotations

from dataclasses import fields
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from semfocus.attention import mechanism_names, parse_mechanism
from semfocus.attention.mechanisms import Mechanism, mechanism_class
from semfocus.attention.normalisers import Sigmoid, Softmax
from semfocus.attention.operator import BACKENDS, attend
from semfocus.errors import UsageError


def examples() -> list[Mechanism]:
    """A few values of each registered mechanism: several sizes, and each extra on its own and all together."""
    found = []
    for name in mechanism_names():
        cls = mechanism_class(name)
        sizes = [field.name for field in fields(cls) if field.name not in cls.letters.values()]
        bases = [f"{name}:{size}" for size in (1, 3, 6)] if sizes else [name]
        extras = [f"+2{letter}" for letter in cls.letters]
        found += [parse_mechanism(base) for base in bases]
        found += [parse_mechanism(bases[-1] + extra) for extra in extras]
        if len(extras) > 1:
            found.append(parse_mechanism(bases[-1] + "".join(extras)))
    return found


MECHANISMS = examples()
FAST = [name for name in BACKENDS if name != "reference"]


def serves(backend: str, mechanism: Mechanism) -> bool:
    try:
        return attend(*[torch.zeros(1, 2, 2)] * 3, mechanism, backend=backend) is not None
    except UsageError:
        return False


PAIRS = [
    pytest.param(mechanism, backend, id=f"{mechanism}-{backend}")
    for mechanism, backend in product(MECHANISMS, FAST)
    if serves(backend, mechanism)
]
SIZES = [(1, 1), (2, 2), (7, 7), (7, 63), (63, 63), (63, 7), (111, 111), (1, 257), (257, 257)]


def tensors(queries: int, keys: int, *, lead=(2, 3), width=5, dtype=torch.float64, integers=False, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        if integers:
            return torch.randint(-3, 4, shape, generator=generator).to(dtype)
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    q, k, v = draw(*lead, queries, width), draw(*lead, keys, width), draw(*lead, keys, width + 2)
    return q, k, v, draw(*lead, queries, width + 2)


def run(backend: str, mechanism: Mechanism, inputs, **options) -> list[Tensor]:
    """Output and gradients; a backend that refuses the pair openly is skipped."""
    q, k, v, grad = inputs
    leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
    try:
        out = attend(*leaves, mechanism, backend=backend, **options)
    except UsageError as refusal:
        if "cannot serve" in str(refusal) or "causal=True" in str(refusal):
            pytest.skip(str(refusal))
        raise
    return [out.detach(), *torch.autograd.grad(out, leaves, grad)]


def check(backend: str, mechanism: Mechanism, inputs, **options) -> None:
    ours, theirs = run(backend, mechanism, inputs, **options), run("reference", mechanism, inputs, **options)
    for name, mine, oracle in zip(("out", "dq", "dk", "dv"), ours, theirs, strict=True):
        torch.testing.assert_close(mine, oracle, rtol=1e-9, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(("mechanism", "backend"), PAIRS)
@pytest.mark.parametrize("integers", [False, True], ids=["real", "ties"])
def test_outputs_and_gradients_equal_the_oracle_at_odd_sizes(mechanism, backend, integers) -> None:
    for queries, keys in SIZES:
        lead = (1, 2) if queries * keys > 10_000 else (2, 3)
        check(backend, mechanism, tensors(queries, keys, lead=lead, integers=integers))


def restrictions() -> dict[str, dict]:
    generator = torch.Generator().manual_seed(5)
    keep = torch.rand(2, 1, 9, 11, generator=generator) > 0.4
    keep[0, :, 3] = False  # a query without keys
    keep[1, :, :, 4] = False  # a key that nobody may keep
    bias = torch.randn(3, 9, 11, generator=generator, dtype=torch.float64)
    bias[:, 2] = float("-inf")
    bias[:, 5, ::2] = float("-inf")
    return {
        "causal": {"causal": True},
        "mask": {"mask": keep},
        "mask for all queries": {"mask": keep[:, :, :1]},
        "mask for all keys": {"mask": keep[..., :1]},
        "one-dimensional mask": {"mask": keep[0, 0, 0]},
        "bias": {"mask": bias},
        "lengths": {"lengths": torch.tensor([4, 0])},
        "one length": {"lengths": torch.tensor(5)},
        "causal and mask and lengths": {"causal": True, "mask": keep, "lengths": torch.tensor([4, 11])},
        "causal and bias": {"causal": True, "mask": bias},
        "scale": {"scale": 0.37},
        "dropout": {"dropout_p": 0.4},
    }


@pytest.mark.parametrize(("mechanism", "backend"), PAIRS)
@pytest.mark.parametrize("kind", restrictions())
def test_masks_lengths_causality_and_dropout_equal_the_oracle(mechanism, backend, kind) -> None:
    options = restrictions()[kind]

    def seeded() -> dict:
        return options | ({"generator": torch.Generator().manual_seed(9)} if "dropout_p" in options else {})

    for integers in (False, True):
        inputs = tensors(9, 11, integers=integers)
        ours = run(backend, mechanism, inputs, **seeded())
        theirs = run("reference", mechanism, inputs, **seeded())
        for mine, oracle in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, oracle, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("mechanism", "backend"), PAIRS)
def test_a_query_without_keys_gives_zeros_and_zero_gradients(mechanism, backend) -> None:
    nothing = torch.zeros(7, 7, dtype=torch.bool)
    for mask in (nothing, torch.full((7, 7), float("-inf"), dtype=torch.float64)):
        for result in run(backend, mechanism, tensors(7, 7), mask=mask):
            assert (result == 0).all()


@pytest.mark.parametrize(("mechanism", "backend"), PAIRS)
def test_any_stride_equals_contiguous_and_inputs_are_untouched(mechanism, backend) -> None:
    q, k, v, grad = tensors(9, 11)
    wide = torch.full((2, 3, 11, 20), float("nan"), dtype=torch.float64)
    wide[..., 3:8] = k
    turned = q.transpose(1, 2).contiguous().transpose(1, 2)
    backwards = v.flip(-2).contiguous().flip(-2)
    copies = [tensor.clone() for tensor in (turned, wide[..., 3:8], backwards)]
    plain = run(backend, mechanism, (q, k, v, grad))
    strided = run(
        backend, mechanism, (turned, wide[..., 3:8], backwards, grad.transpose(0, 1).contiguous().transpose(0, 1))
    )
    for mine, wanted in zip(strided, plain, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-12, atol=1e-12)
    for tensor, copy in zip((turned, wide[..., 3:8], backwards), copies, strict=True):
        assert torch.equal(tensor, copy)


@pytest.mark.parametrize(("mechanism", "backend"), PAIRS)
def test_an_expanded_input_equals_a_materialised_one(mechanism, backend) -> None:
    q, k, v, grad = tensors(9, 11)
    expanded = [tensor[:1, :1].expand(2, 3, -1, -1) for tensor in (q, k, v)]
    broadcast = [q, k[:, :1], v[:1]]
    for inputs in (expanded, broadcast):
        whole = [tensor.expand(2, 3, -1, -1).contiguous() for tensor in inputs]
        got, wanted = run(backend, mechanism, (*inputs, grad)), run(backend, mechanism, (*whole, grad))
        torch.testing.assert_close(got[0], wanted[0], rtol=1e-12, atol=1e-12)
        for mine, full, leaf in zip(got[1:], wanted[1:], inputs, strict=True):
            torch.testing.assert_close(mine, full.sum_to_size(leaf.shape) if leaf.shape != full.shape else full)


@pytest.mark.parametrize(("mechanism", "backend"), PAIRS)
@pytest.mark.parametrize(
    ("lead", "queries", "keys"), [((0, 2), 4, 4), ((2, 2), 0, 4), ((2, 2), 4, 0), ((2, 2), 1, 1), ((), 3, 3)]
)
def test_empty_and_single_inputs_are_empty_or_exact(mechanism, backend, lead, queries, keys) -> None:
    check(backend, mechanism, tensors(queries, keys, lead=lead))


@pytest.mark.parametrize(("mechanism", "backend"), PAIRS)
def test_gradients_of_a_subset_equal_those_of_all(mechanism, backend) -> None:
    inputs = tensors(9, 11)
    whole = run(backend, mechanism, inputs)[1:]
    for wanted in ((0,), (1,), (2,), (0, 2)):
        leaves = [tensor.clone().requires_grad_(i in wanted) for i, tensor in enumerate(inputs[:3])]
        attend(*leaves, mechanism, backend=backend).backward(inputs[3])
        for i, leaf in enumerate(leaves):
            if i in wanted:
                assert torch.equal(leaf.grad, whole[i])
            else:
                assert leaf.grad is None


@pytest.mark.parametrize(("mechanism", "backend"), PAIRS)
def test_repeated_runs_and_backwards_are_equal_to_the_bit(mechanism, backend) -> None:
    inputs = tensors(31, 31, dtype=torch.float32, integers=True)
    first = run(backend, mechanism, inputs)
    for _ in range(50):
        for again, wanted in zip(run(backend, mechanism, inputs), first, strict=True):
            assert torch.equal(again, wanted)


@pytest.mark.parametrize(("mechanism", "backend"), PAIRS)
def test_uninitialised_memory_is_never_read(mechanism, backend) -> None:
    inputs = tensors(9, 11)
    wanted = run(backend, mechanism, inputs, mask=restrictions()["mask"]["mask"])
    torch.use_deterministic_algorithms(True)  # which also fills fresh memory with NaN
    try:
        poisoned = run(backend, mechanism, inputs, mask=restrictions()["mask"]["mask"])
    finally:
        torch.use_deterministic_algorithms(False)
    for mine, clean in zip(poisoned, wanted, strict=True):
        assert torch.equal(mine, clean)


@pytest.mark.parametrize(("mechanism", "backend"), PAIRS)
def test_a_larger_batch_after_a_smaller_one_meets_no_stale_mask(mechanism, backend) -> None:
    for size in (5, 23, 9):
        check(backend, mechanism, tensors(size, size))


@pytest.mark.parametrize(("mechanism", "backend"), PAIRS)
def test_grouped_heads_equal_repeated_ones(mechanism, backend) -> None:
    q, k, v, grad = tensors(9, 11, lead=(2, 6))
    k, v = k[:, :2], v[:, :2]
    for options in (
        {},
        {"mask": torch.rand(2, 6, 9, 11, generator=torch.Generator().manual_seed(1)) > 0.3},
        {"lengths": torch.tensor([3, 11])},
    ):
        grouped = run(backend, mechanism, (q, k, v, grad), enable_gqa=True, **options)
        repeated = run("reference", mechanism, (q, *(t.repeat_interleave(3, dim=1) for t in (k, v)), grad), **options)
        torch.testing.assert_close(grouped[0], repeated[0], rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(grouped[1], repeated[1], rtol=1e-9, atol=1e-10)
        for mine, spread in zip(grouped[2:], repeated[2:], strict=True):
            torch.testing.assert_close(mine, spread.unflatten(1, (2, 3)).sum(dim=2), rtol=1e-9, atol=1e-10)


def eager(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """What people write by hand, in the input's own precision."""
    scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    return scores.masked_fill(~keep, float("-inf")).softmax(dim=-1) @ v


@pytest.mark.parametrize(("mechanism", "backend"), PAIRS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_narrow_types_err_at_most_twice_as_much_as_eager(mechanism, backend, dtype) -> None:
    # Small integers for q and k: the product is exact in every type, so that all agree on the kept set.
    inputs = list(tensors(63, 63, width=8, dtype=dtype, integers=True))
    inputs[2] = tensors(63, 63, width=8, dtype=dtype, seed=1)[2]
    inputs[3] = tensors(63, 63, width=8, dtype=dtype, seed=1)[3]
    exact = run("reference", mechanism, [tensor.double() for tensor in inputs])
    ours = run(backend, mechanism, inputs)
    scores = (inputs[0].double() @ inputs[1].double().transpose(-1, -2)) * 8**-0.5
    leaves = [tensor.clone().requires_grad_() for tensor in inputs[:3]]
    by_hand = eager(*leaves, mechanism.keep(scores))
    theirs = [by_hand.detach(), *torch.autograd.grad(by_hand, leaves, inputs[3])]
    for name, mine, hand, truth in zip(("out", "dq", "dk", "dv"), ours, theirs, exact, strict=True):
        assert mine.dtype == dtype
        error, allowed = ((tensor.double() - truth).abs().max().item() for tensor in (mine, hand))
        assert error <= 2 * allowed + 4 * torch.finfo(torch.float32).eps * truth.abs().max().item(), (
            name,
            error,
            allowed,
        )


@pytest.mark.parametrize(("mechanism", "backend"), PAIRS)
def test_the_kept_set_is_the_oracles_on_integer_inputs(mechanism, backend) -> None:
    q, k, v, _ = tensors(31, 40, dtype=torch.float32, integers=True)
    for options in ({}, {"causal": True}):
        try:
            _, mine = attend(q, k, v, mechanism, backend=backend, return_info=True, **options)
            _, oracle = attend(q, k, v, mechanism, backend="reference", return_info=True, **options)
        except UsageError as refusal:
            pytest.skip(str(refusal))
        assert torch.equal(mine.in_degree, oracle.in_degree)
        assert torch.equal(mine.indices, oracle.indices)
        torch.testing.assert_close(mine.weights, oracle.weights)
        torch.testing.assert_close(mine.lse, oracle.lse)
        assert mine.in_degree.sum() == (mine.indices >= 0).sum()


@pytest.mark.parametrize(("mechanism", "backend"), PAIRS)
def test_autocast_behaves_as_torchs_own_attention(mechanism, backend) -> None:
    q, k, v, _ = tensors(9, 9, dtype=torch.float32)
    double = [tensor.double() for tensor in (q, k, v)]
    try:
        with torch.autocast("cpu", torch.bfloat16):
            ours, kept = attend(q, k, v, mechanism, backend=backend), attend(*double, mechanism, backend=backend)
            theirs = scaled_dot_product_attention(q, k, v)
    except UsageError as refusal:
        pytest.skip(str(refusal))
    assert ours.dtype == theirs.dtype == torch.bfloat16
    assert kept.dtype == torch.float64
    rounded = [tensor.bfloat16() for tensor in (q, k, v)]
    assert torch.equal(ours, attend(*rounded, mechanism, backend=backend))


@pytest.mark.parametrize(("mechanism", "backend"), PAIRS)
def test_meta_tensors_give_shapes(mechanism, backend) -> None:
    q, k, v, _ = (tensor.to("meta") for tensor in tensors(9, 11))
    try:
        out = attend(q, k, v, mechanism, backend=backend)
    except UsageError as refusal:
        pytest.skip(str(refusal))
    assert out.shape == (2, 3, 9, 7)
    assert out.is_meta


@pytest.mark.parametrize(("mechanism", "backend"), PAIRS)
def test_nan_in_a_dropped_value_does_not_leak_and_in_a_kept_one_shows(mechanism, backend) -> None:
    q, k, v, grad = tensors(9, 11)
    q[..., 0], k[..., 0], k[..., 4, 0] = 3.0, 1.0, 40.0  # key 4 is everybody's first choice
    mask = torch.ones(9, 11, dtype=torch.bool)
    mask[:5, 4] = False
    for poison in (float("nan"), float("inf")):
        spoiled = v.clone()
        spoiled[..., 4, 2] = poison
        clean, dirty = (run(backend, mechanism, (q, k, values, grad), mask=mask) for values in (v, spoiled))
        keeps = mechanism.keep((q @ k.transpose(-1, -2)) * 5**-0.5, mask)[..., 4]
        assert dirty[0][keeps][:, 2].isnan().all()
        assert torch.equal(dirty[0][~keeps], clean[0][~keeps])
        assert torch.equal(dirty[0][..., :2], clean[0][..., :2])
        assert torch.equal(dirty[1][~keeps], clean[1][~keeps])  # nor through the gradient of a query


@pytest.mark.parametrize(("mechanism", "backend"), PAIRS)
def test_a_nan_score_reaches_its_own_row_alone(mechanism, backend) -> None:
    q, k, v, _ = tensors(9, 9)
    wanted = attend(q, k, v, mechanism, backend="reference")
    q[0, 0, 3] = float("nan")
    try:
        out = attend(q, k, v, mechanism, backend=backend)
    except UsageError as refusal:
        pytest.skip(str(refusal))
    assert out[0, 0, 3].isnan().all()
    out[0, 0, 3] = wanted[0, 0, 3]
    torch.testing.assert_close(out, wanted, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("mechanism", "backend"), PAIRS)
def test_half_precision_scores_beyond_65504_stay_finite(mechanism, backend) -> None:
    q, k, v, grad = tensors(9, 9, dtype=torch.float16)
    assert run(backend, mechanism, (q * 300, k * 300, v, grad), scale=1.0)[0].isfinite().all()


@pytest.mark.parametrize(("mechanism", "backend"), PAIRS)
def test_gradcheck_passes_away_from_ties(mechanism, backend) -> None:
    q, k, v, _ = (tensor.requires_grad_() for tensor in tensors(4, 5, lead=(1, 2), width=3))
    try:
        attend(q, k, v, mechanism, backend=backend)
    except UsageError as refusal:
        pytest.skip(str(refusal))
    assert torch.autograd.gradcheck(lambda *t: attend(*t, mechanism, backend=backend), (q, k, v))


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
@pytest.mark.parametrize("normaliser", [Softmax(), Sigmoid(), Sigmoid(bias=0.5)], ids=str)
@pytest.mark.parametrize("straight_through", [False, True])
def test_every_normaliser_and_the_straight_through_gradient_equal_the_oracle(
    mechanism, normaliser, straight_through
) -> None:
    for options in ({}, {"mask": restrictions()["mask"]["mask"]}):
        check("dense", mechanism, tensors(9, 11), normaliser=normaliser, straight_through=straight_through, **options)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
def test_the_chosen_backend_gives_the_oracles_answer_for_long_sequences(mechanism) -> None:
    inputs = tensors(20, 300, lead=(1, 2), integers=True)
    ours = attend(*inputs[:3], mechanism)
    torch.testing.assert_close(ours, attend(*inputs[:3], mechanism, backend="reference"), rtol=1e-9, atol=1e-10)
