"""The layer: torch's multi-head attention with any mechanism."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from semfocus import Attention, Full, TopK
from semfocus.errors import UsageError
from tests.conftest import DEVICE


def layer_of(*arguments, **options) -> Attention:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Attention(*arguments, **options).to(DEVICE)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape) + shape[1])).to(DEVICE)


def _as_multihead(layer: Attention) -> nn.MultiheadAttention:
    twin = nn.MultiheadAttention(16, 2, batch_first=True, device=DEVICE)
    with torch.no_grad():
        twin.in_proj_weight.copy_(torch.cat([p.weight for p in (layer.q_proj, layer.k_proj, layer.v_proj)]))
        twin.in_proj_bias.copy_(torch.cat([p.bias for p in (layer.q_proj, layer.k_proj, layer.v_proj)]))
        twin.out_proj.load_state_dict(layer.out_proj.state_dict())
    return twin


def test_the_layer_with_full_attention_is_torchs_multihead_attention() -> None:
    layer = layer_of(16, 2, Full())
    twin = _as_multihead(layer)
    x, memory = drawn(3, 7, 16), drawn(3, 5, 16)
    padding = torch.arange(5, device=DEVICE) >= torch.tensor([5, 3, 1], device=DEVICE)[:, None]
    for ours, theirs in (
        (layer(x, need_weights=True), twin(x, x, x)),
        (layer(x, memory, need_weights=True), twin(x, memory, memory)),
        (
            layer(x, memory, key_padding_mask=padding, need_weights=True),
            twin(x, memory, memory, key_padding_mask=padding),
        ),
    ):
        torch.testing.assert_close(ours[0], theirs[0])
        torch.testing.assert_close(ours[1], theirs[1])
    assert layer(x)[1] is None


def test_the_layer_is_random_in_training_only_and_follows_its_generator() -> None:
    layer = layer_of(16, 2, "randomk:3", dropout=0.5, generator=torch.Generator().manual_seed(1))
    x = drawn(1, 9, 16)
    assert not torch.equal(layer(x)[0], layer(x)[0])
    layer.eval()
    assert torch.equal(layer(x)[0], layer(x)[0])
    assert "randomk:3" in repr(layer)


def test_heads_may_be_as_wide_as_the_model() -> None:
    layer = layer_of(16, 3, TopK(2), head_dim=16)
    assert layer(drawn(2, 5, 16))[0].shape == (2, 5, 16)
    with pytest.raises(UsageError, match="not a multiple of heads = 3; give head_dim"):
        Attention(16, 3, TopK(2))


@pytest.mark.parametrize(
    ("mechanism", "normaliser", "names"),
    [("full", "ssmax", ["scale"]), ("topk:3", "asentmax", ["beta", "gamma"]), ("routing:3+2c", "softmax", [])],
)
def test_the_layer_learns_what_its_normaliser_or_mechanism_needs(mechanism, normaliser, names) -> None:
    layer = layer_of(16, 2, mechanism, normaliser=normaliser)
    assert [name for name, _ in layer.learned.named_parameters()] == names
    assert [name for name, _ in layer.learned.named_buffers()] == ([] if names else ["centroids"])
    x = drawn(3, 7, 16)
    layer(x)[0].square().sum().backward()
    assert all(part.grad.abs().sum() > 0 for part in layer.learned.parameters())
    again = layer_of(16, 2, mechanism, normaliser=normaliser)
    again.load_state_dict(layer.state_dict())
    torch.testing.assert_close(again.eval()(x)[0], layer.eval()(x)[0])


def test_centroids_move_in_training_towards_their_mean_and_not_in_evaluation_nor_to_padding() -> None:
    layer = layer_of(16, 2, "routing:3+2c")
    x, start = drawn(3, 7, 16), layer.learned.centroids.clone()
    layer.eval()(x)
    assert torch.equal(layer.learned.centroids, start)
    padding = torch.arange(7, device=DEVICE).expand(3, 7) >= 5
    layer.train()(x, key_padding_mask=padding)
    moved = layer.learned.centroids.clone()
    assert not torch.equal(moved, start)
    layer.learned.centroids.copy_(start)
    other = torch.where(padding[..., None], 9.0, x)
    layer(other, key_padding_mask=padding)
    torch.testing.assert_close(layer.learned.centroids, moved)


def test_routing_in_a_layer_must_say_how_many_clusters() -> None:
    with pytest.raises(UsageError, match=r"routing:3 in a layer.*'routing:3\+8c'"):
        layer_of(16, 2, "routing:3")


def test_the_layer_refuses_a_pair_without_a_meaning_when_it_is_made() -> None:
    with pytest.raises(UsageError, match="doubly with causal=True"):
        layer_of(16, 2, Full(), normaliser="doubly", causal=True)
