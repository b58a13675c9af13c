"""What would stopping runs that have converged have saved, and what would it have changed? From published runs alone.

    python benchmarks/stopping.py results/paper > results/paper/stopping.txt

Each run is cut a share of its horizon after it first reached a training accuracy, and its last values stand for those
of the last epoch. The functions that judge real runs judge the cut ones. Nothing is trained.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from semfocus.analysis.metrics import Metrics
from semfocus.analysis.records import THRESHOLD, Record
from semfocus.analysis.verdicts import CLAIMS
from semfocus.analysis.verdicts.evidence import Part
from semfocus.analysis.verdicts.pairs import FITTED
from semfocus.analysis.verdicts.settings import FULL, TOPK, settings_from
from semfocus.archive.tables import read_published
from semfocus.recipes import PAPER
from semfocus.store import RunStore

LEVELS, SHARES = (0.95, 0.99, 0.995, 1.0), (0.0, 0.05, 0.1, 0.2)
SHOWN = (0.995, 0.1)  # task by task
READ = tuple(claim for claim in CLAIMS if claim.id in ("C1", "C2", "C3", "C4", "C5"))  # of what is published
PAIRED_SEEDS, MASK_RUNS = 20, 40  # of each task in `headline`: full and top-5, and runs of the other four
# Median epochs to 95 % of full and top-5, ten seeds, run earlier with older code and not published. Top-5's of Parity:
# 8 of 10 runs, which were cut off at epoch 502.
KNOWN = {
    "modular_arithmetic": (290.5, 226.0),
    "solve_equation": (298.5, 224.0),
    "cycle_navigation": (485.5, 397.0),
    "parity": (593.0, 476.0),
}


class Rule(NamedTuple):
    """A run stops this share of its horizon after it first reached this training accuracy."""

    level: float
    share: float

    def __str__(self) -> str:
        return f"{100 * self.level:g} % + {100 * self.share:g} %"


def stopped(record: Record, rule: Rule) -> Record:
    """The run as it would be under the rule: up to the first evaluation at or after its end."""
    reached = record.first_at(rule.level)
    if reached is None:
        return record
    there = np.flatnonzero(record.column("epoch") >= reached + rule.share * record.horizon)
    kept = int(there[0]) + 1 if len(there) else len(record.metrics)
    assert isinstance(record.metrics, Metrics)
    columns = {name: values[:kept].copy() for name, values in record.metrics.columns.items()}
    return replace(record, metrics=Metrics(columns, kept))


def saved(records: Sequence[Record], cut: Sequence[Record]) -> float:
    """The share of member-epochs that are not trained."""
    return 1 - sum(run.final("epoch") or 0 for run in cut) / sum(run.horizon for run in records)


def differences(records: Sequence[Record], cut: Sequence[Record]) -> np.ndarray:
    """(runs,) the last held-out accuracy of the cut run less that of the whole one, in points."""
    pairs = zip(cut, records, strict=True)
    return np.array([100 * (a.final("heldout_accuracy") - b.final("heldout_accuracy")) for a, b in pairs])


def parts_of(records: Sequence[Record]) -> dict[str, Part]:
    """The parts of the claims that published runs say something about, by name."""
    settings = settings_from(records)
    parts = ((claim.id, part) for claim in READ for part in claim.parts(settings, {}))
    return {f"{claim} {part.name}": part for claim, part in parts if part.was_run}


def changed(before: Mapping[str, Part], after: Mapping[str, Part]) -> list[str]:
    """The parts that come out otherwise: `C4 missing_duplicate: fits: yes -> no`."""
    pairs = ((name, part, after[name]) for name, part in before.items())
    return [f"{name}: {a.decision} -> {b.decision}" for name, a, b in pairs if a.decision != b.decision]


def by_arm(records: Sequence[Record]) -> dict[tuple[str, str], list[int]]:
    """The places of the runs of each task and mechanism."""
    arms: dict[tuple[str, str], list[int]] = {}
    for place, run in enumerate(records):
        arms.setdefault((run.config["task"]["name"], run.mechanism), []).append(place)
    return dict(sorted(arms.items()))


def rules_table(records: Sequence[Record]) -> Iterator[str]:
    """What each rule saves and changes."""
    yield "| stops at | saved | of full, top-5 | mean | by arm | by run | below 99.5 % | parts that change |"
    yield "|---|---|---|---|---|---|---|---|"
    before, arms = parts_of(records), by_arm(records)
    headline = [place for (_, name), places in arms.items() if name in (FULL, TOPK) for place in places]
    notes: list[str] = []
    for rule in (Rule(level, share) for level in LEVELS for share in SHARES):
        cut = [stopped(run, rule) for run in records]
        moved = differences(records, cut)
        means = [moved[places].mean() for places in arms.values()]
        lost = sum(
            a.first_at(FITTED) is not None and b.first_at(FITTED) is None for a, b in zip(records, cut, strict=True)
        )
        both = saved([records[i] for i in headline], [cut[i] for i in headline])
        others = changed(before, parts_of(cut))
        notes += [f"{rule}: {text}" for text in others]
        yield (
            f"| {rule} | {saved(records, cut):.1%} | {both:.1%} | {moved.mean():+.2f} | {min(means):+.2f} to "
            f"{max(means):+.2f} | {moved.min():+.2f} to {moved.max():+.2f} | {lost} | {len(others)} |"
        )
    yield ""
    yield from notes


def arms_table(records: Sequence[Record], rule: Rule) -> Iterator[str]:
    """One rule, task by task."""
    yield "| task | mechanism | stop | saved | held-out accuracy, points: mean, and range |"
    yield "|---|---|---|---|---|"
    for (task, mechanism), places in by_arm(records).items():
        own = [records[i] for i in places]
        cut = [stopped(run, rule) for run in own]
        early = sum(len(a.metrics) < len(b.metrics) for a, b in zip(cut, own, strict=True))
        moved = differences(own, cut)
        yield (
            f"| {task} | {mechanism} | {early} of {len(own)} | {saved(own, cut):.0%} | {moved.mean():+.2f}, "
            f"{moved.min():+.2f} to {moved.max():+.2f} |"
        )


def foreseen_table(records: Sequence[Record], share: float) -> Iterator[str]:
    """The study `headline` as a whole, if the four tasks that are not published were at 99.5 % as soon as at 95 %."""
    cut = [stopped(run, Rule(FITTED, share)) for run in records]
    arms = by_arm(records)
    here = [place for (_, name), places in arms.items() if name in (FULL, TOPK) for place in places]
    pairs = sum(records[i].horizon - (cut[i].final("epoch") or 0) for i in here)
    every = sum(a.horizon - (b.final("epoch") or 0) for a, b in zip(records, cut, strict=True))
    of_pairs, of_every = sum(records[i].horizon for i in here), sum(run.horizon for run in records)
    as_full = 0.0
    for task, epochs in KNOWN.items():
        horizon = PAPER[task].epochs
        left = [max(0.0, horizon - epoch - share * horizon) for epoch in epochs]
        pairs, every = pairs + PAIRED_SEEDS * sum(left), every + PAIRED_SEEDS * sum(left)
        as_full += MASK_RUNS * left[0]
        of_pairs, of_every = of_pairs + 2 * PAIRED_SEEDS * horizon, of_every + (2 * PAIRED_SEEDS + MASK_RUNS) * horizon
    yield f"full and top-5 of all seven tasks: at most {pairs / of_pairs:.0%}"
    yield f"with the other masks, if these never fit the four tasks: at most {every / of_every:.0%}"
    yield f"with the other masks, if these fit them as soon as full: at most {(every + as_full) / of_every:.0%}"


def at_95_table(records: Sequence[Record]) -> Iterator[str]:
    """What a further seed of full and top-5 takes that stops at 95 %, for what is read up to there."""
    yield "| task | epochs of full, top-5 | of | saved |"
    yield "|---|---|---|---|"
    arms, rule, used = by_arm(records), Rule(THRESHOLD, 0.0), [0.0, 0.0]
    rows: dict[str, tuple[float, float]] = {}
    for task in sorted({task for task, _ in arms}):
        full, topk = (
            float(np.mean([stopped(records[i], rule).final("epoch") for i in arms[task, arm]])) for arm in (FULL, TOPK)
        )
        rows[task] = full, topk
    for task, epochs in (rows | KNOWN).items():
        horizon, known = PAPER[task].epochs, "" if task in rows else " (foreseen)"
        yield f"| {task}{known} | {epochs[0]:.0f}, {epochs[1]:.0f} | {horizon} | {1 - sum(epochs) / 2 / horizon:.0%} |"
        used = [used[0] + sum(epochs), used[1] + 2 * horizon]
    yield f"| all seven | | | {1 - used[0] / used[1]:.0%} |"


ABOUT = """\
{runs} published runs, each cut some share of its horizon after it first reached a training accuracy.

`saved`: of the member-epochs of all six mechanisms, and of full and top-5 alone. Then the last held-out accuracy, cut
run less whole run, in points: its mean, the range of the means of arms, and of single runs. `below 99.5 %`: runs that
get there and would not have. The last column counts parts of C1 to C5 that would be decided otherwise.
"""
FORESEEN = """\
The study `headline` as a whole, {rule}: member-epochs saved. Three tasks as published; the other four by the median
epochs to 95 % of ten seeds that were run earlier and are not published. They are at 99.5 % later: hence "at most".
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="published runs")
    folder, shown = parser.parse_args().folder, Rule(*SHOWN)
    with tempfile.TemporaryDirectory() as place:
        records = read_published(folder, RunStore(Path(place) / "runs")).records
    for line in (
        ABOUT.format(runs=len(records)), *rules_table(records),
        f"\nTask by task, {shown}\n", *arms_table(records, shown), "",
        FORESEEN.format(rule=shown), *foreseen_table(records, shown.share),
        "\nFurther seeds of full and top-5 that stop at 95 % (semfocus run further_seeds): mean epochs\n",
        *at_95_table(records),
    ):  # fmt: skip
        print(line)


if __name__ == "__main__":
    main()
