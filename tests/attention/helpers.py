"""Inputs for the tests of attention, on the device under test."""

from __future__ import annotations

from torch import Tensor

from tests.conformance.cases import tensors


def qkv(queries: int = 9, keys: int = 11, lead=(2, 3), width: int = 5, **options) -> tuple[Tensor, Tensor, Tensor]:
    return tensors(queries, keys, lead=lead, width=width, **options)[:3]
