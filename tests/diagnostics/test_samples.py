"""Text by trained language models: decided by a seed, kept with the run, shown on the page as text alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from semfocus.cli import app
from semfocus.diagnostics.samples import PROMPT_TOKENS, continued, measure_sample
from semfocus.errors import UsageError
from semfocus.measurements import Malformed, Sample, keep, read
from semfocus.randomness import stream
from semfocus.report.page.page import write_page
from semfocus.store import RunDirectory
from semfocus.training import load
from tests.tasks.test_text import folder_of_texts
from tests.training.helpers import tiny, trained
from tests.training.test_language import text_config


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunDirectory]:
    corpus = folder_of_texts(tmp_path_factory.mktemp("texts"))
    (run,) = trained([text_config(corpus, "topk:3", epochs=1)], tmp_path_factory.mktemp("runs"))
    return corpus, run


@pytest.fixture
def run(trained_once: tuple[Path, RunDirectory]) -> RunDirectory:
    return trained_once[1]


def test_each_token_is_drawn_from_what_the_model_gives_behind_all_before_it(run: RunDirectory) -> None:
    model, prompt = load(run), torch.tensor([5, 6, 7])
    written = continued(model, prompt, 30, stream(3, "sample"), 0.7)
    chances = stream(3, "sample").uniform(30).tolist()
    behind = prompt.tolist()
    for token, chance in zip(written, chances, strict=True):
        row = torch.tensor(behind[-16:])  # a row of its training
        with torch.no_grad():
            sums = (model(row[None])[0, -1].double() / 0.7).softmax(0).cumsum(0)
        assert (0 if token == 0 else float(sums[token - 1])) - 1e-5 <= chance <= float(sums[token]) + 1e-5
        behind.append(token)
    likeliest = continued(model, prompt, 5, stream(3, "sample"), 0.0)
    assert likeliest == continued(model, prompt, 5, stream(4, "sample"), 0.0)


def test_a_sample_is_kept_and_read_and_the_same_again(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    first = measure_sample(run, tokens=12)
    task_prompt = first.prompt
    assert len(task_prompt) == PROMPT_TOKENS
    assert measure_sample(run, tokens=12, seed=1).text != first.text
    monkeypatch.setattr("semfocus.diagnostics.samples.continued", lambda *_: pytest.fail("it is stored"))
    assert measure_sample(run, tokens=12) == first
    assert read(run, Sample, first.settings) == first


def test_what_cannot_be_written_is_said(trained_once: tuple[Path, RunDirectory], tmp_path: Path) -> None:
    corpus, run = trained_once
    with pytest.raises(UsageError, match="holds no token"):
        measure_sample(run, prompt="")
    with pytest.raises(UsageError, match="tokens = 0 must be at least 1"):
        measure_sample(run, tokens=0)
    with pytest.raises(UsageError, match="temperature = -1 must be a number from 0"):
        measure_sample(run, temperature=-1)
    (other,) = trained([tiny(1)], tmp_path)
    with pytest.raises(UsageError, match="is of the task even_pairs, which writes no text"):
        measure_sample(other)
    document = next((corpus / "part0").iterdir())
    before = document.read_text()
    document.write_text("changed\n")
    try:
        with pytest.raises(UsageError, match="was trained on another text or vocabulary"):
            measure_sample(run)
    finally:
        document.write_text(before)


@pytest.mark.parametrize("broken", [{"text": 3}, {"prompt": None}, {"text": "x" * 30_000}, {"tokens": "many"}])
def test_a_malformed_sample_is_refused(broken: dict) -> None:
    sound = {"step": 3, "prompt": "a", "text": "b", "tokens": 2, "seed": 0, "temperature": 0.8}
    assert Sample.from_payload(sound).text == "b"
    with pytest.raises(Malformed):
        Sample.from_payload(sound | broken)


def test_the_page_and_the_command_show_text_as_text(run: RunDirectory, tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>\x1b[31m\n\u202eright to left"
    settings = {"step": 5, "prompt": "a <b>", "tokens": 12, "seed": 7, "temperature": 0.8}
    keep(run, Sample.from_payload(settings | {"text": hostile}))
    page = write_page(run.path.parent, tmp_path / "page.html").read_text()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[31m↵\n\\u202eright to left" in page
    assert "<script>alert" not in page
    assert "a &lt;b&gt;" in page
    assert "Held-out loss by tokens" in page
    assert "Kaplan-Meier" not in page
    said = CliRunner().invoke(
        app, ["sample", str(run.path), "--tokens", "5", "--prompt", "the "], catch_exceptions=False
    )
    assert said.exit_code == 0
    assert "topk:3, after 'the '" in said.output
