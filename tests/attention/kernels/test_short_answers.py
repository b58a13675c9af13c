"""The short kernels against the oracle: outputs, gradients and kept sets, whole problems and tiles."""

from __future__ import annotations

import pytest
import torch

from semfocus.attention.kernels.short.configs import MAX_WHOLE_LENGTH
from semfocus.attention.kernels.short.dispatch import short_attention
from semfocus.attention.mechanisms import parse_mechanism
from semfocus.attention.normalisers import log_sum_exp
from semfocus.attention.operator import attend
from tests.attention.kernels.short_cases import by_kernel, check, inputs, run
from tests.conftest import DEVICE

BY_POSITION = ["full", "banded:5", "banded:4+2g", "block_local:7+1g"]
BY_SCORE = ["topk:5", "bottomk:3"]
SHORT = [(1, 1), (2, 2), (7, 7), (40, 40), (41, 63), (64, 7)]
LONG = [(65, 65), (111, 63), (7, 130)]


@pytest.mark.parametrize("mechanism", [*BY_POSITION, *BY_SCORE, "topk:3+2s+4w"])
def test_short_rows_equal_the_oracle_at_odd_sizes(mechanism) -> None:
    for queries, keys in SHORT:
        check(inputs(queries, keys, lead=(1,)), mechanism=mechanism)


@pytest.mark.parametrize("mechanism", ["full", "banded:4+2g", "block_local:7+1g", *BY_SCORE])
def test_long_rows_equal_the_oracle_at_odd_sizes(mechanism) -> None:
    for queries, keys in LONG:
        check(inputs(queries, keys, lead=(1,)), mechanism=mechanism)


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", [*BY_POSITION, "banded:9+80g", "topk:9", "topk:16", "topk:64"])
def test_more_sizes_equal_the_oracle(mechanism) -> None:
    for queries, keys in [(63, 64), (64, 64), (7, 63)]:
        check(inputs(queries, keys), mechanism=mechanism)
    for queries, keys in [(111, 111), (130, 70), (200, 300)] if mechanism != "topk:64" else []:
        check(inputs(queries, keys), mechanism=mechanism)


def restrictions(queries: int, keys: int) -> dict[str, dict]:
    """For lead (2, 1)."""
    generator = torch.Generator().manual_seed(5)
    keep = torch.rand(2, 1, queries, keys, generator=generator) > 0.4
    keep[0, :, 3] = False  # a query without keys
    keep[1, :, :, 4] = False  # a key that nobody may keep
    keep = keep.to(DEVICE)
    return {
        "causal": {"causal": True},
        "mask": {"mask": keep},
        "mask for all queries": {"mask": keep[:, :, :1]},
        "mask for all keys": {"mask": keep[..., :1]},
        "lengths": {"lengths": torch.tensor([1, 0], device=DEVICE)},
        "causal, mask and lengths": {"causal": True, "mask": keep, "lengths": torch.tensor([4, keys], device=DEVICE)},
        "scale": {"scale": -0.37},
        "assume_finite": {"assume_finite": True},
    }


@pytest.mark.parametrize("kind", restrictions(9, 11))
@pytest.mark.parametrize("mechanism", ["full", "banded:6", "block_local:5", "topk:3"])
def test_masks_lengths_causality_and_scale_of_short_rows_equal_the_oracle(mechanism, kind) -> None:
    check(inputs(9, 11, lead=(2, 1)), mechanism=mechanism, **restrictions(9, 11)[kind])


@pytest.mark.parametrize("kind", restrictions(9, 11))
@pytest.mark.parametrize("mechanism", ["banded:6", "topk:2"])
def test_masks_lengths_causality_and_scale_of_long_rows_equal_the_oracle(mechanism, kind) -> None:
    check(inputs(40, 70, lead=(2, 1)), mechanism=mechanism, **restrictions(40, 70)[kind])


@pytest.mark.parametrize(
    ("mechanism", "queries", "causal"),
    [
        ("banded:1", 130, False),
        ("banded:5", 200, False),
        ("banded:70", 130, True),
        ("banded:5000", 70, False),
        ("block_local:1", 130, False),
        ("block_local:70", 130, True),
        pytest.param("banded:70", 200, False, marks=pytest.mark.slow),
        pytest.param("banded:1", 200, True, marks=pytest.mark.slow),
        pytest.param("block_local:40", 200, False, marks=pytest.mark.slow),
        pytest.param("block_local:5000", 130, False, marks=pytest.mark.slow),
    ],
)
def test_tiles_outside_band_or_block_are_left_out_and_no_others(mechanism, queries, causal) -> None:
    check(inputs(queries, 140, lead=(1,)), mechanism=mechanism, causal=causal)


@pytest.mark.parametrize(("mechanism", "queries", "keys"), [("topk:3", 40, 40), ("full", 7, 70), ("topk:2", 7, 70)])
def test_heads_that_share_keys_equal_repeated_ones(mechanism, queries, keys) -> None:
    q, k, v, grad = inputs(queries, keys, lead=(1, 4))
    check((q, k[:, :2], v[:, :2], grad), mechanism=mechanism, enable_gqa=True)
    check((q[:, :2], k[:, :1], v[:, :2], grad[:, :2]), mechanism=mechanism)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("mechanism", "length"), [("full", 40), ("topk:5", 40), ("full", 65), ("topk:2", 65)])
def test_narrow_types_err_at_most_twice_as_much_as_dense(mechanism, length, dtype) -> None:
    check(inputs(length, length, lead=(1,), dtype=dtype), mechanism=mechanism)


@pytest.mark.parametrize("width", [5, 32, 64, 126])  # of q and k; values are wider by two
def test_heads_of_any_width_equal_the_oracle(width) -> None:
    for mechanism, keys in (("topk:3", 20), ("full", 66), ("topk:2", 66)):
        check(inputs(20, keys, lead=(1,), width=width), mechanism=mechanism)


@pytest.mark.parametrize(
    ("mechanism", "queries", "keys"),
    [
        ("topk:1", 31, 40), ("topk:5", 31, 40), ("topk:40", 9, 64), ("bottomk:3", 31, 40), ("topk:1", 9, 111),
        ("topk:5", 9, 111), ("bottomk:3", 9, 70), ("topk:11", 9, 70),
        pytest.param("topk:16", 66, 200, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_the_kept_set_is_the_oracles_and_ties_go_to_the_lowest_index(mechanism, queries, keys) -> None:
    q, k, v, _ = inputs(queries, keys, lead=(1,), width=3)
    for given in ((q, k, v), (q * 0, k, v), (-q * 0, k, v), (q, k[:, :1].expand(-1, keys, -1), v)):
        out, mine = by_kernel(*given, mechanism=mechanism, return_info=True)
        _, oracle = attend(*given, mechanism, backend="reference", return_info=True)
        assert torch.equal(mine.indices, oracle.indices)
        assert torch.equal(mine.in_degree, oracle.in_degree)
        torch.testing.assert_close(mine.weights, oracle.weights)
        torch.testing.assert_close(mine.lse, oracle.lse)
        if mechanism == "topk:1":
            best = oracle.indices[..., 0]
            value = v.gather(-2, best.unsqueeze(-1).expand(-1, -1, v.shape[-1]))
            # Whole rows multiply by one: of three TF32 products 22 bits are left. Lists gather, and all are.
            torch.testing.assert_close(out, value, rtol=0 if keys > MAX_WHOLE_LENGTH else 2**-21, atol=0)


@pytest.mark.parametrize(
    ("mechanism", "length"), [("topk:3", 20), ("full", 20), ("full", 65), ("banded:7", 65), ("topk:2", 65)]
)
def test_the_log_sum_exp_has_the_oracles_gradient(mechanism, length) -> None:
    q, k, v, grad = inputs(length, length, lead=(1,))
    slope = torch.linspace(-1, 1, length, device=DEVICE)
    leaves = [tensor.clone().requires_grad_() for tensor in (q, k)]
    out, _, lse, _ = short_attention(*leaves, v, None, None, None, mechanism, False, 0.25, 0.0, True, False)
    mine = torch.autograd.grad((out * grad).sum() + (lse * slope).sum(), leaves)
    exact = [tensor.double().requires_grad_() for tensor in (q, k)]
    scores = exact[0] @ exact[1].transpose(-1, -2) * 0.25
    keep = parse_mechanism(mechanism).keep(scores)
    weights = scores.masked_fill(~keep, float("-inf")).softmax(dim=-1)
    total = (weights @ v.double() * grad).sum() + (log_sum_exp(scores, keep) * slope).sum()
    for ours, wanted in zip(mine, torch.autograd.grad(total, exact), strict=True):
        torch.testing.assert_close(ours.double(), wanted, rtol=1e-4, atol=1e-4)


def test_a_cohorts_projection_is_read_where_it_lies_and_the_result_lies_alike() -> None:
    members, batch, heads, length, width = 2, 2, 2, 9, 16
    joint = torch.randn(members, batch, length, 3, heads, width, generator=torch.Generator().manual_seed(0))
    q, k, v = (part.squeeze(3).transpose(2, 3) for part in joint.to(DEVICE).split(1, dim=3))
    filled = (torch.arange(length, device=DEVICE) < 7).expand(members, batch, 1, 1, length)
    options = {"mechanism": "topk:3", "mask": filled}
    out = by_kernel(q, k, v, **options)
    assert out.transpose(2, 3).is_contiguous()  # so that heads join without a copy
    torch.testing.assert_close(out, attend(q, k, v, backend="dense", **options))
    strided = run((q, k, v, out), **options)
    for mine, wanted in zip(strided, run([t.contiguous() for t in (q, k, v, out)], **options), strict=True):
        assert torch.equal(mine, wanted)
