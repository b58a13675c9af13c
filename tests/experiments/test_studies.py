"""The studies as declared: how many runs, of which tasks and mechanisms, shared with which others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache

import pytest

from semfocus import recipes
from semfocus.analysis.verdicts import CLAIMS
from semfocus.config import RunConfig, TaskConfig
from semfocus.errors import UsageError
from semfocus.experiments.experiment import Panel, distinct
from semfocus.experiments.paper_checks import controls
from semfocus.experiments.paper_figures import FIRST, SECOND, THREE, figure_1, figure_3
from semfocus.experiments.registry import get_study, studies, study
from semfocus.experiments.study import Study, crossed
from semfocus.tasks import Task

GRID = 15
RUNS = {
    "figure_1": 3 * 6 * 10,
    "figure_2": 3 * 6 * 2 * 10,
    "figure_3": (1 + 3 + 3 + 3 + 3 + 4) * 2 * 10,
    "figure_7": 4 * 6 * 10,
    "figure_8": 4 * 6 * 10,
    **{f"figure_{number}": 4 * GRID * 10 for number in range(9, 19)},
    "headline": 7 * (2 * 20 + 4 * 10),
    "further_seeds": 7 * 2 * 10,
    "k_sweep": 8 * 8 * 10,
    "dispersion_vs_speedup": 8 * 2 * 10,
    "mask_stability": 8 * 3 * 10,
    "controls": 8 * 4 * 10,
    "table_6": 4 * 2 * 10,
    "surfaces": 4 * 2 * 2 * 10,
    "temperature": 4 * 2 * 5 * 10,
    "noisy_choice": 6 * 5 * 10,
    "locality": 2 * 9 * 10,
    "heavy_hitters": 7 * (8 + 2) * 10,
    "normalisers": 4 * 2 * 5 * 10,
    "length": 5 * 5 * 5 * 10,
    "smoothness": 2 * 2 * 10,
    "figure_19": 4 * 2 * 10,
    "figure_20": 3 * 2 * 10,
    "pretraining": 2 * 6 * 8,
    "scaling": 4 * 2 * 4,
    "induction": 2 * 8,
    "recall": 9 * 3 * 8,
}
LANGUAGE = ("pretraining", "scaling", "induction", "recall")  # choose rates, and keep no checkpoint that nobody needs
# Of the corpora: without it, 64 MB of the sources of all packages are read.
LITTLE_TEXT = ("task.options.packages=stdlib", "task.options.megabytes=2")
TEXTS = ("pretraining", "scaling", "induction")
MEASURED = {
    **{name: {"dispersion"} for name in ("dispersion_vs_speedup", "table_6", "temperature")},
    "surfaces": {"surface"},
    "mask_stability": {"mask_stability"},
    "heavy_hitters": {"kept_keys", "dispersion"},
    "length": {"lengths"},
    "smoothness": {"smoothness"},
    "induction": {"induction"},
}
NAMES = list(RUNS)


@cache
def _built(task: str) -> Task:
    return TaskConfig.model_validate_json(task).build()


def built(config: RunConfig) -> Task:
    return _built(config.task.model_dump_json())


def ids(configs: Iterable[RunConfig]) -> set[str]:
    return {config.run_id(built(config)) for config in configs}


def kept(name: str, **choices) -> list[RunConfig]:
    return runs_of(get_study(name), **choices)


def runs_of(declared: Study, **choices) -> list[RunConfig]:
    """The runs of a study, on little text."""
    return declared.runs(**({"overrides": LITTLE_TEXT} if declared.name in TEXTS else {}) | choices)


def test_every_study_is_declared_and_has_its_number_of_runs() -> None:
    assert {each.name: len(runs_of(each)) for each in studies()} == RUNS


@pytest.mark.parametrize("scale", ["paper", "quick", "smoke"])
def test_no_run_is_listed_twice_and_every_run_fits_its_task_at_every_scale(scale) -> None:
    for each in studies():
        if scale == "paper" and each.name in ("figure_19", "figure_20"):
            continue  # vocabularies of thousands take a minute to fit
        configs = runs_of(each, scale=scale, seeds=2)
        assert len(ids(configs)) == len(configs), each.name
        for config in configs:
            config.check(built(config))


def test_studies_share_runs_so_that_a_figure_within_another_trains_nothing_new() -> None:
    assert ids(kept("figure_1")) < ids(kept("figure_7")) < ids(kept("figure_9"))
    assert ids(kept("figure_9")) == ids(kept("figure_10"))
    assert ids(kept("figure_8")) < ids(kept("figure_11")) == ids(kept("figure_12"))
    assert ids(kept("figure_13")) == ids(kept("figure_14"))
    assert not ids(kept("figure_13")) & ids(kept("figure_9"))
    assert ids(kept("table_6")) < ids(kept("figure_7"))
    assert ids(kept("table_6")) < ids(kept("surfaces"))
    assert ids(kept("dispersion_vs_speedup")) < ids(kept("figure_7")) | ids(kept("figure_8"))
    assert ids(kept("dispersion_vs_speedup")) < ids(kept("mask_stability"))
    default = ids(figure_3(changes=({},)))
    assert default < ids(kept("figure_3"))
    assert default < ids(kept("figure_1"))


def test_the_paper_s_tasks_activations_and_mechanisms_are_in_each_figure() -> None:
    for name in NAMES[:15]:
        configs = kept(name)
        number = int(name.removeprefix("figure_"))
        others = {2: ("gelu", "mish"), **dict.fromkeys((13, 14, 17, 18), ("gelu",)), 15: ("mish",), 16: ("mish",)}
        assert {config.model.activation for config in configs} == set(others.get(number, ("relu",))), name
        tasks = {1: THREE, 2: THREE, 3: ("listops",), **dict.fromkeys((8, 11, 12, 17, 18), SECOND)}.get(number, FIRST)
        assert {config.task.name for config in configs} == set(tasks), name
        mechanisms = {config.attention.mechanism for config in configs}
        assert len(mechanisms) == {3: 2, **dict.fromkeys((1, 2, 7, 8), 6)}.get(number, GRID), name
        assert set(recipes.COMPACT if number != 3 else ("full", "topk:5")) <= mechanisms, name
        assert {config.seed for config in configs} == set(recipes.PAPER_SEEDS), name
        assert all(config.model.padding_visible and config.model.pad_to_multiple for config in configs), name


def test_a_k_sweep_goes_from_one_key_to_the_whole_row_of_each_task() -> None:
    sizes = Counter(config.task.name for config in kept("k_sweep", seeds=1))
    assert set(sizes.values()) == {8}
    found = {c.attention.mechanism for c in kept("k_sweep", seeds=1, tasks=["listops"])}
    assert found == {"full", *(f"topk:{k}" for k in (1, 3, 5, 9, 15, 299, 599))}
    short = kept("k_sweep", seeds=1, tasks=["parity"], overrides=["task.options.length=6"])
    assert {c.attention.mechanism for c in short} == {"full", "topk:1", "topk:3", "topk:5", "topk:6"}


def test_temperatures_are_those_of_the_intervention_and_1_is_the_run_that_other_studies_have() -> None:
    configs = kept("temperature")
    assert {c.attention.inverse_temperature for c in configs} == {0.25, 0.5, 1.0, 2.0, 4.0}
    assert {c.attention.mechanism for c in configs} == {"full", "topk:5"}
    plain = [c for c in configs if c.attention.inverse_temperature == 1.0]
    assert ids(plain) < ids(kept("dispersion_vs_speedup"))
    seven = [*FIRST[1:], *SECOND]
    assert len(kept("temperature", tasks=seven, seeds=1)) == 7 * 2 * 5
    with pytest.raises(UsageError, match=r"the study varies attention\.inverse_temperature itself"):
        kept("temperature", overrides=["attention.inverse_temperature=3"])


def test_noise_in_the_choice_stands_beside_top_5_and_full_attention_and_shares_their_runs() -> None:
    configs = kept("noisy_choice")
    noisy = {c.attention.mechanism for c in configs} - {"full", "topk:5"}
    assert noisy == {"topk:5~0.01", "topk:5~0.1", "topk:5~1"}
    assert ids(c for c in configs if c.attention.mechanism not in noisy) < ids(kept("dispersion_vs_speedup"))


def test_locality_widens_moves_and_shuffles_with_rows_that_keep_their_length() -> None:
    configs = kept("locality", seeds=1)
    bands = ["banded:5", "banded:9", "banded:13", "banded:21", "banded:40", "shifted:5+10a", "shifted:5+20a"]
    by_shuffle = Counter((built(c).shuffle, c.attention.mechanism) for c in configs)
    assert by_shuffle == Counter((s, m) for s in (False, True) for m in ("full", "topk:5", *bands))
    assert {c.model.pad_to_multiple for c in configs} == {False}
    plain = crossed(["stack_manipulation"], ["full", "topk:5", *bands], seeds=1, recipe="clean")
    assert ids(plain) == ids(c for c in configs if not built(c).shuffle)


def test_each_panel_of_figure_3_shows_its_own_runs_beside_the_default_one() -> None:
    found = get_study("figure_3")
    default = figure_3(changes=({},), seeds=1)
    every = ids(found.runs(seeds=1))
    experiment = found.experiment(seeds=1)
    shown = {panel.title[0]: experiment.shown(place) for place, panel in enumerate(experiment.panels)}
    assert {name: len(runs) for name, runs in shown.items()} == {"a": 8, "b": 8, "c": 8, "d": 8, "e": 10}
    assert all(ids(default) <= ids(runs) <= every for runs in shown.values())
    assert set.union(*(ids(runs) for runs in shown.values())) == every
    assert sorted({c.model.blocks for c in shown["a"]}) == [6, 10, 15, 22]
    assert sorted({c.model.heads for c in shown["b"]}) == [1, 2, 4, 8]
    assert sorted({c.training.lr for c in shown["c"]}) == [0.66, 1.0, 1.5, 2.25]
    assert sorted({c.training.decay for c in shown["d"]}) == [0.9, 0.99, 0.999, 0.9999]
    adam = [c.training for c in shown["e"] if c.training.optimizer == "adam"]
    assert sorted({t.lr for t in adam}) == [1e-5, 1e-4, 1e-3, 1e-2]
    assert {t.decay for t in adam} == {0.99999}


def test_how_studies_are_shown_is_plain_data_over_fields_that_exist() -> None:
    fields = {"attention.mechanism", "task.name", "model.activation", "model.blocks", "model.heads"}
    fields |= {"training.lr", "training.decay", "attention.inverse_temperature", "task.options.shuffle"}
    fields |= {"attention.normaliser", "model.positions", "model.d_model", "task.options.length", "task.options.pairs"}
    for each in studies():
        assert each.panels, each.name
        assert each.asks.endswith("?"), each.name
        for panel in each.panels:
            assert {*panel.lines, *panel.each} <= fields, each.name
            named = {metric.split(".")[0] for metric in (*panel.metrics, panel.along)}
            plain = {"train_loss", "train_accuracy", "heldout_accuracy", "converged_at", "speed_up", "final", "epoch"}
            plain |= {"heldout_loss", "tokens", "parameters", "head_start", "seconds", "attention", "task"}
            assert named - plain <= set(each.measures), each.name
        assert set(each.measures) == MEASURED.get(each.name, set()), each.name
        assert ({0, 20} <= set(each.keep_epochs)) != (each.name in LANGUAGE), each.name
        assert (each.tuning is not None) == (each.name in LANGUAGE), each.name


def test_every_claim_has_a_study_that_bears_on_it() -> None:
    named = {claim for each in studies() for claim in each.claims}
    assert named == {claim.id for claim in CLAIMS}


def test_the_recipe_that_a_study_states_is_the_one_its_runs_have() -> None:
    for each in studies():
        own = runs_of(each, seeds=1)
        assert {config.model.padding_visible for config in own} == {each.recipe == "paper"}, each.name
        assert own == runs_of(each, seeds=1, recipe=each.recipe), each.name
    assert "randomk_replaced:5" in {c.attention.mechanism for c in controls(["parity"], seeds=1, recipe="authors")}
    assert "randomk:5" in {c.attention.mechanism for c in controls(["parity"], seeds=1)}
    assert all(config.model.first_norm_exact for config in figure_1(seeds=1, recipe="authors"))
    clean = figure_1(seeds=1, recipe="clean")
    assert not any(config.model.padding_visible or config.model.pad_to_multiple for config in clean)
    assert not ids(clean) & ids(figure_1(seeds=1))


def test_scales_shrink_the_runs_and_smoke_is_tiny() -> None:
    (paper,) = figure_1(tasks=["even_pairs"], seeds=1)[:1]
    (quick,) = figure_1(tasks=["even_pairs"], seeds=1, scale="quick")[:1]
    assert quick == recipes.quick("even_pairs", "full", paper.seed, "paper")
    assert quick.model.padding_visible
    for config in figure_1(seeds=1, scale="smoke"):
        assert (config.model.d_model, config.training.epochs, config.task.train_rows) == (8, 2, 60)
        assert config.task.build().seq_len <= 19


def test_tasks_and_overrides_are_the_user_s_unless_the_study_itself_varies_them() -> None:
    configs = figure_1(tasks=["parity"], seeds=2, overrides=["training.epochs=7"])
    assert {(c.task.name, c.training.epochs) for c in configs} == {("parity", 7)}
    for override, message in (
        ("model.blocks=3", "the study varies model.blocks itself"),
        ("model={}", "the study varies model itself"),
        ("seed=3", "a study's seeds are chosen apart"),
        ("attention.mechanism=full", "a study's mechanisms are chosen apart"),
        ("task.name=parity", "a study's tasks are chosen apart"),
        ("training.lrr=3", "did you mean 'training.lr'"),
    ):
        with pytest.raises(UsageError, match=message):
            figure_3(seeds=1, overrides=[override])


def test_more_runs_than_can_be_meant_are_refused_before_they_are_made() -> None:
    with pytest.raises(UsageError, match=r"6000 runs are more than 5000; if that is meant, give --yes"):
        get_study("figure_9").runs(seeds=100)
    assert len(get_study("figure_9").runs(seeds=100, most=100_000)) == 6000
    with pytest.raises(UsageError, match="make it several studies"):
        figure_1(seeds=10**9, most=10**12)
    with pytest.raises(UsageError, match="seeds = 0 must be at least 1"):
        figure_1(seeds=0)


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"unknown study 'figure1'; did you mean 'figure_1'"):
        get_study("figure1")
    with pytest.raises(UsageError, match="did you mean 'paper'"):
        figure_1(recipe="papers")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="did you mean 'smoke'"):
        figure_1(scale="smok")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="at least one task"):
        figure_1(tasks=[])


def test_a_name_cannot_be_registered_twice() -> None:
    def figure_1() -> list[RunConfig]:
        return []

    studies()
    with pytest.raises(UsageError, match="registered already"):
        study(title="", asks="", panels=(Panel("", ()),))(figure_1)


def test_distinct_keeps_the_first_of_equal_runs_whatever_their_label() -> None:
    (one,) = crossed(["parity"], ["full"], seeds=1)
    other = one.model_copy(update={"seed": 1})
    assert [c.seed for c in distinct([one, other, one.model_copy(update={"label": "again"})])] == [one.seed, 1]


def test_further_seeds_are_none_of_the_headlines_and_stop_at_95() -> None:
    """Their runs count beside those of `headline`: the same in all but seed and stop."""
    further, known = kept("further_seeds", seeds=3), kept("headline")
    assert {config.seed for config in further} == {*recipes.seeds(23)} - {config.seed for config in known}
    assert {config.training.stop_accuracy for config in further} == {0.95}
    going_on = {config.training.model_copy(update={"stop_accuracy": None}) for config in further}
    assert going_on == {config.training for config in known}
    with pytest.raises(UsageError, match="the study varies training"):
        kept("further_seeds", overrides=["training.stop_accuracy=0.9"])
