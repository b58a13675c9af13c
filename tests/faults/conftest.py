"""A Ray cluster on this machine, and runs that take their time."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.machines import Machines
from tests.faults.pacing import Pace, paced


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'semfocus[cluster]'")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        machines = Machines()
        yield machines
        machines.close()


@pytest.fixture
def pace(tmp_path: Path) -> Iterator[Pace]:
    with paced(tmp_path / "plugin") as pace:
        yield pace
