"""The kernels for a few queries over a long cache: answers, ties, lengths, shared heads, the same bits in any batch."""

from __future__ import annotations

import pytest
import torch

from semfocus import TopK
from semfocus.attention import operator
from semfocus.attention.kernels.backend import decode_refuses
from tests.conftest import DEVICE


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    from semfocus.attention.kernels.decode import dispatch

    tiles = dispatch.Tiles(
        keys=32, keys_float32=32, keys_many_rows=32, programs=3, mixed=8, mixed_keys=16, mixed_channels=16
    )  # fmt: skip
    monkeypatch.setattr(dispatch, "TILES", tiles)
    monkeypatch.setattr(dispatch, "group_size", lambda keys, most: 4)
    monkeypatch.setitem(operator.BACKENDS, "decode", operator.Backend(dispatch.decode, decode_refuses))


def drawn(*shape: int, integers: bool = True, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if integers:
        return torch.randint(-2, 3, shape, generator=generator).float().to(DEVICE)
    return torch.randn(shape, generator=generator).to(DEVICE)


def agree(qkv, mechanism: TopK, **options) -> None:
    wanted = operator.attend(*(tensor.double() for tensor in qkv), mechanism, backend="reference", **options)
    out = operator.attend(*qkv, mechanism, backend="decode", **options)
    assert (out.double() - wanted).abs().max() <= 2e-5 * wanted.abs().max().clamp(min=1.0)


CASES = {
    "one query": ((1, 1, 1, 16), (1, 1, 77, 16), TopK(5), {}),
    "shared heads": ((2, 8, 1, 16), (2, 2, 130, 16), TopK(20), {"enable_gqa": True}),
    "several queries, causal": ((1, 2, 5, 16), (1, 2, 70, 16), TopK(9), {"causal": True}),
    "k beyond the row": ((1, 1, 1, 16), (1, 1, 5, 16), TopK(50), {}),
    "many": ((1, 1, 1, 16), (1, 1, 100, 16), TopK(63), {}),
    "lengths": ((3, 1, 1, 16), (3, 1, 90, 16), TopK(7), {"lengths": [0, 1, 61]}),
    "mask of keys": ((3, 8, 1, 16), (3, 2, 90, 16), TopK(7), {"enable_gqa": True, "mask": (3, 1, 1, 90)}),
    "mask of pairs": ((2, 4, 3, 16), (2, 2, 50, 16), TopK(9), {"enable_gqa": True, "mask": (2, 4, 3, 50)}),
    "a width that is no power of two": ((1, 1, 1, 24), (1, 1, 40, 24), TopK(3), {}),
    "many of such a width": ((1, 1, 1, 40), (1, 1, 70, 40), TopK(20), {}),
}


@pytest.mark.parametrize("integers", [True, False], ids=["ties", "real"])
@pytest.mark.parametrize("name", CASES)
def test_answers_are_the_oracles(name: str, integers: bool) -> None:
    q_shape, k_shape, mechanism, options = CASES[name]
    if "lengths" in options:
        options = {"lengths": torch.tensor(options["lengths"], device=DEVICE)}
    if "mask" in options:
        options = options | {"mask": drawn(*options["mask"], integers=False, seed=9) > 0}
    qkv = [drawn(*shape, integers=integers, seed=seed) for seed, shape in enumerate((q_shape, k_shape, k_shape))]
    agree(qkv, mechanism, **options)


@pytest.mark.parametrize("pattern", ["ties", "rising", "falling", "one group", "one in each group", "hidden"])
def test_hostile_rows_are_chosen_exactly(pattern: str) -> None:
    keys = torch.arange(90)
    score = {
        "ties": keys * 0.0, "rising": keys * 1.0, "falling": keys * -1.0, "one group": (keys // 4 == 7) * 5.0,
        "one in each group": (keys % 4 == 2) * 3.0, "hidden": torch.where(keys % 2 == 0, -float("inf"), 1.0),
    }[pattern]  # fmt: skip
    q, k = torch.zeros(1, 1, 1, 16), torch.zeros(1, 1, 90, 16)
    q[..., 0], k[..., 0] = 1.0, score
    for most in (3, 11, 60):
        agree([q.to(DEVICE), k.to(DEVICE), drawn(1, 1, 90, 16, seed=2)], TopK(most))


def test_the_answer_of_a_query_does_not_depend_on_the_batch_or_on_what_lies_beyond_its_length() -> None:
    q, k, v = drawn(1, 4, 1, 16, integers=False), *(drawn(1, 2, 70, 16, integers=False, seed=s) for s in (1, 2))
    lengths = torch.tensor([50], device=DEVICE)
    alone = operator.attend(q, k, v, TopK(9), backend="decode", enable_gqa=True, lengths=lengths)
    others = [drawn(*tensor.shape, integers=False, seed=7) for tensor in (q, k, v)]
    spoiled = [tensor.clone() for tensor in (k, v)]
    for tensor in spoiled:
        tensor[..., 50:, :] = float("nan")
    batch = [torch.cat(pair) for pair in zip(others, (q, *spoiled), strict=True)]
    lengths = torch.tensor([70, 50], device=DEVICE)
    out = operator.attend(*batch, TopK(9), backend="decode", enable_gqa=True, lengths=lengths)
    assert torch.equal(out[1:], alone)


def test_nan_in_a_query_reaches_its_own_row_alone_and_in_a_kept_value_shows() -> None:
    q, k, v = drawn(1, 2, 1, 16), *(drawn(1, 2, 50, 16, seed=s) for s in (1, 2))
    clean = operator.attend(q, k, v, TopK(5), backend="decode")
    _, info = operator.attend(q, k, v, TopK(5), backend="reference", return_info=True)
    q[:, 1] = float("nan")
    v[0, 0, info.indices[0, 0, 0, 2], 3] = float("inf")
    out = operator.attend(q, k, v, TopK(5), backend="decode")
    assert out[0, 1].isnan().all()
    assert out[0, 0, 0, 3].isnan()
    assert torch.equal(out[0, 0, 0, 4:], clean[0, 0, 0, 4:])


@pytest.mark.parametrize(
    ("mechanism", "options", "reason"),
    [(TopK(3, sinks=1), {}, "sinks"), (TopK(3), {"mask": torch.ones(40, device=DEVICE)}, "mask"),
     (TopK(3), {"dropout_p": 0.1}, "dropout"), (TopK(5000), {}, "2048")],
)  # fmt: skip
def test_what_the_kernels_cannot_serve_is_refused_with_the_reason(mechanism, options, reason: str) -> None:
    q, k = drawn(1, 1, 1, 16), drawn(1, 1, 40 if mechanism.k < 5000 else 6000, 16)
    with pytest.raises(Exception, match=reason):
        operator.attend(q, k, k, mechanism, backend="decode", **options)


@pytest.mark.parametrize("options", [{}, {"lengths": [0, 61]}, {"causal": True}], ids=["plain", "lengths", "causal"])
def test_the_kept_keys_their_weights_and_the_log_sum_exp_are_the_oracles(options) -> None:
    """12 heads share a key head and have 3 queries each: rows of a product that do not fit one tile, which has 32."""
    q, k, v = drawn(2, 12, 3, 16), drawn(2, 1, 70, 16, seed=1), drawn(2, 1, 70, 16, seed=2)
    if "lengths" in options:
        options = {"lengths": torch.tensor(options["lengths"], device=DEVICE)}
    found, wanted = (
        operator.attend(q, k, v, TopK(9), backend=backend, enable_gqa=True, return_info=True, **options)[1]
        for backend in ("decode", "reference")
    )
    assert torch.equal(found.indices, wanted.indices)
    assert torch.equal(found.in_degree, wanted.in_degree)
    torch.testing.assert_close(found.weights, wanted.weights)
    torch.testing.assert_close(found.lse, wanted.lse)


def test_scores_that_only_rounding_after_the_scale_makes_equal_are_told_apart() -> None:
    q, k = torch.zeros(1, 1, 1, 16, device=DEVICE), torch.zeros(1, 1, 40, 16, device=DEVICE)
    q[..., 0], k[..., 0] = 1.0, 1.75
    k[..., 30, 0] += 2.0**-23
    scaled = k[0, 0, :, 0] * 0.6
    assert scaled[0] == scaled[30]
    _, info = operator.attend(q, k, k, TopK(1), scale=0.6, backend="decode", return_info=True)
    assert info.indices.item() == 30


@pytest.mark.parametrize("tiles", [1, 8, 32, 256, 1024])
@pytest.mark.parametrize("problems", [1, 8, 100, 140, 264, 300, 5000])
def test_splits_fill_a_gpu_whatever_the_batch(problems: int, tiles: int) -> None:
    """The busiest place of 264 has at most a third more to do than its share, and the start of a few programs."""
    from semfocus.attention.kernels.decode.dispatch import count_splits

    splits = count_splits(problems, tiles, 264)
    assert 1 <= splits <= tiles
    turns, longest = -(-problems * splits // 264), -(-tiles // splits)
    assert turns * longest <= 4 / 3 * problems * tiles / 264 + 8


def test_a_gradient_is_refused_and_nine_queries_too() -> None:
    q, k = drawn(1, 1, 9, 16), drawn(1, 1, 40, 16)
    with pytest.raises(Exception, match="8 queries"):
        operator.attend(q, k, k, TopK(3), backend="decode")
    with pytest.raises(Exception, match="backward"):
        operator.attend(q[:, :, :1].requires_grad_(), k, k, TopK(3), backend="decode")
