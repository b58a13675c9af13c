"""The learning rate of each arm, chosen before they are compared, so that none is judged at another's rate.

    tuned = choose_rates(experiment, plan_tuning(experiment, "lr", out))
    tuned.lines           "topk:5: learning rate 0.3, of 0.03, 0.1 and 0.3 (...)"
    tuned.experiment      the same comparison, each mechanism at its own rate

An arm is a mechanism in one setting: in a study over several sizes each has rates of its own. Every mechanism gets the
same rates on the same seeds, which are none of the comparison's, and as many epochs. In `compare` the rate is taken
whose mean held-out accuracy over the whole training is best: that rewards learning early and learning well. A study may
take the last held-out loss instead (`Experiment.tuning`). The runs lie in the folder `tuning` of the store and are not
trained twice.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from semfocus.analysis.comparability import differing, setting_text, settings_of
from semfocus.analysis.records import Record
from semfocus.analysis.results import Results
from semfocus.config import RunConfig
from semfocus.errors import UsageError, unknown
from semfocus.execution.executor import AUTO, train_jobs
from semfocus.experiments.experiment import Experiment, Tuning, config_key
from semfocus.experiments.run import Plan, plan
from semfocus.store import RunStore
from semfocus.store.runs import TUNING
from semfocus.training.runtime import Runtime

TUNABLE = ("lr",)
FACTORS = (0.3, 1.0, 3.0)  # of the rate that the comparison would take
USUAL = Tuning()


@dataclass(frozen=True)
class Tuned:
    """A comparison at tuned rates, the rate of each arm by its name, and a line on each choice."""

    experiment: Experiment
    rates: dict[str, float]
    lines: list[str]


def plan_tuning(experiment: Experiment, what: str = "lr", out: Path | str | None = None) -> Plan:
    """The runs by which rates are chosen: each arm at each rate with each of the tuning's own seeds."""
    if what not in TUNABLE:
        raise unknown("quantity to tune", what, TUNABLE)
    tuning = experiment.tuning or USUAL
    arms = _arms(experiment).values()
    configs = [config for base in arms for lr in _rates(base) for config in _tried(base, lr, tuning)]
    runs = replace(
        experiment,
        name=f"{experiment.name}-tuning",
        title=f"{experiment.title}, learning rates to choose from",
        configs=tuple(configs),
        panels=(),
    )
    return plan(runs, RunStore(out).root / TUNING)


def choose_rates(
    experiment: Experiment,
    job: Plan,
    runtime: Runtime = Runtime(),
    on_progress: Callable | None = None,
    executor: str = AUTO,
) -> Tuned:
    """Train those of the tuning's runs that are missing, and choose."""
    train_jobs(job.jobs, job.store, runtime, on_progress, executor)
    results = Results.load(job.store, [each.id for each in job.jobs])
    ended = {record.id: record for record in results.records if record.ended}
    tuning, arms = experiment.tuning or USUAL, _arms(experiment)
    score = _score if tuning.by == "area" else _last_loss
    rates, lines = {}, []
    for name, base in arms.items():
        tried = _rates(base)
        ids = [[job.ids[config_key(config)] for config in _tried(base, lr, tuning)] for lr in tried]
        if any(id not in ended for of_rate in ids for id in of_rate):
            raise UsageError(f"{name} has no learning rate: runs in {job.store.root} did not end; see semfocus runs")
        by_rate = [[ended[id] for id in of_rate] for of_rate in ids]
        scores = [score(records) for records in by_rate]
        order = sorted(range(len(tried)), key=lambda i: (-scores[i], abs(tried[i] - base.training.lr)))
        rates[name] = tried[order[0]]
        lines.append(_line(name, tried, by_rate[order[0]][0], scores, order[0], tuning))
    return Tuned(_at(experiment, {_arm_key(base): rates[name] for name, base in arms.items()}), rates, lines)


def _line(name: str, tried: list[float], record: Record, scores: list[float], best: int, tuning: Tuning) -> str:
    metric = record.objective.learned.metric
    is_share = metric.is_share and tuning.by == "area"
    shown = [
        f"{lr:g} ({f'{score:.1%}' if is_share else f'{abs(score):.4g}'})"
        for lr, score in zip(tried, scores, strict=True)
    ]
    edge = {0: "; it is the smallest of them", len(tried) - 1: "; it is the largest of them"}.get(best, "")
    what = f"mean {metric.text('heldout')} over training" if tuning.by == "area" else "last held-out loss"
    own = "a seed of its own" if tuning.seeds == 1 else f"{tuning.seeds} seeds of their own"
    return f"{name}: learning rate {tried[best]:g}, of {', '.join(shown)} ({what}, {own}){edge}"


def _last_loss(records: Sequence[Record]) -> float:
    """The mean over seeds of the last held-out loss; larger is better, so that it is negative."""
    losses = [record.final("heldout_loss") for record in records if record.state != "diverged"]
    known = [loss for loss in losses if loss is not None and math.isfinite(loss)]
    return -float(np.mean(known)) if len(known) == len(records) else -math.inf


def _score(records: Sequence[Record]) -> float:
    """The mean over seeds of the mean over training; larger is better. Diverged runs are the worst there is."""
    values = []
    for record in records:
        metric = record.objective.learned.metric
        column, epochs = record.column(metric.column("heldout")), record.column("epoch")
        if record.state == "diverged" or not len(column) or not np.isfinite(column).all():
            worst = metric.worst
            values.append(worst if metric.higher_is_better else -worst)
            continue
        spans = np.diff([0.0, *epochs])  # a run that stopped early keeps its last value
        area = float((spans * column).sum() + (record.horizon - epochs[-1]) * column[-1]) / record.horizon
        values.append(area if metric.higher_is_better else -area)
    return float(np.mean(values))


def _at(experiment: Experiment, rates: Mapping[str, float]) -> Experiment:
    """The experiment with each arm at its rate; runs say so, and are comparable whatever their rates."""
    tuning = experiment.tuning or USUAL
    by = "" if tuning.by == "area" else f"; {tuning.by}"

    def at_rate(config: RunConfig) -> RunConfig:
        seeds = "1 seed" if tuning.seeds == 1 else f"{tuning.seeds} seeds"
        tuned = f"lr of {', '.join(f'{lr:g}' for lr in _rates(config))}; {seeds}{by}"
        changed = {"lr": rates[_arm_key(config)], "tuned": tuned}
        return config.model_copy(update={"training": config.training.model_copy(update=changed)})

    panels = [
        panel if panel.configs is None else replace(panel, configs=tuple(map(at_rate, panel.configs)))
        for panel in experiment.panels
    ]
    return replace(experiment, configs=tuple(map(at_rate, experiment.configs)), panels=tuple(panels), tuning=None)


def _arms(experiment: Experiment) -> dict[str, RunConfig]:
    """The first configuration of each arm, by a name: the mechanism, and what tells the settings apart."""
    bases = list({_arm_key(config): config for config in reversed(experiment.configs)}.values())[::-1]
    settings = [settings_of(base.model_dump(mode="json")) for base in bases]
    names = [base.attention.mechanism for base in bases]
    for field in differing(settings):
        if len({*names}) < len(names):
            names = [
                f"{name}, {setting_text(field, own.get(field))}" for name, own in zip(names, settings, strict=True)
            ]
    return dict(zip(names, bases, strict=True))


def _arm_key(config: RunConfig) -> str:
    """The same for runs that differ in their seed alone."""
    return json.dumps(config.model_dump(mode="json", exclude={"seed", "label"}), sort_keys=True)


def _tried(base: RunConfig, lr: float, tuning: Tuning) -> list[RunConfig]:
    """The runs of an arm at a rate."""
    training = base.training.model_copy(update={"lr": lr})
    return [base.model_copy(update={"training": training, "seed": seed}) for seed in _seeds(tuning.seeds)]


def _rates(config: RunConfig) -> list[float]:
    return [float(f"{factor * config.training.lr:.3g}") for factor in FACTORS]


def _seeds(count: int) -> list[int]:
    """Seeds that no comparison takes."""
    digests = (hashlib.sha256(f"tuning seed {i}".encode()).digest() for i in range(count))
    return [int.from_bytes(digest[:4], "big") >> 4 for digest in digests]
