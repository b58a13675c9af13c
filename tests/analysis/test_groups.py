"""Which runs may share a curve, how their groups are called, and the order of their mechanisms."""

from __future__ import annotations

from typing import Any

from semfocus.analysis.groups import baselines_of, group_records, mechanism_order
from semfocus.analysis.records import Fault, Record
from tests.report.helpers import records


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


def test_given_data_are_named_by_their_objective_and_not_by_its_option_too() -> None:
    """The option that stands at its default is not recorded: groups were called `metrics none`."""
    one, other = records(seeds=2, mechanisms=["full"])
    for record in (one, other):
        record.config["data"] = {"task": "file", "sha256": "ab" * 32, "options": {}}
    other.config["data"] = {**other.config["data"], "options": {"metrics": "balanced"}}
    other.config["objective"] = "balanced_classification"
    names = [group.details for group in group_records([one, other]).groups]
    assert names == ["objective balanced_classification", "objective classification"]


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
