"""The kernels for long sequences, with small tiles that cross every boundary: outputs, gradients, hard inputs."""

from __future__ import annotations

import pytest
import torch

from semfocus import TopK
from semfocus.attention import operator
from semfocus.attention.arguments import prepare_inputs
from semfocus.attention.kernels.backend import choose_kernels, long_refuses
from semfocus.attention.normalisers import Softmax
from tests.conftest import DEVICE

FLOAT32_ERROR = 2e-5


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several stretches, octets, chunks of queries and splits of a hub, with a few dozen keys."""
    from semfocus.attention.kernels.long import dispatch

    tiles = dispatch.Tiles(queries=16, lanes=16, group=4, maxima_warps=4)
    monkeypatch.setattr(dispatch, "tiles_for", lambda keys, wide: tiles)
    monkeypatch.setattr(dispatch, "HUB", 8)
    monkeypatch.setattr(dispatch, "CHUNK", 4)
    monkeypatch.setattr(dispatch, "SCRATCH_BYTES", 4 * 16 * 32)
    monkeypatch.setitem(operator.BACKENDS, "long", operator.Backend(dispatch.long, long_refuses))


def drawn(*shape: int, integers: bool = True, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if integers:
        return torch.randint(-2, 3, shape, generator=generator).float().to(DEVICE)
    return torch.randn(shape, generator=generator).to(DEVICE)


def results(backend: str, qkv, mechanism: TopK, **options):
    """Output, kept keys and gradients; the oracle in float64."""
    leaves = [tensor.clone().requires_grad_() for tensor in qkv]
    given = [leaf.double() for leaf in leaves] if backend == "reference" else leaves
    generator = torch.Generator(DEVICE).manual_seed(3) if options.get("dropout_p") else None
    out, info = operator.attend(*given, mechanism, backend=backend, return_info=True, generator=generator, **options)
    slope = torch.linspace(-1, 2, out.shape[-1], device=DEVICE)
    grads = torch.autograd.grad((out * slope).sum() + out.pow(2).sum() / 7, leaves)
    return out.double(), info.indices.long(), [grad.double() for grad in grads]


def agree(qkv, mechanism: TopK, **options) -> None:
    wanted, actual = (results(backend, qkv, mechanism, **options) for backend in ("reference", "long"))
    assert torch.equal(wanted[1], actual[1])
    for name, a, b in zip(("out", "dq", "dk", "dv"), [wanted[0], *wanted[2]], [actual[0], *actual[2]], strict=True):
        largest = a.abs().max().clamp(min=1.0)
        assert (a - b).abs().max() <= FLOAT32_ERROR * largest, name


CASES = {
    "self": ((2, 1, 21, 16), (2, 1, 21, 16), TopK(3), {}),
    "causal": ((1, 1, 70, 16), (1, 1, 70, 16), TopK(3), {"causal": True}),
    "few queries, causal": ((1, 1, 7, 16), (1, 1, 41, 16), TopK(3), {"causal": True}),
    "more queries than keys": ((1, 1, 23, 16), (1, 1, 7, 16), TopK(3), {"causal": True}),
    "k beyond the row": ((1, 1, 5, 16), (1, 1, 5, 16), TopK(50), {}),
    "one": ((1, 1, 1, 16), (1, 1, 1, 16), TopK(1), {}),
    "lengths": ((3, 1, 17, 16), (3, 1, 17, 16), TopK(3), {"lengths": [0, 1, 9]}),
    "mask": ((2, 2, 17, 16), (2, 1, 33, 16), TopK(3), {"mask": True, "enable_gqa": True}),
    "sinks and window": ((1, 1, 45, 16), (1, 1, 45, 16), TopK(2, sinks=2, window=3), {}),
    "sinks and window, causal": ((1, 1, 70, 16), (1, 1, 70, 16), TopK(2, sinks=2, window=3), {"causal": True}),
    "shared keys": ((1, 4, 21, 16), (1, 2, 21, 16), TopK(3), {"enable_gqa": True}),
    "dropout": ((1, 2, 21, 16), (1, 2, 21, 16), TopK(3), {"dropout_p": 0.3}),
    "a width that is no power of two": ((1, 1, 45, 24), (1, 1, 45, 24), TopK(5), {}),
    "no batch": ((19, 16), (19, 16), TopK(3), {}),
    "keys for all": ((2, 2, 20, 16), (1, 1, 20, 16), TopK(3), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_answers_and_gradients_are_the_oracles(name: str) -> None:
    q_shape, k_shape, mechanism, options = CASES[name]
    options = dict(options)
    if "lengths" in options:
        options["lengths"] = torch.tensor(options["lengths"], device=DEVICE)
    if "mask" in options:
        shape = (k_shape[0], 1, q_shape[-2], k_shape[-2])
        options["mask"] = drawn(*shape, integers=False, seed=9) > -0.2
    agree((drawn(*q_shape), drawn(*k_shape, seed=1), drawn(*k_shape, seed=2)), mechanism, **options)


def test_real_numbers_are_chosen_as_by_the_oracle() -> None:
    qkv = [drawn(1, 1, 53, 16, integers=False, seed=seed) for seed in range(3)]
    agree(qkv, TopK(4))


ADVERSARIES = {
    "all ties": lambda row, length: torch.zeros(length),
    "rising": lambda row, length: torch.arange(length).float(),
    "falling": lambda row, length: -torch.arange(length).float(),
    "one group holds all the best": lambda row, length: (torch.arange(length) // 4 == 3).float(),
    "one in every group": lambda row, length: (torch.arange(length) % 4 == 2).float(),
    "one in every octet of groups": lambda row, length: (torch.arange(length) % 32 == 31).float(),
    "one key for all": lambda row, length: (torch.arange(length) == 17).float(),
}


@pytest.mark.parametrize("name", ADVERSARIES)
def test_patterns_that_mislead_a_search_by_groups_are_chosen_exactly(name: str) -> None:
    length = 75
    k = torch.zeros(1, 1, length, 16)
    k[..., 0] = ADVERSARIES[name](0, length)
    q = torch.zeros(1, 1, 20, 16)
    q[..., 0] = 1.0
    agree((q.to(DEVICE), k.to(DEVICE), drawn(1, 1, length, 16, seed=2)), TopK(5))


def test_a_nan_score_reaches_its_own_row_alone_and_masked_tails_reach_none() -> None:
    q, k, v = (drawn(1, 1, 30, 16, seed=seed) for seed in range(3))
    clean = operator.attend(q, k, v, TopK(3), backend="long", lengths=torch.tensor([20], device=DEVICE))
    q[..., 4, 0] = float("nan")
    v[..., 20:, :] = float("nan")
    out = operator.attend(q, k, v, TopK(3), backend="long", lengths=torch.tensor([20], device=DEVICE))
    others = [row for row in range(30) if row != 4]
    assert torch.equal(out[..., others, :], clean[..., others, :])
    assert out[..., 4, :].isnan().all()


def test_a_backward_pass_repeats_to_the_bit() -> None:
    qkv = [drawn(1, 1, 24, 16, integers=False, seed=seed) for seed in range(3)]
    first = results("long", qkv, TopK(3))[2]
    for _ in range(250 if DEVICE.type == "cuda" else 1):
        assert all(torch.equal(a, b) for a, b in zip(first, results("long", qkv, TopK(3))[2], strict=True))


def test_the_gradient_of_a_hub_does_not_depend_on_what_else_is_in_the_batch() -> None:
    k = torch.zeros(1, 1, 40, 16)
    k[..., 11, 0] = 9.0  # every query keeps it
    q, v = drawn(1, 1, 40, 16, integers=False).abs(), drawn(1, 1, 40, 16, integers=False, seed=2)
    k = k.to(DEVICE)
    alone = results("long", (q, k, v), TopK(2))[2]
    more = [torch.cat([drawn(1, 1, 40, 16, integers=False, seed=5), tensor]) for tensor in (q, k, v)]
    for ours, batch in zip(alone, results("long", more, TopK(2))[2], strict=True):
        assert torch.equal(ours[0], batch[1])


@pytest.mark.parametrize(
    ("mechanism", "options", "reason"),
    [
        (TopK(100), {}, "at most 64 keys by score"),
        (TopK(3, window=90), {}, "sinks and window"),
        (TopK(3), {"scale": -1.0}, "not positive"),
        (TopK(3), {"mask": torch.zeros(200, device=DEVICE)}, "float mask"),
        ("banded:3", {}, "top-k attention only"),
    ],
)
def test_what_the_kernels_cannot_serve_is_refused_with_the_reason(mechanism, options, reason: str) -> None:
    x = drawn(1, 1, 200, 16)
    with pytest.raises(Exception, match=reason):
        operator.attend(x, x, x, mechanism, backend="long", **options)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_a_kept_value_that_is_not_finite_shows_as_nan(poison: float) -> None:
    q, k, v = (drawn(1, 1, 30, 16, seed=seed) for seed in range(3))
    _, info = operator.attend(q, k, v, TopK(3), backend="reference", return_info=True)
    v[..., 7, 2] = poison
    out = operator.attend(q, k, v, TopK(3), backend="long")
    keeps = (info.indices == 7).any(-1)
    assert torch.equal(out[..., 2].isnan(), keeps)
    assert not out[..., 3].isnan().any()


def test_the_gradients_of_large_scores_are_as_exact_as_those_of_small_ones() -> None:
    q, k = (drawn(1, 1, 40, 16, seed=seed) * 100 for seed in range(2))
    k[..., 1::2, :] = k[..., ::2, :]  # two keys share the weight
    qkv = (q, k, drawn(1, 1, 40, 16, integers=False, seed=2))
    wanted, actual = results("reference", qkv, TopK(5))[2], results("long", qkv, TopK(5))[2]
    for a, b in zip(wanted, actual, strict=True):
        assert (a - b).abs().max() <= FLOAT32_ERROR * a.abs().max()


def test_a_nan_score_is_above_infinite_ones() -> None:
    q, k = torch.ones(1, 1, 2, 16), torch.zeros(1, 1, 70, 16)
    k[..., [0, 9, 17, 33], 0] = float("inf")
    k[..., 60, 0] = float("nan")
    for backend in ("reference", "long"):
        _, info = operator.attend(*(t.to(DEVICE) for t in (q, k, k)), TopK(2), backend=backend, return_info=True)
        assert info.indices.flatten(0, -2).tolist() == [[0, 60]] * 2


@pytest.mark.parametrize("length", [2**32 + 3, -(2**32) + 3, -64])
def test_lengths_beyond_the_row_and_below_zero_are_cut(length: int) -> None:
    qkv = [drawn(1, 1, 30, 16, seed=seed) for seed in range(3)]
    agree(qkv, TopK(3), lengths=torch.tensor([length], device=DEVICE))


def test_a_gpu_with_less_shared_memory_gets_smaller_tiles_and_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton import OutOfResources

    from semfocus.attention.kernels.long import dispatch

    taken, whole = [], dispatch.group_maxima

    class Small:
        """A kernel on a GPU where tiles of more than 16 queries do not fit."""

        def __getitem__(self, grid):
            def start(*arguments, **options):
                if options["BLOCK_M"] > 16:
                    raise OutOfResources(options["BLOCK_M"], 16, "shared memory")
                taken.append((options["BLOCK_M"], options["num_stages"]))
                return whole[grid](*arguments, **options)

            return start

    monkeypatch.setattr(dispatch, "tiles_for", lambda keys, wide: dispatch.Tiles(queries=64, lanes=16, group=4))
    monkeypatch.setattr(dispatch, "group_maxima", Small())
    agree([drawn(1, 1, 30, 16, seed=seed) for seed in range(3)], TopK(3))
    assert set(taken) == {(16, 1)}
    monkeypatch.setattr(Small, "__getitem__", lambda self, grid: _lack)
    with pytest.raises(OutOfResources, match="shared memory"):
        agree([drawn(1, 1, 30, 16, seed=seed) for seed in range(3)], TopK(3))


def _lack(*arguments, **options) -> None:
    from triton import OutOfResources

    raise OutOfResources(2, 1, "shared memory")


def test_more_pairs_than_32_bits_number_are_left_to_the_kernels_without_lists() -> None:
    q = torch.zeros(1, device=DEVICE).bfloat16().expand(64, 16, 65536, 16)  # which takes no memory
    for kept, kernels in ((16, "long"), (32, "threshold")):
        inputs = prepare_inputs(q, q, q, TopK(kept), normaliser=Softmax(), causal=True)
        assert choose_kernels(inputs) == kernels
    assert "2147483648" in str(long_refuses(inputs))
