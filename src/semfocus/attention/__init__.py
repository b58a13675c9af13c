"""WHERE a query looks: mechanisms say which keys it keeps, normalisers how much each counts, `attend` computes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semfocus.lazy import attach

if TYPE_CHECKING:
    from semfocus.attention.explaining import Explanation, explain
    from semfocus.attention.inspection import AttentionInfo
    from semfocus.attention.layer import Attention
    from semfocus.attention.mechanisms import (
        LSH,
        Banded,
        BlockLocal,
        BottomK,
        Fast,
        Full,
        Mechanism,
        NoisyTopK,
        RandomK,
        Routing,
        ShiftedBand,
        TopK,
        mechanism_names,
        parse_mechanism,
        register_mechanism,
    )
    from semfocus.attention.normalisers import (
        LSSAR,
        ASEntmax,
        Doubly,
        Entmax,
        FastWeights,
        Normaliser,
        Sigmoid,
        Softmax,
        Sparsemax,
        SSMax,
        normaliser_names,
        parse_normaliser,
        register_normaliser,
    )
    from semfocus.attention.operator import attend
    from semfocus.attention.plans import Plan, parse_plan

__all__ = [
    "LSH",
    "LSSAR",
    "ASEntmax",
    "Attention",
    "AttentionInfo",
    "Banded",
    "BlockLocal",
    "BottomK",
    "Doubly",
    "Entmax",
    "Explanation",
    "Fast",
    "FastWeights",
    "Full",
    "Mechanism",
    "NoisyTopK",
    "Normaliser",
    "Plan",
    "RandomK",
    "Routing",
    "SSMax",
    "ShiftedBand",
    "Sigmoid",
    "Softmax",
    "Sparsemax",
    "TopK",
    "attend",
    "explain",
    "mechanism_names",
    "normaliser_names",
    "parse_mechanism",
    "parse_normaliser",
    "parse_plan",
    "register_mechanism",
    "register_normaliser",
]

_HOMES = {
    "attend": "operator",
    "explain": "explaining",
    "Explanation": "explaining",
    "Plan": "plans",
    "parse_plan": "plans",
    "Attention": "layer",
    "AttentionInfo": "inspection",
    **dict.fromkeys(
        (
            "ASEntmax", "Doubly", "Entmax", "FastWeights", "LSSAR", "Normaliser", "SSMax", "Sigmoid", "Softmax",
            "Sparsemax", "normaliser_names", "parse_normaliser", "register_normaliser",
        ),
        "normalisers",
    ),
}  # fmt: skip
__getattr__, __dir__ = attach(
    __name__, {name: f"semfocus.attention.{_HOMES.get(name, 'mechanisms')}" for name in __all__}
)
