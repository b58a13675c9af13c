"""The simulations of benchmarks/, so that tests and published tables draw the same data."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def _imported(name: str) -> ModuleType:
    """A script as a module; those that it imports lie beside it."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return import_module(name)
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="session")
def simulation() -> ModuleType:
    return _imported("statistics_check")


@pytest.fixture(scope="session")
def verdict_simulation() -> ModuleType:
    return _imported("verdicts_check")
