"""benchmarks/stopping.py: a run is cut where a rule would have stopped it, and what changes is named."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.analysis.conftest import _imported
from tests.analysis.made import both, run


@pytest.fixture(scope="module")
def stopping() -> ModuleType:
    return _imported("stopping")


def test_a_run_is_cut_at_the_first_evaluation_after_its_share_of_the_horizon(stopping: ModuleType) -> None:
    whole = run("even_pairs", "full", 1, at=20, heldout_at=50)  # of 100 epochs; evaluated at 0.5, 10, 20, 50 and 100
    ends = {share: stopping.stopped(whole, stopping.Rule(0.95, share)).final("epoch") for share in (0.0, 0.1, 0.4)}
    assert ends == {0.0: 20, 0.1: 50, 0.4: 100}
    cut = stopping.stopped(whole, stopping.Rule(0.95, 0.0))
    assert stopping.saved([whole], [cut]) == pytest.approx(0.8)
    assert stopping.differences([whole], [cut]) == pytest.approx(-80)
    never = run("even_pairs", "full", 1, at=None)
    assert stopping.stopped(never, stopping.Rule(0.95, 0.0)) is never


def test_a_part_that_a_rule_would_decide_otherwise_is_named(stopping: ModuleType) -> None:
    """Held-out accuracy rises to its level long after training accuracy: who stops at 95 % never sees that."""
    whole = both(20, 10, ["even_pairs"], heldout_at=60)
    cut = [stopping.stopped(one, stopping.Rule(0.95, 0.0)) for one in whole]
    assert "C4 even_pairs: generalises: yes -> no" in stopping.changed(stopping.parts_of(whole), stopping.parts_of(cut))
    assert stopping.changed(stopping.parts_of(whole), stopping.parts_of(whole)) == []
