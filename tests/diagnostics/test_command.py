"""`semfocus diagnose` from the command line, its pages and its figures."""

from __future__ import annotations

import html.parser
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from semfocus.analysis.correlation import spearman
from semfocus.cli import app
from semfocus.errors import DataError, UsageError
from semfocus.report.diagnosis_text import condition_rows, newest_rows
from semfocus.report.figures.diagnosis import draw_heat_maps
from semfocus.report.figures.scatter import draw_dispersion_vs_speedup
from semfocus.report.page.diagnosis import _model_headline, write_model_page
from semfocus.report.page.page import write_page
from semfocus.store import RunDirectory, read_measurement
from semfocus.training.loading import load
from tests.integrations import tiny
from tests.measurements import payloads

runner = CliRunner()


def run(*arguments: str) -> str:
    result = runner.invoke(app, ["diagnose", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


class Words(html.parser.HTMLParser):
    """The text and the addresses of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attributes if name in ("src", "srcset", "href")]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_runs_are_measured_with_and_without_noise_stored_and_printed(runs: list[RunDirectory]) -> None:
    places = [str(one.path) for one in runs[:2]]
    output = run(*places, "--k", "3", "--rows", "12", "--checkpoint", "all", "--mask-stability")
    assert "even_pairs, seed 1, full and top-k run" in output
    assert "the paper's numbers" in output
    assert "kept keys that stay" in output
    assert "even_pairs, topk:3, seed 1, epoch 2, block 1" in output
    assert "epoch 0" not in output  # the newest checkpoint alone is printed
    for one in runs[:2]:
        stored = payloads.stored(one)
        assert set(stored) == {"dispersion", "mask_stability"}
        assert list(stored["dispersion"]["checkpoints"]) == ["0", "1", "2", "last"]


@pytest.mark.slow
def test_runs_are_put_on_a_page_with_figures_beside_it(runs: list[RunDirectory], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    places = [str(one.path) for one in runs[:2]]
    run(*places, "--k", "3", "--rows", "12", "--checkpoint", "all", "--mask-stability", "--page", str(page))
    shown = Words(page.read_text())
    assert all(link.startswith(("data:image/svg+xml", "#")) for link in shown.links)
    assert "script" not in shown.tags
    assert "Dispersion along training" in shown.words
    assert "Stability of the masks" in shown.words
    for name in ("conditions", "training", "masks"):
        for kind in ("svg", "pdf", "png"):
            assert (tmp_path / f"page-{name}.{kind}").stat().st_size > 1000


def test_the_json_of_runs_has_both_kinds_of_table_6(runs: list[RunDirectory]) -> None:
    document = json.loads(run(*(str(one.path) for one in runs[:2]), "--k", "3", "--rows", "8", "--json"))
    assert [row["way"] for row in document["table6"]] == ["two models", "one model", "one model", "published"]
    assert [one["run"] for one in document["runs"]] == [one.id for one in runs[:2]]


def test_zero_keys_are_refused_and_zero_rows_are_all(runs: list[RunDirectory]) -> None:
    for one in runs[:2]:
        with pytest.raises(UsageError, match="k = 0"):
            run(str(one.path), "--k", "0")
    run(str(runs[0].path), "--k", "3", "--rows", "0", "--mask-stability")
    assert {stored["rows"] for stored in payloads.stored(runs[0]).values()} == {60}


def test_a_k_that_is_not_used_is_reported(runs: list[RunDirectory]) -> None:
    output = run(*(str(one.path) for one in runs[:2]), "--k", "2", "--rows", "4")
    assert "even_pairs, topk:3, seed 1: measured with its own k = 3, not with --k 2" in output
    assert output.count("not with --k") == 1


def test_the_examples_of_the_help_have_lines_of_their_own() -> None:
    lines = [line.strip() for line in run("--help").splitlines()]
    assert "semfocus diagnose --model PATH_OR_NAME --text corpus.txt --k 8" in lines


def test_a_run_is_found_by_the_beginning_of_its_id(runs: list[RunDirectory]) -> None:
    assert "full alone" in run(runs[0].id[:6], "--out", str(runs[0].path.parent), "--k", "3", "--rows", "4")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "either runs, or --model"),
        (["abcd", "--model", "x", "--text", "y"], "either runs, or --model"),
        (["--model", "x"], "needs --text"),
        (["abcd", "--out", "nowhere"], "no run in"),
        (["--model", "nobody/has-this", "--text", "README.md"], "nor a model in the cache"),
        (["abcd", "--text", "README.md"], "--text belongs to --model"),
        (["abcd", "--length", "12"], "--length belongs to --model"),
        (["--model", "x", "--text", "y", "--mask-stability"], "--mask-stability belongs to runs"),
        (["--model", "x", "--text", "y", "--checkpoint", "all"], "--checkpoint belongs to runs"),
        (["--model", "x", "--text", "README.md", "--k", "0"], "k = 0"),
        (["--model", "x", "--text", "README.md", "--length", "0"], "length = 0"),
    ],
)
def test_contradicting_or_invalid_options_are_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        runner.invoke(app, ["diagnose", *arguments], catch_exceptions=False)


def test_an_empty_text_is_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    with pytest.raises(DataError, match="is empty"):
        run("--model", "nobody/has-this", "--text", str(tmp_path / "empty.txt"))


def test_a_model_is_described_in_sentences_or_as_json(tmp_path: Path) -> None:
    from tests.diagnostics.test_checkpoints import TEXT, save_tokenizer

    folder = tmp_path / "bert"
    tiny.bert().save_pretrained(folder)
    save_tokenizer(folder)
    (tmp_path / "corpus.txt").write_text(TEXT)
    shared = [
        "--model",
        str(folder),
        "--text",
        str(tmp_path / "corpus.txt"),
        "--k",
        "4",
        "--rows",
        "2",
        "--length",
        "10",
    ]
    output = run(*shared)
    assert output.startswith("BertModel, k = 4")
    assert "of the weight is kept by k =" in output
    assert json.loads(run(*shared, "--json"))["k"] == 4


def test_a_model_that_is_seen_in_part_is_diagnosed_with_partial_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from semfocus.diagnostics import checkpoints
    from tests.diagnostics.models import HandMade
    from tests.diagnostics.test_checkpoints import TEXT, save_tokenizer

    folder, corpus = tmp_path / "bert", tmp_path / "corpus.txt"
    tiny.bert().save_pretrained(folder)
    save_tokenizer(folder)
    corpus.write_text(TEXT)
    open_checkpoint = checkpoints.open_checkpoint

    def open_in_part(name: str, download: bool = False) -> tuple[Any, Any]:
        model, tokenizer = open_checkpoint(name, download)
        model.embeddings.dropout = HandMade()
        return model, tokenizer

    monkeypatch.setattr(checkpoints, "open_checkpoint", open_in_part)
    shared = ["--model", str(folder), "--text", str(corpus), "--k", "4", "--rows", "2", "--length", "10"]
    with pytest.raises(UsageError, match=r"only part.*embeddings\.dropout\.attention .*\(--partial\)"):
        run(*shared)
    output = run(*shared, "--partial")
    assert output.startswith("BertModel, k = 4")
    assert "embeddings.dropout.attention (HandMadeAttention)" in output
    with pytest.raises(UsageError, match="--partial belongs to --model"):
        run("abcd", "--partial")


def test_of_each_run_the_newest_checkpoint_is_shown() -> None:
    rows = [
        {"way": "one model", "task": "parity", "run": name, "checkpoint": checkpoint, "epochs": [epoch]}
        for name, checkpoint, epoch in (
            ("a", "0", 0.0), ("a", "20", 20.0), ("a", "5", 5.0),
            ("b", "last", 30.0), ("b", "20", 20.0),
            ("c", "last", 10.0), ("c", "20", 20.0),
        )
    ]  # fmt: skip
    newest = [(row["run"], row["checkpoint"]) for row in newest_rows(rows)]
    assert newest == [("a", "20"), ("b", "last"), ("c", "20")]


def test_only_the_checkpoint_asked_for_is_shown(runs: list[RunDirectory], tmp_path: Path) -> None:
    places, page = [str(one.path) for one in runs[:2]], tmp_path / "page.html"
    options = ("--k", "3", "--rows", "6")
    run(*places, *options)
    output = run(*places, *options, "--checkpoint", "1", "--page", str(page))
    assert "full and top-k run, epoch 1\n" in output
    assert "even_pairs, full, seed 1, epoch 1, block 0" in output
    text = " ".join(Words(page.read_text()).words)
    assert "full and top-k run, epoch 1" in text
    for shown in (output, text):
        assert "epoch 2" not in shown
    document = json.loads(run(*places, *options, "--checkpoint", "1", "--json"))
    assert {row.get("checkpoint", "1") for row in document["table6"]} == {"1"}
    assert [list(one["dispersion"]["checkpoints"]) for one in document["runs"]] == [["last", "1"]] * 2
    assert "full and top-k run, epoch 2\n" in run(*places, *options)


def test_cells_that_are_vacuous_infinite_or_missing_are_marked() -> None:
    cell = {
        "delta_full": 9.0, "delta_heavy": 5.0, "separation": None, "in_degree": 3.0, "w": None, "x": 0.5,
        "w_holds": False, "x_holds": True, "sharper": {"softmax": 1.0, "w": None, "x": 2.0}, "vacuous": ["full"],
        "sinks_outside": True, "uneven": False, "infinite": ["w", "separation"],
    }  # fmt: skip
    shown = condition_rows({"cells": {"75": cell}})
    assert shown[0][:8] == ["75 %", "9", "5", "inf", "3", "inf", "0.5", "inf"]
    assert shown[0][-1] == "X < 1; vacuous; in-degree < k"
    assert shown[1][-1] == "not measured"
    cell |= {"sharper": {"softmax": 1.0, "w": 3.0, "x": None}, "uneven": True}
    assert condition_rows({"cells": {"75": cell}})[0][-3:] == ["3", "", "X < 1; vacuous; in-degree < k; uneven rows"]


def test_the_name_of_a_model_is_escaped_on_the_page(tmp_path: Path) -> None:
    document = {"model": "<script>alert(1)</script>", "k": 2, "findings": ["<img src=x>"], "layers": []}
    shown = Words(write_model_page(document, tmp_path / "page.html").read_text())
    assert "script" not in shown.tags
    assert "img" not in shown.tags
    assert "<img src=x>" in shown.words


def test_the_page_of_a_model_begins_with_a_plain_sentence() -> None:
    document = {"model": "gpt2", "k": 8, "findings": ["Focusing on 8 keys would change little: layer 0."]}
    assert _model_headline(document | {"layers": [{"queries": 4}]}) == "Focusing on 8 keys would change little"
    assert _model_headline(document | {"layers": [{"queries": 0}]}) == "gpt2, k = 8"


def head(value: float | None, infinite: bool = False) -> dict:
    names = ("top_share", "k95", "entropy", "separation", "delta_full", "sink_share")
    spreads = {name: {"50": value, "95": value} for name in names}
    return {**spreads, "infinite": {"separation": ["50"]} if infinite else {}}


def test_heat_maps_with_gaps_and_infinities_are_drawn(tmp_path: Path) -> None:
    layers = [{"heads": [head(0.3), head(None, infinite=True), head(None)]}, {"heads": [head(0.8)]}]
    written = draw_heat_maps({"k": 2, "layers": layers}, tmp_path / "maps", formats=("svg",))
    text = written[0].read_text()
    assert "∞" in text
    assert "30%" in text


@pytest.mark.slow
def test_heat_maps_of_many_heads_stay_small(tmp_path: Path) -> None:
    wide = [{"heads": [head(0.5)] * 40}] * 30
    (large,) = draw_heat_maps({"k": 2, "layers": wide}, tmp_path / "wide", formats=("svg",), theme="dark")
    assert large.stat().st_size < 2**20


def test_dispersion_against_speed_up_is_drawn_with_its_correlation(tmp_path: Path) -> None:
    x = {"parity": 0.8, "even_pairs": 0.2, "listops": 0.6, "stack": 0.4}
    y = {"parity": 1.0, "even_pairs": 8.0, "listops": 1.5, "stack": 3.0}
    points = [(task, x[task], y[task]) for task in x]
    (drawn,) = draw_dispersion_vs_speedup(points, spearman(x, y), tmp_path / "speed", formats=("svg",))
    assert "Rank correlation -1.00" in drawn.read_text()
    (unknown,) = draw_dispersion_vs_speedup([], spearman({}, {}), tmp_path / "none", formats=("svg",))
    assert "not enough data" in unknown.read_text()


@pytest.mark.parametrize("value", [math.nan, 0.0])
def test_runs_with_nan_or_constant_scores_are_reported_and_do_not_crash(
    runs: list[RunDirectory], tmp_path: Path, value: float
) -> None:
    for one in runs[:2]:
        _overwrite(one, "qkv", value)
    names = [str(one.path) for one in runs[:2]]
    page = tmp_path / "page.html"
    text = run(*names, "--rows", "20", "--mask-stability", "--page", str(page))
    measured = read_measurement(runs[1], "dispersion")
    assert measured is not None
    last = measured["checkpoints"]["last"]
    if value == 0:
        assert last["separation"]["100"] == 0
        assert re.search(r"100 %\s+0\s+0\s+1e-09\s+\d+\s+inf\s+inf", text)
    else:
        assert (last["queries"], last["delta_full"]["100"]) == (0, None)
        assert last["not_finite"] == 20 * 8 * 2  # rows, positions, blocks
        assert last["layers"][0]["gamma"] == [None]
        assert text.count("no query has finite scores; this run has diverged") == 2
        assert re.search(r"not fini\S+\s+not fini", text)  # gamma and upsilon, as far as the terminal is wide
        assert "by noise: no query of finite scores drops a key" in text
    shown = re.sub(r"base64,[^\"]+", "", page.read_text() + write_page(runs[0].path.parent, page).read_text())
    assert not re.search(r"\bnan\b", re.sub(r"<(script|style)\b.*?</\1>", "", shown, flags=re.DOTALL), re.IGNORECASE)


def _overwrite(run: RunDirectory, part: str, value: float) -> None:
    """Put `value` into every weight and bias of this name, in a checkpoint that is newer than all."""
    newest = run.load_checkpoint()
    assert newest is not None
    parameters = newest.tensors["parameters"].clone()
    layout = load(run).spec.layout
    for name, weights in layout.split(parameters.view(1, -1)).items():
        if part in name:
            weights.fill_(value)
    with run.lock() as writer:
        writer.save_checkpoint(newest.step + 1, {**newest.tensors, "parameters": parameters}, newest.meta)


def test_queries_that_are_left_out_are_reported(runs: list[RunDirectory]) -> None:
    _overwrite(runs[0], "blocks.1.qkv", math.nan)
    text = run(str(runs[0].path), "--rows", "5")
    assert "full, seed 1: Warning: 40 queries have scores that are NaN or infinite; they are left out above." in text
