"""Noisy top-k: keys chosen from scores + sigma x noise, weighted by the scores without it; and the band that is far."""

from __future__ import annotations

import math

import pytest
import torch

from semfocus import RandomK, TopK, attend
from semfocus.attention import Mechanism, NoisyTopK, ShiftedBand, parse_mechanism, register_mechanism
from semfocus.attention.positions import Positions
from semfocus.counter_rng import standard_normal
from semfocus.errors import UsageError
from tests.conformance.cases import Case, qkv, tensors
from tests.conftest import DEVICE


def scores_of(rows: int = 2000, keys: int = 40) -> torch.Tensor:
    return torch.randn(rows, keys, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(DEVICE)


def share_changed(sigma: float, scores: torch.Tensor) -> float:
    """Of the keys that top-5 keeps, the share that noisy top-5 does not."""
    clean, noisy = TopK(5).keep(scores), NoisyTopK(5, sigma=sigma).keep(scores)
    assert (noisy.sum(dim=-1) == 5).all()
    return (clean & ~noisy).sum().item() / clean.sum().item()


def test_the_noise_is_standard_normal_and_finite_at_both_ends() -> None:
    rows = torch.arange(1000, dtype=torch.int32, device=DEVICE)[:, None]
    columns = torch.arange(1000, dtype=torch.int32, device=DEVICE)
    noise = standard_normal(torch.tensor(3, device=DEVICE), rows, columns).double()
    assert noise.isfinite().all()
    for power, moment, spread in ((1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)):
        assert abs(noise.pow(power).mean().item() - moment) < 4 * (spread / 1e6) ** 0.5
    for bound in (0.5, 1.0, 2.0, 3.0):
        share = math.erfc(bound / 2**0.5)
        assert abs((noise.abs() > bound).double().mean().item() - share) < 4 * (share / 1e6) ** 0.5
    neighbours = torch.corrcoef(torch.stack([noise[:, :-1].flatten(), noise[:, 1:].flatten()]))[0, 1]
    above = torch.corrcoef(torch.stack([noise[:-1].flatten(), noise[1:].flatten()]))[0, 1]
    assert max(abs(neighbours), abs(above)) < 0.005


def test_more_noise_changes_more_of_the_choice_up_to_that_of_random_k() -> None:
    scores = scores_of()
    shares = [share_changed(sigma, scores) for sigma in (0.0, 0.01, 0.1, 1.0, 1e6)]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert 0 < shares[1] < 0.03 < shares[2] < 0.15 < shares[3] < 0.7
    by_chance = TopK(5).keep(scores) & ~RandomK(5).keep(scores)
    assert abs(shares[4] - by_chance.sum().item() / (5 * len(scores))) < 0.02


def test_of_two_keys_the_lower_wins_as_often_as_the_difference_of_two_noises_says() -> None:
    scores = torch.tensor([0.0, 0.3], device=DEVICE).expand(20_000, 2)
    wins = NoisyTopK(1, sigma=0.5).keep(scores)[:, 0].double().mean().item()
    chance = 0.5 * math.erfc(0.3 / (0.5 * 2**0.5) / 2**0.5)  # the difference has variance 2 sigma^2
    assert abs(wins - chance) < 4 * (chance * (1 - chance) / 20_000) ** 0.5


def test_noise_far_below_the_gaps_of_the_scores_changes_nothing() -> None:
    scores = scores_of()
    best = scores.topk(6).values
    clear = best[:, 4] - best[:, 5] > 1e-3  # away from ties at the fifth place
    assert clear.sum() > 1900
    assert torch.equal(NoisyTopK(5, sigma=1e-5).keep(scores)[clear], TopK(5).keep(scores)[clear])


@pytest.mark.parametrize("extras", [{}, {"sinks": 2, "window": 3}], ids=["", "sinks and window"])
@pytest.mark.parametrize("backend", ["reference", "dense", "chunked"])
def test_without_noise_it_is_top_k_to_the_bit(backend, extras) -> None:
    options = {"causal": True, "seed": torch.tensor(5, device=DEVICE)}
    for integers in (False, True):  # the latter have many ties
        inputs = tensors(30, 30, integers=integers)
        ours = Case(NoisyTopK(5, **extras), backend).run(inputs, **options)
        theirs = Case(TopK(5, **extras), backend).run(inputs, **options)
        for mine, wanted in zip(ours, theirs, strict=True):
            assert torch.equal(mine, wanted)


def test_kept_keys_are_weighted_by_the_scores_without_noise() -> None:
    q, k, v = qkv(30, 30)
    out, info = attend(q, k, v, NoisyTopK(5, sigma=1.0), seed=torch.tensor(3, device=DEVICE), return_info=True)
    clean = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    torch.testing.assert_close(info.weights, clean.gather(-1, info.indices).softmax(dim=-1))
    kept = v.unsqueeze(-3).expand(*info.indices.shape[:-1], -1, -1)
    kept = kept.gather(-2, info.indices.unsqueeze(-1).expand(*info.indices.shape, v.shape[-1]))
    torch.testing.assert_close(out, (info.weights.unsqueeze(-1) * kept).sum(dim=-2))


@pytest.mark.parametrize("backend", ["dense", "chunked"])
def test_output_and_gradients_equal_the_oracle_where_every_entry_has_a_seed_of_its_own(backend) -> None:
    inputs = tensors(300, 300, lead=(3, 2))  # more queries than one chunk holds
    seeds = torch.tensor([[4], [5], [2**40]], device=DEVICE)
    for options in ({}, {"causal": True}, {"lengths": torch.tensor([300, 7, 100], device=DEVICE)}):
        Case(NoisyTopK(5, sigma=0.7), backend).check(inputs, seed=seeds, dropout_p=0.2, **options)


def test_chunks_of_queries_draw_the_noise_of_the_whole(monkeypatch) -> None:
    from semfocus.attention import chunked

    monkeypatch.setattr(chunked, "CHUNK_ELEMENTS", 2**9)
    monkeypatch.setattr(chunked, "GPU_CHUNK_ELEMENTS", 2**9)
    Case(NoisyTopK(5, sigma=0.7), "chunked").check(tensors(31, 40), seed=torch.tensor(8, device=DEVICE))


@pytest.mark.parametrize("mechanism", [NoisyTopK(3, sigma=0.5), RandomK(3)], ids=str)
def test_entries_that_only_the_values_have_draw_keys_of_their_own_on_every_backend(mechanism) -> None:
    q, k, v, grad = tensors(9, 11, lead=(4, 2))
    inputs = (q[:1, :1], k[:1, :1], v, grad)
    seed = torch.tensor(1, device=DEVICE)
    out = attend(*inputs[:3], mechanism, seed=seed)
    same = attend(*inputs[:2], v[:1, :1].expand_as(v), mechanism, seed=seed)
    assert not torch.allclose(same[0, 0], same[1, 0])
    for backend in ("reference", "dense", "chunked"):
        torch.testing.assert_close(attend(*inputs[:3], mechanism, seed=seed, backend=backend), out)
        Case(mechanism, backend).check(inputs, seed=seed)


def test_the_choice_follows_the_seed_of_the_call_and_without_one_the_own() -> None:
    scores = scores_of(50)
    keep = NoisyTopK(5, sigma=0.5).keep(scores)
    assert torch.equal(keep, NoisyTopK(5, sigma=0.5).keep(scores))
    assert not torch.equal(keep, NoisyTopK(5, sigma=0.5, seed=1).keep(scores))
    assert not torch.equal(keep, NoisyTopK(5, sigma=0.5).keep(scores, seed=torch.tensor(7, device=DEVICE)))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("topk:5~0.1", NoisyTopK(5, sigma=0.1)),
        ("topk:5~1", NoisyTopK(5, sigma=1)),
        ("topk:5~0", NoisyTopK(5)),
        ("topk:5~1e-05", NoisyTopK(5, sigma=1e-5)),
        ("topk:8~0.25+4s+16w+7r", NoisyTopK(8, sinks=4, window=16, sigma=0.25, seed=7)),
        ("shifted:5+1g+10a", ShiftedBand(5, globals=1, ahead=10)),
    ],
)
def test_the_text_form_leads_back_to_the_value(text, value) -> None:
    assert parse_mechanism(text) == value
    assert type(parse_mechanism(text)) is type(value)
    assert str(value) == text
    assert parse_mechanism(f" {text.replace('topk', 'TopK')} ") == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("topk:5~-0.1", r"NoisyTopK.sigma = -0.1 must be a number from 0 to 1e\+06"),
        ("topk:5~nan", "NoisyTopK.sigma = nan must be a number"),
        ("topk:5~inf", "NoisyTopK.sigma = inf must be a number"),
        ("topk:5~", r"'' must be a number \(sigma\)"),
        ("topk:5~much", r"'much' must be a number \(sigma\)"),
        ("bottomk:5~0.1", "bottomk takes no '~'; it follows the size of topk"),
        ("topk:5~0.1+1g", r"'1g' is not one of its extras.*r \(seed\)"),
    ],
)
def test_noise_that_is_no_number_from_0_on_is_refused_by_name(text, message) -> None:
    with pytest.raises(UsageError, match=message):
        parse_mechanism(text)


@pytest.mark.parametrize("sigma", [-1, float("nan"), True, "0.1", None])
def test_a_value_with_bad_noise_cannot_be_made(sigma) -> None:
    with pytest.raises(UsageError, match=r"NoisyTopK\.sigma"):
        NoisyTopK(5, sigma=sigma)


def test_a_subclass_has_a_text_form_of_its_own_and_a_mark_belongs_to_one_variant() -> None:
    other = type("Other", (NoisyTopK,), {"name": "other_noise"})
    assert str(other(5, sigma=0.5)) == "other_noise:5~0.5"
    taken = type("Taken", (NoisyTopK,), {"name": "taken_noise", "variant_of": "topk"})
    with pytest.raises(UsageError, match=r"Taken: 'topk:5~\.\.\.' is the text form of NoisyTopK already"):
        register_mechanism(taken)


def test_no_kernel_or_fast_path_of_top_k_takes_it_for_top_k() -> None:
    from semfocus.attention.inputs import AttentionInputs
    from semfocus.attention.kernels.backend import triton_refuses
    from semfocus.attention.normalisers import Softmax

    noisy = NoisyTopK(5, sigma=0.1)
    q = torch.zeros(1, 2, 40, 64)
    assert triton_refuses(AttentionInputs(q, q, q, noisy, Softmax())) == "there is no kernel for topk:5~0.1"
    assert noisy.keeps_largest is None
    assert noisy.is_stochastic
    assert noisy.depends_on_input
    assert not TopK(5).is_stochastic


def test_vmap_gives_each_entry_what_it_has_alone() -> None:
    q, k, v = qkv(7, 9, lead=(4, 1))
    seeds = torch.arange(4, device=DEVICE)

    def one(q, k, v, seed):
        return attend(q, k, v, NoisyTopK(3, sigma=0.5), seed=seed, backend="dense")

    alone = torch.stack([one(*entry) for entry in zip(q, k, v, seeds, strict=True)])
    torch.testing.assert_close(torch.func.vmap(one)(q, k, v, seeds), alone)


@pytest.mark.parametrize("backend", ["dense", "chunked"])
def test_compiled_as_one_graph_from_its_text_form_it_chooses_the_same(backend) -> None:
    torch.compiler.reset()
    q, k, v = qkv(9, 11, dtype=torch.float32)
    seed = torch.tensor([[3], [4]], device=DEVICE)

    def call(q, k, v, seed):
        return attend(q, k, v, "topk:3~0.5", seed=seed, backend=backend)

    torch.testing.assert_close(
        torch.compile(call, fullgraph=True, backend="aot_eager")(q, k, v, seed), call(q, k, v, seed)
    )


def kept_keys(mechanism: Mechanism, queries: int = 40) -> list[list[int]]:
    keep = mechanism.keep(torch.zeros(queries, 40, device=DEVICE))
    return [row.nonzero().flatten().tolist() for row in keep]


def test_a_shifted_band_is_a_window_on_a_ring_so_that_every_key_is_seen_as_often() -> None:
    rows = kept_keys(ShiftedBand(5, ahead=10))
    assert rows[0] == [8, 9, 10, 11, 12]
    assert rows[29] == [0, 1, 37, 38, 39]
    for ahead in (0, 10, 20, 47):
        keep = ShiftedBand(5, ahead=ahead).keep(torch.zeros(40, 40, device=DEVICE))
        assert (keep.sum(dim=0) == 5).all()
        assert (keep.sum(dim=1) == 5).all()
    assert kept_keys(ShiftedBand(5, ahead=50)) == rows
    assert kept_keys(ShiftedBand(5))[2:38] == [[i - 2, i - 1, i, i + 1, i + 2] for i in range(2, 38)]
    distances = [
        min(abs(i - j), 40 - abs(i - j)) for i, row in enumerate(kept_keys(ShiftedBand(5, ahead=20))) for j in row
    ]
    assert min(distances) == 18


def test_a_shifted_band_wider_than_the_row_keeps_every_key_once() -> None:
    for mechanism in (ShiftedBand(7, ahead=2), ShiftedBand(7, globals=2, ahead=2), ShiftedBand(3, globals=9, ahead=1)):
        for queries, keys in ((5, 5), (3, 5), (8, 5)):
            positions = Positions(queries, keys, DEVICE, 0, queries)
            pattern = mechanism.pattern(positions, False)
            for i, listed in enumerate(mechanism.indices(positions, False)):
                own = listed[listed >= 0].tolist()
                assert len(own) == len(set(own))
                if i + keys - queries < keys - mechanism.globals:
                    assert sorted(own) == pattern[i].nonzero().flatten().tolist()


def test_a_shifted_band_has_no_causal_form() -> None:
    q, k, v = qkv(9, 9)
    with pytest.raises(UsageError, match=r"shifted:3\+4a with causal=True: it has no causal form"):
        attend(q, k, v, ShiftedBand(3, ahead=4), causal=True)
