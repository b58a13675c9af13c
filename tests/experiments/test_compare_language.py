"""`compare` of language models: sizes, what is compared, and a page that can be written again from the runs alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import semfocus
from semfocus import recipes
from semfocus.cli import app
from semfocus.diagnostics.samples import can_write
from semfocus.errors import UsageError
from semfocus.experiments.compare import comparison_of
from semfocus.experiments.run import conclude
from semfocus.measurements import Sample, read
from semfocus.report.page.page import write_page
from semfocus.store import RunStore

SMALL = [
    "task.options.length=24", "task.train_rows=40", "task.heldout_rows=6", "model.blocks=1", "model.d_model=16",
    "model.heads=1", "model.d_mlp=16", "training.epochs=1", "training.batch_size=4", "training.evaluated_rows=6",
]  # fmt: skip


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"{number} squared is {number * number}.\n" for number in range(6000)))
    return str(path)


def test_a_quick_decoder_has_its_own_steps_and_mechanisms(corpus: str) -> None:
    experiment = comparison_of("text", quick=True, seeds=1, options={"corpus": corpus})
    assert experiment.mechanisms == [*recipes.LANGUAGE_QUICK]
    config = experiment.configs[0]
    steps = config.training.epochs * -(-(config.task.train_rows or 0) // config.training.batch_size)
    assert recipes.QUICK_STEPS <= steps <= recipes.QUICK_STEPS + config.training.epochs
    assert config.training.evaluated_rows == recipes.QUICK_EVALUATED_ROWS
    whole = comparison_of("text", seeds=1, options={"corpus": corpus})
    assert whole.mechanisms == [*recipes.LANGUAGE]


def test_a_size_is_of_language_models_alone(corpus: str) -> None:
    larger = comparison_of("text", size="1m", quick=True, seeds=1, attention="full", options={"corpus": corpus})
    assert larger.configs[0].model.d_model == 128
    with pytest.raises(UsageError, match="size = '1m' is of language models, and task parity is none"):
        comparison_of("parity", size="1m")
    with pytest.raises(UsageError, match=r"unknown size '2m'.* known: 10m, 124m, 1m, 30m, 3m, tiny"):
        comparison_of("text", size="2m", options={"corpus": corpus})


def test_a_comparison_says_how_many_tokens_and_shows_what_models_write(
    corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "runs"
    told = CliRunner().invoke(
        app,
        ["compare", "text", "--attention", "full,topk:4", "--seeds", "1", "--option", f"corpus={corpus}",
         "--out", str(out), "--device", "cpu", "--threads", "1", "--jobs", "1", "--micro-batch", "2", "--keep", "0,50%",
         *(part for field in SMALL for part in ("--set", field))],
    )  # fmt: skip
    assert told.exit_code == 0, told.output
    assert "text: 1 seed, 960 tokens each" in told.output
    assert "full ends at a held-out loss of" in told.output
    assert "A hint, not a proof" in told.output
    assert "Nothing learned" not in told.output
    assert (out / "tokens-text.svg").is_file()
    runs = [RunStore(out).open(entry.name) for entry in RunStore(out).entries() if entry.config]
    assert len(runs) == 2
    assert all((run.status() or {})["micro_batch"] == 2 for run in runs)
    assert all(sorted(run.kept_steps()) == [0, 5] for run in runs)
    samples = [read(run, Sample) for run in runs]
    assert len({sample.prompt for sample in samples if sample}) == 1
    first = (out / "report.html").read_text()
    assert "What the models write" in first
    monkeypatch.setattr("semfocus.diagnostics.samples.continued", lambda *_: pytest.fail("a page needs no model"))
    assert write_page(out, tmp_path / "again.html").read_text() == first


def test_the_same_in_python_has_a_table_of_tokens(corpus: str, tmp_path: Path) -> None:
    result = semfocus.compare(
        "text", attention="full,topk:4", seeds=1, options={"corpus": corpus}, overrides=SMALL, out=tmp_path / "runs",
        device="cpu", threads=1, progress=False,
    )  # fmt: skip
    assert result.race is not None
    assert [lane.mechanism for lane in result.race.lanes] == ["full", "topk:4"]
    assert "960 tokens each" in result._repr_html_()
    store = RunStore(tmp_path / "runs")
    ids = [entry.name for entry in store.entries() if entry.config]
    for id in ids:
        for file in (store.root / id / "measurements").glob("sample*.json"):
            file.unlink()
    _, page = conclude(store, ids)  # as `resume` does
    assert page.read_text().count("What the models write") == 1
    assert all(read(store.open(id), Sample) for id in ids)
    (store.root / ids[0] / "status.json").write_text("{")
    assert not can_write(store.open(ids[0]))
