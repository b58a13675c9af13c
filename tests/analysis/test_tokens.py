"""Language models by tokens: head starts over full attention, and what the seeds say of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from semfocus.analysis.comparison import Comparison, compare_records
from semfocus.analysis.findings import findings_of
from semfocus.analysis.groups import group_records
from semfocus.analysis.head_start import head_start
from semfocus.analysis.recommend import recommend
from semfocus.analysis.records import Record
from semfocus.analysis.tokens import TokenRace, token_race, tokens_text
from semfocus.report.figures.language_values import head_start_of
from semfocus.report.page.sections import _race
from semfocus.report.race import comparison_title, course_table, race_table

BATCH, LENGTH, ROWS = 4, 10, 44  # eleven steps an epoch


def run(mechanism: str, seed: int, loss_at: Callable[[float], float], state: str = "done", epochs: int = 4) -> Record:
    """One run over a corpus, whose held-out loss after a share of its training is `loss_at` it."""
    last = 11 * epochs
    config = {
        "task": {"name": "text", "options": {"corpus": "notes.txt"}, "train_rows": ROWS, "heldout_rows": 5},
        "attention": {"mechanism": mechanism},
        "training": {"epochs": epochs, "batch_size": BATCH},
        "sizes": {"vocab_size": 256, "num_classes": 256, "seq_len": LENGTH},
        "facts": {"corpus": "notes.txt", "rows": {"train": ROWS, "heldout": 5}},
        "objective": "next_token",
        "seed": seed,
    }
    rows = [
        {
            "epoch": step / 11, "step": step, "lr": 0.1, "train_loss": 1.0, "train_accuracy": 0.3,
            "heldout_loss": loss_at(step / last), "heldout_accuracy": 0.3,
        }
        for step in range(1, last + 1)
    ]  # fmt: skip
    return Record(f"{mechanism}-{seed}", config, rows, state, 2.0)


def falling(speed: float = 1.0, end: float = 1.0) -> Callable[[float], float]:
    """From 3 to `end` in a straight line, `speed` times as fast as the training."""
    return lambda done: max(end, 3 - 2 * speed * done)


def race(*arms: tuple[str, Sequence[Callable[[float], float]]]) -> TokenRace:
    made = token_race([run(name, seed, losses) for name, seeds in arms for seed, losses in enumerate(seeds)])
    assert made is not None
    return made


def test_a_model_that_learns_twice_as_fast_needs_half_of_the_tokens() -> None:
    lane = race(("full", [falling()] * 3), ("topk:8", [falling(2.0)] * 3)).lane("topk:8")
    assert [start.ratio for start in lane.head_starts] == pytest.approx([2.0] * 3, rel=0.01)
    assert [start.ahead for start in lane.head_starts] == [3] * 3
    assert lane.change == pytest.approx(0.0, abs=1e-9)


def test_a_model_that_ends_behind_is_asked_for_its_own_loss() -> None:
    slow = race(("full", [falling()] * 3), ("topk:8", [falling(0.5), falling(0.5), falling(2.0)]))
    lane = slow.lane("topk:8")
    assert [start.ratio for start in lane.head_starts] == pytest.approx([0.5] * 3, rel=0.02)
    assert (lane.head_starts[-1].ahead, lane.head_starts[-1].text) == (1, "0.50x")
    assert lane.change == pytest.approx(2 / 3)
    (name, sentence) = slow.sentences()[1]
    assert name == "topk:8"
    assert sentence.startswith(
        " needed 2.00x more tokens than full attention to the same held-out loss at 25% of training (1 of 3 seeds "
        "ahead), and 2.00x more at its end (1 of 3). It ends at"
    )
    assert slow.headline == "No mechanism is ahead of full attention at the end of training; too few seeds to be sure"


def test_runs_are_compared_with_full_attention_of_the_same_seed() -> None:
    mixed = race(("full", [falling(), falling(end=2.0)]), ("topk:8", [falling(), falling(end=2.0)]))
    assert [start.ratio for start in mixed.lane("topk:8").head_starts] == pytest.approx([1.0] * 3)
    assert " needed as many tokens as full attention to the same held-out loss" in mixed.sentences()[1][1]
    level = race(("full", [falling()]), ("topk:8", [falling(1.001, end=0.9)]))
    assert level.lane("topk:8").head_starts[-1].ratio > 1
    assert level.best is None, "to two digits it needs as many"


def test_a_head_start_is_that_of_studies_and_verdicts() -> None:
    """One definition: what `compare` tells of a seed is what panels draw and verdicts take the logarithm of."""
    arms = [("full", falling()), ("topk:8", lambda done: 3 - 2.4 * done + 0.6 * done**2)]
    records = [run(name, 0, losses) for name, losses in arms]
    told = token_race(records).lane("topk:8").head_starts
    for start in told:
        times = head_start(*records, start.share)
        assert start.ratio == pytest.approx(times[0] / times[1])
        assert start.ratio == pytest.approx(head_start_of(records[1], group_records(records).groups, start.share))


def test_few_seeds_are_a_hint_and_many_that_agree_a_proof() -> None:
    few = race(("full", [falling()] * 3), ("topk:8", [falling(1.2, end=0.9)] * 3))
    assert "A hint, not a proof: not enough data: with 3 paired seeds" in few.sentences()[-1][1]
    assert few.headline.endswith("a hint, too few seeds for a proof")
    many = race(("full", [falling()] * 8), ("topk:8", [falling(1.2, end=0.9 + 0.001 * seed) for seed in range(8)]))
    lane = many.lane("topk:8")
    assert lane.p == lane.head_starts[0].p == pytest.approx(2 * 2.0**-7)  # of two tests
    assert many.headline == "topk:8 needs 1.20x fewer tokens than full attention to the same final loss, beyond chance"
    assert many.sentences()[-1][1].startswith("Beyond chance, after Holm over 2 tests: topk:8 in its final loss (p =")
    noisy = race(
        ("full", [falling(end=1 + 0.01 * seed) for seed in range(8)]),
        ("topk:8", [falling(end=1 + 0.01 * ((seed + 3) % 8)) for seed in range(8)]),
    )
    assert noisy.sentences()[-1][1] == "None of the differences is beyond chance after Holm over 2 tests."


def test_losses_that_differ_by_less_than_half_a_percent_are_called_the_same() -> None:
    near = race(("full", [falling()] * 4), ("topk:8", [falling(end=1.001 + 0.0001 * seed) for seed in range(4)]))
    assert near.lane("topk:8").is_alike
    assert "the same for practice (+0.1% to +0.1% against full attention's)" in near.sentences()[1][1]


@pytest.mark.parametrize("losses", [lambda done: math.nan, falling()])
def test_a_run_that_diverged_arrives_at_the_end_and_one_that_trains_gives_no_number(losses) -> None:
    records = [run("full", seed, falling()) for seed in range(3)]
    records += [run("topk:8", 0, losses, "diverged"), run("topk:8", 1, falling(), "running")]
    lane = token_race(records).lane("topk:8")
    first = lane.head_starts[0]
    assert (first.seeds, first.ahead, lane.change, lane.p) == (1, 0, None, None)
    assert first.ratio == pytest.approx(0.25)
    lost = token_race([run("full", 0, lambda done: math.nan, "diverged"), run("topk:8", 0, falling())])
    assert lost.others == []
    assert "nothing to compare with" in lost.sentences()[-1][1]
    assert token_race([run("full", 0, falling(), "running")]).headline == "No run has ended yet"


def test_a_comparison_of_language_models_speaks_of_tokens_alone() -> None:
    records = [run(name, seed, falling(speed)) for name, speed in (("full", 1), ("topk:8", 2)) for seed in range(3)]
    comparison = compare_records("text", records, {"shortcut": 0.3})
    assert isinstance(comparison, Comparison)
    assert not comparison.nothing_learned
    assert not any("95" in finding.text and "accuracy" in finding.text for finding in findings_of(comparison))
    assert comparison.to_dict()["tokens"]["mechanisms"][1]["head_start"]["1"]["ahead"] == 3
    table = race_table(comparison.race)
    assert all(len(row) == len(table.heads) for row in table.rows)
    course = course_table(comparison.race)
    assert course.heads == ["held-out loss after", "176", "440", "880", "1.32 k", "1.76 k"]
    assert course.rows == [
        ["full", "2.800", "2.500", "2.000", "1.500", "1.000"],
        ["topk:8", "2.600", "2.000", "1.000", "1.000", "1.000"],
    ]
    assert comparison_title(comparison) == "text: 3 seeds, 1.76 k tokens each"
    assert recommend(comparison).mechanism == "full"
    better = [run(name, s, falling(1.2, end)) for name, end in (("full", 1.0), ("topk:8", 0.9)) for s in range(3)]
    assert (
        "topk:8 looks best: its final held-out loss is 10.0% below" in recommend(compare_records("t", better, {})).text
    )
    assert token_race([Record("x", {"attention": {"mechanism": "full"}, "seed": 1}, [], "done", 0.0)]) is None


def test_a_page_of_runs_that_diverged_before_an_evaluation_has_no_picture_of_them() -> None:
    group = group_records([replace(run("full", 0, falling(), "diverged"), metrics=[])]).groups[0]
    assert group.comparison.race is not None
    assert _race(group, group.comparison.race, lambda *_: pytest.fail("nothing to draw"))["picture"] is None


def test_numbers_of_tokens_are_short() -> None:
    assert [tokens_text(n) for n in (12, 819_200, 49e6, 1.5e9)] == ["12", "819 k", "49 M", "1.5 G"]
