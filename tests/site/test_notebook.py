"""The notebook runs from top to bottom, and holds its pictures; its answers are not compared, since machines differ."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: pip install 'semfocus[dev]'")
nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: pip install 'semfocus[dev]'")
pytest.importorskip("ipykernel", reason="ipykernel is not installed: pip install 'semfocus[dev]'")

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebooks" / "quickstart.ipynb"


def kinds(cell: Any) -> list[str]:
    """The forms in which a code cell shows its results; what a progress bar writes is none."""
    shown = [form for output in cell.outputs for form in output.get("data", {})]
    return sorted({form for form in shown if form in ("image/png", "text/html")})


FEWER_EPOCHS = """
import semfocus
compare = semfocus.compare
semfocus.compare = lambda *data, **choices: compare(*data, **choices | {"epochs": 2})
"""


@pytest.mark.parametrize("first", [FEWER_EPOCHS, pytest.param("", marks=pytest.mark.slow)], ids=["two epochs", "all"])
def test_the_notebook_runs_and_shows_what_it_holds(first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("SEMFOCUS_RUNS", str(tmp_path / "runs"))
    stored = nbformat.read(NOTEBOOK, as_version=4)
    fresh = nbformat.read(NOTEBOOK, as_version=4)
    for cell in fresh.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    fresh.cells.insert(0, nbformat.v4.new_code_cell(first))
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(fresh, timeout=600, kernel_name="python3", resources=where).execute()
    code = [cell for cell in fresh.cells[1:] if cell.cell_type == "code"]
    assert [kinds(cell) for cell in code] == [kinds(cell) for cell in stored.cells if cell.cell_type == "code"]
    assert sum("image/png" in kinds(cell) for cell in code) >= 5
    assert len(list((tmp_path / "runs").glob("*/config.json"))) >= 15


def test_the_stored_notebook_was_run_in_order_and_shows_no_path_of_a_machine() -> None:
    stored = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(stored)
    counts = [cell.execution_count for cell in stored.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert os.path.getsize(NOTEBOOK) < 1_000_000
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert re.findall(r"/(?:home|root|work|tmp|Users)/", text) == []
    assert [line for line in text.splitlines() if "pip install" in line] == ['    "# %pip install semfocus"']
