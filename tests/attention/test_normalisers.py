"""Normalisers beside softmax: their definitions written out, the entmax package as a peer, gradients, and refusals."""

from __future__ import annotations

import math

import entmax as peer
import pytest
import torch
from torch import Tensor

from semfocus import TopK, attend
from semfocus.attention import normaliser_names, parse_normaliser
from semfocus.attention.normalisers import Entmax
from semfocus.attention.weights import LayerSizes
from semfocus.errors import UsageError
from tests.conformance.cases import Case, close, qkv, restrictions, tensors
from tests.conftest import DEVICE

NEW = (
    "entmax:1.5",
    "entmax:1.2",
    "entmax:3",
    "sparsemax",
    "ssmax",
    "ssmax:1.3",
    "asentmax",
    "lssar",
    "lssar:3",
    "doubly",
)
PEERS = {
    "entmax:1.5": peer.entmax15,
    "sparsemax": peer.sparsemax,
    "entmax:1.25": lambda s, dim: peer.entmax_bisect(s, 1.25, dim=dim, n_iter=80),
    "entmax:3": lambda s, dim: peer.entmax_bisect(s, 3.0, dim=dim, n_iter=80),
}


def scores_of(*shape: int, scale: float = 2.0, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(shape, generator=generator, dtype=torch.float64)).to(DEVICE)


def everything(scores: Tensor) -> Tensor:
    return torch.ones_like(scores, dtype=torch.bool)


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("scale", [0.1, 2.0, 30.0])
def test_weights_and_gradients_are_those_of_the_entmax_package(name, scale) -> None:
    ours, theirs = (scores_of(7, 23, scale=scale).requires_grad_() for _ in range(2))
    mine, wanted = parse_normaliser(name).weights(ours, everything(ours)), PEERS[name](theirs, dim=-1)
    torch.testing.assert_close(mine, wanted, rtol=1e-7, atol=1e-8)
    upstream = scores_of(7, 23, seed=1)
    (got,), (expected,) = torch.autograd.grad(mine, ours, upstream), torch.autograd.grad(wanted, theirs, upstream)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("alpha", [1.0001, 1.05, 1.5, 1.7, 2.0, 4.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_entmax_sums_to_one_and_meets_its_definition(alpha, dtype) -> None:
    scores = scores_of(50, 30).to(dtype)
    p = Entmax(alpha).weights(scores, everything(scores))
    tolerance = 1e-9 if dtype == torch.float64 else 1e-4
    torch.testing.assert_close(p.sum(dim=-1), torch.ones(50, dtype=dtype, device=DEVICE), rtol=0, atol=tolerance)
    power = p.double() ** (alpha - 1)  # [(alpha - 1) s - tau]_+
    tau = ((alpha - 1) * scores.double() - power).masked_fill(p == 0, -math.inf).amax(dim=-1, keepdim=True)
    torch.testing.assert_close(((alpha - 1) * scores.double() - tau).relu(), power, rtol=0, atol=100 * tolerance)


def test_near_alpha_1_it_is_softmax_and_at_a_large_one_the_best_key_alone() -> None:
    scores = scores_of(20, 30)
    near = Entmax(1 + 1e-7).weights(scores, everything(scores))
    torch.testing.assert_close(near, scores.softmax(dim=-1), rtol=0, atol=1e-5)
    far = Entmax(1e4).weights(scores, everything(scores))
    assert torch.equal(far > 0.5, TopK(1).keep(scores))


@pytest.mark.parametrize("name", ["entmax:1.5", "sparsemax", "entmax:1.3", "entmax:3"])
def test_ties_share_and_extreme_scores_stay_finite(name) -> None:
    value = parse_normaliser(name)
    tied = torch.tensor([[3.0, 3.0, 3.0, -50.0], [0.0, 0.0, 0.0, 0.0]], dtype=torch.float64, device=DEVICE)
    expected = [[1 / 3, 1 / 3, 1 / 3, 0.0], [0.25] * 4]
    torch.testing.assert_close(
        value.weights(tied, everything(tied)), torch.tensor(expected, dtype=torch.float64, device=DEVICE)
    )
    for dtype in (torch.float32, torch.float64):
        wide = torch.tensor([[1e30, 0.0, -1e30], [-1e5, -1e5 + 1, -2e5]], dtype=dtype, device=DEVICE).requires_grad_()
        p = value.weights(wide, everything(wide))
        assert p.isfinite().all()
        assert p[0].tolist() == [1, 0, 0]
        p.square().sum().backward()
        assert wide.grad.isfinite().all()


@pytest.mark.parametrize("name", ["entmax:1.5", "sparsemax", "entmax:1.3", "entmax:3"])
def test_a_score_that_is_no_number_shows_in_its_own_row_alone(name) -> None:
    value, scores = parse_normaliser(name), scores_of(3, 5)
    clean = value.weights(scores, everything(scores))
    for poison in (math.nan, math.inf):
        dirty = scores.clone()
        dirty[1, 2] = poison
        got = value.weights(dirty, everything(dirty))
        assert got[1].isnan().all()
        assert torch.equal(got[[0, 2]], clean[[0, 2]])
        hidden = everything(dirty)
        hidden[1, 2] = False
        assert value.weights(dirty, hidden).isfinite().all()


def by_hand(
    name: str, scores: list[list[float]], allowed: list[list[bool]], keep: list[list[bool]]
) -> list[list[float]]:
    """The definitions with lists of numbers; for lssar, scores are log(D) times cosines."""
    rows = []
    for s, can, kept in zip(scores, allowed, keep, strict=True):
        n, used = sum(can), [j for j in range(len(s)) if kept[j]]
        if name == "ssmax":
            raw = {j: n ** (0.43 * s[j]) for j in used}
        elif name == "lssar:3":
            plain = {j: math.log1p(math.exp(math.log(n) * s[j])) for j in used}
            offset = 1 if len(used) > 3 else 0
            raw = {j: max(len(used) * plain[j] / sum(plain.values()) - offset, 0) ** 3 for j in used}
        else:  # over queries first
            column = {j: sum(math.exp(row[j]) for row, k in zip(scores, keep, strict=True) if k[j]) for j in used}
            raw = {j: math.exp(s[j]) / column[j] for j in used}
        rows.append([raw[j] / sum(raw.values()) if j in raw else 0.0 for j in range(len(s))])
    return rows


@pytest.mark.parametrize("name", ["ssmax", "lssar:3", "doubly"])
@pytest.mark.parametrize("mechanism", ["full", "topk:3", "topk:5"])
def test_weights_follow_the_definition_written_out(name, mechanism) -> None:
    q, k, v = qkv(6, 8, lead=())
    mask = torch.rand(6, 8, generator=torch.Generator().manual_seed(2)) > 0.3
    mask[:, 0] = True
    mask = mask.to(DEVICE)
    _, info = attend(q, k, v, mechanism, mask=mask, normaliser=name, return_info=True)
    scores = (q @ k.T) * q.shape[-1] ** -0.5
    if name.startswith("lssar"):
        scores = math.log(5) * torch.nn.functional.cosine_similarity(q[:, None], k[None], dim=-1)
    keep = torch.zeros(6, 9, dtype=torch.bool, device=DEVICE)
    keep = keep.scatter(-1, info.indices.where(info.indices >= 0, 8), True)[:, :8]
    wanted = torch.tensor(
        by_hand(name, scores.tolist(), mask.tolist(), keep.tolist()), dtype=torch.float64, device=DEVICE
    )
    got = torch.zeros(6, 9, dtype=torch.float64, device=DEVICE)
    got = got.scatter(-1, info.indices.where(info.indices >= 0, 8), info.weights)[:, :8]
    torch.testing.assert_close(got, wanted)


def test_asentmax_is_entmax_of_scores_that_grow_with_the_learned_powers_of_log_n() -> None:
    q, k, v = qkv(6, 8, lead=(2, 3))
    beta, gamma = scores_of(2, 3, 6, seed=3), scores_of(3, 1, seed=4)
    out = attend(q, k, v, normaliser="asentmax", learned={"beta": beta, "gamma": gamma})
    scale = 1 + torch.nn.functional.softplus(beta) * math.log(9) ** (2 * gamma.tanh())
    scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5 * scale.unsqueeze(-1)
    torch.testing.assert_close(out, peer.entmax15(scores, dim=-1) @ v)


def test_far_below_zero_lssar_keeps_the_ratios_of_its_weights() -> None:
    scores = torch.tensor([[-400.0, -401.0]], dtype=torch.float32, device=DEVICE)
    p = parse_normaliser("lssar:1").weights(scores, everything(scores))
    assert p[0, 1] / p[0, 0] == pytest.approx(0.5, rel=1e-4)  # exp(log(2) * -1)


def test_lssar_goes_by_directions_and_drops_what_is_below_the_mean() -> None:
    q, k, v = qkv(8, 12)
    out, info = attend(q, k, v, normaliser="lssar:2", return_info=True)
    close(attend(3 * q, k * torch.rand(12, 1, dtype=q.dtype, device=DEVICE).add(0.1), v, normaliser="lssar:2"), out)
    cosines = torch.nn.functional.normalize(q, dim=-1) @ torch.nn.functional.normalize(k, dim=-1).mT
    first = torch.nn.functional.softplus(math.log(5) * math.log(12) * cosines)
    assert torch.equal(info.dense_weights(12) > 0, first > first.mean(dim=-1, keepdim=True))
    cooler = attend(q, k, v, normaliser="lssar:2", scale=0.5 * 5**-0.5)
    weights = torch.nn.functional.softplus(math.log(5) * math.log(12) / 2 * cosines)
    weights = (12 * weights / weights.sum(dim=-1, keepdim=True) - 1).relu().square()
    close(cooler, weights / weights.sum(dim=-1, keepdim=True) @ v)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lssar_stays_finite_where_scores_tie_or_nearly_do(dtype) -> None:
    value = parse_normaliser("lssar")
    generator = torch.Generator().manual_seed(3)
    close_by = 1e-6 * torch.randn(7, generator=generator, dtype=torch.float64)
    rows = torch.stack([torch.zeros(7, dtype=torch.float64), torch.full((7,), -3.0), close_by, 300 * close_by - 400])
    scores = rows.to(DEVICE, dtype).requires_grad_()
    p = value.weights(scores, everything(scores))
    torch.testing.assert_close(p[:2], torch.full_like(p[:2], 1 / 7))
    torch.testing.assert_close(p.sum(dim=-1), torch.ones_like(p[:, 0]))
    (grad,) = torch.autograd.grad((p * torch.arange(7, device=DEVICE, dtype=dtype)).sum(), scores, create_graph=True)
    assert grad.isfinite().all()
    assert (grad[:2] == 0).all()
    (second,) = torch.autograd.grad(grad.square().sum(), scores)
    assert second.isfinite().all()


@pytest.mark.parametrize("name", NEW)
@pytest.mark.parametrize("mechanism", ["full", "topk:3", "bottomk:3"])
def test_padding_changes_nothing(name, mechanism) -> None:
    q, k, v = qkv(9, 9)
    alone = attend(q[:1, :, :5], k[:1, :, :5], v[:1, :, :5], mechanism, normaliser=name)
    lengths = torch.tensor([5, 9], device=DEVICE)
    present = torch.arange(9, device=DEVICE) < lengths[:, None, None, None]
    pairs = torch.zeros(2, 1, 9, 9, dtype=q.dtype, device=DEVICE).masked_fill(~present, float("-inf"))
    for padding in ({"lengths": lengths}, {"mask": present}, {"mask": pairs}):
        close(attend(q, k, v, mechanism, normaliser=name, **padding)[:1, :, :5], alone)


@pytest.mark.parametrize("name", normaliser_names())
def test_minus_infinity_in_a_float_mask_hides_a_key_as_false_does_in_a_bool_one(name) -> None:
    q, k, v = qkv(9, 9)
    hidden = torch.arange(9, device=DEVICE) % 4 == 3
    added = torch.zeros(9, device=DEVICE, dtype=q.dtype).masked_fill(hidden, float("-inf"))
    close(attend(q, k, v, normaliser=name, mask=added), attend(q, k, v, normaliser=name, mask=~hidden))


@pytest.mark.parametrize("name", ["ssmax", "asentmax", "lssar"])
def test_what_is_kept_is_weighed_more_sharply_among_more_keys_allowed(name) -> None:
    q, k, v = qkv(4, 8)
    far = torch.cat([k, torch.zeros_like(k)], dim=-2)  # more keys, which few queries keep
    learned = {"gamma": torch.ones(3, 1, dtype=torch.float64, device=DEVICE)} if name == "asentmax" else {}
    options = {"normaliser": name, "return_info": True, "learned": learned}
    _, few = attend(q, k, v, "topk:2", **options)
    _, many = attend(q, far, torch.cat([v, v], dim=-2), "topk:2", **options)
    same = (few.indices == many.indices).all(dim=-1)
    assert same.any()
    assert (many.weights.amax(dim=-1) >= few.weights.amax(dim=-1))[same].all()
    assert (many.weights.amax(dim=-1) > few.weights.amax(dim=-1))[same].any()


@pytest.mark.parametrize("name", NEW)
@pytest.mark.parametrize("mechanism", ["full", "topk:3", "banded:3"])
def test_gradients_of_first_and_second_order_are_those_of_finite_differences(name, mechanism) -> None:
    inputs = [tensor.requires_grad_() for tensor in qkv(4, 5, lead=(1, 2), width=3)]

    def call(*leaves: Tensor) -> Tensor:
        return attend(*leaves, mechanism, normaliser=name, backend="dense")

    assert torch.autograd.gradcheck(call, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, inputs, fast_mode=True, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["ssmax", "asentmax"])
def test_what_is_learned_gets_its_gradient_on_both_paths(name) -> None:
    q, k, v = qkv(4, 5, lead=(1, 2), width=3)
    names = parse_normaliser(name).learns
    learned = [scores_of(2, 4, seed=i, scale=0.5).requires_grad_() for i, _ in enumerate(names)]
    for backend in ("dense", "reference"):

        def call(*values: Tensor, backend: str = backend) -> Tensor:
            given = dict(zip(names, values, strict=True))
            return attend(q, k, v, "topk:3", normaliser=name, learned=given, backend=backend)

        assert torch.autograd.gradcheck(call, learned, fast_mode=True)


@pytest.mark.parametrize("name", ["sigmoid", "sigmoid:-1", "entmax:1.5", "sparsemax", "entmax:2.5"])
@pytest.mark.parametrize("mechanism", ["topk:3", "topk:3+2s+2w", "topk:3~0.5", "bottomk:3", "banded:3", "banded:3+1g"])
def test_lists_of_keys_give_outputs_and_gradients_of_the_oracle(name, mechanism) -> None:
    from semfocus.attention import parse_mechanism

    value = parse_mechanism(mechanism)
    case = Case(value, "local" if value.is_local else "chunked")
    seed = torch.tensor(9, device=DEVICE)
    for integers in (False, True):
        case.check(case.tensors(9, 11, integers=integers), normaliser=name, seed=seed)
    for options in restrictions().values():
        if options.get("causal") and not value.serves_causal:
            continue
        if isinstance(options.get("mask"), Tensor) and options["mask"].requires_grad:
            continue
        case.check(case.tensors(9, 11), normaliser=name, seed=seed, **options)


def test_the_log_sum_exp_of_a_list_has_its_gradient_beside_any_normaliser() -> None:
    q, k, v = (tensor.requires_grad_() for tensor in qkv(5, 7))
    for name in ("softmax", "entmax:1.5", "sigmoid"):
        results = []
        for backend in ("chunked", "dense"):
            out, info = attend(q, k, v, "topk:3", normaliser=name, backend=backend, return_info=True)
            results.append(torch.autograd.grad(out.sum() + info.lse.square().sum(), (q, k)))
        for mine, wanted in zip(*results, strict=True):
            close(mine, wanted)


@pytest.mark.parametrize("name", NEW)
def test_it_works_under_vmap_and_grad(name) -> None:
    q, k, v = qkv(5, 6, lead=(3, 2), dtype=torch.float32)

    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, "topk:3", normaliser=name, backend="dense").square().sum()

    alone = torch.stack([torch.func.grad(loss)(*entry) for entry in zip(q, k, v, strict=True)])
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss))(q, k, v), alone)


@pytest.mark.parametrize("name", ["entmax:1.5", "entmax:3", "sparsemax", "ssmax", "asentmax", "lssar", "doubly"])
def test_it_compiles_to_one_graph(name) -> None:
    q, k, v = qkv(5, 6, lead=(3, 2), dtype=torch.float32)

    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, "topk:3", normaliser=name, backend="dense").square().sum()

    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v), loss(q, k, v))


def test_grouped_heads_take_learned_parameters_of_their_own() -> None:
    q, k, v, _ = tensors(5, 6, lead=(2, 6))
    k, v = k[:, :2], v[:, :2]
    for name, shape in (("ssmax", (6, 1)), ("asentmax", (2, 6, 5))):
        learned = {part: scores_of(*shape, seed=i) for i, part in enumerate(parse_normaliser(name).learns)}
        grouped = attend(q, k, v, normaliser=name, learned=learned, enable_gqa=True)
        spread = (tensor.repeat_interleave(3, dim=1) for tensor in (k, v))
        close(grouped, attend(q, *spread, normaliser=name, learned=learned))


@pytest.mark.parametrize("text", NEW)
def test_the_text_form_leads_back_to_the_value(text) -> None:
    assert str(parse_normaliser(str(parse_normaliser(text)))) == str(parse_normaliser(text))


def test_all_of_them_are_registered_with_the_numbers_they_were_published_with() -> None:
    assert {"entmax", "sparsemax", "ssmax", "asentmax", "lssar", "doubly"} <= set(normaliser_names())
    assert [str(parse_normaliser(name)) for name in ("entmax", "asentmax", "lssar", "sparsemax")] == [
        "entmax:1.5", "asentmax", "lssar", "sparsemax",
    ]  # fmt: skip
    sizes = LayerSizes(d_model=8, heads=2, head_dim=4)
    shapes = {name: part.shape for name, part in parse_normaliser("asentmax").learned(sizes).items()}
    assert shapes == {"beta": (8, 2), "gamma": (8, 2)}


@pytest.mark.parametrize("alpha", ["1", "0.5", "-2", "inf", "nan"])
def test_an_alpha_outside_1_to_infinity_is_refused_with_what_to_write_instead(alpha) -> None:
    with pytest.raises(UsageError, match=r"Entmax\.alpha = .* must be a number above 1 and finite.*softmax.*topk:1"):
        parse_normaliser(f"entmax:{alpha}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"normaliser": "doubly", "causal": True}, "normaliser doubly with causal=True: it sums over queries"),
        ({"normaliser": "entmax:x"}, r"'x' must be a number \(alpha\)"),
        ({"normaliser": "lssar:0.5"}, "LSSAR.exponent = 0.5 must be a number from 1"),
        ({"normaliser": "ssmax:nan"}, "SSMax.scale = nan must be a number"),
        ({"normaliser": "sparsemax:2"}, "sparsemax takes no number"),
        ({"normaliser": "ssmax", "learned": {"scale": torch.ones(7, 1)}}, r"learned\['scale'\] has shape \(7, 1\)"),
        ({"normaliser": "ssmax", "learned": {"beta": torch.ones(3, 1)}}, "have no such parameter; theirs: scale"),
        ({"learned": {"scale": torch.ones(3, 1)}}, "full and softmax have no such parameter; theirs: none"),
    ],
)
def test_what_has_no_meaning_is_refused_by_name(options, message) -> None:
    with pytest.raises(UsageError, match=message):
        attend(*qkv(9, 9), **options)


def test_kernels_and_lists_do_not_take_learned_weights_for_softmax() -> None:
    q, k, v = qkv(4, 300)
    learned = {"scale": torch.ones(3, 1, dtype=torch.float64, device=DEVICE)}
    close(
        attend(q, k, v, "topk:3", normaliser="ssmax", learned=learned),
        attend(q, k, v, "topk:3", normaliser="ssmax", learned=learned, backend="reference"),
    )
    for backend in ("chunked", "sdpa"):
        with pytest.raises(UsageError, match="cannot serve this call"):
            attend(q, k, v, "topk:3" if backend == "chunked" else "full", normaliser="ssmax", backend=backend)
