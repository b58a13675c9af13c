"""What a diagnosis cannot see: attention written out and compiled parts are named, and invalid calls refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from semfocus.diagnostics import diagnose
from semfocus.errors import UsageError
from tests.diagnostics.models import HEADS, HandMade, SdpaBlock, attention_layer, sdpa_model, seeded, tokens


def test_a_model_that_cannot_be_observed_is_refused_with_its_modules() -> None:
    with pytest.raises(UsageError, match=r"HandMade cannot be observed.*attention \(HandMadeAttention\)"):
        diagnose(HandMade(), [tokens()], k=2)
    module = seeded(lambda: nn.MultiheadAttention(16, 2))

    class Asking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x, x, x, need_weights=True)[0]

    with pytest.raises(UsageError, match="need_weights=True"):
        diagnose(Asking(), [tokens()], k=2)


def test_attention_modules_without_a_captured_call_are_named() -> None:
    model = seeded(lambda: nn.Sequential(SdpaBlock(), HandMade()))
    with pytest.raises(UsageError, match=r"only part.*1\.attention \(HandMadeAttention\); pass partial=True"):
        diagnose(model, [tokens()], k=2)
    diagnosis = diagnose(model, [tokens()], k=2, partial=True)
    assert diagnosis.unseen == ("1.attention (HandMadeAttention)",)
    assert any("1.attention" in line for line in diagnosis.sentences())


class Mixer(nn.Module):
    """Attention written out, in a class whose name does not say so; weights may be cast and dropped on the way."""

    def __init__(self, dropout: float = 0.0, half: bool = False, way: str = "") -> None:
        super().__init__()
        self.dropout, self.half, self.way = nn.Dropout(dropout), half, way

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "without a batch":
            return torch.stack([(row @ row.mT).softmax(-1) @ row for row in x])
        heads = x.unflatten(-1, (4, -1)).transpose(1, 2)
        scores = heads @ heads.mT
        if self.way == "exponentials":
            powers = (scores - scores.amax(-1, keepdim=True)).exp()
            return ((powers / powers.sum(-1, keepdim=True)) @ heads).transpose(1, 2).flatten(2)
        weights = self.dropout(scores.softmax(-1))
        if self.way == "cleaned":
            weights = weights.masked_fill(scores < -100, 0.0).nan_to_num()
        if self.half:
            return (weights.bfloat16() @ heads.bfloat16()).float().transpose(1, 2).flatten(2)
        return torch.einsum("bhqk,bhkd->bqhd", weights, heads).flatten(2)


class Router(nn.Module):
    """A softmax that is no attention: it weighs the outputs of two layers for each token on its own."""

    def __init__(self) -> None:
        super().__init__()
        self.choice = nn.Linear(16, 2)
        self.ways = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        share = self.choice(x).softmax(-1)
        return sum(share[..., i, None] * way(x) for i, way in enumerate(self.ways))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "make",
    [Mixer, lambda: Mixer(0.2), lambda: Mixer(half=True)]
    + [partial(Mixer, way=way) for way in ("without a batch", "exponentials", "cleaned")],
)
def test_attention_written_out_is_named_whatever_its_class_is_called(make: Any, training: bool) -> None:
    model = seeded(lambda: nn.Sequential(SdpaBlock(), make(), Router())).train(training)
    with pytest.raises(UsageError, match=r"only part.*way: 1 \(Mixer\); pass partial=True"):
        diagnose(model, [tokens()], k=2)
    assert diagnose(model, [tokens()], k=2, partial=True).unseen == ("1 (Mixer)",)
    with pytest.raises(UsageError, match=r"Mixer cannot be observed.*their own way: Mixer"):
        diagnose(make(), [tokens()], k=2)


def test_a_softmax_that_is_no_attention_and_attention_that_is_seen_are_not_named() -> None:
    model = seeded(lambda: nn.Sequential(SdpaBlock(), Router(), attention_layer("topk:3")))
    model[2].register_forward_hook(lambda module, inputs, out: out[0])
    alone = model(tokens())
    outs: list[Tensor] = []
    model.register_forward_hook(lambda module, inputs, out: outs.append(out.detach()))
    assert diagnose(model, [tokens(), tokens()], k=2).unseen == ()
    assert torch.equal(outs[0], alone)
    assert torch.equal(outs[1], alone)


def test_compiled_parts_are_refused_by_name() -> None:
    multihead = nn.MultiheadAttention(16, 2, batch_first=True)

    class Around(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x, x, x, need_weights=False)[0]

    wrapped = seeded(lambda: Around(torch.compile(multihead, backend="eager")))
    with pytest.raises(UsageError, match=r"inner \(OptimizedModule\) is compiled.*inner\._orig_mod"):
        diagnose(wrapped, [tokens()], k=2)
    in_place = seeded(lambda: Around(nn.MultiheadAttention(16, 2, batch_first=True)))
    in_place.inner.compile(backend="eager")
    with pytest.raises(UsageError, match=r"inner \(MultiheadAttention\) is compiled.*before \.compile"):
        diagnose(in_place, [tokens()], k=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 10}, r"k = 10 exceeds the longest sequence, 9 keys"),
        ({"k": 0}, "k = 0"),
        ({"k": 2.5}, "k = 2.5"),
        ({"batches": []}, "batches is empty"),
        ({"error": 2.0}, "error = 2.0"),
    ],
)
def test_invalid_arguments_are_refused_by_name(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        diagnose(**({"model": sdpa_model(), "batches": [tokens()], "k": 2} | arguments))
    with pytest.raises(TypeError, match="torch module"):
        diagnose("gpt2", [tokens()], k=2)


def test_batches_of_length_zero_are_refused() -> None:
    with pytest.raises(UsageError, match="length 0"):
        diagnose(sdpa_model(), [tokens()[:, :0]], k=1)
    assert diagnose(sdpa_model(), [tokens()[:, :0], tokens()], k=1).whole.queries == 2 * 3 * 9 * HEADS
