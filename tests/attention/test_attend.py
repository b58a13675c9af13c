"""`attend` as a user calls it: transforms, compile, the layer, bad input, and mutations that the suite must catch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from semfocus import Attention, Banded, BlockLocal, Full, RandomK, Sigmoid, TopK, attend
from semfocus.attention import chunked, dense, mechanisms, parse_mechanism
from semfocus.attention.mechanisms import Selective
from semfocus.attention.normalisers import Softmax
from semfocus.attention.operator import choose_backend
from semfocus.attention.problem import Problem
from semfocus.counters import bernoulli_keep, derive, random_bits
from semfocus.errors import UsageError
from tests.conformance import test_attention as conformance


def qkv(queries=9, keys=11, lead=(2, 3), width=5, **options):
    return conformance.tensors(queries, keys, lead=lead, width=width, **options)[:3]


def test_full_attention_is_torchs_own_whichever_way_it_is_asked() -> None:
    q, k, v = qkv(11, 11)
    for causal in (False, True):
        wanted = scaled_dot_product_attention(q, k, v, is_causal=causal)
        for mechanism in (Full(), "full", TopK(11), TopK(99), Banded(11) if not causal else Full()):
            torch.testing.assert_close(attend(q, k, v, mechanism, causal=causal), wanted)


def test_k_beyond_the_length_keeps_all_valid_keys() -> None:
    q, k, v = qkv()
    _, info = attend(q, k, v, TopK(50), mask=torch.arange(11) < 4, return_info=True)
    assert info.indices.shape[-1] == 11
    assert (info.indices[..., :4] == torch.arange(4)).all()
    assert (info.indices[..., 4:] == -1).all()


def test_info_tells_the_kept_keys_their_weights_and_who_is_popular() -> None:
    q, k, v = qkv(2, 3, lead=(1, 1), width=1)
    q[:], k[..., 0] = 1.0, torch.tensor([1.0, 3.0, 2.0], dtype=torch.float64)
    _, info = attend(q, k, v, TopK(2), scale=1.0, return_info=True)
    assert info.indices.tolist() == [[[[1, 2], [1, 2]]]]
    assert info.in_degree.tolist() == [[[0, 2, 2]]]
    weights = torch.tensor([3.0, 2.0], dtype=torch.float64).softmax(0)
    torch.testing.assert_close(info.weights[0, 0, 0], weights)
    torch.testing.assert_close(info.lse[0, 0, 0], torch.tensor([3.0, 2.0], dtype=torch.float64).logsumexp(0))


def test_dropout_is_the_same_on_every_backend_and_right_on_average() -> None:
    q, k, v = qkv(40, 40, lead=(8, 4))
    outputs = {}
    for backend in ("reference", "dense", "chunked"):
        generator = torch.Generator().manual_seed(3)
        outputs[backend] = attend(q, k, v, TopK(5), dropout_p=0.3, generator=generator, backend=backend)
    torch.testing.assert_close(outputs["dense"], outputs["reference"])
    torch.testing.assert_close(outputs["chunked"], outputs["reference"])
    ones = torch.ones_like(v)
    mean = attend(q, k, ones, TopK(5), dropout_p=0.3, generator=torch.Generator().manual_seed(3)).mean()
    assert abs(mean - 1) < 0.02
    again = attend(q, k, v, TopK(5), dropout_p=0.3, generator=torch.Generator().manual_seed(4))
    assert not torch.equal(again, outputs["dense"])


def test_seeds_make_a_batch_row_independent_of_its_company() -> None:
    q, k, v = qkv(30, 30, lead=(4, 2))
    seeds = torch.tensor([[3], [5], [7], [9]])
    for mechanism, backend in ((TopK(4), "dense"), (TopK(4), "chunked"), (RandomK(4), "dense"), (Banded(5), "local")):
        whole = attend(q, k, v, mechanism, dropout_p=0.4, seed=seeds, backend=backend)
        for row in range(4):
            own = slice(row, row + 1)
            alone = attend(q[own], k[own], v[own], mechanism, dropout_p=0.4, seed=seeds[own], backend=backend)
            torch.testing.assert_close(alone, whole[own])
        other = attend(q, k, v, mechanism, dropout_p=0.4, seed=seeds + 1, backend=backend)
        assert not torch.allclose(other, whole)


def test_random_k_draws_anew_from_a_generator_and_is_fixed_without_one() -> None:
    q, k, v = qkv(30, 30)
    generator = torch.Generator().manual_seed(0)
    first, second = (attend(q, k, v, RandomK(4), generator=generator) for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(attend(q, k, v, RandomK(4)), attend(q, k, v, RandomK(4)))


def _uint32_mix(x: np.ndarray) -> np.ndarray:
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(0x7FEB352D)
    x = x ^ (x >> np.uint32(15))
    x = x * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def test_counter_based_bits_equal_unsigned_arithmetic_and_are_fair() -> None:
    seed = 0x9ABCDEF0_12345678 - 2**64
    rows, columns = torch.arange(1000, dtype=torch.int32)[:, None], torch.arange(100, dtype=torch.int32)
    ours = random_bits(torch.tensor(seed), rows, columns).numpy().view(np.uint32)
    with np.errstate(over="ignore"):
        r, c = np.arange(1000, dtype=np.uint32)[:, None], np.arange(100, dtype=np.uint32)
        first = _uint32_mix(np.array([0x12345678], dtype=np.uint32) ^ np.uint32(0x9E3779B9))
        second = _uint32_mix(np.uint32(0x9ABCDEF0) + first)
        inner = _uint32_mix(r + _uint32_mix(first ^ second)) ^ second
        last = _uint32_mix(inner) + c * np.uint32(0x9E3779B9)
        last = (last ^ (last >> np.uint32(16))) * np.uint32(0x7FEB352D)
        theirs = (last ^ (last >> np.uint32(15))) * np.uint32(0x846CA68B)
    assert (ours == theirs).all()
    for drop in (0.01, 0.5, 0.9):
        share = 1 - bernoulli_keep(torch.tensor(seed), rows, columns, drop).float().mean().item()
        assert abs(share - drop) < 4 * (drop * (1 - drop) / 1e5) ** 0.5
    kept = bernoulli_keep(torch.tensor(seed), rows, columns, 0.5).double()
    neighbours = torch.corrcoef(torch.stack([kept[:, :-1].flatten(), kept[:, 1:].flatten()]))[0, 1]
    above = torch.corrcoef(torch.stack([kept[:-1].flatten(), kept[1:].flatten()]))[0, 1]
    assert max(abs(neighbours), abs(above)) < 0.015


def test_straight_through_gives_dropped_keys_a_gradient_and_keeps_the_output() -> None:
    q, k, v = (tensor.requires_grad_() for tensor in qkv(1, 6, lead=(1, 1)))
    plain, through = attend(q, k, v, TopK(2)), attend(q, k, v, TopK(2), straight_through=True)
    torch.testing.assert_close(plain, through)
    grads = [torch.autograd.grad(out.sum(), k)[0].abs().sum(dim=-1)[0, 0] for out in (plain, through)]
    assert (grads[0] > 0).sum() == 2
    assert (grads[1] > 0).sum() == 6


@pytest.mark.parametrize("mechanism", [TopK(3), TopK(3, sinks=1, window=2), Banded(3), BlockLocal(4), Full()], ids=str)
def test_vmap_and_func_grad_work_on_the_dense_path(mechanism) -> None:
    q, k, v = qkv(7, 7, lead=(4, 2))

    def one(q, k, v):
        return attend(q, k, v, mechanism, backend="dense")

    torch.testing.assert_close(torch.func.vmap(one)(q, k, v), one(q, k, v))
    slope = torch.func.grad(lambda q: one(q, k, v).sum())(q)
    leaf = q.clone().requires_grad_()
    torch.testing.assert_close(slope, torch.autograd.grad(one(leaf, k, v).sum(), leaf)[0])
    per_sample = torch.func.vmap(torch.func.grad(lambda q, k, v: one(q, k, v).sum()))(q, k, v)
    torch.testing.assert_close(per_sample, slope)


@pytest.mark.parametrize(
    ("mechanism", "backend"),
    [(TopK(3), "dense"), (TopK(3), "chunked"), (Banded(3), "local"), (BlockLocal(4), "local"), (Full(), "sdpa")],
    ids=str,
)
def test_compile_sees_one_whole_graph(mechanism, backend) -> None:
    q, k, v = (tensor.requires_grad_() for tensor in qkv(9, 9, dtype=torch.float32))

    def call(q, k, v):
        return attend(q, k, v, mechanism, backend=backend)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v), call(q, k, v))
    ours = torch.autograd.grad(compiled(q, k, v).square().sum(), (q, k, v))
    theirs = torch.autograd.grad(call(q, k, v).square().sum(), (q, k, v))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.filterwarnings("ignore")
def test_the_layer_compiles_to_machine_code_with_the_same_answer() -> None:
    torch.manual_seed(0)
    layer = Attention(16, 2, TopK(3), dropout=0.2)
    x = torch.randn(2, 9, 16, requires_grad=True)
    compiled = torch.compile(layer.eval(), fullgraph=True)
    torch.testing.assert_close(compiled(x)[0], layer(x)[0])
    grads = [torch.autograd.grad(module(x)[0].square().sum(), x)[0] for module in (compiled, layer)]
    torch.testing.assert_close(*grads)


def test_registered_operations_pass_torchs_own_checks() -> None:
    q, k, v = (tensor.requires_grad_() for tensor in qkv(5, 6, lead=(1, 2)))
    arguments = (q, k, v, None, None, None, None, None, "topk:3", False, 0.5, 0.0)
    torch.library.opcheck(chunked.gathered, arguments)


def _as_multihead(layer: Attention) -> nn.MultiheadAttention:
    twin = nn.MultiheadAttention(16, 2, batch_first=True)
    with torch.no_grad():
        twin.in_proj_weight.copy_(torch.cat([p.weight for p in (layer.q_proj, layer.k_proj, layer.v_proj)]))
        twin.in_proj_bias.copy_(torch.cat([p.bias for p in (layer.q_proj, layer.k_proj, layer.v_proj)]))
        twin.out_proj.load_state_dict(layer.out_proj.state_dict())
    return twin


def test_the_layer_with_full_attention_is_torchs_multihead_attention() -> None:
    torch.manual_seed(0)
    layer = Attention(16, 2, Full())
    twin = _as_multihead(layer)
    x, memory = torch.randn(3, 7, 16), torch.randn(3, 5, 16)
    padding = torch.arange(5) >= torch.tensor([5, 3, 1])[:, None]
    for ours, theirs in (
        (layer(x, need_weights=True), twin(x, x, x)),
        (layer(x, memory, need_weights=True), twin(x, memory, memory)),
        (
            layer(x, memory, key_padding_mask=padding, need_weights=True),
            twin(x, memory, memory, key_padding_mask=padding),
        ),
    ):
        torch.testing.assert_close(ours[0], theirs[0])
        torch.testing.assert_close(ours[1], theirs[1])
    assert layer(x)[1] is None


def test_the_layer_is_random_in_training_only_and_follows_its_generator() -> None:
    layer = Attention(16, 2, "randomk:3", dropout=0.5, generator=torch.Generator().manual_seed(1))
    x = torch.randn(1, 9, 16, generator=torch.Generator().manual_seed(0))
    assert not torch.equal(layer(x)[0], layer(x)[0])
    layer.eval()
    assert torch.equal(layer(x)[0], layer(x)[0])
    assert "randomk:3" in repr(layer)


def test_heads_may_be_as_wide_as_the_model() -> None:
    layer = Attention(16, 3, TopK(2), head_dim=16)
    assert layer(torch.randn(2, 5, 16))[0].shape == (2, 5, 16)
    with pytest.raises(UsageError, match="not a multiple of heads = 3; give head_dim"):
        Attention(16, 3, TopK(2))


Q = torch.zeros(2, 4, 6, 8)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: attend(Q.int(), Q.int(), Q.int()), TypeError, "q has dtype torch.int32"),
        (lambda: attend(Q, Q.to(torch.complex64), Q), TypeError, "k has dtype torch.complex64"),
        (lambda: attend(Q, Q.half(), Q), UsageError, "q and k differ in dtype: torch.float32 and torch.float16"),
        (lambda: attend(Q, Q, Q.to("meta")), UsageError, "q and v differ in device: cpu and meta"),
        (lambda: attend(Q, Q[..., :3], Q), UsageError, "head width"),
        (lambda: attend(Q, Q, Q[:, :, :3]), UsageError, "same number of keys; they have 6 and 3"),
        (lambda: attend(Q, Q[:, :3], Q[:, :3]), UsageError, "pass enable_gqa=True"),
        (lambda: attend(Q, Q[:, :3], Q[:, :3], enable_gqa=True), UsageError, "multiple of those of k and v"),
        (lambda: attend(Q[0, 0, 0], Q, Q), UsageError, r"q has shape \(8,\)"),
        (lambda: attend([1.0], Q, Q), TypeError, "q must be a tensor, not list"),
        (lambda: attend(Q, Q, Q, 5), TypeError, "mechanism must be a Mechanism"),
        (lambda: attend(Q, Q, Q, "topk:0"), UsageError, "TopK.k = 0"),
        (lambda: attend(Q, Q, Q, normaliser="softmax"), TypeError, "normaliser must be"),
        (lambda: attend(Q, Q, Q, dropout_p=1.0), UsageError, "dropout_p = 1.0 must be"),
        (lambda: attend(Q, Q, Q, scale=float("nan")), UsageError, "scale = nan"),
        (lambda: attend(Q, Q, Q, seed=torch.tensor(1.5)), UsageError, "seed = torch.float32"),
        (lambda: attend(Q, Q, Q, seed=torch.tensor(1), generator=torch.Generator()), UsageError, "not both"),
        (lambda: attend(Q, Q, Q, mask=torch.ones(6, 6, dtype=torch.int64)), TypeError, "mask has dtype torch.int64"),
        (lambda: attend(Q, Q, Q, mask=torch.ones(5, 6, dtype=torch.bool)), UsageError, r"mask has shape \(5, 6\)"),
        (lambda: attend(Q, Q, Q, mask=torch.ones(9, 1, 4, 6, 6) > 0), UsageError, "does not broadcast"),
        (lambda: attend(Q, Q, Q, lengths=torch.tensor([1.0, 2.0])), TypeError, "whole numbers"),
        (lambda: attend(Q, Q, Q, lengths=torch.tensor([1, 2, 3])), UsageError, r"lengths has shape \(3,\)"),
        (lambda: attend(Q, Q, Q, Banded(3, globals=1), causal=True), UsageError, "banded:3.1g with causal=True"),
        (lambda: attend(Q, Q, Q, backend="trition"), UsageError, "unknown backend 'trition'"),
        (lambda: attend(Q, Q, Q, TopK(2), backend="local"), UsageError, "cannot serve this call: topk:2"),
        (lambda: attend(Q, Q, Q, Full(), backend="chunked"), UsageError, "does not choose a short list"),
        (lambda: attend(Q, Q, Q, TopK(2), normaliser=Sigmoid(), backend="chunked"), UsageError, "softmax only"),
        (lambda: attend(Q, Q, Q, mask=torch.ones(6) > 0, backend="sdpa"), UsageError, "masks and lengths"),
        (lambda: Sigmoid(bias=float("inf")), UsageError, "Sigmoid.bias = inf"),
        (lambda: Attention(0, 1, TopK(1)), UsageError, "d_model = 0"),
    ],
)
def test_bad_input_is_refused_with_the_argument_the_value_and_what_is_allowed(call, error, message) -> None:
    with pytest.raises(error, match=message):
        call()


def test_a_learned_bias_gets_its_gradient_even_for_long_sequences() -> None:
    q, k, v = qkv(4, 400, lead=(1, 1))
    bias = torch.zeros(4, 400, dtype=torch.float64, requires_grad=True)
    attend(q, k, v, TopK(3), mask=bias).square().sum().backward()
    assert (bias.grad != 0).sum() == 12


def test_seeds_that_differ_by_one_share_no_row() -> None:
    rows, columns = torch.arange(64, dtype=torch.int32)[:, None], torch.arange(32, dtype=torch.int32)
    drawn = [bernoulli_keep(torch.tensor(seed), rows, columns, 0.5) for seed in range(6)]
    seen = {tuple(row) for keep in drawn for row in keep.tolist()}
    assert len(seen) == 6 * 64
    places = [derive(torch.tensor([seed]), torch.tensor(step), 5).flatten() for seed in range(4) for step in range(4)]
    assert len(torch.cat(places).unique()) == 16 * 5


def test_randomk_chooses_by_other_bits_than_those_that_drop() -> None:
    q, k, v = qkv(200, 40, lead=(1, 1))
    ones = torch.ones_like(v)
    out = attend(q, k, ones, RandomK(4), dropout_p=0.5, seed=torch.tensor(3))
    assert abs(out.mean() - 1) < 0.1, "the chosen keys must be dropped as often as any"


def test_nan_shows_even_when_every_key_is_kept() -> None:
    q, k, v = qkv(4, 4, lead=(1, 1))
    k[..., 2, :] = float("nan")
    for backend in ("reference", "dense", "chunked"):
        for size in (2, 4, 9):
            assert attend(q, k, v, TopK(size), backend=backend).isnan().all()


def test_scores_of_minus_infinity_give_zeros_and_not_nan() -> None:
    q = torch.full((1, 1, 1, 1), 1e20, requires_grad=True)
    k, v = torch.full((1, 1, 3, 1), -1e20), torch.ones(1, 1, 3, 1)
    for mechanism in (TopK(2), TopK(5), Banded(2), RandomK(2)):
        for backend in ("reference", "dense", None):
            assert (attend(q, k, v, mechanism, backend=backend) == 0).all()


def test_gradients_flow_through_the_weights_that_info_tells() -> None:
    inputs = qkv(6, 9, lead=(1, 2))
    for mechanism, backend in ((TopK(3), "chunked"), (Banded(3), "local")):
        grads = []
        for way in ("dense", backend):
            leaves = [tensor.clone().requires_grad_() for tensor in inputs]
            _, info = attend(*leaves, mechanism, backend=way, return_info=True)
            (info.weights.square().sum() + info.lse.sum()).backward()
            grads.append([leaf.grad for leaf in leaves[:2]])
        torch.testing.assert_close(grads[0], grads[1])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, inside jvp
def test_torch_func_works_for_long_rows_too() -> None:
    x = torch.randn(2, 1, 300, 4, dtype=torch.float64)

    def call(q):
        return attend(q, q, q, TopK(3))

    _, slope = torch.func.jvp(call, (x,), (x,))
    _, wanted = torch.func.jvp(lambda q: attend(q, q, q, TopK(3), backend="dense"), (x,), (x,))
    torch.testing.assert_close(slope, wanted)
    assert slope.norm() > 1
    assert torch.func.grad(lambda q: call(q).sum())(x).shape == x.shape


@dataclass(frozen=True)
class LargestMagnitude(TopK):
    """A user's own: the largest scores by absolute value."""

    name = "largest_magnitude"

    def priority(self, scores, places, seed):
        return scores.abs()


@dataclass(frozen=True)
class BestAndSelf(Selective):
    """A user's own: the k best besides the query's own position."""

    name = "best_and_self"
    input_dependent = True

    def priority(self, scores, places, seed):
        return scores

    def forced(self, places, causal):
        return places.key == places.position

    def most(self, keys):
        return min(self.k + 1, keys)


@pytest.mark.parametrize("cls", [LargestMagnitude, BestAndSelf])
def test_a_users_mechanism_is_one_class_and_one_registration(cls, monkeypatch) -> None:
    mechanism = cls(3)
    assert choose_backend(Problem(*qkv(400, 400), mechanism, Softmax())) == "dense", "unregistered: no lists of keys"
    monkeypatch.setitem(mechanisms._registered, cls.name, cls)
    assert parse_mechanism(str(mechanism)) == mechanism
    for backend in ("dense", "chunked"):
        for options in ({}, {"causal": True}, {"lengths": torch.tensor([4, 9])}):
            conformance.check(backend, mechanism, conformance.tensors(9, 9), **options)


def test_many_chunks_give_what_one_gives(monkeypatch) -> None:
    cases = [
        (TopK(3), "chunked"),
        (TopK(3, sinks=1, window=2), "chunked"),
        (RandomK(3), "chunked"),
        (Banded(3), "local"),
    ]
    monkeypatch.setattr(chunked, "CHUNK_ELEMENTS", 200)
    for mechanism, backend in cases:
        for options in ({}, {"causal": True}, {"mask": conformance.restrictions()["mask"]["mask"]}):
            conformance.check(backend, mechanism, conformance.tensors(9, 11, integers=True), **options)
            conformance.check(backend, mechanism, conformance.tensors(9, 11), **options)


@pytest.mark.parametrize("mechanism", ["topk:3", "topk:2+1s+2w", "bottomk:3", "banded:3"])
def test_compiled_from_its_text_form_ties_still_go_to_the_lowest_index(mechanism) -> None:
    q, k, v = qkv(9, 11, integers=True, dtype=torch.float32)

    def call(q, k, v):
        return attend(q, k, v, mechanism, backend="dense", mask=torch.arange(11) != 4)

    torch.testing.assert_close(torch.compile(call, fullgraph=True, backend="aot_eager")(q, k, v), call(q, k, v))


def test_autocast_takes_inputs_of_mixed_width_as_torchs_own_attention_does() -> None:
    q, k, v = qkv(5, 5, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert attend(q, k, v.bfloat16(), TopK(2)).dtype == torch.bfloat16


def test_masks_lengths_and_seeds_fit_the_batch_of_keys_too() -> None:
    q, k, v = qkv(5, 6, lead=(3, 2))
    short = torch.tensor([1, 3, 6])
    wanted = attend(q[:1].expand(3, -1, -1, -1), k, v, TopK(2), lengths=short)
    torch.testing.assert_close(attend(q[:1], k, v, TopK(2), lengths=short), wanted)
    flat = attend(q[0, 0], k[0, 0], v[0, 0], TopK(2), lengths=torch.tensor(3))
    torch.testing.assert_close(flat, attend(q[0, 0], k[0, 0, :3], v[0, 0, :3], TopK(2)))


def test_a_float64_bias_serves_float32_inputs() -> None:
    q, k, v = qkv(5, 6, dtype=torch.float32)
    assert attend(q, k, v, TopK(2), mask=torch.zeros(5, 6, dtype=torch.float64)).dtype == torch.float32


def test_causal_full_attention_shows_a_kept_nan_from_its_position_on() -> None:
    q, k, v = qkv(6, 6, lead=(1, 1))
    v[..., 3, 0] = float("nan")
    out = attend(q, k, v, causal=True, backend="sdpa")
    assert out[..., 3:, 0].isnan().all()
    assert out[..., :3, :].isfinite().all()


MUTATIONS = {
    "ties go to the highest index": (
        dense, "keep_best", lambda priority, candidates, k: conformance_keep(priority.flip(-1), candidates, k).flip(-1)
    ),
    "a masked key is let in": (Problem, "valid", lambda self, first=0, queries=None: None),
    "one key too many": (
        dense, "keep_best", lambda priority, candidates, k, keep=dense.keep_best: keep(priority, candidates, k + 1)
    ),
    "the list backend loses its scale in the backward pass": (
        chunked, "_pair_scores", lambda problem, places, q, k, kept: (k * q.unsqueeze(-2)).sum(dim=-1)
    ),
    "dropped values leak": (dense, "_mix", lambda weights, keep, v: weights @ v),
}  # fmt: skip


def conformance_keep(priority, candidates, k):
    from semfocus.attention.selection import keep_by_sorting

    everything = torch.ones_like(priority, dtype=torch.bool)
    return keep_by_sorting(priority, everything if candidates is None else candidates.flip(-1), k)


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_conformance_suite_catches_a_mutation(name, monkeypatch) -> None:
    oracle_mask = conformance.restrictions()["mask"]
    place, attribute, mutant = MUTATIONS[name]

    def suite() -> None:
        for backend in ("dense", "chunked"):
            for integers in (False, True):
                conformance.check(backend, TopK(3), conformance.tensors(9, 11, integers=integers))
            inputs = conformance.tensors(9, 11)
            masked = attend(*inputs[:3], TopK(3), backend=backend, **oracle_mask)
            assert (masked[0, :, 3] == 0).all(), "the query without keys"
        conformance.test_nan_in_a_dropped_value_does_not_leak_and_in_a_kept_one_shows(TopK(3), "dense")

    suite()
    monkeypatch.setattr(place, attribute, mutant)
    with pytest.raises(AssertionError):
        suite()
