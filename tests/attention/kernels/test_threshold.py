"""The kernels for any number of keys, with small tiles that cross every boundary: outputs, gradients, hard inputs."""

from __future__ import annotations

import pytest
import torch

from semfocus import TopK
from semfocus.attention import operator
from semfocus.attention.kernels.backend import threshold_refuses
from semfocus.attention.kernels.short.configs import Launch
from tests.conftest import DEVICE

FLOAT32_ERROR = 2e-5
SMALLEST_NORMAL = 2.0**-126


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    from semfocus.attention.kernels.threshold import dispatch

    monkeypatch.setattr(dispatch, "launch_for", lambda kernel, width, precision: Launch(16, 16, 4, 1))
    monkeypatch.setitem(operator.BACKENDS, "threshold", operator.Backend(dispatch.threshold, threshold_refuses))


def drawn(*shape: int, integers: bool = True, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if integers:
        return torch.randint(-2, 3, shape, generator=generator).float().to(DEVICE)
    return torch.randn(shape, generator=generator).to(DEVICE)


def results(backend: str, qkv, mechanism: TopK, **options) -> list[torch.Tensor]:
    """Output and gradients; the oracle in float64."""
    leaves = [tensor.clone().requires_grad_() for tensor in qkv]
    given = [leaf.double() for leaf in leaves] if backend == "reference" else leaves
    generator = torch.Generator(DEVICE).manual_seed(3) if options.get("dropout_p") else None
    out = operator.attend(*given, mechanism, backend=backend, generator=generator, **options)
    slope = torch.linspace(-1, 2, out.shape[-1], device=DEVICE)
    grads = torch.autograd.grad((out * slope).sum() + out.pow(2).sum() / 7, leaves)
    return [out.double(), *(grad.double() for grad in grads)]


def agree(qkv, mechanism: TopK, **options) -> None:
    wanted, actual = (results(backend, qkv, mechanism, **options) for backend in ("reference", "threshold"))
    for name, a, b in zip(("out", "dq", "dk", "dv"), wanted, actual, strict=True):
        assert (a - b).abs().max() <= FLOAT32_ERROR * a.abs().max().clamp(min=1.0), name


CASES = {
    "few keys": ((2, 1, 21, 16), (2, 1, 21, 16), TopK(3), {}),
    "more than one look at the best finds": ((1, 1, 33, 16), (1, 1, 70, 16), TopK(40), {}),
    "causal": ((1, 1, 70, 16), (1, 1, 70, 16), TopK(20), {"causal": True}),
    "few queries, causal": ((1, 1, 7, 16), (1, 1, 41, 16), TopK(20), {"causal": True}),
    "more queries than keys": ((1, 1, 23, 16), (1, 1, 7, 16), TopK(3), {"causal": True}),
    "k beyond the row": ((1, 1, 5, 16), (1, 1, 5, 16), TopK(50), {}),
    "one": ((1, 1, 1, 16), (1, 1, 1, 16), TopK(1), {}),
    "lengths": ((3, 1, 33, 16), (3, 1, 33, 16), TopK(18), {"lengths": [0, 1, 29]}),
    "mask": ((2, 2, 17, 16), (2, 1, 45, 16), TopK(20), {"mask": True, "enable_gqa": True}),
    "sinks and window": ((1, 1, 45, 16), (1, 1, 45, 16), TopK(20, sinks=2, window=3), {}),
    "sinks and window, causal": ((1, 1, 60, 16), (1, 1, 60, 16), TopK(20, sinks=2, window=3), {"causal": True}),
    "shared keys": ((1, 4, 21, 16), (1, 2, 41, 16), TopK(19), {"enable_gqa": True, "causal": True}),
    "dropout": ((1, 2, 21, 16), (1, 2, 41, 16), TopK(19), {"dropout_p": 0.3}),
    "a width that is no power of two": ((1, 1, 25, 24), (1, 1, 45, 24), TopK(22), {}),
    "no batch": ((19, 16), (19, 16), TopK(3), {}),
}


@pytest.mark.parametrize("integers", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["ties", "real"])
@pytest.mark.parametrize("name", CASES)
def test_answers_and_gradients_are_the_oracles(name: str, integers: bool) -> None:
    q_shape, k_shape, mechanism, options = CASES[name]
    options = dict(options)
    if "lengths" in options:
        options["lengths"] = torch.tensor(options["lengths"], device=DEVICE)
    if "mask" in options:
        shape = (k_shape[0], 1, q_shape[-2], k_shape[-2])
        options["mask"] = drawn(*shape, integers=False, seed=9) > -0.2
    qkv = [drawn(*shape, integers=integers, seed=seed) for seed, shape in enumerate((q_shape, k_shape, k_shape))]
    agree(qkv, mechanism, **options)


ADVERSARIES = {
    "all ties": lambda length: torch.zeros(length),
    "two scores": lambda length: (torch.arange(length) % 3 == 1).float(),
    "rising": lambda length: torch.arange(length).float(),
    "falling": lambda length: -torch.arange(length).float(),
    "one tile column holds all the best": lambda length: (torch.arange(length) % 16 == 5) * 9.0 + torch.arange(length),
    "a million apart": lambda length: 10.0 ** (torch.arange(length) % 13 - 6),
    "neighbouring floats": lambda length: 1 + torch.arange(length) % 40 * 2.0**-23,
    "small": lambda length: (1 + torch.arange(length)) * 2.0**-126,
    "tiny": lambda length: torch.arange(length) * 2.0**-149,
    "hidden keys": lambda length: torch.where(torch.arange(length) % 2 == 0, -float("inf"), 1.0),
}


@pytest.mark.parametrize("most", [5, 30])
@pytest.mark.parametrize("name", ADVERSARIES)
def test_scores_that_mislead_the_guesses_are_cut_exactly(name: str, most: int) -> None:
    """What is kept shows in the output: values are unit vectors, so that it holds the weights."""
    from semfocus.attention.kernels.threshold.dispatch import Call, _empty_results

    length = 75
    q, k, v = torch.zeros(1, 1, 1, 3, 16), torch.zeros(1, 1, length, 16), torch.zeros(1, 1, length, 16)
    k[..., 0] = ADVERSARIES[name](length)
    q[..., 0] = 1.0
    q, k, v = q.to(DEVICE), k.to(DEVICE), v.to(DEVICE)
    results = _empty_results(q, k, v)
    passes = Call(q, k, v, None, None, None, most, 0, 0, False, 1.0, 0.0).search(*results[1:3])
    _, thresholds, last_ties, _ = (result[0, 0, 0] for result in results)
    scores = k[0, 0, :, 0]
    if DEVICE.type == "cuda":  # TF32, whose numbers the products take, has none between zero and these: there all tie
        scores = torch.where(scores.abs() < SMALLEST_NORMAL, 0.0, scores)
    order = sorted(range(length), key=lambda key: (-scores[key].item(), key))
    wanted = sorted(key for key in order[:most] if scores[key] > -float("inf"))
    for row in range(3):
        kept = (scores > thresholds[row]) | (
            (scores == thresholds[row]) & (torch.arange(length, device=DEVICE) <= last_ties[row])
        )
        assert kept.nonzero().flatten().tolist() == wanted
    assert passes[..., 0].max() <= 40


def test_a_nan_score_reaches_its_own_row_alone_and_masked_tails_reach_none() -> None:
    q, k, v = (drawn(1, 1, 30, 16, seed=seed) for seed in range(3))
    lengths = torch.tensor([20], device=DEVICE)
    clean = operator.attend(q, k, v, TopK(18), backend="threshold", lengths=lengths)
    q[..., 4, 0] = float("nan")
    v[..., 20:, :] = float("nan")
    out = operator.attend(q, k, v, TopK(18), backend="threshold", lengths=lengths)
    others = [row for row in range(30) if row != 4]
    torch.testing.assert_close(out[..., others, :], clean[..., others, :])
    assert out[..., 4, :].isnan().all()


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_a_kept_value_that_is_not_finite_shows_as_nan(poison: float) -> None:
    q, k, v = (drawn(1, 1, 40, 16, seed=seed) for seed in range(3))
    _, info = operator.attend(q, k, v, TopK(18), backend="reference", return_info=True)
    v[..., 7, 2] = poison
    out = operator.attend(q, k, v, TopK(18), backend="threshold")
    assert torch.equal(out[..., 2].isnan(), (info.indices == 7).any(-1))
    assert not out[..., 3].isnan().any()


def test_the_same_bits_alone_and_in_a_batch_and_twice() -> None:
    qkv = [drawn(1, 2, 40, 16, integers=False, seed=seed) for seed in range(3)]
    more = [torch.cat([drawn(1, 2, 40, 16, integers=False, seed=9), tensor]) for tensor in qkv]
    alone, again, batch = (results("threshold", given, TopK(20)) for given in (qkv, qkv, more))
    for a, b in zip(alone, again, strict=True):
        assert torch.equal(a, b)
    assert torch.equal(alone[0][0], batch[0][1])


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("width", "dtype"),
    [(16, torch.float32), pytest.param(128, torch.float32, marks=SLOW), (16, torch.bfloat16),
     pytest.param(128, torch.bfloat16, marks=SLOW), pytest.param(256, torch.bfloat16, marks=SLOW)],
)  # fmt: skip
def test_every_pass_keeps_the_same_pairs_with_the_tiles_it_has(monkeypatch, width: int, dtype: torch.dtype) -> None:
    """The weights of a query add up to one, also as the backward pass sees them: dv of ones is their sum."""
    from semfocus.attention.kernels.threshold import configs, dispatch

    monkeypatch.setattr(dispatch, "launch_for", configs.launch_for)
    q, k, v = (drawn(1, 1, 150, width, integers=False, seed=seed).to(dtype).requires_grad_() for seed in range(3))
    out = operator.attend(q, k, v, TopK(20), backend="threshold", causal=True)
    (dv,) = torch.autograd.grad(out, v, torch.ones_like(out))
    sums = dv.double().sum(dim=-2)
    torch.testing.assert_close(
        sums, torch.full_like(sums, 150.0), rtol=1e-6 if dtype == torch.float32 else 1e-3, atol=0
    )


def test_all_kernels_multiply_by_the_same_instructions() -> None:
    """A score that one of them rounds otherwise than the search would be kept there, and dropped here."""
    from semfocus.attention.kernels.threshold import configs

    for precision in ("tf32", "tf32x3"):
        for width in (16, 64, 65, 128, *((129, 256) if precision == "tf32" else ())):
            launches = {
                kernel: configs.launch_for(kernel, width, precision)
                for kernel in ("search", "forward", "by_query", "by_key", "list")
            }
            wide = {launch.block_m >= configs.WHOLE_GROUP for launch in launches.values()}
            assert len(wide) == 1, (precision, width, launches)


def test_a_query_that_keeps_one_key_has_a_gradient_of_zero_to_the_bit() -> None:
    qkv = [drawn(1, 1, 40, 16, integers=False, seed=seed) for seed in range(3)]
    _, dq, dk, _ = results("threshold", qkv, TopK(1))
    assert not dq.any()
    assert not dk.any()


@pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])
@pytest.mark.parametrize("name", ["causal", "lengths", "sinks and window, causal", "shared keys", "k beyond the row"])
def test_the_kept_keys_their_weights_and_the_log_sum_exp_are_the_oracles(name: str, grad: bool) -> None:
    q_shape, k_shape, mechanism, options = CASES[name]
    options = {key: torch.tensor(value, device=DEVICE) if key == "lengths" else value for key, value in options.items()}
    q, k, v = (drawn(*shape, seed=seed) for seed, shape in enumerate((q_shape, k_shape, k_shape)))
    found, wanted = (
        operator.attend(q.clone().requires_grad_(grad), k, v, mechanism, backend=way, return_info=True, **options)[1]
        for way in ("threshold", "reference")
    )
    assert torch.equal(found.indices, wanted.indices)
    assert torch.equal(found.in_degree, wanted.in_degree)
    assert found.lse.requires_grad == found.weights.requires_grad == grad
    torch.testing.assert_close(found.weights, wanted.weights)
    torch.testing.assert_close(found.lse, wanted.lse)


def test_scores_that_repeat_do_not_take_many_passes() -> None:
    """Counts alone took two dozen: between two neighbouring scores nothing tells them where to look."""
    from semfocus.attention.kernels.threshold.dispatch import Call, _empty_results

    tokens = torch.arange(400, device=DEVICE) % 19
    for k in (
        drawn(1, 1, 19, 16, integers=False)[:, :, tokens],
        drawn(1, 1, 1, 16, integers=False).expand(1, 1, 400, 16),
    ):
        q, k = drawn(1, 1, 1, 16, 16, integers=False, seed=2), k.contiguous()
        results = _empty_results(q, k, k)
        passes = Call(q, k, k, None, None, None, 50, 0, 0, False, 1.0, 0.0).search(*results[1:3])
        assert passes[..., 0].max() <= 12


def test_a_threshold_keeps_clear_of_both_scores_between_which_it_is() -> None:
    """A kernel whose product differs in the last bit would otherwise drop the key whose score the threshold is."""
    from semfocus.attention.kernels.threshold.dispatch import Call, _empty_results

    q, k = torch.zeros(1, 1, 1, 2, 16, device=DEVICE), torch.zeros(1, 1, 75, 16, device=DEVICE)
    q[..., 0], k[..., 0] = 1.0, torch.arange(75, device=DEVICE) * 2.0 - 40.0
    for most in (1, 5, 20):
        results = _empty_results(q, k, k)
        Call(q, k, k, None, None, None, most, 0, 0, False, 1.0, 0.0).search(*results[1:3])
        kth = k[0, 0, 75 - most, 0]
        assert (kth - 1.9 < results[1]).all()
        assert (results[1] < kth - 0.1).all()


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"scale": -1.0}, "not positive"), ({"mask": torch.zeros(40, device=DEVICE)}, "float mask")],
)  # fmt: skip
def test_what_the_kernels_cannot_serve_is_refused_with_the_reason(options, reason: str) -> None:
    x = drawn(1, 1, 40, 16)
    with pytest.raises(Exception, match=reason):
        operator.attend(x, x, x, TopK(3), backend="threshold", **options)
