"""Every registered mechanism on every backend: memory, strides, repetition and values that are not finite."""

from __future__ import annotations

import pytest
import torch

from tests.conformance.cases import KERNELS, close, every_case, restrictions
from tests.conftest import DEVICE


@every_case
def test_any_stride_equals_contiguous_and_inputs_are_untouched(case) -> None:
    q, k, v, grad = case.tensors(9, 11)
    wide = torch.full((2, 3, 11, case.width + 15), float("nan"), dtype=case.dtype, device=DEVICE)
    sliced = wide[..., 3 : 3 + case.width]
    sliced.copy_(k)
    turned = q.transpose(1, 2).contiguous().transpose(1, 2)
    spread = v.transpose(-1, -2).contiguous().transpose(-1, -2)
    copies = [tensor.clone() for tensor in (turned, sliced, spread)]
    plain = case.run((q, k, v, grad))
    strided = case.run((turned, sliced, spread, grad.transpose(0, 1).contiguous().transpose(0, 1)))
    for mine, wanted in zip(strided, plain, strict=True):
        close(mine, wanted)
    for tensor, copy in zip((turned, sliced, spread), copies, strict=True):
        assert torch.equal(tensor, copy)


@every_case
def test_an_expanded_input_equals_a_materialised_one(case) -> None:
    q, k, v, grad = case.tensors(9, 11)
    expanded = [tensor[:1, :1].expand(2, 3, -1, -1) for tensor in (q, k, v)]
    broadcast = [q, k[:, :1], v[:1]]
    for inputs in (expanded, broadcast):
        whole = [tensor.expand(2, 3, -1, -1).contiguous() for tensor in inputs]
        got, wanted = case.run((*inputs, grad)), case.run((*whole, grad))
        close(got[0], wanted[0])
        for mine, full, leaf in zip(got[1:], wanted[1:], inputs, strict=True):
            close(mine, full.sum_to_size(leaf.shape) if leaf.shape != full.shape else full)


@every_case
def test_gradients_of_a_subset_equal_those_of_all(case) -> None:
    inputs = case.tensors(9, 11)
    whole = case.run(inputs)[1:]
    for wanted in ((0,), (1,), (2,), (0, 2)):
        leaves = [tensor.clone().requires_grad_(i in wanted) for i, tensor in enumerate(inputs[:3])]
        case.attend(*leaves).backward(inputs[3])
        for i, leaf in enumerate(leaves):
            if i in wanted:
                assert torch.equal(leaf.grad, whole[i])
            else:
                assert leaf.grad is None


@every_case
def test_repeated_runs_and_backwards_are_equal_to_the_bit(case) -> None:
    inputs = case.tensors(31, 31, dtype=torch.float32)
    first = case.run(inputs)
    for _ in range(2 if case.interpreted else 250 if DEVICE.type == "cuda" else 20):
        for again, wanted in zip(case.run(inputs), first, strict=True):
            assert torch.equal(again, wanted)


@every_case
def test_uninitialised_memory_is_never_read(case) -> None:
    inputs = case.tensors(9, 11)
    served = 0
    for options in ({}, {"mask": restrictions()["mask"]["mask"]}, {"causal": True}):
        try:
            wanted = case.run(inputs, **options)
        except pytest.skip.Exception:
            continue
        served += 1
        torch.use_deterministic_algorithms(True)  # which also fills fresh memory with NaN
        try:
            poisoned = case.run(inputs, **options)
        finally:
            torch.use_deterministic_algorithms(False)
        for mine, clean in zip(poisoned, wanted, strict=True):
            close(mine, clean)
    assert served


@every_case
def test_a_larger_batch_after_a_smaller_one_meets_no_stale_mask(case) -> None:
    for size in (5, 23, 9):
        case.check(case.tensors(size, size))


@every_case
def test_nan_in_a_dropped_value_does_not_leak_and_in_a_kept_one_shows(case) -> None:
    q, k, v, grad = case.tensors(9, 11)
    q[..., 0], k[..., 0], k[..., 4, 0] = 3.0, 1.0, 40.0  # key 4 has the largest score for every query
    mask = torch.ones(9, 11, dtype=torch.bool, device=DEVICE)
    mask[:5, 4] = False
    for poison in (float("nan"), float("inf")):
        spoiled = v.clone()
        spoiled[..., 4, 2] = poison
        clean, dirty = (case.run((q, k, values, grad), mask=mask) for values in (v, spoiled))
        keeps = case.keep(q, k, mask)[..., 4]
        assert dirty[0][keeps][:, 2].isnan().all()
        assert torch.equal(dirty[0][~keeps], clean[0][~keeps])
        assert torch.equal(dirty[0][..., :2], clean[0][..., :2])
        assert torch.equal(dirty[1][~keeps], clean[1][~keeps])  # nor through the gradient of a query


@every_case
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_nan_in_the_value_of_one_key_reaches_the_rows_that_keep_it_without_a_mask_too(case, causal) -> None:
    q, k, v, _ = case.tensors(9, 9)
    v[..., 6, 1] = float("nan")
    out = case.attend(q, k, v, causal=causal)
    keeps = case.keep(q, k, causal=causal)[..., 6]
    assert torch.equal(out[..., 1].isnan(), keeps)
    assert out[..., 0].isfinite().all()


@every_case
def test_a_nan_score_reaches_its_own_row_alone(case) -> None:
    q, k, v, _ = case.tensors(9, 9)
    wanted = case.oracle((q, k, v, torch.zeros_like(v)))[0]
    q[0, 0, 3] = float("nan")
    out = case.attend(q, k, v)
    assert out[0, 0, 3].isnan().all()
    out[0, 0, 3] = wanted[0, 0, 3]
    close(out, wanted)


@every_case
@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("rows", [1, 9], ids=["keys", "pairs"])
def test_a_hidden_key_that_is_nan_has_no_effect_on_the_output(case, kind, rows) -> None:
    q, k, v, grad = case.tensors(9, 9)
    mask = torch.ones(rows, 9, dtype=torch.bool, device=DEVICE)
    mask[:, 2] = mask[:, -1] = False
    options = {
        "mask": mask if kind == "bool" else torch.zeros(mask.shape, device=DEVICE).masked_fill(~mask, -torch.inf)
    }
    wanted = case.oracle((q, k, v, grad), **options)[0]
    k[:, :, ~mask[0]] = float("nan")
    close(case.attend(q, k, v, **options), wanted)


@every_case
@pytest.mark.parametrize("length", [1, 5, 15, 33])
def test_a_query_whose_scores_are_all_nan_gives_nan_however_few_its_keys(case, length) -> None:
    for causal in (False, True):
        q, k, v, grad = case.tensors(length, length)
        v, grad = v[..., : case.width], grad[..., : case.width]  # as wide as the keys: torch has kernels for that
        q[0, 0, length // 2] = float("nan")
        try:
            out, oracle = (way.run((q, k, v, grad), causal=causal)[0] for way in (case, case.as_oracle()))
        except pytest.skip.Exception:
            continue
        assert torch.equal(out.isnan(), oracle.isnan())
        assert out[0, 0, length // 2].isnan().all()


@every_case
def test_scores_that_tie_as_nan_are_ranked_as_the_oracle_ranks_them(case) -> None:
    q, k, v, _ = case.tensors(9, 40, dtype=torch.float32)
    q[:, :, 4] = float("nan")
    k[:, 1, 3::5] = float("nan")
    _, mine = case.attend(q, k, v, return_info=True)
    _, oracle = case.as_oracle().attend(q, k, v, return_info=True)
    assert torch.equal(mine.indices, oracle.indices)


@every_case
@pytest.mark.parametrize("kind", ["", "causal", "mask"])
def test_a_zero_gradient_into_a_row_that_keeps_a_value_of_nan_stays_zero(case, kind) -> None:
    if case.backend in KERNELS:
        pytest.skip("the kernels do not promise it")
    options = {"": {}, "causal": {"causal": True}, "mask": {"mask": restrictions()["mask"]["mask"][..., :9]}}[kind]
    q, k, v, grad = case.tensors(9, 9)
    v[..., 6, 1] = float("nan")
    grad[..., 1] = 0.0
    case.check((q, k, v.nan_to_num(0.0), grad), **options)
    for mine, oracle in zip(
        case.run((q, k, v, grad), **options)[1:], case.oracle((q, k, v, grad), **options)[1:], strict=True
    ):
        assert mine.isfinite().all()
        close(mine, oracle)


@every_case
def test_half_precision_scores_beyond_65504_stay_finite(case) -> None:
    q, k, v, grad = case.tensors(9, 9, dtype=torch.float16)
    assert case.run((q * 300, k * 300, v, grad), scale=1.0)[0].isfinite().all()
