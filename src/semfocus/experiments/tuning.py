"""The learning rate of each mechanism, chosen before they are compared, so that none is judged at another's rate.

    tuned = choose_rates(experiment, plan_tuning(experiment, "lr", out))
    tuned.lines           "topk:5: learning rate 0.3, of 0.03, 0.1 and 0.3 (...)"
    tuned.experiment      the same comparison, each mechanism at its own rate

Every mechanism gets the same rates on the same seeds, which are none of the comparison's, and as many epochs. The rate
is taken whose mean held-out accuracy over the whole training is best: that rewards learning early and learning well.
The runs lie in the folder `tuning` of the store and are not trained twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from semfocus.analysis.records import Record
from semfocus.analysis.results import Results
from semfocus.config import RunConfig
from semfocus.errors import UsageError, unknown
from semfocus.execution.executor import AUTO, train_jobs
from semfocus.experiments.experiment import Experiment
from semfocus.experiments.run import Plan, plan
from semfocus.store import RunStore
from semfocus.store.runs import TUNING
from semfocus.training.runtime import Runtime

TUNABLE = ("lr",)
FACTORS = (0.3, 1.0, 3.0)  # of the rate that the comparison would take
SEEDS = 2


@dataclass(frozen=True)
class Tuned:
    """A comparison at tuned rates, the rate of each mechanism, and a line on each choice."""

    experiment: Experiment
    rates: dict[str, float]
    lines: list[str]


def plan_tuning(experiment: Experiment, what: str = "lr", out: Path | str | None = None) -> Plan:
    """The runs by which rates are chosen: each mechanism at each rate with each of the tuning's own seeds."""
    if what not in TUNABLE:
        raise unknown("quantity to tune", what, TUNABLE)
    configs = []
    for base in _one_each(experiment):
        for lr in _rates(base):
            training = base.training.model_copy(update={"lr": lr})
            configs += [base.model_copy(update={"training": training, "seed": seed}) for seed in _seeds()]
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
    rates, lines = {}, []
    for base in _one_each(experiment):
        mechanism, tried = base.attention.mechanism, _rates(base)
        own = [record for record in results.records if record.mechanism == mechanism and record.ended]
        by_rate = [[record for record in own if record.config["training"]["lr"] == lr] for lr in tried]
        if any(len(records) < SEEDS for records in by_rate):
            raise UsageError(
                f"{mechanism} has no learning rate: runs in {job.store.root} did not end; see semfocus runs"
            )
        scores = [_score(records) for records in by_rate]
        order = sorted(range(len(tried)), key=lambda i: (-scores[i], abs(tried[i] - base.training.lr)))
        rates[mechanism] = tried[order[0]]
        lines.append(_line(mechanism, tried, by_rate, scores, order[0]))
    return Tuned(_at(experiment, rates), rates, lines)


def _line(mechanism: str, tried: list[float], by_rate: list[list[Record]], scores: list[float], best: int) -> str:
    metric = by_rate[best][0].objective.learned.metric
    shown = [
        f"{lr:g} ({f'{score:.1%}' if metric.is_share else f'{abs(score):.3g}'})"
        for lr, score in zip(tried, scores, strict=True)
    ]
    edge = {0: "; it is the smallest of them", len(tried) - 1: "; it is the largest of them"}.get(best, "")
    what = f"mean {metric.text('heldout')} over training, {SEEDS} seeds of their own"
    return f"{mechanism}: learning rate {tried[best]:g}, of {', '.join(shown)} ({what}){edge}"


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


def _at(experiment: Experiment, rates: dict[str, float]) -> Experiment:
    """The experiment with each mechanism at its rate; runs say so, and are comparable whatever their rates."""
    configs = []
    for config in experiment.configs:
        tuned = f"lr of {', '.join(f'{lr:g}' for lr in _rates(config))}; {SEEDS} seeds"
        changed = {"lr": rates[config.attention.mechanism], "tuned": tuned}
        configs.append(config.model_copy(update={"training": config.training.model_copy(update=changed)}))
    return replace(experiment, configs=tuple(configs))


def _one_each(experiment: Experiment) -> list[RunConfig]:
    """The first configuration of each mechanism."""
    return list({config.attention.mechanism: config for config in reversed(experiment.configs)}.values())[::-1]


def _rates(config: RunConfig) -> list[float]:
    return [float(f"{factor * config.training.lr:.3g}") for factor in FACTORS]


def _seeds() -> list[int]:
    """Seeds that no comparison takes."""
    digests = (hashlib.sha256(f"tuning seed {i}".encode()).digest() for i in range(SEEDS))
    return [int.from_bytes(digest[:4], "big") >> 4 for digest in digests]
