"""WHY it works: the paper's quantities and bounds, and ours beside them. Tensors in, numbers out, float64 inside."""

from semfocus.theory.composition import (
    BlockConstants,
    BlockNorms,
    GroupConstants,
    LossConstants,
    block_constants,
    certify,
    covering,
)
from semfocus.theory.layers import (
    Gains,
    HeadNorms,
    NormRows,
    activation_constant,
    layer_norm_constant,
    measure_head,
    mlp_constant,
    spectral_norm,
)
from semfocus.theory.lipschitz import Region, condition_w, condition_x, lipschitz_w, lipschitz_x, region
from semfocus.theory.scores import aggregate, dispersion, in_degree, separation, sink_ratio
from semfocus.theory.softmax import softmax_jacobian_norm, stability, weight_bound

__all__ = [
    "BlockConstants",
    "BlockNorms",
    "Gains",
    "GroupConstants",
    "HeadNorms",
    "LossConstants",
    "NormRows",
    "Region",
    "activation_constant",
    "aggregate",
    "block_constants",
    "certify",
    "condition_w",
    "condition_x",
    "covering",
    "dispersion",
    "in_degree",
    "layer_norm_constant",
    "lipschitz_w",
    "lipschitz_x",
    "measure_head",
    "mlp_constant",
    "region",
    "separation",
    "sink_ratio",
    "softmax_jacobian_norm",
    "spectral_norm",
    "stability",
    "weight_bound",
]
