"""Which runs may share a curve, how their groups are called, and what is drawn of them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from semfocus.analysis.groups import baselines_of, group_records, mechanism_order
from semfocus.analysis.records import Fault, Record
from semfocus.config import RunConfig
from semfocus.report.figures.gallery import ablations, main_groups
from semfocus.report.figures.lines import quantiles, series
from semfocus.report.page import payload
from semfocus.report.page.payload import charts, thinned
from semfocus.report.page.summary import summarise
from semfocus.training.loading import document
from tests.report.helpers import configs, rows


def record(config: RunConfig, state: str = "done", measured: list[dict[str, Any]] | None = None) -> Record:
    task = config.task.build()
    metrics = rows(config) if measured is None else measured
    return Record(config.run_id(task), document(config, task), metrics, state, 1.0)


def records(*args: Any, **kwargs: Any) -> list[Record]:
    return [record(config) for config in configs(*args, training__epochs=20, **kwargs)]


def measured(values: list[float], name: str = "train_accuracy") -> list[dict[str, Any]]:
    others = dict.fromkeys(("train_loss", "train_accuracy", "heldout_loss", "heldout_accuracy"), 0.5)
    return [{"epoch": i + 1, "step": i + 1, **others, name: value} for i, value in enumerate(values)]


def test_runs_of_other_settings_never_share_a_group_and_groups_are_named_by_what_differs() -> None:
    groups = group_records(
        [
            *records(),
            *records(model__blocks=2),
            *records(model__padding_visible=True),
            *records(tasks=["parity"]),
        ]
    ).groups
    assert [group.name for group in groups] == [
        "even_pairs, blocks 2, padding visible: no",
        "even_pairs, blocks 5, padding visible: no",
        "even_pairs, blocks 5, padding visible",
        "parity",
    ]
    assert all(len(group.records) == 6 for group in groups)
    assert all(group.comparison.seeds == 3 for group in groups)


def test_labels_and_where_a_file_lies_do_not_tell_groups_apart() -> None:
    one, other = records(seeds=2, mechanisms=["full"])
    other.config["label"] = "second"
    other.config["task"]["name"] = "elsewhere/even_pairs.csv"  # its content, config["data"], is the same
    assert len(group_records([one, other]).groups) == 1


def test_a_copy_of_a_run_is_not_counted_as_another_seed_and_is_reported() -> None:
    one = records(seeds=1, mechanisms=["full"])[0]
    copy = Record("f" * 16, one.config, one.metrics, "done", 1.0)
    grouping = group_records([copy, one])
    assert sum(len(group.records) for group in grouping.groups) == 1
    why = f"the same configuration as run {one.id}, which is shown in its place"
    assert grouping.repeated == [Fault("f" * 16, "repeated", why)]


def test_the_order_of_runs_changes_nothing() -> None:
    runs = records(mechanisms=["full", "topk:5", "banded:5"])
    names = [
        [(g.name, g.mechanisms, [r.id for r in g.records]) for g in group_records(order).groups]
        for order in (runs, runs[::-1])
    ]
    assert names[0] == names[1]
    assert names[0][0][1] == ["full", "topk:5", "banded:5"]


def test_a_strangers_data_file_is_not_opened_for_its_baselines(tmp_path: Any) -> None:
    (tmp_path / "trap.csv").write_text("text,label\na,1\n")
    config = {"task": {"name": str(tmp_path / "trap.csv"), "options": {}}, "sizes": {"num_classes": 4}}
    assert baselines_of(config) == {"chance": 0.25}
    assert baselines_of({"task": {"name": "parity", "options": {"length": "long"}}, "sizes": {"num_classes": 2}}) == {
        "chance": 0.5
    }
    assert baselines_of({"task": {"name": "gone"}, "sizes": {"num_classes": 0}}) == {}


def test_each_setting_varied_alone_is_an_ablation_and_adam_with_its_own_rate_is_one_step() -> None:
    runs = [*records(), *records(model__blocks=2), *records(training__lr=0.3)]
    runs += records(training__optimizer="adam", training__lr=0.001, training__decay=0.99999)
    groups = group_records(runs).groups
    varied = {one.setting: [name for name, _ in one.columns] for one in ablations(groups)}
    assert varied == {
        "model.blocks": ["blocks 2", "blocks 5"],
        "training.lr": ["learning rate 0.1", "learning rate 0.3"],
        "training.optimizer": ["adam, learning rate 0.001", "sgd, learning rate 0.1"],
    }
    assert len(main_groups(groups)) == 1


def test_quartiles_are_numpys_and_a_run_that_is_not_finite_counts_as_the_largest() -> None:
    values = np.array([[1.0, 5.0], [2.0, 1.0], [4.0, 2.0], [8.0, 9.0]])
    expected = np.quantile(values, (0.25, 0.5, 0.75), axis=0)
    np.testing.assert_allclose(np.stack(quantiles(values)), expected)
    values[3, 0] = np.nan
    low, middle, high = quantiles(values)
    assert (low[0], middle[0]) == (1.75, 3.0)
    assert np.isnan(high[0])
    assert np.isfinite(high[1])


def test_a_run_that_stopped_early_keeps_its_last_value_and_one_in_progress_is_left_out_of_the_curve() -> None:
    (config,) = configs(seeds=1, mechanisms=["full"], training__epochs=4)
    runs = [
        record(config, measured=measured([0.5, 1.0])),
        record(config, measured=measured([0.5, 0.6, 0.7, 0.8])),
        record(config, state="running", measured=measured([0.0])),
    ]
    curve = series(runs, "train_accuracy")
    assert curve is not None
    assert curve.runs == 2
    np.testing.assert_allclose(curve.middle, [0.5, 0.8, 0.85, 0.9])


def test_runs_in_progress_are_drawn_as_far_as_all_have_come() -> None:
    (config,) = configs(seeds=1, mechanisms=["full"], training__epochs=4)
    runs = [record(config, "running", measured(values)) for values in ([0.5, 0.6, 0.7], [0.5, 0.8])]
    curve = series(runs, "train_accuracy")
    assert curve is not None
    assert curve.in_progress
    np.testing.assert_allclose(curve.middle, [0.5, 0.7])
    assert series([record(config, "empty", [])], "train_accuracy") is None


def test_thinned_epochs_keep_both_ends_and_are_denser_at_the_start() -> None:
    epochs = np.arange(1, 1001, dtype=float)
    kept = thinned(epochs, 100)
    assert len(kept) <= 100
    assert (kept[0], kept[-1]) == (1, 1000)
    assert len(kept[kept <= 100]) > 25
    assert thinned(epochs[:50], 100) is not None
    assert len(thinned(epochs[:50], 100)) == 50


def test_what_is_embedded_is_thinned_to_a_budget_and_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = group_records([record(config) for config in configs(training__epochs=100, seeds=2)]).groups
    (whole,) = charts(groups, ["full", "topk:5"])
    assert len(whole["epochs"]) == 100
    for name, value in (("CURVE_NUMBERS", 0), ("SEED_NUMBERS", 0)):
        monkeypatch.setattr(payload, name, value)
    (thin,) = charts(groups, ["full", "topk:5"])
    assert len(thin["epochs"]) <= payload.FEWEST_POINTS
    assert len(thin["seedEpochs"]) <= payload.FEWEST_SEED_POINTS
    first = [run.metrics[0]["train_accuracy"] for run in groups[0].runs("full")]
    assert thin["arms"][0]["curves"]["train_accuracy"][0][0] == round(float(np.median(first)), 4)
    assert len(json.dumps(thin)) < len(json.dumps(whole)) / 2


@pytest.mark.parametrize(
    ("kept", "headline"),
    [
        ([], "No runs yet"),
        (["topk:5"], "No run of full attention to compare with"),
        (["full", "banded:5"], "No mechanism learns faster than full attention beyond chance"),
    ],
)
def test_the_headline_claims_nothing_that_the_runs_do_not_show(kept: list[str], headline: str) -> None:
    runs = records(mechanisms=kept, seeds=10) if kept else []
    assert summarise(group_records(runs).groups).headline == headline


def test_few_seeds_are_a_hint_and_many_are_a_finding() -> None:
    few = summarise(group_records(records(seeds=3)).groups).headline
    assert "a hint, too few seeds for a proof" in few
    assert "beyond chance" not in few
    many = summarise(group_records(records(seeds=10)).groups)
    assert many.headline.startswith("topk:5 learns")
    assert "hint" not in many.headline
    two = summarise(group_records([*records(seeds=10), *records(tasks=["parity"], seeds=10)]).groups)
    assert "beyond chance in 2 of 2 comparisons" in two.headline


def test_runs_that_have_not_ended_decide_nothing() -> None:
    runs = [record(config, "running") for config in configs(training__epochs=20)]
    assert summarise(group_records(runs).groups).headline == "No run has ended yet"


def test_mechanisms_are_listed_with_full_attention_first_and_sizes_rising() -> None:
    names = ["banded:9", "topk:40", "zebra", "topk:5", "banded:5+1g", "full", "banded:5"]
    assert sorted(names, key=mechanism_order) == [
        "full",
        "topk:5",
        "topk:40",
        "banded:5",
        "banded:9",
        "banded:5+1g",
        "zebra",
    ]
