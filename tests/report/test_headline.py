"""The first screen of a page and the values beside it: headline, settings, advice, goals, test split."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from semfocus import recipes
from semfocus.analysis.groups import group_records
from semfocus.analysis.recommend import recommend
from semfocus.analysis.results import Results
from semfocus.report.page import sections
from semfocus.report.page.page import render
from semfocus.report.page.summary import About, goal_text
from semfocus.training.loading import document
from semfocus.training.objective import BALANCED_ACCURACY, Learned
from tests.report.helpers import configs, made, made_as, records, rows, store
from tests.report.pages import first_screen, text_of


def test_the_setting_that_the_headline_means_is_on_the_first_screen(tmp_path: Path) -> None:
    """The headline spoke of the setting that learned; the only cell beside it was of the one that did not."""
    for config in configs(("parity",), seeds=3, training__epochs=12):
        made(tmp_path, config, measured=[row | {"train_accuracy": 0.5} for row in rows(config)])
    store(tmp_path, ("parity",), seeds=3, training__epochs=12, model__blocks=2)
    store(tmp_path, ("parity",), seeds=3, training__epochs=12, model__heads=2)
    results = Results.load(tmp_path)
    top = first_screen(render(results))
    assert "never nor does full" in top
    for group in results.groups:
        assert group.details in top
    assert "needs fewer epochs than full attention" in top
    assert "in 2 of 3 comparisons" in top
    assert "Nothing learned, full attention included, in 1 of 3" in top


def test_of_very_many_settings_those_that_the_headline_means_are_on_the_first_screen(tmp_path: Path) -> None:
    (group,) = group_records(records(tasks=["parity"], seeds=3)).groups
    groups = [replace(group, details=f"setting {i}") for i in range(40)]
    assert sections.first_screen(groups[:20], groups[:1]) == groups[:20]
    shown = sections.first_screen(groups, [groups[33]])
    assert groups[33] in shown


def test_a_studys_title_and_question_are_the_headline_of_its_page(runs: Path) -> None:
    about = About("controls", "Focus, or just sparsity?", "Do the k worst keys help as the k best do?")
    page = render(Results.load(runs), about=about)
    assert "<h1><bdi>Focus, or just sparsity?</bdi></h1>" in page
    words = first_screen(page)
    assert words.startswith("controls: 9 runs")
    assert "Asked Do the k worst keys help as the k best do? full, topk:5 and banded:5, with 3 seeds each" in words
    assert "Found topk:5 needs" in words


def test_without_a_task_of_the_paper_there_is_no_section_of_verdicts(tmp_path: Path) -> None:
    (config,) = configs(seeds=1, mechanisms=["full"], training__epochs=4)
    fields = document(config, config.task.build())
    fields["task"]["name"], fields["data"] = "reviews.csv", {"sha256": "ab" * 32}
    made_as(tmp_path, config, fields)
    page = render(Results.load(tmp_path))
    assert "#verdicts" not in page
    assert "2506.14095" not in page


def test_several_k_are_drawn_against_k_on_the_page(tmp_path: Path) -> None:
    store(tmp_path, ("parity",), ("full", "topk:1", "topk:5", "topk:9"), 2, training__epochs=6)
    assert "By the number of keys kept" in text_of(render(Results.load(tmp_path)))
    (tmp_path / "none").mkdir()
    store(tmp_path / "none", ("parity",), ("full", "topk:1", "topk:5", "topk:9"), 2, state="empty", training__epochs=6)
    assert "By the number of keys kept" not in text_of(render(Results.load(tmp_path / "none")))


@pytest.mark.parametrize("mechanisms", [("full", "topk:2", "topk:9"), ("full", "topk:5", "banded:5")])
def test_where_several_k_were_trained_the_page_says_which_to_take(mechanisms: tuple[str, ...], tmp_path: Path) -> None:
    """What --attention auto recommends stood in the terminal only."""
    results = Results.load(store(tmp_path / "runs", ("parity",), mechanisms, 8, training__epochs=60))
    (group,) = results.groups
    advice = recommend(group.comparison).text
    assert "is the one to take" in advice
    assert (advice in first_screen(render(results))) == ("banded:5" not in mechanisms)


def test_learning_rates_that_were_chosen_stand_on_the_page(tmp_path: Path) -> None:
    """They stood in the terminal only."""
    for mechanism, lr in (("full", 0.1), ("topk:5", 0.3)):
        store(tmp_path, ("parity",), (mechanism,), 2, training__epochs=6, training__lr=lr, training__tuned="lr of ...")
    words = text_of(render(Results.load(tmp_path)))
    assert "Learning rates chosen by tuning (lr of ...): full 0.1, topk:5 0.3." in words


def test_goals_that_differ_are_named() -> None:
    """The page said "to what each task's objective says than full attention"."""
    goals = [Learned(), Learned(BALANCED_ACCURACY), Learned()]
    groups: list[Any] = [SimpleNamespace(comparison=SimpleNamespace(learned=goal)) for goal in goals]
    assert goal_text(groups) == "95 % training accuracy or 95 % training balanced accuracy"
    assert goal_text(groups, Learned.level) == "95 %"


def test_shares_beside_accuracy_and_the_test_split_stand_on_the_page(tmp_path: Path) -> None:
    """The terminal had balanced accuracy, macro F1 and the test split, and the page had none of them."""
    config = recipes.configure("even_pairs", "full", 7)
    more = {"patience": 3, "patience_on": "validation", "evaluate_test": True}
    config = config.model_copy(update={"training": config.training.model_copy(update=more)})
    made(tmp_path, config, measured=[row | {"test_loss": 0.4, "test_accuracy": 0.618} for row in rows(config)])
    page = text_of(render(Results.load(tmp_path)))
    assert "seeds, test accuracy test quartiles against full 95 % interval held out, final" in page
    assert "61.8%" in page.split("Accuracy on rows not seen")[1].split("Every setting")[0]
    assert "Unseen: the share of test rows that it is right on" in page
    plain = tmp_path / "plain"
    store(plain, seeds=1, training__epochs=5)
    assert "seeds, final held-out accuracy held out, final quartiles" in text_of(render(Results.load(plain)))


def test_a_number_stays_on_the_line_of_its_percent_sign(runs: Path) -> None:
    page = render(Results.load(runs))
    assert "95\N{NO-BREAK SPACE}% training accuracy" in page
    assert not re.search(r"<(p|li|h1)>[^<]*\d %", page)


def test_an_interval_without_1_beside_a_large_p_is_explained_and_left_out_of_the_heat_map(tmp_path: Path) -> None:
    epochs = {"full": 10, "topk:5": 2}
    for config in configs(("parity", "even_pairs"), seeds=3, training__epochs=12):
        at = epochs[config.attention.mechanism] + config.seed % 2
        made(tmp_path, config, measured=[
            row | {"train_accuracy": 1.0 if row["epoch"] >= at else 0.5} for row in rows(config)
        ])  # fmt: skip
    page = text_of(render(Results.load(tmp_path)))
    assert page.count("may be chance") >= 2
    assert "go by p: it is exact" in page
    assert "3 seeds and 1 comparison cannot give less than 0.25" in page


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_store_where_nothing_is_learned_or_one_seed_claims_no_test(seeds: int, tmp_path: Path) -> None:
    for config in configs(seeds=seeds, training__epochs=5):
        made(tmp_path, config, measured=[row | {"train_accuracy": 0.5} for row in rows(config)])
    words = text_of(render(Results.load(tmp_path)))
    assert "Nothing learned: no conclusion" in words
    assert "needs fewer epochs" not in words
    assert "Beyond chance, after Holm" not in words
    assert "nan" not in words.split()
