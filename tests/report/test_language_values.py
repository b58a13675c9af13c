"""What panels show of language models: parameters as the model has them, ratios against the same seed, tokens."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from semfocus.analysis.groups import group_records
from semfocus.decoders import SIZES, model_of
from semfocus.experiments.experiment import Panel
from semfocus.report.figures.declared import draw_panels
from semfocus.report.figures.drawing import plain
from semfocus.report.figures.language_values import head_start_of, parameters_of
from semfocus.report.figures.panel_values import Runs
from semfocus.spec import Spec
from tests.analysis.test_verdicts_text import decoders
from tests.training.helpers import tiny


@pytest.mark.parametrize("changes", [{}, {"activation": "swiglu"}, {"head_width": "model"}])
def test_the_parameters_of_blocks_are_those_of_the_layout(changes: dict[str, str]) -> None:
    model = model_of(SIZES["tiny"]).model_copy(update=changes)
    spec = Spec(model, tiny(1).attention, 10, 10, 8, is_causal=True, predicts_positions=True)
    blocks = sum(math.prod(shape) for name, shape in spec.layout.shapes.items() if name.startswith("blocks."))
    assert parameters_of(model.model_dump()) == blocks
    if not changes:
        assert blocks == SIZES["tiny"].parameters


def test_a_head_start_is_the_ratio_to_full_attentions_run_of_the_same_seed() -> None:
    records = decoders({"full": 1.0, "topk:8": 1.25}, seeds=3) + decoders({"full": 1.0, "topk:8": 2.0}, "1 M", seeds=2)
    groups = group_records(records).groups
    runs = Runs(records, groups, {})
    by_size = {parameters: own.values("head_start.50") for (parameters,), own in runs.split(["parameters"]).items()}
    assert list(by_size) == sorted(by_size)
    small, large = by_size.values()
    assert small == [pytest.approx(2.0, rel=0.03)] * 2
    assert large == [pytest.approx(1.25, rel=0.03)] * 3
    full = next(record for record in records if record.mechanism == "full")
    assert head_start_of(full, groups, 0.5) is None
    alone = [record for record in records if record.mechanism == "topk:8"]
    assert Runs(alone, group_records(alone).groups, {}).values("head_start.50") == []


def test_panels_of_losses_by_tokens_and_of_head_starts_are_drawn(tmp_path: Path) -> None:
    records = decoders({"full": 1.0, "topk:8": 1.25}, seeds=2) + decoders({"full": 1.0, "topk:8": 1.1}, "1 M", seeds=2)
    runs = Runs(records, group_records(records).groups, {})
    panels = [
        Panel("losses", ("heldout_loss",), along="tokens", each=("model.d_model",)),
        Panel("ratios", ("head_start.25", "head_start.50"), kind="sweep", along="parameters", each=()),
    ]
    results = type("Results", (), {"root": tmp_path, "records": records, "groups": runs.groups, "measurements": {}})()
    losses, ratios = draw_panels(panels, results, tmp_path / "drawn", formats=("svg",))
    assert "held-out loss" in losses.read_text()
    assert ">tokens<" in losses.read_text()
    text = ratios.read_text()
    assert "head start at 25 %" in text
    assert ">full<" not in text, "full attention has no ratio, and no entry in the legend"


def test_millions_are_written_so() -> None:
    assert [plain(value) for value in (0.5, 2000, 1e6, 4.9e7)] == ["0.5", "2000", "1 M", "49 M"]
