"""Benches of the driver of a cluster, whose runs are trained once for all tests of this folder."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from semfocus.store import RunDirectory
from tests.execution.made_up import CONFIGS, Bench, BenchOf
from tests.training.helpers import trained


@pytest.fixture(scope="session")
def _finished(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], list[RunDirectory]]:
    """The runs of CONFIGS, trained in cohorts of this size; tests read them only."""
    return cache(lambda size: trained(CONFIGS, tmp_path_factory.mktemp("finished"), cohort_size=size))


@pytest.fixture
def bench_of(tmp_path: Path, _finished: Callable[[int], list[RunDirectory]]) -> BenchOf:
    def make(folder: str = "runs", cohort_size: int = 2, **settings: Any) -> Bench:
        return Bench(tmp_path / folder, _finished(cohort_size), cohort_size, **settings)

    return make
