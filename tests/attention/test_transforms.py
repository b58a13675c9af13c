"""`attend` and the layer under torch.compile and torch.func."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from semfocus import Banded, BlockLocal, Full, RandomK, TopK, attend
from semfocus.attention import chunked
from tests.attention.test_layer import drawn, layer_of
from tests.conformance.cases import qkv
from tests.conftest import DEVICE

traces_generators = pytest.mark.skipif(torch.__version__ < "2.12", reason="torch 2.11 cannot trace generators")


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> None:
    torch.compiler.reset()  # shapes and recompilations of one test must not affect another


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


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, inside jvp
def test_torch_func_works_for_long_sequences_too() -> None:
    x = qkv(300, 300, lead=(2, 1), width=4)[0]

    def call(q):
        return attend(q, q, q, TopK(3))

    _, slope = torch.func.jvp(call, (x,), (x,))
    _, wanted = torch.func.jvp(lambda q: attend(q, q, q, TopK(3), backend="dense"), (x,), (x,))
    torch.testing.assert_close(slope, wanted)
    assert slope.norm() > 1
    assert torch.func.grad(lambda q: call(q).sum())(x).shape == x.shape


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


@pytest.mark.parametrize("mechanism", ["topk:3", "topk:2+1s+2w", "bottomk:3", "banded:3"])
def test_compiled_from_its_text_form_ties_still_go_to_the_lowest_index(mechanism) -> None:
    q, k, v = qkv(9, 11, integers=True, dtype=torch.float32)

    def call(q, k, v):
        return attend(q, k, v, mechanism, backend="dense", mask=torch.arange(11, device=DEVICE) != 4)

    torch.testing.assert_close(torch.compile(call, fullgraph=True, backend="aot_eager")(q, k, v), call(q, k, v))


@traces_generators
def test_a_generator_gives_a_compiled_graph_the_seeds_it_gives_without_a_compiler() -> None:
    q, k, _ = (tensor.requires_grad_() for tensor in qkv(9, 9, dtype=torch.float32))

    def twice(q, k, generator):  # two calls in one graph must draw two seeds each, in order
        options = {"dropout_p": 0.5, "generator": generator, "backend": "chunked"}
        return attend(attend(q, k, k, RandomK(3), **options), k, k, RandomK(3), **options)

    def results(call, generator):
        outputs = [call(q, k, generator) for _ in range(2)]
        return [*outputs, *torch.autograd.grad(outputs[1].square().sum(), (q, k))]

    compiled = torch.compile(twice, fullgraph=True, backend="aot_eager")
    plain, first, second = (torch.Generator().manual_seed(5) for _ in range(3))
    wanted = results(twice, plain)
    torch.testing.assert_close(results(compiled, first), wanted)
    assert torch.equal(first.get_state(), plain.get_state())
    assert not torch.equal(wanted[0], wanted[1])
    torch.testing.assert_close(compiled(q, k, second), wanted[0])  # another generator is not mistaken for the first


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_the_layer_compiles_with_the_same_answer(compiler) -> None:
    layer = layer_of(16, 2, TopK(3), dropout=0.2)
    x = drawn(2, 9, 16).requires_grad_()
    compiled = torch.compile(layer.eval(), fullgraph=True, backend=compiler)
    torch.testing.assert_close(compiled(x)[0], layer(x)[0])
    grads = [torch.autograd.grad(module(x)[0].square().sum(), x)[0] for module in (compiled, layer)]
    torch.testing.assert_close(*grads)


@traces_generators
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_the_layer_trains_compiled_with_the_random_keys_of_its_generator(compiler) -> None:
    x = drawn(2, 9, 16).requires_grad_()
    results = []
    for prepare in (lambda layer: layer, lambda layer: torch.compile(layer, fullgraph=True, backend=compiler)):
        layer = prepare(layer_of(16, 2, RandomK(3), dropout=0.2, generator=torch.Generator().manual_seed(1)))
        outputs = [layer(x)[0] for _ in range(2)]
        results.append([*outputs, *torch.autograd.grad(outputs[1].square().sum(), x)])
    torch.testing.assert_close(results[1], results[0])
    assert not torch.equal(results[1][0], results[1][1])


def test_dropout_without_a_generator_compiles_to_one_graph() -> None:
    q, k, v = qkv(9, 9, dtype=torch.float32)
    call = torch.compile(lambda q, k, v: attend(q, k, v, TopK(3), dropout_p=0.5), fullgraph=True, backend="aot_eager")
    assert not torch.equal(call(q, k, v), call(q, k, v))


def test_return_info_compiles_to_one_graph() -> None:
    q, k, v = qkv(9, 11, dtype=torch.float32)

    def call(q, k, v):
        _, info = attend(q, k, v, TopK(3), backend="chunked", return_info=True, causal=True)
        return info.indices, info.weights, info.lse, info.in_degree

    torch.testing.assert_close(torch.compile(call, fullgraph=True, backend="aot_eager")(q, k, v), call(q, k, v))


def test_registered_operations_pass_torchs_own_checks() -> None:
    q, k, v = (tensor.requires_grad_() for tensor in qkv(5, 6, lead=(1, 2)))
    padded = torch.tensor([0, 1, 2, -1, 3, 4], device=DEVICE)[None]
    for placed in ((None, None), (padded[:, 1:, None], padded[:, None])):
        for softcap in (None, 2.0):
            arguments = (q, k, v, None, None, None, *placed, None, None, "topk:3", "softmax", False, 0.5, 0.0, softcap)
            torch.library.opcheck(chunked.gathered, arguments)


@pytest.mark.filterwarnings("ignore")  # tracers warn of every size that they make a constant
@pytest.mark.parametrize(
    "mechanism", ["full", "topk:3", "topk:2+1s+2w", "bottomk:3", "randomk:3", "banded:3", "block_local:8"]
)
@pytest.mark.parametrize("length", [9, 100, 300])
def test_what_a_tracer_recorded_holds_for_other_data(mechanism, length) -> None:
    def call(q, k, v):
        return attend(q, k, v, mechanism, dropout_p=0.1, seed=torch.tensor(3, device=q.device))

    example, other = (qkv(length, length, lead=(1, 2), dtype=torch.float32, seed=seed) for seed in (1, 2))
    wanted = call(*other)
    torch.testing.assert_close(torch.jit.trace(call, example, check_trace=False)(*other), wanted)
    for mode in ("real", "fake"):
        torch.testing.assert_close(make_fx(call, tracing_mode=mode)(*example)(*other), wanted)


@pytest.mark.parametrize("mechanism", ["full", "topk:3", "topk:2+1s", "banded:3", "block_local:8"])
@pytest.mark.parametrize("length", [9, 300])
def test_fake_tensors_give_shapes(mechanism, length) -> None:
    with FakeTensorMode():
        q = torch.empty(1, 2, length, 8, requires_grad=True)
        out = attend(q, q, q, mechanism, causal=True)
        out.sum().backward()
    assert out.shape == q.grad.shape == q.shape


@pytest.mark.parametrize(
    ("mechanism", "backend"),
    [(TopK(3), "dense"), (TopK(3), "chunked"), (TopK(2, sinks=1, window=2), "chunked"), (RandomK(3), "chunked"),
     (Banded(3), "local"), (Banded(3, globals=1), "local"), (Full(), "dense")],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("options", [{}, {"mask": 4}, {"dropout_p": 0.3}], ids=str)
def test_the_gradient_of_a_gradient_is_that_of_the_oracle(mechanism, backend, options) -> None:
    inputs = qkv(6, 6, lead=(1, 2), width=3)
    options = {
        name: torch.arange(6, device=DEVICE) != 4 if name == "mask" else value for name, value in options.items()
    }

    def second(backend):
        leaves = [tensor.clone().requires_grad_() for tensor in inputs]
        seed = torch.tensor(5, device=DEVICE)
        out = attend(*leaves, mechanism, backend=backend, seed=seed, **options)
        first = torch.autograd.grad(out.square().sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(grad.square().sum() for grad in first), leaves)

    for mine, oracle in zip(second(backend), second("reference"), strict=True):
        assert oracle.abs().max() > 1e-3
        torch.testing.assert_close(mine, oracle)
