"""C4 and C5 on runs made by hand: fitting, generalising, staying near chance, as well and earlier."""

from __future__ import annotations

import pytest

from semfocus.analysis.records import Record
from semfocus.analysis.verdicts.generalisation import GENERALISING
from semfocus.analysis.verdicts.settings import TASKS
from semfocus.tasks import get_task
from tests.analysis.made import both, run, verdict


def _best_shortcut(task: str) -> float:
    return max(get_task(task).baselines.values())


def _full(generalising=GENERALISING, fits: bool = True, tasks=TASKS, seeds: int = 10, **more) -> list[Record]:
    """Full attention: 90 % on the tasks that generalise, within a point of the best shortcut on the others."""
    records = []
    for task in tasks:
        for seed in range(seeds):
            level = 0.9 if task in generalising else _best_shortcut(task) + 0.002 * (seed % 5 - 2)
            records.append(run(task, "full", seed, at=20 if fits else None, fits=fits, heldout=level, **more))
    return records


def test_c4_holds_for_the_four_tasks_that_the_paper_names() -> None:
    judged = verdict("C4", _full())
    assert judged.outcome == "holds"
    assert judged.runs == 80


def test_c4_is_mixed_when_a_fifth_task_generalises_or_none_fits() -> None:
    judged = verdict("C4", _full((*GENERALISING, "parity")))
    assert judged.outcome == "mixed"
    assert "1 refuted: parity: does not generalise (90.0% against 50.0%)" in judged.because
    assert verdict("C4", _full(fits=False)).outcome == "mixed"


@pytest.mark.parametrize(
    ("task", "level", "shortcut"), [("listops", 0.271, "36.0%"), ("stack_manipulation", 0.52, "83.4%")]
)
def test_c4_calls_a_task_generalised_only_beyond_its_best_shortcut(task: str, level: float, shortcut: str) -> None:
    """27 % on ListOps is more than the most common answer (16.5 %) and less than the root operator gives (36 %)."""
    others = _full(tasks=[other for other in TASKS if other != task])
    below = [run(task, "full", seed, heldout=level + 0.001 * (seed % 3)) for seed in range(10)]
    judged = verdict("C4", others + below)
    assert judged.outcome == "mixed"
    assert f"1 refuted: {task}: generalises ({level + 0.0009:.1%} against {shortcut})" in judged.because


def test_a_level_below_the_baseline_is_no_generalisation() -> None:
    """A model that memorises may do worse than the most common answer; the old rule called that generalising."""
    others = _full(tasks=[task for task in TASKS if task != "modular_arithmetic"])
    memorised = [run("modular_arithmetic", "full", s, heldout=0.21 + 0.001 * (s % 3)) for s in range(10)]
    assert verdict("C4", others + memorised).outcome == "holds"


def test_c4_does_not_hold_when_nothing_fits_and_the_wrong_tasks_generalise() -> None:
    others = [task for task in TASKS if task not in GENERALISING]
    assert verdict("C4", _full(others, fits=False)).outcome == "does not hold"


def test_not_generalising_is_an_interval_below_the_bar_and_not_a_difference_that_is_not_significant() -> None:
    def parity(levels: list[float]) -> list[Record]:
        return [run("parity", "full", seed, heldout=level) for seed, level in enumerate(levels)]

    near = verdict("C4", parity([0.50, 0.51, 0.49, 0.50, 0.51, 0.49, 0.50, 0.50, 0.51, 0.49]))
    assert "parity: does not generalise (50.0%" in near.because.split(" never run")[0]
    wide = verdict("C4", parity([0.44, 0.56, 0.42, 0.58, 0.47, 0.53, 0.45, 0.55, 0.50, 0.50]))
    assert "parity: does not generalise (50.0% against 50.0%; about" in wide.because.split("undecided")[1]


@pytest.mark.parametrize("seeds", [1, 5])
def test_c4_says_nothing_of_few_runs_or_of_runs_that_stop_early(seeds: int) -> None:
    assert verdict("C4", _full(seeds=seeds)).outcome == "not decided"
    stopped = verdict("C4", _full(changes={"training.stop_accuracy": 0.95}))
    assert stopped.outcome == "not decided"
    assert "trained to the last epoch" in stopped.because


def test_c4_asks_for_thirty_runs_where_some_are_stuck_and_others_not() -> None:
    def half_stuck(seeds: int) -> list[Record]:
        return [run("even_pairs", "full", s, heldout=0.5 if s % 5 == 0 else 0.97) for s in range(seeds)]

    few = verdict("C4", half_stuck(10))
    assert "runs fall in two groups, which takes 30 seeds; there are 10" in few.because
    assert (
        "even_pairs: generalises (87.6% against 50.0%)" in verdict("C4", half_stuck(30)).because.split("undecided")[0]
    )


def _pairs(
    full: float, topk: float, tasks=TASKS, full_at: float = 60, topk_at: float = 20, seeds: int = 10
) -> list[Record]:
    wobble = [0.0, 0.004, -0.004]
    return [
        run(task, mechanism, seed, heldout=level + wobble[seed % 3] * sign, heldout_at=at + 0.3 * (seed % 4))
        for task in tasks
        for seed in range(seeds)
        for mechanism, level, at, sign in (("full", full, full_at, 1), ("topk:5", topk, topk_at, -1))
    ]


def test_c5_holds_when_top_k_is_as_good_and_earlier_everywhere() -> None:
    assert verdict("C5", _pairs(0.9, 0.9)).outcome == "holds"
    assert verdict("C5", _pairs(0.9, 0.97)).outcome == "holds"


def test_c5_is_mixed_when_it_is_as_good_but_later() -> None:
    judged = verdict("C5", _pairs(0.9, 0.9, full_at=20, topk_at=60))
    assert judged.outcome == "mixed"
    assert "8 of 16 shown" in judged.because
    assert "8 refuted" in judged.because


def test_c5_does_not_hold_when_top_k_is_worse_and_later() -> None:
    assert verdict("C5", _pairs(0.9, 0.8, full_at=20, topk_at=60)).outcome == "does not hold"


def test_c5_says_nothing_of_five_seeds() -> None:
    judged = verdict("C5", _pairs(0.9, 0.9, seeds=5))
    assert judged.outcome == "not decided"
    assert judged.seeds == 10  # "as well" is not said of fewer pairs


def test_tasks_on_which_neither_arm_generalises_are_not_applicable() -> None:
    """Both at 21 % of Modular Arithmetic, top-k 3 points lower: that refutes nothing, since neither generalises."""
    others = _pairs(0.9, 0.9, [task for task in TASKS if task != "modular_arithmetic"])
    judged = verdict("C5", others + _pairs(0.24, 0.21, ["modular_arithmetic"]))
    assert (judged.outcome, judged.judged) == ("holds", (14, 14))
    names = "modular_arithmetic: as well, modular_arithmetic: earlier"
    why = f"2 not applicable: {names} (neither arm does better than guessing)"
    assert why in judged.because
    one = verdict("C5", others + _pairs(0.24, 0.9, ["modular_arithmetic"]))
    assert "1 not applicable: modular_arithmetic: earlier (full does no better than guessing)" in one.because


def test_a_task_between_guessing_and_its_best_shortcut_still_compares_the_arms() -> None:
    """27 and 31 % on ListOps are below the root operator's 36 %, and yet more than guessing."""
    assert "listops: as well (+4.0 points)" in verdict("C5", _pairs(0.27, 0.31, ["listops"])).because


def test_a_diverged_run_counts_as_guessing_and_not_with_what_it_knew_before() -> None:
    sound = [r for r in _pairs(0.9, 0.9, ["even_pairs"]) if not (r.mechanism == "topk:5" and r.seed < 8)]
    lost = [run("even_pairs", "topk:5", seed, heldout=0.9, state="diverged") for seed in range(8)]
    assert "even_pairs: as well (worse by more than 2%)" in verdict("C5", sound + lost).because


def test_both_marks_of_a_seed_are_the_same_so_that_swapping_arms_swaps_the_answer() -> None:
    one = verdict("C5", _pairs(0.9, 0.93, ["even_pairs"], full_at=60, topk_at=20))
    other = verdict("C5", _pairs(0.93, 0.9, ["even_pairs"], full_at=20, topk_at=60))
    assert "even_pairs: earlier" in one.because.split(" undecided")[0]
    assert "refuted" in other.because
    assert "even_pairs: earlier (slower" in other.because


def test_the_mark_is_one_that_both_runs_of_a_seed_attain() -> None:
    judged = verdict("C5", _pairs(0.9, 0.95, ["even_pairs"], full_at=20, topk_at=60))
    assert "even_pairs: earlier (slower" in judged.because  # that top-k ends higher does not make it earlier


def test_runs_of_both_are_counted_once() -> None:
    assert verdict("C5", both(60, 20, ["parity"])).runs == 20
