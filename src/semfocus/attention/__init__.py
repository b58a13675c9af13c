"""WHERE a query looks: mechanisms say which keys it keeps, normalisers how much each counts, `attend` computes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semfocus.lazy import attach

if TYPE_CHECKING:
    from semfocus.attention.inspection import AttentionInfo
    from semfocus.attention.layer import Attention
    from semfocus.attention.mechanisms import (
        Banded,
        BlockLocal,
        BottomK,
        Full,
        Mechanism,
        NoisyTopK,
        RandomK,
        ShiftedBand,
        TopK,
        mechanism_names,
        parse_mechanism,
        register_mechanism,
    )
    from semfocus.attention.normalisers import (
        Normaliser,
        Sigmoid,
        Softmax,
        normaliser_names,
        parse_normaliser,
        register_normaliser,
    )
    from semfocus.attention.operator import attend

__all__ = [
    "Attention",
    "AttentionInfo",
    "Banded",
    "BlockLocal",
    "BottomK",
    "Full",
    "Mechanism",
    "NoisyTopK",
    "Normaliser",
    "RandomK",
    "ShiftedBand",
    "Sigmoid",
    "Softmax",
    "TopK",
    "attend",
    "mechanism_names",
    "normaliser_names",
    "parse_mechanism",
    "parse_normaliser",
    "register_mechanism",
    "register_normaliser",
]

_HOMES = {
    "attend": "operator",
    "Attention": "layer",
    "AttentionInfo": "inspection",
    "Normaliser": "normalisers",
    "Sigmoid": "normalisers",
    "Softmax": "normalisers",
    "normaliser_names": "normalisers",
    "parse_normaliser": "normalisers",
    "register_normaliser": "normalisers",
}
__getattr__, __dir__ = attach(
    __name__, {name: f"semfocus.attention.{_HOMES.get(name, 'mechanisms')}" for name in __all__}
)
