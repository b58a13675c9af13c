"""Every registered mechanism on every backend against the oracle in float64: outputs, gradients, kept sets.

A new mechanism or backend is tested here without another line: both are read from their registries.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from semfocus.attention.operator import attend
from tests.conformance.cases import (
    MECHANISMS,
    NORMALISERS,
    Case,
    close,
    err_at_most_twice_as_much,
    every_case,
    halves,
    restrictions,
    tensors,
)
from tests.conftest import DEVICE

SIZES = [(1, 1), (2, 2), (7, 7), (7, 63), (63, 63), (63, 7), (111, 111), (1, 257), (257, 257)]
FEWER_SIZES = [(1, 1), (7, 63), (63, 7), (257, 257)]  # for ties


@every_case
@pytest.mark.parametrize("integers", [False, True], ids=["real", "ties"])
def test_outputs_and_gradients_equal_the_oracle_at_odd_sizes(case, integers) -> None:
    sizes = FEWER_SIZES if integers and DEVICE.type == "cpu" else SIZES
    for queries, keys in [(1, 1), (7, 7), (7, 63)] if case.interpreted else sizes:
        if not case.fits(queries, keys):
            continue
        lead = (1, 2) if queries * keys > 10_000 else (2, 3)
        case.check(case.tensors(queries, keys, lead=lead, integers=integers))


@every_case
@pytest.mark.parametrize("kind", restrictions())
def test_masks_lengths_causality_and_dropout_equal_the_oracle(case, kind) -> None:
    options = restrictions()[kind]
    if "dropout_p" in options:
        options = options | {"seed": torch.tensor(9, device=DEVICE)}
    for integers in halves(case.mechanism, case.backend, kind):
        case.check(case.tensors(9, 11, integers=integers), **options)


@every_case
def test_a_query_without_keys_gives_zeros_and_zero_gradients(case) -> None:
    nothing = torch.zeros(7, 7, dtype=torch.bool, device=DEVICE)
    for options in (
        {"mask": nothing},
        {"mask": torch.full((7, 7), float("-inf"), dtype=torch.float64, device=DEVICE)},
        {"lengths": torch.tensor([0, 0], device=DEVICE)},
    ):
        for result in case.run(case.tensors(7, 7), **options):
            assert (result == 0).all()


@every_case
@pytest.mark.parametrize(
    ("lead", "queries", "keys"), [((0, 2), 4, 4), ((2, 2), 0, 4), ((2, 2), 4, 0), ((2, 2), 1, 1), ((), 3, 3)]
)
def test_empty_and_single_inputs_are_empty_or_exact(case, lead, queries, keys) -> None:
    case.check(case.tensors(queries, keys, lead=lead))


@every_case
def test_values_of_no_width_give_outputs_of_no_width(case) -> None:
    q, k, v, grad = case.tensors(9, 11)
    case.check((q, k, v[..., :0], grad[..., :0]))
    case.check((q, k, v[..., :0], grad[..., :0]), causal=True)


@every_case
def test_grouped_heads_equal_repeated_ones(case) -> None:
    q, k, v, grad = case.tensors(9, 11, lead=(2, 6))
    k, v = k[:, :2], v[:, :2]
    mask = torch.rand(2, 6, 9, 11, generator=torch.Generator().manual_seed(1)) > 0.3
    served = 0
    for options in ({}, {"mask": mask.to(DEVICE)}, {"lengths": torch.tensor([3, 11], device=DEVICE)}):
        try:
            ours = case.run((q, k, v, grad), enable_gqa=True, **options)
        except pytest.skip.Exception:
            continue
        served += 1
        repeated = case.oracle((q, *(t.repeat_interleave(3, dim=1) for t in (k, v)), grad), **options)
        wanted = [*repeated[:2], *(spread.unflatten(1, (2, 3)).sum(dim=2) for spread in repeated[2:])]
        for mine, oracle in zip(ours, wanted, strict=True):
            close(mine, oracle)
    if not served:
        pytest.skip(f"backend {case.backend!r} takes no grouped heads")


def eager(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """What people write by hand, in the input's own precision."""
    scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    return scores.masked_fill(~keep, float("-inf")).softmax(dim=-1) @ v


@every_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_narrow_types_err_at_most_twice_as_much_as_eager(case, dtype) -> None:
    if case.mechanism.normaliser is not None:
        pytest.skip(f"{case.mechanism} is not weighed by the softmax of attention by hand")
    # Small integers for q and k: the product is exact in every type, so that all agree on the kept set.
    inputs = [*case.tensors(63, 63, dtype=dtype, integers=True)[:2], *case.tensors(63, 63, dtype=dtype, seed=1)[2:]]
    ours = case.run(inputs)
    leaves = [tensor.clone().requires_grad_() for tensor in inputs[:3]]
    keep = case.keep(inputs[0].double(), inputs[1].double())
    if not torch.equal(keep, case.keep(inputs[0].float(), inputs[1].float())):
        pytest.skip(f"what {case.mechanism} keeps depends on the precision, also where scores are exact")
    if not keep.any(dim=-1).all():
        pytest.skip(f"a query of {case.mechanism} keeps no key, for which attention by hand gives NaN")
    by_hand = eager(*leaves, keep)
    theirs = [by_hand.detach(), *torch.autograd.grad(by_hand, leaves, inputs[3])]
    assert {result.dtype for result in ours} == {dtype}
    exact = case.oracle([tensor.double() for tensor in inputs])
    err_at_most_twice_as_much(ours, theirs, exact, case.slack(inputs))


@every_case
@pytest.mark.parametrize("options", [{}, {"causal": True}], ids=["", "causal"])
def test_the_kept_set_is_the_oracles_on_integer_inputs(case, options) -> None:
    q, k, v, _ = case.tensors(31, 40, dtype=torch.float32, integers=True)
    _, mine = case.attend(q, k, v, return_info=True, **options)
    _, oracle = attend(q, k, v, case.mechanism, backend="reference", return_info=True, **options)
    assert torch.equal(mine.in_degree, oracle.in_degree)
    assert torch.equal(mine.indices, oracle.indices)
    torch.testing.assert_close(mine.weights, oracle.weights)
    torch.testing.assert_close(mine.lse, oracle.lse)
    assert mine.in_degree.sum() == (mine.indices >= 0).sum()


@every_case
def test_autocast_behaves_as_torchs_own_attention(case) -> None:
    q, k, v, _ = case.tensors(9, 9, dtype=torch.float32)
    with torch.autocast(DEVICE.type, torch.bfloat16):
        ours = case.attend(q, k, v)
        theirs = scaled_dot_product_attention(q, k, v)
        kept = case.attend(*(tensor.double() for tensor in (q, k, v))) if case.dtype == torch.float64 else None
    assert ours.dtype == theirs.dtype == torch.bfloat16
    assert kept is None or kept.dtype == torch.float64
    assert torch.equal(ours, case.attend(*(tensor.bfloat16() for tensor in (q, k, v))))


@every_case
def test_meta_tensors_give_shapes(case) -> None:
    q, k, v, _ = (tensor.to("meta") for tensor in case.tensors(9, 11))
    out = case.attend(q, k, v)
    assert out.shape == (2, 3, 9, case.width + 2)
    assert out.is_meta


@every_case
def test_gradcheck_passes_away_from_ties(case) -> None:
    if case.dtype != torch.float64:
        pytest.skip(f"backend {case.backend!r} does not take float64, which gradcheck needs")
    inputs = [tensor.requires_grad_() for tensor in case.tensors(4, 5, lead=(1, 2), **_narrow(case))[:3]]
    assert torch.autograd.gradcheck(case.attend, inputs, fast_mode=True)


def _narrow(case: Case) -> dict[str, int]:
    return {"width": 3} if case.width == 5 else {}


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
@pytest.mark.parametrize("normaliser", NORMALISERS, ids=str)
def test_every_normaliser_and_the_straight_through_gradient_equal_the_oracle(mechanism, normaliser) -> None:
    case = Case(mechanism, "dense")
    for straight_through in (False, True):
        for masked in halves(mechanism, normaliser, straight_through):
            options = {"mask": restrictions()["mask"]["mask"]} if masked else {}
            case.check(case.tensors(9, 11), normaliser=normaliser, straight_through=straight_through, **options)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_chosen_backend_gives_the_oracles_answer_for_long_sequences(mechanism, dtype) -> None:
    q, k, v, _ = tensors(20, 300, lead=(1, 2), integers=True, dtype=dtype)
    close(attend(q, k, v, mechanism), attend(q, k, v, mechanism, backend="reference"))
