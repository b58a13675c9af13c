"""`attend` as a user calls it: what its arguments mean, and what it returns."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from semfocus import Banded, BlockLocal, Full, RandomK, TopK, attend
from semfocus.attention import dense, operator
from semfocus.attention.arguments import prepare_inputs
from semfocus.attention.kernels.short import dispatch
from semfocus.attention.normalisers import Softmax
from semfocus.attention.operator import BACKENDS
from tests.conformance.cases import qkv
from tests.conftest import DEVICE


def test_full_attention_equals_torchs_own_however_it_is_requested() -> None:
    q, k, v = qkv(11, 11)
    for causal in (False, True):
        wanted = scaled_dot_product_attention(q, k, v, is_causal=causal)
        for mechanism in (Full(), "full", TopK(11), TopK(99), Banded(11) if not causal else Full()):
            torch.testing.assert_close(attend(q, k, v, mechanism, causal=causal), wanted)


@pytest.mark.parametrize("lead", [(), (7,), (2, 3), (2, 1, 3, 2)], ids=str)
@pytest.mark.parametrize(("mechanism", "backend"), [(Full(), "sdpa"), (BlockLocal(2), "local")], ids=str)
def test_a_batch_larger_than_torchs_kernels_take_is_split(lead, mechanism, backend, monkeypatch) -> None:
    q, k, v = qkv(6, 6, lead=lead)
    wanted = attend(q, k, v, mechanism, backend="reference")
    torch.testing.assert_close(attend(q, k, v, mechanism, backend=backend), wanted)
    monkeypatch.setattr(dense, "MAX_BATCH", 5)
    torch.testing.assert_close(attend(q, k, v, mechanism, backend=backend), wanted)


def test_k_beyond_the_length_keeps_all_valid_keys() -> None:
    q, k, v = qkv()
    _, info = attend(q, k, v, TopK(50), mask=torch.arange(11, device=DEVICE) < 4, return_info=True)
    assert info.indices.shape[-1] == 11
    assert (info.indices[..., :4] == torch.arange(4, device=DEVICE)).all()
    assert (info.indices[..., 4:] == -1).all()


def test_info_holds_kept_keys_weights_log_sum_exp_and_in_degrees() -> None:
    q, k, v = qkv(2, 3, lead=(1, 1), width=1)
    q[:], k[..., 0] = 1.0, torch.tensor([1.0, 3.0, 2.0], dtype=torch.float64, device=DEVICE)
    _, info = attend(q, k, v, TopK(2), scale=1.0, return_info=True)
    assert info.indices.tolist() == [[[[1, 2], [1, 2]]]]
    assert info.in_degree.tolist() == [[[0, 2, 2]]]
    kept = torch.tensor([3.0, 2.0], dtype=torch.float64, device=DEVICE)
    torch.testing.assert_close(info.weights[0, 0, 0], kept.softmax(0))
    torch.testing.assert_close(info.lse[0, 0, 0], kept.logsumexp(0))


def test_straight_through_gives_dropped_keys_a_gradient_and_keeps_the_output() -> None:
    q, k, v = (tensor.requires_grad_() for tensor in qkv(1, 6, lead=(1, 1)))
    plain, through = attend(q, k, v, TopK(2)), attend(q, k, v, TopK(2), straight_through=True)
    torch.testing.assert_close(plain, through)
    grads = [torch.autograd.grad(out.sum(), k)[0].abs().sum(dim=-1)[0, 0] for out in (plain, through)]
    assert (grads[0] > 0).sum() == 2
    assert (grads[1] > 0).sum() == 6


def test_a_learned_bias_gets_its_gradient_even_for_long_sequences() -> None:
    q, k, v = qkv(4, 400, lead=(1, 1))
    bias = torch.zeros(4, 400, dtype=torch.float64, device=DEVICE, requires_grad=True)
    attend(q, k, v, TopK(3), mask=bias).square().sum().backward()
    assert (bias.grad != 0).sum() == 12


def test_gradients_flow_through_the_weights_of_info() -> None:
    inputs = qkv(6, 9, lead=(1, 2))
    for mechanism, backend in ((TopK(3), "chunked"), (Banded(3), "local")):
        grads = []
        for way in ("dense", backend):
            leaves = [tensor.clone().requires_grad_() for tensor in inputs]
            _, info = attend(*leaves, mechanism, backend=way, return_info=True)
            (info.weights.square().sum() + info.lse.sum()).backward()
            grads.append([leaf.grad for leaf in leaves[:2]])
        torch.testing.assert_close(grads[0], grads[1])


def test_masks_lengths_and_seeds_fit_the_batch_of_keys_too() -> None:
    q, k, v = qkv(5, 6, lead=(3, 2))
    short = torch.tensor([1, 3, 6], device=DEVICE)
    wanted = attend(q[:1].expand(3, -1, -1, -1), k, v, TopK(2), lengths=short)
    torch.testing.assert_close(attend(q[:1], k, v, TopK(2), lengths=short), wanted)
    flat = attend(q[0, 0], k[0, 0], v[0, 0], TopK(2), lengths=torch.tensor(3, device=DEVICE))
    torch.testing.assert_close(flat, attend(q[0, 0], k[0, 0, :3], v[0, 0, :3], TopK(2)))


def test_a_float64_bias_serves_float32_inputs() -> None:
    q, k, v = qkv(5, 6, dtype=torch.float32)
    assert attend(q, k, v, TopK(2), mask=torch.zeros(5, 6, dtype=torch.float64, device=DEVICE)).dtype == torch.float32


def test_autocast_takes_inputs_of_mixed_width_as_torchs_own_attention_does() -> None:
    q, k, v = qkv(5, 5, dtype=torch.float32)
    with torch.autocast(DEVICE.type, torch.bfloat16):
        assert attend(q, k, v.bfloat16(), TopK(2)).dtype == torch.bfloat16


def test_nan_shows_even_when_every_key_is_kept() -> None:
    q, k, v = qkv(4, 4, lead=(1, 1))
    k[..., 2, :] = float("nan")
    for backend in ("reference", "dense", "chunked"):
        for size in (2, 4, 9):
            assert attend(q, k, v, TopK(size), backend=backend).isnan().all()


def test_scores_of_minus_infinity_give_zeros_and_not_nan() -> None:
    q = torch.full((1, 1, 1, 1), 1e20, device=DEVICE, requires_grad=True)
    k, v = torch.full((1, 1, 3, 1), -1e20, device=DEVICE), torch.ones(1, 1, 3, 1, device=DEVICE)
    for mechanism in (TopK(2), TopK(5), Banded(2), RandomK(2)):
        for backend in ("reference", "dense", None):
            assert (attend(q, k, v, mechanism, backend=backend) == 0).all()


def test_causal_full_attention_shows_a_kept_nan_from_its_position_on() -> None:
    q, k, v = qkv(6, 6, lead=(1, 1))
    v[..., 3, 0] = float("nan")
    out = attend(q, k, v, causal=True, backend="sdpa")
    assert out[..., 3:, 0].isnan().all()
    assert out[..., :3, :].isfinite().all()


def test_on_a_gpu_a_fall_back_from_the_kernels_is_logged_once_with_its_reason(monkeypatch, caplog) -> None:
    q, k, v = qkv(9, 70, dtype=torch.float32)
    inputs = prepare_inputs(q, k, v, TopK(5), normaliser=Softmax())
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    refusing = operator.Backend(BACKENDS["triton"].run, lambda inputs, want_info: "no kernel today")
    monkeypatch.setitem(BACKENDS, "triton", refusing)
    operator.log_once.cache_clear()
    with caplog.at_level("INFO", logger="semfocus"):
        chosen = {operator.choose_backend(inputs) for _ in range(3)}
    assert chosen <= {"chunked", "dense"}
    assert caplog.messages == [f"topk:5 by the backend {chosen.pop()}, not by triton: no kernel today"]


def test_on_a_gpu_types_that_no_kernel_takes_are_logged_and_long_lists_are_served(monkeypatch, caplog) -> None:
    q, k, v = qkv(3, 2000)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    operator.log_once.cache_clear()
    with caplog.at_level("INFO", logger="semfocus"):
        assert operator.choose_backend(prepare_inputs(q, k, v, TopK(300), normaliser=Softmax())) == "dense"
        assert operator.choose_backend(prepare_inputs(q, k, v, Full(), normaliser=Softmax())) == "sdpa"
        narrow = [tensor.float() for tensor in (q, k, v)]
        monkeypatch.setattr(dispatch, "refuses_device", lambda device: None)
        assert operator.choose_backend(prepare_inputs(*narrow, TopK(300), normaliser=Softmax())) == "triton"
    assert len(caplog.messages) == 1
    assert "topk:300 by the backend dense, not by triton: it computes float32, float16 and" in caplog.messages[0]


@pytest.mark.parametrize("mechanism", ["full", "topk:3", "topk:2+2s+3w", "banded:4", "block_local:4", "bottomk:2"])
@pytest.mark.parametrize("queries", [1, 2, 5])
def test_the_last_queries_see_what_stated_positions_let_them_see(mechanism: str, queries: int) -> None:
    q, k, v = qkv(queries, 9)
    keys = torch.arange(9, device=q.device)
    for backend in ("reference", "dense"):
        stated = attend(q, k, v, mechanism, causal=True, q_positions=keys[-queries:], k_positions=keys, backend=backend)
        torch.testing.assert_close(attend(q, k, v, mechanism, causal=True, backend=backend), stated)


@pytest.mark.parametrize("length", [8, 20])
def test_a_nan_score_shows_in_the_gradient_also_where_finite_inputs_are_promised(length: int) -> None:
    q, k, v = qkv(length, length)
    q[..., 1, :] = float("nan")
    leaves = [tensor.requires_grad_() for tensor in (q, k, v)]
    out = attend(*leaves, "full", assume_finite=True)
    assert all(not grad.isfinite().all() for grad in torch.autograd.grad(out.square().sum(), leaves))


def test_heads_that_stay_apart_give_what_heads_as_batch_entries_give() -> None:
    """On a GPU a causal call keeps its heads where they are; queries of a language model are views of one product."""
    generator = torch.Generator().manual_seed(4)
    whole = torch.randn(2, 3, 10, 3 * 4 * 8, generator=generator)  # (E, B, L, 3 H w)
    q, k, v = (part.unflatten(-1, (4, 8)).transpose(2, 3) for part in whole.chunk(3, dim=-1))
    one, other = (dense._kernel(q, k, v, 0.3, True, by_heads=by_heads) for by_heads in (False, True))
    torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    assert one.shape == (2, 3, 4, 10, 8)
