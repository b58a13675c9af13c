"""The same inputs, the same kept keys: in a prefill and when decoding, with a gradient or without, in every kernel.

With the launch configurations that users get, and with real numbers, whose products are rounded: on a GPU these tests
ask whether its tensor cores round them alike in all kernels (`kernels/threshold/configs.py`).
"""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from semfocus import TopK, attend
from semfocus.attention.kernels import backend
from tests.conftest import DEVICE

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def drawn(shape: tuple[int, ...], dtype: torch.dtype, inputs: str, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(shape, generator=generator)
    if inputs == "ties":
        numbers = numbers.round()
    elif inputs == "repeated tokens":
        numbers = numbers[..., torch.arange(shape[-2]) % 37, :]
    return numbers.to(dtype).to(DEVICE)


def kept(q: Tensor, k: Tensor, v: Tensor, most: int, **options) -> tuple[Tensor, set[str]]:
    """(.., Lq, k) the kept keys, and the kernels that chose them."""
    names = set()
    choose = backend.choose_kernels

    def noted(*inputs) -> str | None:
        names.add(choose(*inputs))
        return choose(*inputs)

    with mock.patch.object(backend, "choose_kernels", noted):
        _, info = attend(q, k, v, TopK(most), backend="triton", return_info=True, **options)
    return info.indices, names


@pytest.mark.slow  # by Triton's interpreter
@pytest.mark.parametrize("inputs", ["ties", "repeated tokens", "real"])
@pytest.mark.parametrize(("dtype", "width"), [(BF16, 64), (FP16, 128), (BF16, 128), (FP32, 64)])
def test_decoding_keeps_what_a_prefill_keeps_and_a_gradient_changes_nothing(dtype, width: int, inputs: str) -> None:
    """Two heads of queries share keys, of 1088 in all; the last queries decode what the prefill computed."""
    most, keys = 70, 1088
    q, k, v = (drawn((1, heads, keys, width), dtype, inputs, seed) for seed, heads in enumerate((2, 1, 1)))
    q = q[:, :, -70:]  # of a prefill in chunks
    options = {"causal": True, "enable_gqa": True}
    whole, names = kept(q, k, v, most, **options)
    assert names == {"threshold"}
    for back in (0, 1, 30):
        one, end = slice(69 - back, 70 - back), keys - back
        alone, names = kept(q[:, :, one], k[:, :, :end], v[:, :, :end], most, **options)
        assert names == {"decode"}
        assert torch.equal(alone, whole[:, :, one])
        lengths = torch.tensor([end], device=DEVICE)
        padded, _ = kept(q[:, :, one], k, v, most, enable_gqa=True, lengths=lengths)
        assert torch.equal(padded, alone)
        trained, names = kept(q[:, :, one].clone().requires_grad_(), k[:, :, :end], v[:, :, :end], most, **options)
        assert names == {"threshold"}
        assert torch.equal(trained, alone)
    few, _ = kept(q[:, :, -5:], k, v, most, **options)
    assert torch.equal(few, whole[:, :, -5:])


@pytest.mark.parametrize(
    "inputs", ["real", *(pytest.param(each, marks=pytest.mark.slow) for each in ("ties", "repeated tokens"))]
)
@pytest.mark.parametrize(
    ("dtype", "width"),
    [(BF16, 64), *(pytest.param(dtype, width, marks=pytest.mark.slow) for dtype, width in
                               ((BF16, 128), (BF16, 256), (FP16, 128), (FP32, 64), (FP32, 128)))],
)  # fmt: skip
def test_search_forward_and_backward_keep_the_same_pairs(dtype: torch.dtype, width: int, inputs: str) -> None:
    """Weights seen through values that are unit vectors, and through gradients of the output that are."""
    from semfocus.attention.kernels.threshold.dispatch import Call, _empty_results

    length, most = 150, 20
    q, k, v = (drawn((1, 1, length, width), dtype, inputs, seed) for seed in range(3))
    units = torch.eye(length, dtype=dtype, device=DEVICE)
    call = Call(q[:, None], k, v, None, None, None, most, 0, 0, True, 0.05, 0.0)
    results = _empty_results(q[:, None], k, v)
    call.forward(*results)
    indices, _ = call.list_kept(*results[1:])
    listed = torch.zeros(length, length + 1, dtype=torch.bool, device=DEVICE)
    listed = listed.scatter(-1, indices[0, 0, 0].long() % (length + 1), True)[:, :length]
    assert torch.equal(listed.sum(-1), torch.arange(1, length + 1, device=DEVICE).clamp(max=most))
    for start in range(0, length, width):
        part = torch.zeros_like(v)
        part[0, 0, :, : min(width, length - start)] = units[:, start : start + width]
        shown = listed[:, start : start + width]
        seen = Call(q[:, None], k, part, None, None, None, most, 0, 0, True, 0.05, 0.0)
        found = _empty_results(q[:, None], k, part)
        seen.forward(*found)
        assert torch.equal(found[0][0, 0, 0, :, : shown.shape[1]] > 0, shown)
        gradients = [torch.empty_like(tensor) for tensor in (q[:, None], k, v)]
        call.backward(part[:, None], *results, *gradients)
        assert torch.equal(gradients[2][0, 0, :, : shown.shape[1]] > 0, listed[start : start + width].T)


@pytest.mark.parametrize(
    ("length", "most"),
    [(40, 5), (100, 30), *(pytest.param(length, 5, marks=pytest.mark.slow) for length in (100, 1030))],
)
def test_the_same_bits_in_any_batch_twice_and_recomputed_under_checkpointing(length: int, most: int) -> None:
    """Of each family of kernels: `short` (both kinds), `threshold` and `long`."""
    qkv = [drawn((3, 1, length, 16), BF16, "real", seed) for seed in range(3)]
    qkv[0] = qkv[0][:, :, -min(length, 40 if length > 1000 else 200) :]

    def results(rows: slice, recomputed: bool = False) -> list[Tensor]:
        leaves = [tensor[rows].clone().requires_grad_() for tensor in qkv]

        def call(*tensors: Tensor) -> Tensor:
            return attend(*tensors, TopK(most), causal=True, backend="triton")

        # Reentrant checkpointing computes without a gradient first.
        out = checkpoint(call, *leaves, use_reentrant=True) if recomputed else call(*leaves)
        out.square().sum().backward()
        return [out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]

    whole = results(slice(None))
    for rows in (slice(0, 1), slice(1, 3)):
        for alone, batch in zip(results(rows), whole, strict=True):
            assert torch.equal(alone, batch[rows])
    for again in (results(slice(None)), results(slice(None), recomputed=True)):
        assert all(torch.equal(one, other) for one, other in zip(again, whole, strict=True))
