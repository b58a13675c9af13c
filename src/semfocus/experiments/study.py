"""A study: what it asks, the runs that answer it, and how they are shown. Everything but `runs` is plain data.

    def figure_1(tasks: Tasks = THREE, **choices: Unpack[Choices]) -> list[RunConfig]:
        return crossed(tasks, COMPACT, **choices)

    Study("figure_1", "Who learns faster", "...?", figure_1, (Panel("loss", ("train_loss",)),)).runs(seeds=3)

Studies share runs: a run is known by what decides its result, so that what one study has trained others find.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, Unpack

from semfocus import recipes
from semfocus.config import RunConfig
from semfocus.config_files import apply_overrides, parse_config
from semfocus.errors import UsageError, check_int
from semfocus.recipes import Recipe, Scale

Tasks = Sequence[str]
Change = Mapping[str, Any]  # dotted field of the configuration -> value: {"model.blocks": 6}
Mechanisms = Sequence[str] | Callable[[int], Sequence[str]]  # or those that suit a task of this width
AS_IS: Change = {}

MANY = 5000  # runs beyond which a study asks whether that is meant
TOO_MANY = 100_000  # and beyond which it is refused
CHOSEN_APART = {"attention.mechanism": "mechanisms", "task.name": "tasks", "seed": "seeds"}


class Choices(TypedDict, total=False):
    """What a user may choose in every study, besides its tasks."""

    seeds: int  # how many; 10
    recipe: Recipe  # "paper", unless the study says otherwise
    scale: Scale  # "paper"
    overrides: Sequence[str]  # changes to every run, such as "training.epochs=50"
    most: int  # runs, at most


@dataclass(frozen=True)
class Panel:
    """One kind of drawing of a study.

    `kind`: curves (values `along` something, as lines), sweep (one value a run, against a field of its
    configuration), scatter (one point a task), surface, table.
    `metrics`: columns of metrics.jsonl, or `converged_at`, `speed_up`, `final.heldout_accuracy` of the analysis, or
    fields of a stored measurement, such as `mask_stability.kept`; drawn one above the other.
    `lines`: the fields of a configuration that tell lines apart; seeds are summed up by their `quantiles`.
    `changes`: the part of the study's runs that is meant, None for all.
    """

    title: str
    metrics: tuple[str, ...]
    kind: Literal["curves", "sweep", "scatter", "surface", "table"] = "curves"
    along: str = "epoch"
    lines: tuple[str, ...] = ("attention.mechanism",)
    each: tuple[str, ...] = ("task.name",)  # a drawing for each value of these
    quantiles: tuple[float, float, float] = (0.25, 0.5, 0.75)
    changes: tuple[Change, ...] | None = None


@dataclass(frozen=True)
class Study:
    """One experiment."""

    name: str
    title: str
    asks: str  # one sentence
    runs: Callable[..., list[RunConfig]]  # (tasks, **choices)
    panels: tuple[Panel, ...]
    figures: tuple[str, ...] = ()  # of the paper: "1", "3a-e", "Table 6"
    measures: tuple[str, ...] = ()  # measurements of the trained models that the panels need
    recipe: Recipe = "paper"  # unless chosen otherwise
    # Checkpoints that stay. The same in all studies: whichever trains a run, it can be measured for any other.
    keep_epochs: tuple[int, ...] = (0, 20)

    def panel_runs(self, panel: Panel, tasks: Tasks | None = None, **choices: Unpack[Choices]) -> list[RunConfig]:
        """The runs that a panel shows, of those that `runs` gives for the same choices."""
        more: dict[str, Any] = {} if panel.changes is None else {"changes": panel.changes}
        more |= {} if tasks is None else {"tasks": tasks}
        return self.runs(**more, **choices)


def crossed(
    tasks: Tasks,
    mechanisms: Mechanisms,
    changes: Sequence[Change] = (AS_IS,),
    *,
    seeds: int = 10,
    recipe: Recipe = "paper",
    scale: Scale = "paper",
    overrides: Sequence[str] = (),
    most: int = MANY,
) -> list[RunConfig]:
    """Every task with every change, mechanism and seed; no run twice.

    Overrides belong to every run; a field that the study itself varies cannot be overridden.
    """
    _refuse_varied(overrides, {name for change in changes for name in change})
    if not tasks:
        raise UsageError("a study needs at least one task")
    chosen = None
    configs: list[RunConfig] = []
    for task in tasks:
        base = _changed(recipes.at_scale(task, "full", 0, recipe, scale), overrides)
        names = mechanisms(base.task.build().seq_len) if callable(mechanisms) else mechanisms
        check_count(len(tasks) * len(changes) * len(names), seeds, most)
        chosen = chosen or recipes.seeds(seeds)
        for change in changes:
            texts = [f"{name}={json.dumps(value)}" for name, value in change.items()]
            for mechanism in names:
                config = _changed(base, [*texts, f"attention.mechanism={json.dumps(mechanism)}"])
                configs += [config.model_copy(update={"seed": seed}) for seed in chosen]
    return distinct(configs)


def distinct(configs: Iterable[RunConfig]) -> list[RunConfig]:
    """Each once, in order."""
    return list({config.model_dump_json(exclude={"label"}): config for config in configs}.values())


def check_count(combinations: int, seeds: int, most: int) -> None:
    """Refuse more runs than are likely meant, before they are made."""
    count = combinations * check_int("seeds", seeds, at_least=1)
    if count > TOO_MANY:
        raise UsageError(f"{count} runs are more than a study may have ({TOO_MANY}); make it several studies")
    if count > most:
        raise UsageError(f"{count} runs are more than {most}; if that is meant, give --yes")


def _changed(config: RunConfig, overrides: Sequence[str]) -> RunConfig:
    return parse_config(apply_overrides(config.model_dump(mode="json"), overrides)) if overrides else config


def _refuse_varied(overrides: Sequence[str], varied: set[str]) -> None:
    for text in overrides:
        name = text.partition("=")[0].strip()
        if name in CHOSEN_APART:
            raise UsageError(f"override {text!r}: a study's {CHOSEN_APART[name]} are chosen apart from other fields")
        if any(name == field or field.startswith(f"{name}.") for field in varied):
            raise UsageError(f"override {text!r}: the study varies {name} itself; choose another field")
