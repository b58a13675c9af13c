"""The sizes of a model's weights that the theory speaks of: one entry for each block.

gamma     |W| of each head, W = scale * W_q W_k': no score of two tokens of norm xi exceeds gamma xi^2 (biases aside)
upsilon   |W_v W_o| of each head: how much a mixture of tokens can grow on its way out
mlp       how far the MLP's output can move for a unit move of its input
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from semfocus.model import Encoder
from semfocus.theory import mlp_constant, spectral_norm


def weight_norms(model: Encoder) -> list[dict[str, Any]]:
    """gamma and upsilon (a number a head) and mlp of every block, spectral norms in float64; None: not finite."""
    parameters = {name.replace("__", "."): value.detach() for name, value in model.named_parameters()}
    return [_block(model, {name: parameters[f"blocks.{i}.{name}.weight"] for name in ("qkv", "o", "mlp_in", "mlp_out")})
            for i in range(model.spec.model.blocks)]  # fmt: skip


def _block(model: Encoder, weights: dict[str, Tensor]) -> dict[str, Any]:
    shape, width = model.spec.model, model.spec.model.head_dim
    scale = model.spec.attention.inverse_temperature / math.sqrt(width)
    queries, keys, values = (part.double().split(width, dim=1) for part in weights["qkv"].chunk(3, dim=1))
    outputs = weights["o"].double().split(width, dim=0)
    first, second = _norm(weights["mlp_in"]), _norm(weights["mlp_out"])
    return {
        "gamma": [_norm(scale * q @ k.mT) for q, k in zip(queries, keys, strict=True)],
        "upsilon": [_norm(v @ o) for v, o in zip(values, outputs, strict=True)],
        "mlp": None if first is None or second is None else mlp_constant(first, second, shape.activation),
    }


def _norm(matrix: Tensor) -> float | None:
    return spectral_norm(matrix) if bool(matrix.isfinite().all()) else None
