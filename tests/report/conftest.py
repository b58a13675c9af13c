"""A store of nine runs that the tests of the page share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.helpers import store


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of full, top-5 and banded attention, of three seeds each; tests read them only."""
    return store(
        tmp_path_factory.mktemp("made") / "runs", mechanisms=["full", "topk:5", "banded:5"], training__epochs=12
    )
