"""Compare mechanisms on one task: which learns in fewer epochs, and which is right on rows it has not seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from semfocus.analysis.accuracy import Accuracies
from semfocus.analysis.findings import BASE, Finding, findings_of
from semfocus.analysis.multiple import holm
from semfocus.analysis.paired import paired_logrank
from semfocus.analysis.records import Record, facts_of
from semfocus.analysis.speedup import SpeedUp, speed_up
from semfocus.analysis.survival import ConvergenceTimes
from semfocus.analysis.tokens import TokenRace, token_race
from semfocus.training.objective import ACCURACY, CLASSIFICATION, Learned


@dataclass(frozen=True)
class Arm:
    """One mechanism's runs."""

    mechanism: str
    times: ConvergenceTimes
    final_heldout: Accuracies
    best_heldout: Accuracies
    final_train: Accuracies
    speed_up: SpeedUp | None  # over full attention; None for full attention itself
    p: float | None  # of the paired test against full attention, after Holm
    diverged: int
    seconds: float  # of a run, the mean
    seconds_per_epoch: float | None  # the median over runs; seeds that train side by side each count the whole time
    # Of each share beside held-out accuracy, by column: the final ones, and of the test split those that count.
    others: Mapping[str, Accuracies] = field(default_factory=dict)

    @property
    def reached(self) -> int:
        return int(self.times.reached.sum())

    @property
    def unseen(self) -> Accuracies:
        """Accuracies on rows that decided nothing: the test split where it was measured, else the held-out one."""
        return self.test or self.final_heldout

    @property
    def test(self) -> Accuracies:
        """Accuracies on the test split; none where it was not measured."""
        return self.others.get(ACCURACY.column("test"), Accuracies.of({}))

    @property
    def seconds_to_learn(self) -> float | None:
        """The median epochs in seconds of training; None where half of the seeds never got there."""
        if self.times.median is None or self.seconds_per_epoch is None:
            return None
        return self.times.median * self.seconds_per_epoch


@dataclass(frozen=True)
class Comparison:
    """All mechanisms on one task."""

    task: str
    horizon: float
    seeds: int
    arms: tuple[Arm, ...]
    baselines: Mapping[str, float]
    unfinished: tuple[str, ...]  # ids of runs that are left out
    learned: Learned = CLASSIFICATION.learned  # what the runs' objective calls learned
    facts: Mapping[str, Any] = field(default_factory=dict)  # what the runs say of the data they were given
    race: TokenRace | None = None  # of language models, which are compared by losses and tokens instead of epochs

    @property
    def baseline(self) -> float:
        """The best accuracy that needs no learning; 0 where none is known."""
        return max(self.baselines.values(), default=0.0)

    @property
    def is_tested(self) -> bool:
        """Whether accuracy on unseen rows is that of the test split."""
        return any(arm.test for arm in self.arms)

    @property
    def unseen_baselines(self) -> Mapping[str, float]:
        """The accuracies without learning on the rows that accuracy on unseen rows is about."""
        shares = self.facts.get("majority_share")
        test = shares.get("test") if isinstance(shares, Mapping) else None
        if not self.is_tested or "majority" not in self.baselines or type(test) is not float or not 0 <= test <= 1:
            return self.baselines
        return {**self.baselines, "majority": test}

    @property
    def unseen_baseline(self) -> float:
        """The best of them; 0 where none is known."""
        return max(self.unseen_baselines.values(), default=0.0)

    def arm(self, mechanism: str) -> Arm:
        return next(arm for arm in self.arms if arm.mechanism == mechanism)

    @property
    def nothing_learned(self) -> bool:
        """Whether there are ended runs, and none of them learned: then nothing follows about speed."""
        has_goal = self.race is None  # no share of right tokens means that a language is learned
        return has_goal and any(len(arm.times) for arm in self.arms) and not any(arm.reached for arm in self.arms)

    @property
    def too_coarse(self) -> float | None:
        """The epoch of the first evaluation where all runs had learned by then: epochs cannot tell them apart."""
        at = {float(epoch) for arm in self.arms for epoch in arm.times.epochs}
        is_first = len(at) == 1 and max(at) <= 1 and all(arm.reached == len(arm.times) > 0 for arm in self.arms)
        return at.pop() if is_first and len(self.arms) > 1 else None

    def findings(self) -> list[Finding]:
        """What the data support, and what they do not."""
        return findings_of(self)

    def sentences(self) -> list[str]:
        """The findings as text."""
        return [finding.text for finding in self.findings()]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for machines."""
        return {
            "task": self.task,
            "horizon": self.horizon,
            "seeds": self.seeds,
            "threshold": self.learned.threshold,
            "baselines": dict(self.baselines),
            "unfinished": list(self.unfinished),
            "mechanisms": [_arm_dict(arm) for arm in self.arms],
            "findings": self.sentences(),
            **({"data": dict(self.facts)} if self.facts else {}),
            **({"tokens": self.race.to_dict()} if self.race else {}),
        }


def compare_records(task: str, records: Sequence[Record], baselines: Mapping[str, float]) -> Comparison:
    """Compare the runs that have ended; list the others as unfinished."""
    ended = [record for record in records if record.ended]
    horizon = float(max((record.horizon for record in records), default=1))
    by_mechanism: dict[str, list[Record]] = {}
    for record in records:
        by_mechanism.setdefault(record.mechanism, [])
    for record in ended:
        by_mechanism[record.mechanism].append(record)
    times = {
        mechanism: ConvergenceTimes.of({run.seed: run.converged_at for run in runs}, horizon=horizon)
        for mechanism, runs in by_mechanism.items()
    }
    others = [mechanism for mechanism in times if mechanism != BASE]
    base = times.get(BASE)
    tests = {m: paired_logrank(base, times[m]).p for m in others} if base is not None else {}
    adjusted = holm(tests)
    arms = [
        _arm(mechanism, runs, times[mechanism], base if mechanism != BASE else None, adjusted.get(mechanism))
        for mechanism, runs in by_mechanism.items()
    ]
    seeds = len({record.seed for record in records})
    unfinished = tuple(record.id for record in records if not record.ended)
    learned = records[0].objective.learned if records else CLASSIFICATION.learned
    facts = facts_of(records[0].config) if records else {}
    race = token_race(records)
    return Comparison(task, horizon, seeds, tuple(arms), baselines, unfinished, learned, facts, race)


def best_baselines(baselines: Mapping[str, float]) -> dict[str, float]:
    """The best of the accuracies that need no learning, by all its names: what a model has to beat."""
    best = max(baselines.values(), default=0.0)
    return {kind: share for kind, share in baselines.items() if round(share, 3) == round(best, 3)}


def _arm(
    mechanism: str, runs: list[Record], times: ConvergenceTimes, base: ConvergenceTimes | None, p: float | None
) -> Arm:
    measured = [run for run in runs if run.metrics]

    def accuracies(pick: str, name: str) -> Accuracies:
        return Accuracies.of(
            {run.seed: float(getattr(run, pick)(name)) for run in measured if run.final(name) is not None}
        )

    return Arm(
        mechanism,
        times,
        accuracies("final", "heldout_accuracy"),
        accuracies("best", "heldout_accuracy"),
        accuracies("final", "train_accuracy"),
        None if base is None else speed_up(base, times),
        p,
        sum(run.state == "diverged" for run in runs),
        sum(run.seconds for run in runs) / max(len(runs), 1),
        median(paces)
        if (paces := [run.seconds / run.metrics[-1]["epoch"] for run in measured if run.seconds])
        else None,
        {name: accuracies("selected" if name.startswith("test_") else "final", name) for name in _others(measured)},
    )


def _others(runs: list[Record]) -> list[str]:
    """The columns of held-out and test shares, beside held-out accuracy, that these runs have."""
    columns = {**runs[0].objective.columns, **runs[0].objective.test_columns} if runs else {}
    shares = [name for name, metric in columns.items() if metric.is_share and not name.startswith("train_")]
    return [n for n in shares if n != "heldout_accuracy" and any(run.final(n) is not None for run in runs)]


def _arm_dict(arm: Arm) -> dict[str, Any]:
    speed = arm.speed_up
    return {
        "mechanism": arm.mechanism,
        "seeds": list(arm.times.seeds),
        "epochs": [float(e) if r else None for e, r in zip(arm.times.epochs, arm.times.reached, strict=True)],
        "median_epochs": arm.times.median,
        "reached": arm.reached,
        "diverged": arm.diverged,
        "speed_up": None if speed is None else {"value": speed.ratio.value, "sign": speed.ratio.sign},
        "speed_up_interval": None
        if speed is None or speed.interval is None
        else [speed.interval.low, speed.interval.high if speed.interval.high < float("inf") else None],
        "p": arm.p,
        "final_heldout": arm.final_heldout.values.tolist(),
        "best_heldout": arm.best_heldout.values.tolist(),
        "final_train": arm.final_train.values.tolist(),
        "seconds_per_run": arm.seconds,
        "seconds_per_epoch": arm.seconds_per_epoch,
        **{f"final_{name}": shares.values.tolist() for name, shares in arm.others.items()},
    }
