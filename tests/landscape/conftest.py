"""Tiny trained runs that the tests of this folder share and do not change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from semfocus.store import RunDirectory
from tests.training.helpers import tiny, trained

KINDS = [(norm, mechanism) for norm in ("pre", "post") for mechanism in ("full", "topk:3")]


@pytest.fixture(scope="session")
def run_of_kind(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], RunDirectory]:
    """`run_of_kind("pre", "topk:3")`: two blocks, six epochs, checkpoints of epochs 0, 1, 2 and 4 kept."""
    out = tmp_path_factory.mktemp("landscape")
    configs = {
        kind: tiny(1, kind[1], epochs=6, model={"blocks": 2, "norm": kind[0], "heads": 2}, lr=0.5) for kind in KINDS
    }
    runs = trained(list(configs.values()), out, keep_epochs=(0, 1, 2, 4))
    by_kind = dict(zip(configs, runs, strict=True))
    return lambda norm, mechanism: by_kind[norm, mechanism]


@pytest.fixture
def own_run(tmp_path: Path) -> RunDirectory:
    """A trained run that a test may write to."""
    return trained([tiny(1, "topk:3", epochs=3)], tmp_path, keep_epochs=(0, 1, 2))[0]
