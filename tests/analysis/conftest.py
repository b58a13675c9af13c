"""The simulations of benchmarks/statistics_check.py, so that tests and published tables draw the same data."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "statistics_check.py"


@pytest.fixture(scope="session")
def simulation() -> ModuleType:
    spec = importlib.util.spec_from_file_location("semfocus_statistics_check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
