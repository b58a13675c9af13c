"""Three trained runs that the tests of this folder share, and the sizes of the batches that are measured."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from semfocus.diagnostics import aggregate
from semfocus.store import RunDirectory
from tests.training.helpers import tiny, trained


@pytest.fixture(scope="session")
def _trained(tmp_path_factory: pytest.TempPathFactory) -> list[RunDirectory]:
    configs = [
        tiny(1, mechanism, rows=(60, 20), model={"blocks": 2, "heads": heads}, epochs=2)
        for mechanism, heads in (("full", 1), ("topk:3", 1), ("banded:3", 2))
    ]
    return trained(configs, tmp_path_factory.mktemp("runs"), keep_epochs=(0, 1))


@pytest.fixture
def runs(_trained: list[RunDirectory], tmp_path: Path) -> list[RunDirectory]:
    """A full, a top-3 and a banded run of one task and seed, with checkpoints of epochs 0, 1 and 2."""
    place = tmp_path / "runs"
    shutil.copytree(_trained[0].path.parent, place)
    return [RunDirectory(place / run.id) for run in _trained]


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of calls in each batch that is measured."""
    sizes: list[int] = []
    original = aggregate.examine

    def counting(inputs: Any, grouped: bool, k: int, owners: list[int] | None = None) -> Any:
        sizes.append(len(owners or [0]))
        return original(inputs, grouped, k, owners)

    monkeypatch.setattr(aggregate, "examine", counting)
    return sizes
