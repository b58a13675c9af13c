"""The short kernels on hazards: uninitialised memory, strides, repetition, compilers, NaN and infinities."""

from __future__ import annotations

import pytest
import torch

from semfocus.attention.kernels.short.dispatch import short_attention
from semfocus.attention.operator import attend
from tests.attention.kernels.short_cases import by_kernel, check, close, inputs, registered, run
from tests.conftest import DEVICE

EVERY_KERNEL = pytest.mark.parametrize(
    ("mechanism", "queries", "keys"),
    [("full", 9, 11), ("topk:3", 9, 11), ("banded:5+1g", 9, 66), ("topk:2", 9, 66)],
    ids=["whole", "whole selected", "tiled", "listed"],
)


@EVERY_KERNEL
def test_any_stride_and_any_broadcast_equal_contiguous(mechanism, queries, keys) -> None:
    q, k, v, grad = inputs(queries, keys, lead=(2, 2))
    wide = torch.full((2, 2, keys, 40), float("nan"), device=DEVICE)
    wide[..., 3:19] = k
    turned = q.transpose(1, 2).contiguous().transpose(1, 2)
    spread = v.transpose(-1, -2).contiguous().transpose(-1, -2)
    plain = run((q, k, v, grad), mechanism=mechanism)
    uneven = run((turned, wide[..., 3:19], spread, grad.transpose(0, 1).contiguous().transpose(0, 1)),
                 mechanism=mechanism)  # fmt: skip
    for mine, wanted in zip(uneven, plain, strict=True):
        close(mine, wanted)
    shared = run((q[:, :1], k[:1], v[:, :1], grad), mechanism=mechanism)
    whole = run((q[:, :1].expand_as(q), k[:1].expand_as(k), v[:, :1].expand_as(v), grad), mechanism=mechanism)
    for mine, full in zip(shared, whole, strict=True):
        close(mine, full.sum_to_size(mine.shape))


@EVERY_KERNEL
def test_repeats_are_equal_to_the_bit_and_fresh_memory_is_never_read(mechanism, queries, keys) -> None:
    given = inputs(queries, keys, lead=(2,))
    first = run(given, mechanism=mechanism, dropout_p=0.2, seed=torch.tensor([3], device=DEVICE))
    torch.use_deterministic_algorithms(True)  # which also fills fresh memory with NaN
    try:
        again = run(given, mechanism=mechanism, dropout_p=0.2, seed=torch.tensor([3], device=DEVICE))
    finally:
        torch.use_deterministic_algorithms(False)
    for mine, wanted in zip(again, first, strict=True):
        assert torch.equal(mine, wanted)


@EVERY_KERNEL
def test_a_query_without_keys_gives_zeros_and_zero_gradients(mechanism, queries, keys) -> None:
    nothing = torch.zeros(queries, keys, dtype=torch.bool, device=DEVICE)
    for mask in (nothing, nothing[:1]):
        for result in run(inputs(queries, keys), mechanism=mechanism, mask=mask):
            assert (result == 0).all()


@EVERY_KERNEL
def test_a_score_of_minus_infinity_is_never_kept(mechanism, queries, keys) -> None:
    q, k, v, _ = inputs(queries, keys)
    q[:, 2], k[..., :], v[:, 0] = -torch.inf, k.abs() + 1, torch.nan
    out = by_kernel(q, k, v, mechanism=mechanism)
    assert (out[:, 2] == 0).all()
    torch.testing.assert_close(out, attend(q, k, v, mechanism, backend="reference"), equal_nan=True)


@EVERY_KERNEL
def test_a_nan_score_reaches_its_own_row_alone(mechanism, queries, keys) -> None:
    q, k, v, _ = inputs(queries, keys)
    wanted = by_kernel(q, k, v, mechanism=mechanism)
    q[0, 3] = float("nan")
    out = by_kernel(q, k, v, mechanism=mechanism)
    assert out[0, 3].isnan().all()
    out[0, 3] = wanted[0, 3]
    assert torch.equal(out, wanted)


@pytest.mark.parametrize("keys", [11, 66])
def test_a_key_whose_score_is_nan_is_chosen_before_all_numbers(keys) -> None:
    q, k, v, _ = inputs(9, keys)
    q[..., 0], k[:, 7, 0], k[:, 5, 0] = 1.0, float("nan"), float("inf")
    _, mine = by_kernel(q, k, v, mechanism="topk:1", return_info=True)
    assert (mine.indices == 7).all()


@EVERY_KERNEL
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_dropped_value_that_is_not_finite_does_not_leak_and_a_kept_one_shows(
    mechanism, queries, keys, poison
) -> None:
    q, k, v, grad = inputs(queries, keys)
    q[..., 0], k[..., 0], k[..., 4, 0] = 3.0, 1.0, 40.0  # key 4 is everybody's first choice
    mask = torch.ones(queries, keys, dtype=torch.bool, device=DEVICE)
    mask[:5, 4] = False
    spoiled = v.clone()
    spoiled[..., 4, 2] = poison
    clean, dirty = (run((q, k, values, grad), mechanism=mechanism, mask=mask) for values in (v, spoiled))
    oracle = attend(q, k, spoiled, mechanism, mask=mask, backend="reference")
    keeps = oracle[..., 2].isnan()
    assert keeps.any()
    assert not keeps.all()
    assert torch.equal(dirty[0].isnan(), oracle.isnan())
    assert torch.equal(dirty[0][~keeps], clean[0][~keeps])
    assert torch.equal(dirty[0][..., 3:], clean[0][..., 3:])
    assert torch.equal(dirty[1][~keeps], clean[1][~keeps])  # nor through the gradient of a query


@EVERY_KERNEL
def test_half_precision_scores_beyond_65504_stay_finite(mechanism, queries, keys) -> None:
    q, k, v, grad = inputs(queries, keys, dtype=torch.float16)
    for result in run((q * 300, k * 300, v, grad), mechanism=mechanism, scale=1.0)[:1]:
        assert result.isfinite().all()


@EVERY_KERNEL
def test_torch_agrees_with_the_fake_results_and_the_registered_gradient(mechanism, queries, keys) -> None:
    q, k, v, _ = inputs(queries, keys, lead=(2, 2))
    q = q.transpose(0, 1).contiguous().transpose(0, 1)
    seed = torch.tensor([5, -7], device=DEVICE).view(2, 1, 1, 1)
    leaves = [tensor.requires_grad_() for tensor in (q, k[:, :1].clone(), v)]
    arguments = (*leaves, None, None, seed, mechanism, False, 0.25, 0.1, True, False)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(short_attention, arguments, test_utils=checks)


@pytest.mark.parametrize(("mechanism", "queries", "keys"), [("topk:3", 9, 11), ("full", 9, 66)])
def test_a_compiled_call_equals_an_eager_one_with_gradients_of_a_subset(mechanism, queries, keys) -> None:
    given = inputs(queries, keys, lead=(1, 2))
    seed = torch.tensor([[9]], device=DEVICE)

    def mixed(q, k, v):
        return by_kernel_unregistered(q, k, v, mechanism, seed)

    torch.compiler.reset()
    compiled = torch.compile(mixed, fullgraph=True, backend="aot_eager")
    for wanted in ((0, 1, 2), (1,)):
        results = []
        for function in (mixed, compiled):
            leaves = [tensor.clone().requires_grad_(i in wanted) for i, tensor in enumerate(given[:3])]
            with registered():
                out = function(*leaves)
            out.backward(given[3])
            results.append([out.detach(), *(leaf.grad for leaf in leaves if leaf.requires_grad)])
            assert all((leaf.grad is not None) == (i in wanted) for i, leaf in enumerate(leaves))
        for mine, eager in zip(results[1], results[0], strict=True):
            assert torch.equal(mine, eager)


def by_kernel_unregistered(q, k, v, mechanism, seed):
    return attend(q, k, v, mechanism, backend="short kernels", dropout_p=0.1, seed=seed)


@pytest.mark.parametrize("keys", [5, 70], ids=["whole", "listed"])
def test_an_infinite_score_is_the_last_that_bottom_k_keeps_but_is_kept(keys) -> None:
    q, k = torch.ones(1, 1, device=DEVICE), torch.full((keys, 1), float("inf"), device=DEVICE)
    k[0] = 1.0
    v = torch.arange(keys, dtype=torch.float32, device=DEVICE).unsqueeze(-1)
    out, info = attend(q, k, v, "bottomk:2", backend="triton", return_info=True)
    wanted, oracle = attend(q, k, v, "bottomk:2", backend="reference", return_info=True)
    assert info.indices[0].tolist() == oracle.indices[0].tolist() == [0, 1]
    assert torch.equal(out.isnan(), wanted.isnan())


@pytest.mark.parametrize("mechanism", ["full", "topk:3", "banded:3"])
@pytest.mark.parametrize("length", [-1, -64, -(2**32) + 3])
def test_lengths_below_zero_leave_no_keys(mechanism, length) -> None:
    given = inputs(9, 66, lead=(1, 1))
    for place in (1, 2):  # what stands in front of the keys must not be read
        room = given[place].new_full((200, given[place].shape[-1]), float("nan"))
        room[-66:] = given[place][0, 0]
        given[place] = room[None, None, -66:]
    for result in run(given, mechanism=mechanism, lengths=torch.tensor([length], device=DEVICE)):
        assert (result == 0).all()


@pytest.mark.parametrize("scale", [10.0, 100.0])
def test_full_attention_that_one_key_has_all_of_is_as_exact_as_plain_code(scale) -> None:
    check(inputs(70, 70), mechanism="full", scale=scale)
    q, k = torch.eye(16).repeat(5, 1)[None, :70] * 100, torch.zeros(1, 70, 16)
    k[:, :16] = torch.eye(16)
    given = [q.to(DEVICE), k.to(DEVICE), *(tensor[:1] for tensor in inputs(70, 70)[2:])]
    _, dq, dk, _ = run(given, mechanism="full", scale=1.0)
    assert dq.abs().max() < 1e-30  # where exp is not cut off at normal numbers
    assert dk.abs().max() < 1e-30
