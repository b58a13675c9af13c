"""Capped scores and sinks that take weight: gradients, what they mean, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from semfocus import TopK, attend
from semfocus.attention.mechanisms import Mechanism
from semfocus.errors import UsageError
from tests.conformance.cases import MECHANISMS, close, qkv
from tests.conftest import DEVICE

BACKENDS = ("dense", "chunked", "local")
OPTIONS = {
    "softcap": {"softcap": 0.9},
    "sinks": {"sinks": True},
    "both": {"softcap": 0.9, "sinks": True},
    "both and more": {"softcap": 0.9, "sinks": True, "bias": True, "dropout_p": 0.3},
    "both, straight through": {"softcap": 0.9, "sinks": True, "straight_through": True},
}


def results(mechanism: Mechanism | str, backend: str | None, lead=(2, 6), **options) -> list[Tensor]:
    """Output and all gradients, those of sinks and of a float mask too."""
    q, k, v = qkv(9, 11, lead=lead)
    leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
    generator = torch.Generator().manual_seed(8)
    if options.pop("sinks", False):
        leaves.append(torch.randn(lead[-1], generator=generator, dtype=torch.float64).to(DEVICE).requires_grad_())
        options["sinks"] = leaves[-1]
    if options.pop("bias", False):
        bias = torch.randn(lead[-1], 9, 11, generator=generator, dtype=torch.float64)
        options["mask"] = bias.masked_fill(bias > 1.5, float("-inf")).to(DEVICE)
    if "dropout_p" in options:
        options["seed"] = torch.tensor(4, device=DEVICE)
    if options.get("enable_gqa"):
        leaves[1], leaves[2] = (leaf.detach()[:, :2].clone().requires_grad_() for leaf in leaves[1:3])
    out = attend(*leaves[:3], mechanism, backend=backend, **options)
    return [out.detach(), *torch.autograd.grad(out.square().sum() + out[..., 0].sum(), leaves)]


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs_and_all_gradients_are_the_oracles(mechanism, name: str, backend: str) -> None:
    if "sinks" in OPTIONS[name] and mechanism.normaliser is not None:
        pytest.skip("it weighs keys by itself")
    for grouped in (False, True):
        options = OPTIONS[name] | {"enable_gqa": grouped}
        try:
            ours = results(mechanism, backend, **options)
        except UsageError as refusal:
            assert backend != "dense"
            pytest.skip(str(refusal))
        for mine, wanted in zip(ours, results(mechanism, "reference", **options), strict=True):
            close(mine, wanted)


def test_the_oracle_is_the_formula_that_models_write() -> None:
    q, k, v = qkv(4, 6, lead=(1, 3))
    sinks = torch.tensor([0.3, -2.0, 4.0], dtype=torch.float64, device=DEVICE)
    scores = 2.0 * torch.tanh((q @ k.mT * 5**-0.5) / 2.0)
    columns = torch.cat([scores, sinks.view(1, 3, 1, 1).expand(1, 3, 4, 1)], dim=-1)
    close(attend(q, k, v, softcap=2.0, sinks=sinks, backend="reference"), columns.softmax(-1)[..., :-1] @ v)


@pytest.mark.parametrize("backend", ["dense", "chunked"])
def test_gradients_and_their_gradients_pass_gradcheck(backend: str) -> None:
    q, k, v = (tensor.requires_grad_() for tensor in qkv(3, 7, lead=(1, 2), width=3))
    sinks = torch.tensor([0.4, -0.8], dtype=torch.float64, device=DEVICE, requires_grad=True)

    def call(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
        return attend(q, k, v, TopK(3), softcap=1.3, sinks=sinks, backend=backend)

    assert torch.autograd.gradcheck(call, (q, k, v, sinks), fast_mode=True)
    assert torch.autograd.gradgradcheck(call, (q, k, v, sinks), fast_mode=True)


@pytest.mark.parametrize("backend", ["reference", "dense", "chunked"])
def test_weights_with_sinks_sum_to_what_the_sink_leaves_and_the_kept_set_is_that_without(backend: str) -> None:
    q, k, v = qkv(lead=(2, 3))
    sinks = torch.tensor([-1.0, 0.5, 2.0], dtype=torch.float64, device=DEVICE)
    _, plain = attend(q, k, v, TopK(3), backend=backend, return_info=True)
    out, info = attend(q, k, v, TopK(3), backend=backend, return_info=True, sinks=sinks)
    assert torch.equal(info.indices, plain.indices)
    close(info.lse, plain.lse)
    close(info.weights.sum(-1), torch.sigmoid(plain.lse - sinks[:, None]))
    close(out, info.dense_weights(11) @ v)


@pytest.mark.parametrize("backend", ["reference", "dense", "chunked"])
def test_a_query_without_keys_gives_zeros_and_no_gradient_to_its_sink(backend: str) -> None:
    q, k, v = qkv(5, 5, lead=(1, 2))
    sinks = torch.zeros(2, dtype=torch.float64, device=DEVICE, requires_grad=True)
    out = attend(q.requires_grad_(), k, v, TopK(2), lengths=torch.zeros(1, dtype=torch.long), sinks=sinks, softcap=3.0,
                 backend=backend)  # fmt: skip
    assert not out.any()
    assert all(not grad.any() for grad in torch.autograd.grad(out.sum(), (q, sinks)))


@pytest.mark.parametrize("backend", ["reference", "dense", "chunked"])
def test_a_kept_value_that_is_not_finite_shows_in_its_channel_alone_and_passes_no_gradient(backend: str) -> None:
    q, k, v = qkv(5, 5, lead=(1, 2))
    v[..., 2, 0] = float("inf")
    sinks = torch.zeros(2, dtype=torch.float64, device=DEVICE, requires_grad=True)
    out = attend(q.requires_grad_(), k, v, TopK(5), sinks=sinks, backend=backend)
    assert out[..., 0].isnan().all()
    assert out[..., 1:].isfinite().all()
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(out[..., 1:].sum(), (q, sinks)))


@pytest.mark.parametrize("backend", ["dense", "chunked"])
@pytest.mark.parametrize("sink", [-float("inf"), -1e4, 1e4])
def test_hard_sinks_take_all_or_nothing(backend: str, sink: float) -> None:
    q, k, v = qkv(lead=(1, 1))
    out = attend(q, k, v, TopK(3), sinks=torch.tensor([sink], dtype=torch.float64, device=DEVICE), backend=backend)
    close(out, torch.zeros_like(out) if sink > 0 else attend(q, k, v, TopK(3), backend=backend))


def test_a_cap_beyond_all_scores_changes_little_and_a_narrow_one_makes_ties_of_large_scores() -> None:
    q, k, v = qkv(lead=(1, 2))
    torch.testing.assert_close(attend(q, k, v, TopK(3), softcap=1e6), attend(q, k, v, TopK(3)))
    scores = torch.tensor([1.0, 50.0, 60.0, 70.0], dtype=torch.float64, device=DEVICE)[:, None]
    for backend in ("reference", "dense", "chunked"):
        _, info = attend(torch.ones(1, 1, dtype=torch.float64, device=DEVICE), scores, scores, TopK(2), scale=1.0,
                         softcap=0.5, backend=backend, return_info=True)  # fmt: skip
        assert info.indices.tolist() == [[1, 2]]  # tanh is 1 for all three: the lowest index wins


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_types_stay_near_the_oracle(dtype: torch.dtype) -> None:
    q, k, v = (tensor.to(dtype) for tensor in qkv(63, 300, lead=(1, 2), integers=True))
    sinks = torch.tensor([0.5, 3.0], device=DEVICE)
    wanted = attend(
        q.double(), k.double(), v.double(), TopK(5), sinks=sinks.double(), softcap=20.0, backend="reference"
    )
    for backend in ("dense", "chunked", None):
        out = attend(q, k, v, TopK(5), sinks=sinks.to(dtype), softcap=20.0, backend=backend)
        assert out.dtype == dtype
        assert (out - wanted).abs().max() <= 4 * torch.finfo(dtype).eps * wanted.abs().max()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_it_compiles_whole_with_the_same_answer(compiler: str) -> None:
    q, k, v = qkv(20, 20, dtype=torch.float32)
    sinks = torch.zeros(3, device=DEVICE)
    for mechanism in ("topk:3", "full"):
        compiled = torch.compile(
            lambda *given, m=mechanism: attend(*given, m, softcap=2.0, sinks=sinks), fullgraph=True, backend=compiler
        )
        close(compiled(q, k, v), attend(q, k, v, mechanism, softcap=2.0, sinks=sinks))


def test_other_backends_say_why_they_do_not_serve() -> None:
    q, k, v = qkv()
    sinks = torch.zeros(3, dtype=torch.float64, device=DEVICE)
    with pytest.raises(UsageError, match=r"sdpa.*softcap"):
        attend(q, k, v, softcap=2.0, backend="sdpa")
    with pytest.raises(UsageError, match=r"sdpa.*sinks"):
        attend(q, k, v, sinks=sinks, backend="sdpa")
    narrow = [tensor.float() for tensor in (q, k, v)]
    with pytest.raises(UsageError, match=r"triton.*softcap"):
        attend(*narrow, TopK(2), softcap=2.0, backend="triton")
    with pytest.raises(UsageError, match=r"triton.*sinks"):
        attend(*narrow, TopK(2), sinks=sinks, backend="triton")
    with pytest.raises(UsageError, match=r"linear.*softcap"):
        attend(q, k, v, "fast:1", softcap=2.0, backend="linear")


@pytest.mark.parametrize("softcap", [0, -1.0, float("nan"), float("inf"), "3", True])
def test_a_cap_that_is_no_positive_number_is_refused(softcap) -> None:
    with pytest.raises(UsageError, match=r"softcap = .* must be a positive finite number"):
        attend(*qkv(), TopK(2), softcap=softcap)


@pytest.mark.parametrize(
    ("sinks", "error", "words"),
    [
        (4, TypeError, r"TopK\(8, sinks=4\)"),
        (torch.zeros(3, dtype=torch.long, device=DEVICE), TypeError, "int64"),
        (torch.zeros(5, device=DEVICE), UsageError, r"\(5,\).*\(2, 3\)"),
        (torch.zeros(2, 3, 9, device=DEVICE), UsageError, r"\(2, 3, 9\)"),
        (torch.zeros(3, device="meta"), UsageError, "differ in device"),
    ],
)
def test_sinks_that_do_not_fit_are_refused(sinks, error, words: str) -> None:
    with pytest.raises(error, match=words):
        attend(*qkv(), TopK(2), sinks=sinks)
    with pytest.raises(UsageError, match="normaliser sigmoid cannot serve sinks"):
        attend(*qkv(), TopK(2), sinks=torch.zeros(3, device=DEVICE), normaliser="sigmoid")
