"""The paper's transformer, many at once: every parameter has a leading member axis E, and E = 1 is the ordinary case.

Shapes: E members, B examples, L positions, d model width, H heads, w head width, m MLP width, V ids, C classes.

    tokens (E, B, L) -> embedding * sqrt(d) + positions -> blocks -> mean over positions -> logits (E, B, C)

A spec that predicts positions has no mean: its logits are (E, B, L, C). All parameters of a cohort are one matrix
(E, P); `spec.Layout` says which columns are which. A member is one row of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from semfocus import counter_rng
from semfocus.attention.learned import Follow, of_call
from semfocus.attention.operator import attend
from semfocus.attention.selection import can_sync
from semfocus.encodings import distance_bias, encoding, rotated
from semfocus.encodings import positional_encoding as positional_encoding
from semfocus.encodings import sinusoidal_encoding as sinusoidal_encoding
from semfocus.errors import UsageError
from semfocus.spec import Spec


def _relu_squared(x: Tensor) -> Tensor:
    return functional.relu(x).square()


def _swiglu(x: Tensor) -> Tensor:
    """Half of the channels, each multiplied by its gate among the other half (Shazeer 2020, arXiv 2002.05202)."""
    value, gate = x.chunk(2, dim=-1)
    return value * functional.silu(gate)


ACTIVATIONS = {
    "relu": functional.relu, "gelu": functional.gelu, "mish": functional.mish, "relu2": _relu_squared,
    "swiglu": _swiglu,
}  # fmt: skip
NORM_EPSILON = 1e-5
MOST_PROGRAMS = 64  # compiled of one function
LOGITS_BY_POSITION = 4  # axes of logits (E, B, L, C)
ENOUGH_PROGRAMS = 128  # that a large GPU runs at once
MAX_SPLIT_WEIGHT = 2**17  # numbers: a copy of more for each example costs more than splitting the sum gains


def build_inputs(tokens: Tensor, lengths: Tensor, spec: Spec) -> tuple[Tensor, Tensor]:
    """A task's tokens (..., seq_len) as the model reads them, (..., L) int64, and the lengths (...) that it sees.

    Positions from a length on are padding, except for the extra tokens at the end.
    """
    pad = spec.vocab_size
    ids = functional.pad(tokens.long(), (0, spec.padded_len + spec.alignment_padding - spec.seq_len), value=pad)
    extra = torch.arange(pad + 1, pad + 1 + spec.extra_tokens, device=tokens.device)
    ids = torch.cat([ids, extra.expand(*ids.shape[:-1], -1)], dim=-1)
    return ids, torch.full_like(lengths, spec.padded_len) if spec.model.padding_visible else lengths


def valid_mask(lengths: Tensor, spec: Spec) -> Tensor:
    """(..., L) bool: False at padding, given the lengths (...) of `build_inputs`."""
    position = torch.arange(spec.length, device=lengths.device)
    return (position < lengths.unsqueeze(-1)) | (position >= spec.padded_len + spec.alignment_padding)


class Padding(NamedTuple):
    """Padding as `attend` takes it: lengths, which kernels skip, or a mask where extra tokens stand behind it."""

    lengths: Tensor | None = None
    mask: Tensor | None = None

    @staticmethod
    def of(lengths: Tensor | None, spec: Spec) -> Padding:
        """Of lengths (E, B); None: no example has padding."""
        if lengths is None:
            return Padding()
        if spec.extra_tokens:
            return Padding(mask=valid_mask(lengths, spec)[:, :, None, None, :])
        return Padding(lengths=lengths)

    def only(self, members: slice) -> Padding:
        """Of these members alone."""
        # A mask of distances is the same for all members.
        return Padding(*(part if part is None or part.dim() == 3 else part[members] for part in self))


def forward(
    parameters: dict[str, Tensor],
    tokens: Tensor,
    lengths: Tensor | None,
    spec: Spec,
    seeds: Tensor | None = None,
    parts: ForwardFns | None = None,
) -> Tensor:
    """Logits (E, B, C), or (E, B, seq_len, C) of a spec that predicts positions, of tokens (E, B, L).

    `tokens` and `lengths` (E, B) are those of `build_inputs`; None: no example has padding. `seeds` (sites, E) decide
    the dropout of a training step; None: evaluation.
    """
    parts = parts or EAGER
    own_positions = _position_seeds(spec, tokens) if seeds is None else seeds[0]
    pos_enc = encoding(spec, parameters.get("positions"), lengths, own_positions, tokens)
    x = parts.embed(parameters["embedding"], tokens, pos_enc, spec, None if seeds is None else seeds[0])
    own_seeds = _evaluation_seeds(spec, tokens) if seeds is None else seeds[1:].unflatten(0, (spec.model.blocks, -1))
    padding = Padding.of(lengths, spec)
    for i in range(spec.model.blocks):
        weights = [parameters[f"blocks.{i}.{name}"] for name in block_parameters(spec)]
        epsilon = 0.0 if spec.model.first_norm_exact and i == 0 else NORM_EPSILON
        block_seeds = None if own_seeds is None else own_seeds[i]
        x = parts.block(x, weights, padding, block_seeds, spec.of_block(i), epsilon, seeds is not None)
    if spec.model.final_norm:
        x = _norm(x, NORM_EPSILON, spec)
    return parts.apply_head(x, lengths, head_weight(parameters, spec), parameters.get("readout.bias"), spec)


def head_weight(parameters: dict[str, Tensor], spec: Spec) -> Tensor:
    """(E, d, C): the head's own weight, or the vectors of the tokens that can be predicted."""
    if spec.model.tied_head:
        return parameters["embedding"][:, : spec.num_classes].mT
    return parameters["readout.weight"]


def _norm(x: Tensor, epsilon: float, spec: Spec) -> Tensor:
    function = functional.rms_norm if spec.model.norm_function == "rmsnorm" else functional.layer_norm
    return function(x, (x.shape[-1],), eps=epsilon)


def block_parameters(spec: Spec) -> list[str]:
    """The names of a block's parameters, in the order in which `block` takes them."""
    kinds = ("weight", "bias") if spec.model.biases else ("weight",)
    linear = [f"{name}.{kind}" for name in ("qkv", "o", "mlp_in", "mlp_out") for kind in kinds]
    return [*linear, *(f"attention.{name}" for name, _ in spec.learned)]


def block(
    x: Tensor, weights: list[Tensor], padding: Padding, seeds: Tensor | None, spec: Spec, epsilon: float, train: bool
) -> Tensor:
    """One block: attention, then an MLP, each with a residual; a norm before (pre) or after (post) each.

    `weights` are those of `block_parameters`, in this order. `seeds` (4, E) decide
    dropout; in evaluation, (4, E, B) decide that of attention weights, if there is any.
    """
    p = spec.model.dropout if train else 0.0

    def drop(tensor: Tensor, site: int) -> Tensor:
        return counter_rng.dropout(tensor, seeds[site], p) if p and seeds is not None else tensor

    def norm(tensor: Tensor, eps: float) -> Tensor:
        return _norm(tensor, eps, spec)

    own = dict(zip(block_parameters(spec), weights, strict=True))
    learned = {name: own[f"attention.{name}"].unsqueeze(1) for name, _ in spec.learned}

    def linear(tensor: Tensor, name: str) -> Tensor:
        return _linear(tensor, own[f"{name}.weight"], own.get(f"{name}.bias"))

    pre = spec.model.norm == "pre"
    y = norm(x, epsilon) if pre else x
    q, k, v = (_split_heads(part, spec) for part in linear(y, "qkv").chunk(3, dim=-1))  # (E, B, H, L, w)
    if spec.model.position_kind == "rope":
        q, k = rotated(q, spec), rotated(k, spec)
    attn_out = _attention(q, k, v, padding, seeds, spec, train, of_call(spec.mechanism, spec.normaliser, learned, y))
    if train and any(part.average is not None for _, part in spec.learned):
        attn_out = _following(attn_out, learned, q, k, padding, spec)
    x = _added(x, drop(linear(attn_out.transpose(2, 3).flatten(3), "o"), 1))
    x = x if pre else norm(x, epsilon)
    hidden = drop(linear(norm(x, NORM_EPSILON) if pre else x, "mlp_in"), 2)
    x = _added(x, drop(linear(ACTIVATIONS[spec.model.activation](hidden), "mlp_out"), 3))
    return x if pre else norm(x, NORM_EPSILON)


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    padding: Padding,
    seeds: Tensor | None,
    spec: Spec,
    train: bool,
    learned: dict[str, Tensor] | None = None,
) -> Tensor:
    """(E, B, H, L, w): each member by its own mechanism; members of one mechanism stand together."""
    outs = []
    if spec.model.position_kind == "alibi":
        bias = distance_bias(spec, q.device, q.dtype)
        hidden = bias if padding.mask is None else torch.where(padding.mask, bias, float("-inf"))
        padding = padding._replace(mask=hidden)
    for part, members in spec.by_attention:
        settings = attention_settings(None if seeds is None else seeds[:, members], part, train)
        own = padding.only(members)._asdict()
        outs.append(attend(q[members], k[members], v[members], part.mechanism, learned=learned, **own, **settings))
    return outs[0] if len(outs) == 1 else torch.cat(outs)


def _following(
    attn_out: Tensor, learned: dict[str, Tensor], q: Tensor, k: Tensor, padding: Padding, spec: Spec
) -> Tensor:
    """The same, with the gaps of averaged parameters as their gradients."""
    valid = padding.mask[..., 0, :] if padding.mask is not None else None
    if padding.lengths is not None:
        valid = (torch.arange(k.shape[-2], device=k.device) < padding.lengths[..., None])[:, :, None]
    own = {name: weight.squeeze(1) for name, weight in learned.items()}
    queries, keys = (spec.normaliser.prepared(part) for part in (q, k))
    for name, gap in spec.mechanism.gaps(own, queries, keys, valid).items():
        attn_out = Follow.apply(attn_out, learned[name], gap.unsqueeze(1))
    return attn_out


def attention_settings(seeds: Tensor | None, spec: Spec, train: bool) -> dict[str, Any]:
    """The arguments of `attend` beside q, k, v, mechanism and padding."""
    p = spec.model.dropout if train or spec.model.dropout_in_evaluation else 0.0
    return {
        "causal": spec.is_causal,
        "normaliser": spec.normaliser,
        "scale": spec.attention.inverse_temperature / math.sqrt(spec.model.head_dim),
        "dropout_p": p if seeds is not None else 0.0,
        "seed": None if seeds is None else seeds[0].view(seeds.shape[1], -1, 1),
        "assume_finite": True,
    }


def embed(table: Tensor, tokens: Tensor, pos_enc: Tensor, spec: Spec, seed: Tensor | None) -> Tensor:
    """(E, B, L, d): the vectors of tokens (E, B, L) in each member's table (E, V, d), scaled, plus positions.

    `pos_enc` is broadcastable to the result.
    """
    members, ids, d = table.shape
    offsets = (torch.arange(members, device=table.device) * ids).view(-1, 1, 1)
    x = functional.embedding(tokens + offsets, table.flatten(0, 1)) * math.sqrt(d)
    x = x + pos_enc
    return counter_rng.dropout(x, seed, spec.model.dropout) if seed is not None and spec.model.dropout else x


def _added(x: Tensor, change: Tensor) -> Tensor:
    """The residual plus a layer's output: in place where both have one type; autocast gives the output fewer bits."""
    return change.add_(x) if change.dtype == x.dtype else x + change


def apply_head(x: Tensor, lengths: Tensor | None, weight: Tensor, bias: Tensor | None, spec: Spec) -> Tensor:
    """Logits of x (E, B, L, d): (E, B, C) of the pooled positions, or (E, B, seq_len, C), one set a position."""
    if spec.predicts_positions:
        return _linear(x[:, :, : spec.seq_len], weight, bias)
    logits = _pool(x, lengths, spec) @ weight
    return logits if bias is None else logits + bias.unsqueeze(1)


def _pool(x: Tensor, lengths: Tensor | None, spec: Spec) -> Tensor:
    """(E, B, d): the CLS token, or the mean over valid positions; global tokens count only where padding does."""
    if spec.model.pooling == "cls":
        return x[:, :, spec.padded_len + spec.alignment_padding]
    if not spec.model.padding_visible:
        x = x[:, :, : spec.padded_len]
    if lengths is None:
        return x.mean(dim=2)
    valid = valid_mask(lengths, spec)[:, :, : x.shape[2], None].to(x.dtype)
    return (x * valid).sum(dim=2) / valid.sum(dim=2)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (E, B, L, i) times weight (E, i, o), plus bias."""
    members, batch = x.shape[:2]
    # The gradient of a weight sums over B L positions. With few members a GPU needs that sum split, unless the weight
    # is so large that its own tiles are programs enough.
    is_small = members * 4 < ENOUGH_PROGRAMS and weight[0].numel() <= MAX_SPLIT_WEIGHT
    splits = batch if x.is_cuda and is_small and torch.is_grad_enabled() else 1
    flat = x.reshape(members * splits, -1, x.shape[-1])
    if splits == 1:
        product = torch.bmm(flat, weight) if bias is None else torch.baddbmm(bias.unsqueeze(1), flat, weight)
        return product.view(*x.shape[:-1], -1)
    repeated = weight.unsqueeze(1).expand(-1, splits, -1, -1).reshape(members * splits, *weight.shape[1:])
    product = torch.bmm(flat, repeated).view(*x.shape[:-1], -1)
    return product if bias is None else product.add_(bias[:, None, None])  # in place: saves memory traffic


def _split_heads(x: Tensor, spec: Spec) -> Tensor:
    """(E, B, L, H w) as attention takes it: (E, B, H, L, w)."""
    return x.unflatten(-1, (spec.model.heads, spec.model.head_dim)).transpose(2, 3)


def _position_seeds(spec: Spec, tokens: Tensor) -> Tensor | None:
    """(E, B) what draws randomized positions in evaluation: an example's own tokens, as for other random choices."""
    return _content(spec, tokens) if spec.model.position_kind == "randomized" else None


def _evaluation_seeds(spec: Spec, tokens: Tensor) -> Tensor | None:
    """Seeds (blocks, 4, E, B) of what is random in evaluation: dropout as a quirk, and random choices of keys.

    They follow from an example's own tokens, so that its logits depend neither on its batch nor on its cohort. In a
    causal model they follow from its first token alone: no position may learn anything of the tokens after it.
    """
    if not spec.model.dropout_in_evaluation and not spec.chooses_at_random:
        return None
    zero = torch.zeros((), dtype=torch.int64, device=tokens.device)
    content = _content(spec, tokens)
    return counter_rng.fold_in(content, zero, spec.num_dropout_sites)[1:].unflatten(0, (spec.model.blocks, -1))


def _content(spec: Spec, tokens: Tensor) -> Tensor:
    """(E, B) int64: a hash of each example's tokens, or of its first token in a causal model."""
    first = getattr(spec.mechanism, "seed", 0)
    seen = tokens[..., :1] if spec.is_causal else tokens
    seed = torch.full((), first, dtype=torch.int64, device=tokens.device)
    position = torch.arange(seen.shape[-1], dtype=torch.int32, device=tokens.device)
    return counter_rng.random_bits(seed, seen.to(torch.int32), position).to(torch.int64).sum(dim=-1)


def weighted_loss(
    objective_loss: Callable[[Tensor, Tensor], Tensor], logits: Tensor, targets: Tensor, weights: Tensor, total: Tensor
) -> Tensor:
    """(E,): the losses (E, B) of an objective, summed over examples with weights (B,), over `total`."""
    return (objective_loss(widened(logits), targets) * weights).sum(dim=1) / total


def widened(logits: Tensor) -> Tensor:
    """Logits in 32 bits at least: a loss sums over many."""
    return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits


@dataclass(frozen=True)
class ForwardFns:
    """The functions that a step consists of: eager, compiled or fused."""

    embed: Callable[..., Tensor] = embed
    block: Callable[..., Tensor] = block
    apply_head: Callable[..., Tensor] = apply_head
    loss: Callable[..., Tensor] = weighted_loss
    fold_in: Callable[..., Tensor] = counter_rng.fold_in
    sgd_update: Callable[..., None] | None = None  # clips and updates in place; None: by torch, see `TrainStep`

    @staticmethod
    def compiled() -> ForwardFns:
        """Newly compiled. Every cohort has its own shapes; without the reset torch counts them as recompilations of one
        function and, after a few, silently stops compiling."""
        torch.compiler.reset()
        # A plan has a block compiled for each of its mechanisms, in training and in evaluation. Beyond torch's limit of
        # eight the others would run without a compiler, and without a word.
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, MOST_PROGRAMS)
        fast_embed, fast_block = torch.compile(embed, dynamic=False), torch.compile(block, dynamic=False)

        # On a CPU, functions with random numbers stay eager. There torch 2.13 writes the hash of `counter_rng` as C++
        # with signed overflow, which is undefined: g++ ran a loop past its end and read tokens out of bounds. Inductor
        # also inlines the hash, which uses each value twice, and takes minutes.
        def by_device_embed(table: Tensor, tokens: Tensor, pos_enc: Tensor, spec: Spec, seed: Tensor | None) -> Tensor:
            chosen = embed if seed is not None and table.device.type == "cpu" else fast_embed
            return chosen(table, tokens, pos_enc, spec, seed)

        def by_device_block(
            x: Tensor, weights: list[Tensor], padding: Padding, seeds: Tensor | None, *rest: Any
        ) -> Tensor:
            chosen = block if seeds is not None and x.device.type == "cpu" else fast_block
            return chosen(x, weights, padding, seeds, *rest)

        fast_fold_in = torch.compile(counter_rng.fold_in, dynamic=False)

        def by_device_fold_in(seed: Tensor, step: Tensor, sites: int) -> Tensor:
            return (counter_rng.fold_in if seed.device.type == "cpu" else fast_fold_in)(seed, step, sites)

        # Eager, a loss over a large vocabulary reads and writes logits of 32 bits several times.
        fast_loss = torch.compile(weighted_loss, dynamic=False)

        def by_size_loss(loss: Callable, logits: Tensor, *rest: Tensor) -> Tensor:
            is_worth_it = logits.is_cuda and logits.dim() == LOGITS_BY_POSITION
            return (fast_loss if is_worth_it else weighted_loss)(loss, logits, *rest)

        fast_head = torch.compile(apply_head, dynamic=False)
        return ForwardFns(by_device_embed, by_device_block, fast_head, by_size_loss, by_device_fold_in)


EAGER = ForwardFns()


class Encoder(nn.Module):
    """One member as an ordinary module: `Encoder(spec, row)(tokens, lengths) -> logits (B, C)`, without dropout.

    `row` (P,) are its parameters. A spec that predicts positions gives logits (B, L, C).
    """

    def __init__(self, spec: Spec, row: Tensor) -> None:
        super().__init__()
        self.spec = spec
        for name, value in spec.layout.split(row.unsqueeze(0)).items():
            self.register_parameter(name.replace(".", "__"), nn.Parameter(value[0].clone()))

    def forward(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Examples may have any length: positions extend. An example ends at its length, or at the last column.

        What is drawn at random (keys, positions) follows from the whole row, padding included: give rows one width.
        """
        spec = replace(self.spec, seq_len=tokens.shape[-1])
        if can_sync(tokens) and tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) <= spec.vocab_size:
            wrong = int(tokens.min()) if int(tokens.min()) < 0 else int(tokens.max())
            raise UsageError(
                f"tokens hold the id {wrong}, and this model knows {spec.vocab_size}: 0 .. {spec.vocab_size - 1}, and "
                f"{spec.vocab_size} for padding; take the tokens of the task that it was trained on"
            )
        if lengths is None:
            lengths = torch.full(tokens.shape[:1], tokens.shape[-1], device=tokens.device)
        ids, lengths = build_inputs(tokens, lengths, spec)
        parameters = {name.replace("__", "."): value.unsqueeze(0) for name, value in self.named_parameters()}
        return forward(parameters, ids.unsqueeze(0), lengths.unsqueeze(0), spec)[0]

    @torch.no_grad()
    def predict(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The most probable class (B,) of each example, or (B, L) of each position."""
        return self(tokens, lengths).argmax(dim=-1)

    def row(self) -> Tensor:
        """(P,) the parameters as a row of a cohort's matrix."""
        return self.spec.layout.join(value.detach().unsqueeze(0) for value in self.parameters())[0]
