"""LSH, routing and FAST: what they keep by their definitions, gradients, text forms and refusals."""

from __future__ import annotations

import math

import pytest
import torch

from semfocus import attend
from semfocus.attention import LSH, Fast, FastWeights, Routing, TopK, parse_mechanism
from semfocus.attention.linear import CHUNK
from semfocus.attention.routing import cluster_gap, nearest, unit
from semfocus.errors import UsageError
from tests.conformance.cases import Case, close, qkv, tensors
from tests.conftest import DEVICE

SEEDS = torch.tensor([[4], [2**40]], device=DEVICE)


def kept(mechanism, q, k, **options) -> torch.Tensor:
    return mechanism.keep((q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5, queries=q, keys=k, **options)


def at_angle(angle: float, count: int, width: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs of vectors of any length that are `angle` apart, in random planes."""
    generator = torch.Generator().manual_seed(1)
    first, other = (torch.randn(count, width, generator=generator, dtype=torch.float64) for _ in range(2))
    first = unit(first)
    other = unit(other - (other * first).sum(dim=-1, keepdim=True) * first)
    turned = math.cos(angle) * first + math.sin(angle) * other
    lengths = torch.rand(2, count, 1, generator=generator, dtype=torch.float64) + 0.1
    return (lengths[0] * first).to(DEVICE), (lengths[1] * turned).to(DEVICE)


def test_the_nearer_two_directions_the_likelier_they_share_a_bucket_whatever_their_lengths() -> None:
    shares = []
    for angle in (0.0, 0.3, 0.8, math.pi / 2, math.pi):
        q, k = at_angle(angle, 3000)
        shares.append(kept(LSH(1, rounds=1, buckets=8), q[:, None], k[:, None]).double().mean().item())
    assert shares[0] == 1.0
    assert shares == sorted(shares, reverse=True)
    assert shares[3] == pytest.approx(1 / 8, abs=0.03)  # of eight buckets
    assert shares[4] == 0.0  # the opposite direction is in the opposite bucket


def test_more_rounds_find_more_keys_and_more_buckets_fewer() -> None:
    q, k, _ = qkv(40, 40)
    shares = [
        kept(LSH(40, rounds=rounds, buckets=buckets), q, k).double().mean().item()
        for rounds, buckets in ((1, 16), (1, 8), (2, 8), (4, 8), (4, 2))
    ]
    assert shares == sorted(shares)
    assert shares[1] == pytest.approx(1 / 8, abs=0.05)
    one, both = (kept(LSH(40, rounds=rounds), q, k) for rounds in (1, 2))
    assert (both | ~one).all()  # the first round stays what it was


def test_of_the_bucket_the_k_with_the_largest_scores_are_kept() -> None:
    q, k, _ = qkv(40, 40)
    for whole, capped in ((LSH(40), LSH(3)), (Routing(40), Routing(3))):
        bucket = kept(whole, q, k)
        scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
        assert torch.equal(kept(capped, q, k), TopK(3).keep(scores, bucket))


@pytest.mark.parametrize("backend", ["reference", "dense", "chunked"])
def test_rotations_follow_the_seed_of_each_batch_entry_on_every_backend(backend) -> None:
    inputs = tensors(30, 30, lead=(2, 3))
    Case(LSH(5), backend).check(inputs, seed=SEEDS)
    first, second = (attend(*inputs[:3], LSH(5), seed=torch.tensor(s), backend=backend) for s in (1, 2))
    assert not torch.allclose(first, second)
    alone = attend(*(tensor[1:] for tensor in inputs[:3]), LSH(5), seed=SEEDS[1:], backend=backend)
    close(attend(*inputs[:3], LSH(5), seed=SEEDS, backend=backend)[1:], alone)


def test_a_query_sees_the_keys_nearest_to_its_own_centroid() -> None:
    q, k, _ = qkv(9, 11, lead=(2, 3))
    centroids = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(DEVICE)
    _, info = attend(q, k, k, Routing(11, clusters=4), learned={"centroids": centroids}, return_info=True)
    by_hand = [
        [
            [
                int((centroids[h] @ q[b, h, i]).argmax()) == int((centroids[h] @ (7 * k[b, h, j])).argmax())
                for j in range(11)
            ]
            for i in range(9)
        ]
        for b in range(2)
        for h in range(3)
    ]
    wanted = torch.tensor(by_hand, device=DEVICE).view(2, 3, 9, 11)
    assert torch.equal(info.in_degree, wanted.sum(dim=-2))


def test_centroids_move_to_the_mean_of_their_unit_vectors_and_stay_where_there_are_none() -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(50, 6, generator=generator, dtype=torch.float64).to(DEVICE)
    valid = (torch.arange(50, device=DEVICE) < 40).unsqueeze(-1)
    centroids = unit(torch.randn(5, 6, generator=generator, dtype=torch.float64)).to(DEVICE)
    centroids[4] = centroids[:4].mean(dim=0)  # which no vector is nearest to
    gap = cluster_gap(vectors, valid, centroids)
    own = nearest(vectors, centroids)
    for number in range(5):
        members = [unit(vectors[i]) for i in range(40) if own[i] == number]
        wanted = centroids[number] - torch.stack(members).mean(dim=0) if members else torch.zeros_like(centroids[0])
        close(gap[number], wanted)
    assert (gap[4] == 0).all()
    for _ in range(300):
        centroids = centroids - 0.1 * cluster_gap(vectors, valid, centroids)
    assert cluster_gap(vectors, valid, centroids).abs().max() < 1e-9  # k-means has settled


@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_the_sums_of_fast_give_outputs_and_gradients_of_the_oracle(degree, causal) -> None:
    for length in (1, 7, CHUNK, CHUNK + 1, 2 * CHUNK + 3):
        Case(Fast(degree), "linear").check(tensors(length, length), causal=causal)
    mask = torch.arange(70, device=DEVICE) % 3 > 0
    for options in ({"lengths": torch.tensor([0, 50], device=DEVICE)}, {"mask": mask}, {"scale": 0.2}):
        Case(Fast(degree), "linear").check(tensors(70, 70), causal=causal, **options)


def test_fast_is_the_series_of_exp_cut_at_its_degree() -> None:
    q, k, v = qkv(6, 7, lead=())
    standard = [
        (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt() for x in (q, k)
    ]
    scores = standard[0] @ standard[1].T / 5**0.5
    for degree in (1, 2, 3, 4):
        value = sum(scores**power / math.factorial(power) for power in range(degree + 1))
        wanted = value / value.sum(dim=-1, keepdim=True) @ v
        close(attend(q, k, v, Fast(degree)), wanted)
        close(attend(q, k, v, normaliser=f"fast:{degree}"), wanted)
    assert (FastWeights(2).polynomial(torch.linspace(-9, 9, 99)) >= 0.5).all()  # ((1 + s)^2 + 1) / 2


def test_fast_as_a_normaliser_goes_with_any_choice_of_keys() -> None:
    inputs = tensors(30, 40)
    for backend in ("dense", "chunked"):
        Case(TopK(5), backend).check(inputs, normaliser="fast:2")
    Case(Fast(2), "dense").check(inputs, normaliser="fast:2")


def test_long_rows_take_the_sums_by_themselves() -> None:
    from semfocus.attention.arguments import prepare_inputs
    from semfocus.attention.normalisers import Softmax
    from semfocus.attention.operator import choose_backend

    q = torch.zeros(1, 2, 2000, 8, device=DEVICE)
    chosen = {
        (degree, options.get("dropout_p", 0.0)): choose_backend(
            prepare_inputs(q, q, q, Fast(degree), normaliser=Softmax(), **options)
        )
        for degree in (1, 2, 3)
        for options in ({}, {"dropout_p": 0.1})
    }
    assert chosen == {(d, p): "linear" if d < 3 and not p else "dense" for d in (1, 2, 3) for p in (0.0, 0.1)}


@pytest.mark.parametrize("mechanism", ["lsh:3", "routing:3", "fast:2"])
def test_it_works_under_vmap_grad_and_compile(mechanism) -> None:
    q, k, v = qkv(5, 6, lead=(3, 2), dtype=torch.float32)

    def loss(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attend(q, k, v, mechanism, seed=torch.tensor(3, device=DEVICE), backend="dense").square().sum()

    alone = torch.stack([torch.func.grad(loss)(*entry) for entry in zip(q, k, v, strict=True)])
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss))(q, k, v), alone)
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(loss, fullgraph=True, backend="aot_eager")(q, k, v), loss(q, k, v))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("lsh:5", LSH(5)),
        ("lsh:5+4h+16b+3r", LSH(5, rounds=4, buckets=16, seed=3)),
        ("routing:5", Routing(5)),
        ("routing:5+8c", Routing(5, clusters=8)),
        ("fast:2", Fast(2)),
    ],
)
def test_the_text_form_leads_back_to_the_value(text, value) -> None:
    assert parse_mechanism(text) == value
    assert str(value) == text


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda q: attend(q, q, q, "routing:3+9c"), "it has 9 clusters for 6 keys; choose at most 6"),
        (lambda q: attend(q, q, q, "routing:3+0c"), "Routing.clusters = 0 must be at least 1"),
        (lambda q: attend(q, q, q, "lsh:3+1b"), "LSH.buckets = 1 must be a whole number from 2"),
        (lambda q: attend(q, q, q, "lsh:3+0h"), "LSH.rounds = 0 must be a whole number from 1"),
        (lambda q: LSH(3).keep(q @ q.mT, queries=q, keys=q[..., :2]), "queries are 5 wide and keys 2"),
        (lambda q: attend(q, q[..., :2], q, "lsh:3"), "last dimensions are 5, 2: project them to one width"),
        (lambda q: LSH(3).keep(q @ q.mT), "pass queries= and keys= to keep"),
        (lambda q: attend(q, q, q, "fast:2", normaliser="sigmoid"), "fast:2 weighs keys by itself"),
        (lambda q: attend(q, q, q, "fast:2", normaliser="fast:1"), "cannot serve the normaliser fast:1"),
        (lambda q: attend(q, q, q, "fast:9"), "Fast.degree = 9 must be at most 8"),
        (lambda q: attend(q, q, q, "fast:0"), "Fast.degree = 0 must be at least 1"),
        (lambda q: attend(q, q, q, normaliser="fast:1.5"), "FastWeights.degree = 1.5 must be a whole number"),
        (lambda q: attend(q, q, q, "fast"), "needs its size degree"),
        (lambda q: attend(q, q, q, "routing:3", learned={"centroids": q[0, 0, 0]}), r"must be \(..., H, C, D\)"),
    ],
)
def test_what_has_no_meaning_is_refused_by_name(call, message) -> None:
    with pytest.raises(UsageError, match=message):
        call(qkv(6, 6)[0])
