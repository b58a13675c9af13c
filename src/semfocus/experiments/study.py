"""A study: the declaration of an experiment. Everything but `runs` is plain data.

def figure_1(tasks: Tasks = THREE, **choices: Unpack[Choices]) -> list[RunConfig]:
    return crossed(tasks, COMPACT, **choices)

Study("figure_1", "Who learns faster", "...?", figure_1, (Panel("loss", ("train_loss",)),)).experiment(seeds=3)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict, Unpack

from semfocus import recipes
from semfocus.config import RunConfig
from semfocus.config_files import apply_overrides, parse_config
from semfocus.errors import UsageError, check_int
from semfocus.experiments.experiment import Change, Experiment, Panel, Tuning, distinct
from semfocus.recipes import Recipe, Scale

Tasks = Sequence[str]
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
class Study:
    """The declaration of an experiment, whose size and tasks are still to be chosen."""

    name: str
    title: str
    asks: str  # one sentence
    runs: Callable[..., list[RunConfig]]  # (tasks, **choices)
    panels: tuple[Panel, ...]
    figures: tuple[str, ...] = ()  # of the paper: "1", "3a-e", "Table 6"
    claims: tuple[str, ...] = ()  # that its runs bear on: "C15"
    measures: tuple[str, ...] = ()
    recipe: Recipe = "paper"  # unless chosen otherwise
    # The same in all studies: whichever trains a run, it can be measured for any other.
    keep_epochs: tuple[int, ...] = (0, 20)
    keep_shares: tuple[float, ...] = ()  # of training, where an epoch is long
    tuning: Tuning | None = None  # of learning rates

    def experiment(self, tasks: Tasks | None = None, **choices: Unpack[Choices]) -> Experiment:
        """The experiment with these choices; what is left open is as the study says."""
        given: dict[str, Any] = {**choices} if tasks is None else {"tasks": tasks, **choices}
        panels = [
            panel if panel.changes is None else replace(panel, configs=tuple(self.runs(changes=panel.changes, **given)))
            for panel in self.panels
        ]
        return Experiment(
            self.name,
            self.title,
            self.asks,
            tuple(self.runs(**given)),
            tuple(panels),
            claims=self.claims,
            measures=self.measures,
            keep_epochs=self.keep_epochs,
            keep_shares=self.keep_shares,
            tuning=self.tuning,
            heads_page=True,
        )


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
        asked = mechanisms(base.task.build().seq_len) if callable(mechanisms) else mechanisms
        names = [recipes.mechanism_in(recipe, mechanism) for mechanism in asked]
        check_count(len(tasks) * len(changes) * len(names), seeds, most)
        chosen = chosen or recipes.seeds(seeds)
        for change in changes:
            texts = [f"{name}={json.dumps(value)}" for name, value in change.items()]
            for mechanism in names:
                config = _changed(base, [*texts, f"attention.mechanism={json.dumps(mechanism)}"])
                configs += [config.model_copy(update={"seed": seed}) for seed in chosen]
    return distinct(configs)


def seed_by_seed(
    bases: Sequence[RunConfig],
    mechanisms: Sequence[str] | Callable[[int], Sequence[str]],
    *,
    seeds: int,
    overrides: Sequence[str] = (),
    most: int = MANY,
) -> list[RunConfig]:
    """Every base with every seed and mechanism, where runs are long: what is cut off leaves whole comparisons behind.

    Overrides belong to every run; what is varied is in the bases already.
    """
    _refuse_varied(overrides, set())
    configs: list[RunConfig] = []
    for base in (_changed(base, overrides) for base in bases):
        chosen = mechanisms(base.task.build().seq_len) if callable(mechanisms) else mechanisms
        check_count(len(bases) * len(chosen), seeds, most)
        runs = [_changed(base, [f"attention.mechanism={json.dumps(mechanism)}"]) for mechanism in chosen]
        configs += [run.model_copy(update={"seed": seed}) for seed in recipes.seeds(seeds) for run in runs]
    return distinct(configs)


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
