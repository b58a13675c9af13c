"""The exact local Lipschitz constant of the attention layers of a trained model, by the number of tokens.

    measure_smoothness(run).exponent         the slope of log constant in log length, from 10 to 600 tokens

A layer here is what a block adds by attention: from the tokens that enter it (after the LayerNorm of a pre-norm block)
to the sum of its heads after the output projection, without the residual. Its constant at an input is the spectral norm
of its Jacobian there, in the Frobenius norm over tokens. Where keys are chosen, the chosen set is held fixed: around
almost every input it does not change. Inputs are examples of the split `test`, drawn at each length. Each length is
stored as soon as it is measured, so that an interrupted measurement goes on where it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from semfocus.attention.dense import dense
from semfocus.attention.inputs import AttentionInputs
from semfocus.attention.inspection import observing
from semfocus.diagnostics.lengths import examples_at, newest_step
from semfocus.errors import UsageError, check_int
from semfocus.measurements import Smoothness, keep, read
from semfocus.model.encoder import Encoder
from semfocus.model.forward import forward
from semfocus.model.forward_fns import EAGER, ForwardFns
from semfocus.model.inputs import build_inputs
from semfocus.spec import Spec
from semfocus.store import RunDirectory, RunStore
from semfocus.theory import measure_head, spectral_norm
from semfocus.theory.smoothness import local_constant, sqrt_n_bound
from semfocus.training.loading import config_of, load
from semfocus.training.runtime import Runtime, numerics

LENGTHS = (10, 20, 40, 80, 160, 320, 600)
ROWS = 4
STEPS, TOLERANCE = 200, 1e-4  # of the power iteration
ADDED = ("sine", "learned", "none", "randomized")  # positions that leave scores bilinear in the tokens


@dataclass(frozen=True, eq=False)
class Layer:
    """One attention layer at some inputs: the tokens that enter it, its weights, and its call of `attend`."""

    tokens: Tensor  # (B, L, d) float64
    qkv_weight: Tensor  # (d, 3 H w)
    qkv_bias: Tensor
    o_weight: Tensor  # (H w, d)
    call: AttentionInputs  # of (1, B, H, L, w)

    def __call__(self, tokens: Tensor) -> Tensor:
        """(B, L, d) what attention adds; the choice of keys is a constant for the derivative."""
        heads, width = self.call.q.shape[2], self.call.q.shape[-1]
        parts = (tokens @ self.qkv_weight + self.qkv_bias).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (heads, width)).transpose(1, 2).unsqueeze(0) for part in parts)
        out, _ = dense(replace(self.call, q=q, k=k, v=v))
        return out[0].transpose(1, 2).flatten(2) @ self.o_weight

    def certified(self) -> float:
        """The bound by the norms measured on these tokens, for this choice of keys; heads add up."""
        return sum(self._of_heads(self._head))

    def sqrt_n(self) -> float:
        """The bound of arXiv 2312.14820 for all tokens as long as these; heads add up.

        Biases are weights of one more channel, in which every token is 1.
        """
        return sum(self._of_heads(self._sqrt_n))

    def _of_heads(self, of: Callable[[int, list[Tensor], list[Tensor], Tensor], float]) -> list[float]:
        heads, width = self.call.q.shape[2], self.call.q.shape[-1]
        matrices, biases = self.qkv_weight.chunk(3, dim=-1), self.qkv_bias.chunk(3)
        values = []
        for head in range(heads):
            own = slice(head * width, (head + 1) * width)
            columns, shifts = [part[:, own] for part in matrices], [part[own] for part in biases]
            values.append(of(head, columns, shifts, self.o_weight[own]))
        return values

    def _head(self, head: int, columns: list[Tensor], shifts: list[Tensor], output: Tensor) -> float:
        q, k = (self.tokens @ columns[i] + shifts[i] for i in range(2))
        scores = self.call.scale * q @ k.mT
        chosen = self.call.mechanism.choose(
            self.call.selection(
                (self.call.q @ self.call.k.mT) * self.call.scale, self.call.q, self.call.k, self.call.positions()
            )
        )
        keep = chosen.expand(1, len(scores), self.call.q.shape[2], *scores.shape[1:])[0, :, head]
        linears = [(column.T, shift) for column, shift in zip(columns, shifts, strict=True)]
        norms = measure_head(
            self.tokens, query=linears[0], key=linears[1], value=linears[2], output=output.T,
            scale=self.call.scale, keep=keep,
        )  # fmt: skip
        return norms.gains.frobenius

    def _sqrt_n(self, head: int, columns: list[Tensor], shifts: list[Tensor], output: Tensor) -> float:
        query, key, _ = (torch.cat([c, s[None]]) for c, s in zip(columns, shifts, strict=True))
        longest = math.hypot(self.tokens.norm(dim=-1).max().item(), 1.0)
        gamma, upsilon = spectral_norm(self.call.scale * query @ key.T), spectral_norm(columns[2] @ output)
        return sqrt_n_bound(self.tokens.shape[1], gamma=gamma, xi=longest, upsilon=upsilon)


@torch.no_grad()
def layers_of(model: Encoder, tokens: Tensor) -> list[Layer]:
    """The attention layers of a model on examples (B, L) without padding, in float64."""
    spec = replace(model.spec, seq_len=tokens.shape[-1])
    _check(spec)
    entering: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    calls: list[AttentionInputs] = []

    def block(x: Tensor, weights: list[Tensor], padding, seeds, spec, epsilon: float, train: bool) -> Tensor:
        is_pre = spec.model.norm == "pre"
        y = torch.nn.functional.layer_norm(x, x.shape[-1:], eps=epsilon) if is_pre else x
        qkv_weight, qkv_bias, o_weight, *_ = weights
        entering.append((y[0], qkv_weight[0], qkv_bias[0], o_weight[0]))
        return EAGER.block(x, weights, padding, seeds, spec, epsilon, train)

    lengths = torch.full(tokens.shape[:1], tokens.shape[-1], device=tokens.device)
    ids, lengths = build_inputs(tokens, lengths, spec)
    parameters = {name.replace("__", "."): value.double()[None] for name, value in model.named_parameters()}
    with observing(lambda inputs, grouped: calls.append(inputs)):
        forward(parameters, ids[None], lengths[None], spec, None, ForwardFns(block=block))
    return [Layer(*tensors, call) for tensors, call in zip(entering, calls, strict=True)]


def measure_smoothness(
    run: str | Path | RunDirectory,
    lengths: Sequence[int] = LENGTHS,
    rows: int = ROWS,
    runtime: Runtime = Runtime(),
    *,
    out: Path | str | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Smoothness:
    """Measure the newest model at these lengths; what is stored already is read."""
    directory = run if isinstance(run, RunDirectory) else RunStore(out).find(str(run))
    check_int("rows", rows, at_least=1)
    config, model = config_of(directory), load(directory)
    _check(model.spec)
    settings = {"step": newest_step(directory), "rows": rows}
    measured = read(directory, Smoothness, settings)
    asked = [check_int("length", length, at_least=2) for length in lengths]
    for done, length in enumerate(asked):
        on_progress(done, len(asked))
        if measured is None or length not in measured.points:
            tokens = examples_at(config, length, rows)
            with numerics(config.precision, runtime.threads or runtime.num_threads()):
                point = smoothness_at(model.to(runtime.torch_device()), tokens)
            measured = keep(directory, Smoothness.from_payload({**settings, "points": {str(length): point}}))
    on_progress(len(asked), len(asked))
    if measured is None:
        raise UsageError("no length was asked for; give at least one")
    return measured


def smoothness_at(model: Encoder, tokens: Tensor) -> dict[str, float]:
    """Geometric means over the layers, and the examples (B, L), as a measurement stores them."""
    layers = layers_of(model, tokens.to(next(model.parameters()).device))
    local = [local_constant(layer, layer.tokens, steps=STEPS, tolerance=TOLERANCE) for layer in layers]
    constants = torch.stack([one.constant for one in local])
    return {
        "constant": constants.clamp(min=1e-12).log().mean().exp().item(),
        "certified": math.exp(sum(math.log(layer.certified()) for layer in layers) / len(layers)),
        "sqrt_n": math.exp(sum(math.log(layer.sqrt_n()) for layer in layers) / len(layers)),
        "settled": torch.stack([one.settled for one in local]).double().mean().item(),
    }


def _check(spec: Spec) -> None:
    if not spec.normaliser.is_softmax or spec.learned:
        raise UsageError(
            f"smoothness is measured of softmax over chosen keys, not of {spec.plan} with "
            f"{spec.attention.normaliser}: its weights have other bounds"
        )
    if not spec.model.is_as_published:
        raise UsageError("smoothness is measured of layers such as the paper's: with biases, after LayerNorm")
    if spec.model.position_kind not in ADDED:
        raise UsageError(
            f"model.positions = {spec.model.positions} changes the scores, for which the bounds do not hold; "
            f"smoothness is measured with {', '.join(ADDED)}"
        )
