"""Every attention of a model is seen, whoever wrote it; its outputs keep their bits; everything is put back."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from semfocus import attend
from semfocus.attention.inspection import observers, observing
from semfocus.diagnostics.capture import CapturedCall, watching
from semfocus.errors import UsageError
from tests.diagnostics.models import (
    HEADS,
    WIDTH,
    Calls,
    attention_layer,
    encoder,
    rows,
    sdpa_model,
    seeded,
    tokens,
)

ORIGINALS = {
    "attention": functional.scaled_dot_product_attention,
    "fused": torch._native_multi_head_attention,
    "layer": torch._transformer_encoder_layer_fwd,
}


def assert_put_back() -> None:
    assert functional.scaled_dot_product_attention is ORIGINALS["attention"]
    assert torch._C._nn.scaled_dot_product_attention is ORIGINALS["attention"]
    assert torch._native_multi_head_attention is ORIGINALS["fused"]
    assert torch._transformer_encoder_layer_fwd is ORIGINALS["layer"]
    assert not observers
    assert not torch.nn.modules.module._global_forward_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks


def watched(model: nn.Module, *inputs: Any, **named: Any) -> tuple[Any, list[CapturedCall]]:
    seen: list[CapturedCall] = []
    with watching(model, seen.append) as watch:
        watch.begin_pass()
        out = model(*inputs, **named)
    assert_put_back()
    return out, seen


def plain_output(call: CapturedCall) -> Tensor:
    """What full attention over the problem seen gives."""
    inputs = call.inputs
    mask = inputs.mask if inputs.mask is not None else inputs.bias
    return attend(inputs.q, inputs.k, inputs.v, causal=inputs.causal, mask=mask, scale=inputs.scale)


def encoder_layers(**options: Any) -> nn.Module:
    layer = {"d_model": WIDTH, "nhead": HEADS, "dim_feedforward": 24, "batch_first": True, "dropout": 0.0} | options
    return seeded(lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(**layer), 2, enable_nested_tensor=False))


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("masks", ["none", "padding", "rows", "both"])
def test_calls_of_torch_s_encoder_are_captured_on_the_fused_and_the_plain_path(
    grad: bool, norm_first: bool, masks: str
) -> None:
    model, x = encoder_layers(norm_first=norm_first), tokens()
    named: dict[str, Tensor] = {}
    if masks in ("padding", "both"):
        named["src_key_padding_mask"] = torch.arange(9).expand(3, -1) >= torch.tensor([[9], [7], [4]])
    if masks in ("rows", "both"):
        named["mask"] = torch.ones(9, 9, dtype=torch.bool).triu(1)
    with torch.set_grad_enabled(grad):
        alone = model(x, **named)
        out, seen = watched(model, x, **named)
    assert torch.equal(alone.detach().nan_to_num(), out.detach().nan_to_num())
    assert len(seen) == 2
    assert [len(call.inputs.lead) for call in seen] == [2, 2]
    first = model.layers[0]
    normed = first.norm1(x) if norm_first else x
    q = functional.linear(normed, first.self_attn.in_proj_weight, first.self_attn.in_proj_bias)[..., :WIDTH]
    expected = q.unflatten(-1, (HEADS, -1)).transpose(1, 2)
    torch.testing.assert_close(seen[0].inputs.q.reshape(expected.shape), expected)
    inputs = seen[0].inputs
    allowed = torch.ones(3, 1, 9, 9, dtype=torch.bool)
    if "src_key_padding_mask" in named:
        allowed = allowed & ~named["src_key_padding_mask"][:, None, None, :]
    if "mask" in named:
        allowed = allowed & ~named["mask"]
    given = inputs.mask if inputs.mask is not None else None if inputs.bias is None else inputs.bias == 0
    visible = torch.ones_like(allowed) if given is None else given.expand(3, -1, 9, 9)
    if inputs.causal:
        visible = visible & torch.ones(9, 9, dtype=torch.bool).tril()
    assert torch.equal(visible, allowed.expand_as(visible))


@pytest.mark.parametrize("heads", [3, 4])
def test_calls_of_torch_s_multihead_attention_are_captured(heads: int) -> None:
    module = seeded(lambda: nn.MultiheadAttention(12, heads, batch_first=True))
    x = tokens()[..., :12]
    with torch.no_grad():
        alone, _ = module(x, x, x, need_weights=False)
        (out, _), (call,) = watched(module, x, x, x, need_weights=False)
    assert torch.equal(alone, out)
    mixed = plain_output(call).reshape(3, heads, 9, -1).transpose(1, 2).flatten(2)
    torch.testing.assert_close(module.out_proj(mixed), out)


@pytest.mark.parametrize("causal", [False, True])
def test_a_torch_model_is_captured_by_layer_and_its_output_does_not_change(causal: bool) -> None:
    model, x = sdpa_model(causal), tokens()
    alone = model(x)
    out, seen = watched(model, x)
    assert torch.equal(alone, out)
    assert [call.place for call in seen] == [("0", 0), ("1", 0)]
    assert all(call.inputs.causal == causal for call in seen)
    assert seen[0].inputs.lead == (3, HEADS)


def test_a_name_imported_into_another_module_is_captured_and_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = ModuleType("a_stranger_s_module")
    stranger.__dict__["own_name"] = functional.scaled_dot_product_attention
    monkeypatch.setitem(sys.modules, stranger.__name__, stranger)

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return stranger.own_name(x, x, x)

    _, seen = watched(Model(), tokens())
    assert len(seen) == 1
    assert stranger.own_name is ORIGINALS["attention"]


def test_torch_s_causal_mask_of_fewer_queries_than_keys_starts_at_the_first_key() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return functional.scaled_dot_product_attention(x[:, :4], x, x, is_causal=True)

    out, (call,) = watched(Model(), tokens())
    torch.testing.assert_close(plain_output(call), out)


@pytest.mark.parametrize("mechanism", ["full", "topk:3", "banded:3", "randomk:2+5r", "topk:2~0.5+5r", "shifted:3+2a"])
def test_each_call_of_attend_is_captured_once(mechanism: str) -> None:
    layer, x = attention_layer(mechanism), tokens()
    alone, _ = layer(x)
    (out, _), seen = watched(layer, x)
    assert torch.equal(alone, out)
    assert [str(call.inputs.mechanism) for call in seen] == [mechanism]
    calls = Calls(mechanism)
    assert torch.equal(calls(x), watched(calls, x)[0])
    assert [call.place for call in watched(calls, x)[1]] == [("", 0), ("", 1)]


def test_our_encoder_is_captured_by_block_and_its_output_does_not_change() -> None:
    model, given = encoder(), rows()
    alone = model(given)
    out, seen = watched(model, given)
    assert torch.equal(alone, out)
    assert [call.place for call in seen] == [("", 0), ("", 1)]


def test_all_wrappers_are_removed_after_an_exception() -> None:
    with pytest.raises(RuntimeError, match="stop"), watching(sdpa_model(), lambda call: None):
        raise RuntimeError("stop")
    assert_put_back()

    def fail(call: CapturedCall) -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"), watching(sdpa_model(), fail):
        sdpa_model()(tokens())
    assert_put_back()


def test_a_compiled_model_is_refused_by_name() -> None:
    compiled = torch.compile(sdpa_model(), backend="eager")
    with pytest.raises(UsageError, match="_orig_mod"), watching(compiled, lambda call: None):
        pass


def test_nested_tensors_raise_an_error_that_says_how_to_avoid_them() -> None:
    layer = {"d_model": WIDTH, "nhead": HEADS, "dim_feedforward": 24, "batch_first": True}
    model = seeded(lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(**layer), 1))
    padding = torch.arange(9).expand(3, -1) >= torch.tensor([[9], [7], [4]])
    with (
        pytest.warns(UserWarning, match="nested"),
        pytest.raises(UsageError, match="enable_nested_tensor=False"),
        torch.no_grad(),
        watching(model, lambda call: None),
    ):
        model(tokens(), src_key_padding_mask=padding)
    assert_put_back()


def test_attend_compiles_to_one_graph_unless_it_is_captured() -> None:
    x = tokens().unsqueeze(1)
    whole = torch.compile(lambda x: attend(x, x, x, "topk:3", backend="dense"), backend="eager", fullgraph=True)
    torch.testing.assert_close(whole(x), attend(x, x, x, "topk:3"))
    seen: list[Any] = []
    broken = torch.compile(lambda x: attend(x, x, x, "topk:3", backend="dense"), backend="eager")
    with observing(lambda inputs, grouped: seen.append(inputs.mechanism)):
        torch.testing.assert_close(broken(x), attend(x, x, x, "topk:3"))
    assert len(seen) == 2
    torch.compiler.reset()
