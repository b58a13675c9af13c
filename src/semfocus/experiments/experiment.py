"""An experiment: a question, the runs that answer it, and the panels that show the answer. Plain data throughout.

    Experiment("even_pairs", "Even Pairs", "Which attention learns faster?", configs, panels=(CURVES,))

`compare` and every study give one; `semfocus.experiments.run` trains it, compares its runs and draws its panels.
Experiments share runs: a run is known by what decides its result, so that what one has trained others find.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from semfocus.attention.plans import parse_plan
from semfocus.config import RunConfig
from semfocus.errors import UsageError, unknown
from semfocus.training.objective import LOSS, Objective

Change = Mapping[str, Any]  # dotted field of the configuration -> value: {"model.blocks": 6}


@dataclass(frozen=True)
class Panel:
    """One kind of drawing of an experiment.

    `kind`: curves (values `along` something, as lines), sweep (one value a run, against a field of its
    configuration), map (one value a run, as a coloured cell for each of `each` and `lines`), scatter (one point a
    task), surface, table.
    `metrics`: columns of metrics.jsonl, or `converged_at`, `speed_up`, `final.heldout_accuracy` of the analysis, or
    fields of a stored measurement, such as `mask_stability.kept`; drawn one above the other.
    `lines`: the fields of a configuration that tell lines apart; seeds are summed up by their `quantiles`.
    `changes`: the part of a study's runs that is meant, None for all; `configs` are those runs themselves.
    """

    title: str
    metrics: tuple[str, ...]
    kind: Literal["curves", "sweep", "map", "scatter", "surface", "table"] = "curves"
    along: str = "epoch"
    lines: tuple[str, ...] = ("attention.mechanism",)
    each: tuple[str, ...] = ("task.name",)  # a drawing for each value of these
    quantiles: tuple[float, float, float] = (0.25, 0.5, 0.75)
    changes: tuple[Change, ...] | None = None
    configs: tuple[RunConfig, ...] | None = None


@dataclass(frozen=True)
class Tuning:
    """How the learning rate of each arm is chosen before arms are compared (`experiments.tuning`).

    `by`: the mean held-out metric over the whole training (area), or the last held-out loss.
    """

    seeds: int = 2  # of the tuning's own
    by: Literal["area", "last loss"] = "area"


CURVES = Panel("learning curves", ("train_loss", "train_accuracy", "heldout_accuracy"))


def curves_of(objective: Objective) -> Panel:
    """Every metric over training, and what is measured on held-out examples beside the loss."""
    train = [metric.column("train") for metric in objective.metrics]
    others = [metric for metric in objective.metrics if metric != LOSS] or [LOSS]
    return replace(CURVES, metrics=(*train, *(metric.column("heldout") for metric in others)))


@dataclass(frozen=True)
class Experiment:
    """Runs and how they are shown."""

    name: str  # part of file names
    title: str
    question: str  # one sentence
    configs: tuple[RunConfig, ...]
    panels: tuple[Panel, ...] = (CURVES,)
    figure: str = ""  # the stem of its figures' file names; empty: the name
    claims: tuple[str, ...] = ()  # on which its runs give a verdict
    measures: tuple[str, ...] = ()  # measurements of the trained models that the panels need
    keep_epochs: tuple[int, ...] = ()  # checkpoints that stay
    keep_shares: tuple[float, ...] = ()  # the same by the share of training
    tuning: Tuning | None = None  # of learning rates, before its runs are trained; None: rates are as they are given
    heads_page: bool = False  # whether its title and question are the headline of a page about its runs

    @property
    def mechanisms(self) -> list[str]:
        return list(dict.fromkeys(config.attention.mechanism for config in self.configs))

    def shown(self, place: int) -> tuple[RunConfig, ...]:
        """The runs that the panel at this place shows."""
        configs = self.panels[place].configs
        return self.configs if configs is None else configs

    def only(self, mechanisms: Sequence[str]) -> Experiment:
        """The same with these of its mechanisms alone."""
        wanted = [str(parse_plan(text)) for text in mechanisms]
        for mechanism in wanted:
            if mechanism not in self.mechanisms:
                raise unknown(f"mechanism of {self.name}", mechanism, self.mechanisms)
        if not wanted:
            raise UsageError("attention names no mechanism; write for example full,topk:5")

        def kept(configs: Iterable[RunConfig]) -> tuple[RunConfig, ...]:
            return tuple(config for config in configs if config.attention.mechanism in wanted)

        panels = [
            panel if panel.configs is None else replace(panel, configs=kept(panel.configs)) for panel in self.panels
        ]
        return replace(self, configs=kept(self.configs), panels=tuple(panels))


def distinct(configs: Iterable[RunConfig]) -> list[RunConfig]:
    """Each configuration once, in order; labels do not count."""
    return list({config_key(config): config for config in configs}.values())


def config_key(config: RunConfig) -> str:
    """The same for equal configurations, labels aside."""
    return config.model_dump_json(exclude={"label"})
