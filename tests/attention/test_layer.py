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
    twin = nn.MultiheadAttention(16, 2, batch_first=True, device=DEVICE, dtype=layer.q_proj.weight.dtype)
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


def _masks() -> dict[str, Tensor]:
    """Masks as torch's layer takes them, for 7 queries, 5 keys, 3 rows and 2 heads: True hides a key."""
    generator = torch.Generator().manual_seed(4)
    hidden = torch.rand(7, 5, generator=generator) > 0.6
    hidden[:, 0] = False
    each = torch.rand(6, 7, 5, generator=generator) > 0.6
    each[..., 0] = False
    added = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    return {"bool": hidden.to(DEVICE), "float": added.to(DEVICE), "for each head": each.to(DEVICE)}


@pytest.mark.parametrize("padding", [None, "bool", "float"])
@pytest.mark.parametrize("kind", [None, "bool", "float", "for each head"])
@pytest.mark.filterwarnings("ignore:Support for mismatched")  # torch's own, of masks of two types
def test_masks_and_weights_are_those_of_torchs_multihead_attention(kind, padding) -> None:
    layer = layer_of(16, 2, Full(), dtype=torch.float64)
    twin = _as_multihead(layer)
    x, memory = drawn(3, 7, 16).double(), drawn(3, 5, 16).double()
    attn_mask = _masks()[kind] if kind else None
    late = torch.arange(5, device=DEVICE) >= torch.tensor([5, 3, 1], device=DEVICE)[:, None]
    padded = {None: None, "bool": late, "float": torch.where(late, float("-inf"), 0.25).double()}[padding]
    for average in (True, False):
        options = {"attn_mask": attn_mask, "key_padding_mask": padded, "average_attn_weights": average}
        ours = layer(x, memory, memory, need_weights=True, **options)
        theirs = twin(x, memory, memory, need_weights=True, **options)
        torch.testing.assert_close(ours, theirs)
        out, nothing = layer(x, memory, memory, padded, False, attn_mask, average)  # in torch's order
        torch.testing.assert_close(out, theirs[0])
        assert nothing is None


def test_rows_without_a_batch_and_the_causal_hint_are_those_of_torchs_multihead_attention() -> None:
    layer = layer_of(16, 2, Full(), dtype=torch.float64)
    twin = _as_multihead(layer)
    x = drawn(7, 16).double()
    later = torch.ones(7, 7, dtype=torch.bool, device=DEVICE).triu(1)
    each = later.expand(2, 7, 7).clone()
    each[1, :, 1:] = True
    for options in ({}, {"attn_mask": later, "is_causal": True}, {"attn_mask": each}):
        torch.testing.assert_close(
            layer(x, x, x, need_weights=True, **options), twin(x, x, x, need_weights=True, **options)
        )
        torch.testing.assert_close(layer(x, x, x, **options)[0], twin(x, x, x, need_weights=False, **options)[0])
    torch.testing.assert_close(
        layer_of(16, 2, Full(), causal=True, dtype=torch.float64)(x)[0], layer(x, attn_mask=later)[0]
    )


def test_masks_that_do_not_fit_and_a_hint_without_a_mask_are_refused() -> None:
    layer, x = layer_of(16, 2, TopK(3)), drawn(3, 7, 16)
    with pytest.raises(UsageError, match=r"is_causal is a hint.*attn_mask.*causal=True"):
        layer(x, is_causal=True)
    for shape in ((5, 7), (3, 7, 7), (1, 7)):
        with pytest.raises(UsageError, match=r"attn_mask has shape .*\(7, 7\) or \(6, 7, 7\)"):
            layer(x, attn_mask=torch.zeros(shape, dtype=torch.bool, device=DEVICE))
    with pytest.raises(UsageError, match=r"key_padding_mask has shape \(7, 3\).*\(3, 7\)"):
        layer(x, key_padding_mask=torch.zeros(7, 3, dtype=torch.bool, device=DEVICE))
    with pytest.raises(TypeError, match=r"attn_mask has dtype torch.int64"):
        layer(x, attn_mask=torch.zeros(7, 7, dtype=torch.int64, device=DEVICE))


def test_a_mask_of_the_layer_takes_keys_away_before_the_choice() -> None:
    layer, x = layer_of(16, 2, TopK(2)), drawn(3, 7, 16)
    hidden = torch.ones(7, 7, dtype=torch.bool, device=DEVICE).triu(1)
    _, weights = layer(x, attn_mask=hidden, need_weights=True, average_attn_weights=False)
    assert weights.shape == (3, 2, 7, 7)
    assert not weights[..., hidden].any()
    assert ((weights > 0).sum(-1) == torch.arange(1, 8, device=DEVICE).clamp(max=2)).all()


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


def test_the_layer_refuses_a_pair_without_a_meaning_when_it_is_made() -> None:
    with pytest.raises(UsageError, match="doubly with causal=True"):
        layer_of(16, 2, Full(), normaliser="doubly", causal=True)
