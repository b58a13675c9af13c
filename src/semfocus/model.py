"""The paper's encoder, many at once: every parameter has a leading member axis E, and E = 1 is the ordinary case.

Shapes: E members, B rows, L positions, d model width, H heads, w head width, m MLP width, V ids, C classes.

    tokens (E, B, L) -> embedding * sqrt(d) + positions -> blocks -> mean over positions -> logits (E, B, C)

All parameters of a cohort are one matrix (E, P); `spec.Layout` says which columns are which. A member is a row of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from semfocus import counter_rng
from semfocus.attention.operator import attend
from semfocus.spec import Spec

ACTIVATIONS = {"relu": functional.relu, "gelu": functional.gelu, "mish": functional.mish}
NORM_EPSILON = 1e-5
ENOUGH_PROGRAMS = 128  # that a large GPU wants to run at once


def build_inputs(tokens: Tensor, lengths: Tensor, spec: Spec) -> tuple[Tensor, Tensor]:
    """Rows (..., width) as the model reads them (..., L) int64, and which positions hold something (..., L) bool."""
    pad = spec.vocab_size
    rows = functional.pad(tokens.long(), (0, spec.padded_len + spec.alignment_padding - spec.seq_len), value=pad)
    extra = torch.arange(pad + 1, pad + 1 + spec.extra_tokens, device=tokens.device)
    rows = torch.cat([rows, extra.expand(*rows.shape[:-1], -1)], dim=-1)
    position = torch.arange(spec.length, device=tokens.device)
    ends = torch.full_like(lengths, spec.padded_len) if spec.model.padding_visible else lengths
    return rows, (position < ends.unsqueeze(-1)) | (position >= spec.padded_len + spec.alignment_padding)


@lru_cache(maxsize=64)
def sinusoidal_encoding(
    length: int, width: int, device: torch.device, padding_end: int = 0, alignment_padding: int = 0
) -> Tensor:
    """(L, d) fixed sine and cosine pos_enc, for any length. Kept: a captured GPU step cannot copy from the host.

    What stands behind the alignment_padding is counted as if there were none.
    """
    with torch.inference_mode(False):  # whoever asks first: what is kept must serve every later caller
        place = torch.arange(length, dtype=torch.float64).unsqueeze(-1)
        place = torch.where(place >= padding_end, place - alignment_padding, place)
        rate = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-math.log(10000.0) / width))
        pos_enc = torch.stack([(place * rate).sin(), (place * rate).cos()], dim=-1).flatten(-2)
        # Inside torch.func every tensor is wrapped for as long as the transform lasts; the pos_enc outlast it.
        return torch.func.debug_unwrap(pos_enc[:, :width].float().to(device))


class Padding(NamedTuple):
    """What attention is told of it: where rows end, so that kernels pass it over, or which keys are none."""

    lengths: Tensor | None = None
    mask: Tensor | None = None

    @staticmethod
    def of(valid_mask: Tensor | None, spec: Spec) -> Padding:
        if valid_mask is None:
            return Padding()
        if spec.extra_tokens:  # which stand behind it
            return Padding(mask=valid_mask[:, :, None, None, :])
        return Padding(lengths=valid_mask.sum(dim=-1))


def forward(
    parameters: dict[str, Tensor],
    tokens: Tensor,
    valid_mask: Tensor | None,
    spec: Spec,
    seeds: Tensor | None = None,
    parts: ForwardFns | None = None,
) -> Tensor:
    """Logits (E, B, C) of rows (E, B, L). `seeds` (places, E): a training step.

    `valid_mask` (E, B, L) is what `build_inputs` gives; None: no row has padding.
    """
    parts = parts or EAGER
    behind = spec.padded_len + spec.alignment_padding
    pos_enc = sinusoidal_encoding(spec.length, spec.model.d_model, tokens.device, behind, spec.alignment_padding)
    x = parts.embed(parameters["embedding"], tokens, pos_enc, spec, None if seeds is None else seeds[0])
    own_seeds = _evaluation_seeds(spec, tokens) if seeds is None else seeds[1:].unflatten(0, (spec.model.blocks, -1))
    padding = Padding.of(valid_mask, spec)
    for i in range(spec.model.blocks):
        weights = [parameters[f"blocks.{i}.{name}"] for name in BLOCK_PARAMETERS]
        epsilon = 0.0 if spec.model.first_norm_exact and i == 0 else NORM_EPSILON
        block_seeds = None if own_seeds is None else own_seeds[i]
        x = parts.block(x, weights, padding, block_seeds, spec, epsilon, seeds is not None)
    return parts.head(x, valid_mask, parameters["readout.weight"], parameters["readout.bias"], spec)


BLOCK_PARAMETERS = [f"{name}.{kind}" for name in ("qkv", "o", "mlp_in", "mlp_out") for kind in ("weight", "bias")]


def block(
    x: Tensor, weights: list[Tensor], padding: Padding, seeds: Tensor | None, spec: Spec, epsilon: float, train: bool
) -> Tensor:
    """One block: attention, then an MLP, each with a residual; LayerNorm before (pre) or after (post) each.

    `seeds` (4, E) decide dropout; in evaluation, (4, E, B) that of attention weights, if at all.
    """
    p = spec.model.dropout if train else 0.0

    def drop(tensor: Tensor, place: int) -> Tensor:
        return counter_rng.dropout(tensor, seeds[place], p) if p and seeds is not None else tensor

    def norm(tensor: Tensor, eps: float) -> Tensor:
        return functional.layer_norm(tensor, (tensor.shape[-1],), eps=eps)

    aw, ab, ow, ob, iw, ib, tw, tb = weights
    pre = spec.model.norm == "pre"
    y = norm(x, epsilon) if pre else x
    q, k, v = (_heads(part, spec) for part in _linear(y, aw, ab).chunk(3, dim=-1))
    attn_out = attend(q, k, v, spec.mechanism, **padding._asdict(), **attention_settings(seeds, spec, train))
    x = drop(_linear(attn_out.transpose(2, 3).flatten(3), ow, ob), 1).add_(x)
    x = x if pre else norm(x, epsilon)
    hidden = drop(_linear(norm(x, NORM_EPSILON) if pre else x, iw, ib), 2)
    x = drop(_linear(ACTIVATIONS[spec.model.activation](hidden), tw, tb), 3).add_(x)
    return x if pre else norm(x, NORM_EPSILON)


def attention_settings(seeds: Tensor | None, spec: Spec, train: bool) -> dict[str, Any]:
    """What attention is asked for beside q, k, v and padding."""
    p = spec.model.dropout if train or spec.model.dropout_in_evaluation else 0.0
    return {
        "normaliser": spec.normaliser,
        "scale": spec.attention.inverse_temperature / math.sqrt(spec.model.head_dim),
        "dropout_p": p if seeds is not None else 0.0,
        "seed": None if seeds is None else seeds[0].view(seeds.shape[1], -1, 1),
        "assume_finite": True,
    }


def embed(table: Tensor, tokens: Tensor, pos_enc: Tensor, spec: Spec, seed: Tensor | None) -> Tensor:
    """(E, B, L, d): each member's own vectors, scaled, plus positions."""
    members, ids, d = table.shape
    offsets = (torch.arange(members, device=table.device) * ids).view(-1, 1, 1)
    x = functional.embedding(tokens + offsets, table.flatten(0, 1)) * math.sqrt(d)
    x = x + pos_enc
    return counter_rng.dropout(x, seed, spec.model.dropout) if seed is not None and spec.model.dropout else x


def head(x: Tensor, valid_mask: Tensor | None, weight: Tensor, bias: Tensor, spec: Spec) -> Tensor:
    """(E, B, C) logits."""
    return _pool(x, valid_mask, spec) @ weight + bias.unsqueeze(1)


def _pool(x: Tensor, valid_mask: Tensor | None, spec: Spec) -> Tensor:
    """(E, B, d): the mean over what each row holds; global tokens count only where padding does."""
    if spec.model.pooling == "cls":
        return x[:, :, spec.padded_len + spec.alignment_padding]
    if not spec.model.padding_visible:
        x = x[:, :, : spec.padded_len]
    if valid_mask is None:
        return x.mean(dim=2)
    inside = valid_mask[:, :, : x.shape[2], None].to(x.dtype)
    return (x * inside).sum(dim=2) / inside.sum(dim=2)


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x (E, B, L, i) times weight (E, i, o), plus bias."""
    members, batch = x.shape[:2]
    # The gradient of a weight sums over B L positions: with few members a GPU needs that sum cut into pieces.
    pieces = batch if x.is_cuda and members * 4 < ENOUGH_PROGRAMS and torch.is_grad_enabled() else 1
    cut = x.reshape(members * pieces, -1, x.shape[-1])
    if pieces == 1:
        return torch.baddbmm(bias.unsqueeze(1), cut, weight).view(*x.shape[:-1], -1)
    wide = weight.unsqueeze(1).expand(-1, pieces, -1, -1).reshape(members * pieces, *weight.shape[1:])
    return torch.bmm(cut, wide).view(*x.shape[:-1], -1).add_(bias[:, None, None])  # in place: memory is what costs


def _heads(x: Tensor, spec: Spec) -> Tensor:
    return x.unflatten(-1, (spec.model.heads, spec.model.head_dim)).transpose(2, 3)


def _evaluation_seeds(spec: Spec, tokens: Tensor) -> Tensor | None:
    """Seeds (blocks, 4, E, B) for what draws in evaluation: dropout as a quirk, and random choices of keys.

    They follow from a row's own tokens, so that its scores depend neither on its batch nor on its member's cohort.
    """
    if not spec.model.dropout_in_evaluation and not spec.mechanism.is_stochastic:
        return None
    first = getattr(spec.mechanism, "seed", 0)
    zero = torch.zeros((), dtype=torch.int64, device=tokens.device)
    place = torch.arange(tokens.shape[-1], dtype=torch.int32, device=tokens.device)
    content = counter_rng.random_bits(zero + first, tokens.to(torch.int32), place).to(torch.int64).sum(dim=-1)
    return counter_rng.fold_in(content, zero, spec.num_dropout_sites)[1:].unflatten(0, (spec.model.blocks, -1))


@dataclass(frozen=True)
class ForwardFns:
    """The three functions a forward pass is made of, plain or compiled."""

    embed: Callable[..., Tensor] = embed
    block: Callable[..., Tensor] = block
    head: Callable[..., Tensor] = head

    @staticmethod
    def compiled() -> ForwardFns:
        """Compiled afresh. Every cohort has its own shapes; without the reset torch counts them as one function's
        recompilations and, after a few, quietly stops compiling."""
        torch.compiler.reset()
        fast_embed, fast_block = torch.compile(embed, dynamic=False), torch.compile(block, dynamic=False)

        # What draws stays plain on a CPU. There torch 2.13 writes the hash of `counters` as C++ in which signed numbers
        # overflow, which a C++ compiler may take never to happen: g++ ran a loop past its end and looked up tokens that
        # were none. The hash also uses each of its values twice, and writing it all out took Inductor minutes.
        def by_device_embed(table: Tensor, tokens: Tensor, pos_enc: Tensor, spec: Spec, seed: Tensor | None) -> Tensor:
            chosen = embed if seed is not None and table.device.type == "cpu" else fast_embed
            return chosen(table, tokens, pos_enc, spec, seed)

        def by_device_block(
            x: Tensor, weights: list[Tensor], padding: Padding, seeds: Tensor | None, *rest: Any
        ) -> Tensor:
            chosen = block if seeds is not None and x.device.type == "cpu" else fast_block
            return chosen(x, weights, padding, seeds, *rest)

        return ForwardFns(by_device_embed, by_device_block, torch.compile(head, dynamic=False))


EAGER = ForwardFns()


class Encoder(nn.Module):
    """One member as an ordinary module: `Encoder(spec, row)(tokens, lengths) -> logits (B, C)`, without dropout."""

    def __init__(self, spec: Spec, row: Tensor) -> None:
        super().__init__()
        self.spec = spec
        for name, value in spec.layout.split(row.unsqueeze(0)).items():
            self.register_parameter(name.replace(".", "__"), nn.Parameter(value[0].clone()))

    def forward(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Rows may be of any length: positions extend; a row ends at its length, or at the last column."""
        spec = self._spec_for(tokens.shape[-1])
        ends = torch.full(tokens.shape[:1], tokens.shape[-1], device=tokens.device) if lengths is None else lengths
        rows, valid_mask = build_inputs(tokens, ends, spec)
        parameters = {name.replace("__", "."): value.unsqueeze(0) for name, value in self.named_parameters()}
        return forward(parameters, rows.unsqueeze(0), valid_mask.unsqueeze(0), spec)[0]

    @torch.no_grad()
    def predict(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(B,) the most probable class of each row."""
        return self(tokens, lengths).argmax(dim=-1)

    def row(self) -> Tensor:
        """(P,) the parameters as a row of a cohort's matrix."""
        return self.spec.layout.join(value.detach().unsqueeze(0) for value in self.parameters())[0]

    def _spec_for(self, width: int) -> Spec:
        spec = self.spec
        return Spec(spec.model, spec.attention, spec.vocab_size, spec.num_classes, width)
