"""Rows of the page's tables: text to show, values to sort by, and a strip of dots with one dot for each seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from semfocus.analysis.accuracy import Accuracies, accuracy_difference
from semfocus.analysis.comparison import BASE, Arm, best_baselines
from semfocus.analysis.groups import Group
from semfocus.analysis.records import Record
from semfocus.report.text import duration, epochs_text, interval_text, learning_time_text, ratio_text
from semfocus.training.objective import ACCURACY, known_columns

STRIP_HEIGHT = 30
NEVER_AT = 93.0  # per cent of a strip's width: the place of runs that never converged
REACH = 78.0  # per cent of a strip's width: the place of the last epoch


@dataclass(frozen=True)
class Cell:
    """The text of a cell, and the value to sort by and to export."""

    text: str
    value: float | str | None = None


@dataclass(frozen=True)
class Dot:
    """One run on a strip, in per cent of the width and pixels of the height."""

    x: float
    y: float
    title: str
    hollow: bool = False


@dataclass(frozen=True)
class Row:
    """The row of one mechanism."""

    mechanism: str
    cells: list[Cell]
    dots: list[Dot] = field(default_factory=list)
    middle: float | None = None  # the median, in per cent of the strip's width


CONVERGENCE = (
    "median epochs",
    "time",
    "range",
    "seeds there",
    "times fewer epochs",
    "95 % interval",
    "of medians",
    "p (Holm)",
    "diverged",
)
_HELD_OUT = "held out, final"


def convergence(group: Group) -> list[Row]:
    """Epochs to the threshold. Each seed is a dot, at the same height for every mechanism."""
    horizon = group.comparison.horizon
    lanes = _lanes(group)
    table = []
    for arm in group.comparison.arms:
        median, spread = epochs_text(arm)
        speed = arm.speed_up
        ratio = speed.ratio if speed else None
        low = speed.interval.low if speed and speed.interval else None
        cells = [
            Cell(median, arm.times.median if arm.times.median is not None else math.inf),
            Cell(learning_time_text(arm), arm.seconds_to_learn),
            Cell(spread, spread),
            Cell(f"{arm.reached} of {len(arm.times)}", arm.reached),
            Cell("" if speed is None else ratio_text(speed.ratio), ratio.value if ratio else None),
            Cell(interval_text(arm), low),
            Cell("" if speed is None else ratio_text(speed.median_ratio), speed.median_ratio.value if speed else None),
            Cell("" if arm.p is None else f"{arm.p:.2g}", arm.p),
            Cell(str(arm.diverged or ""), arm.diverged),
        ]
        dots = [
            Dot(
                REACH * epoch / horizon if reached else NEVER_AT,
                lanes[seed],
                f"seed {seed}: {f'{epoch:g} epochs' if reached else 'never'}",
                hollow=not reached,
            )
            for seed, epoch, reached in zip(
                arm.times.seeds, arm.times.epochs.tolist(), arm.times.reached.tolist(), strict=True
            )
        ]
        middle = None if arm.times.median is None else REACH * arm.times.median / horizon
        table.append(Row(arm.mechanism, cells, dots, middle))
    return table


def accuracy_titles(group: Group) -> tuple[str, tuple[str, ...]]:
    """Of the table of accuracies: the title of the strips, and of the columns after them."""
    tested = group.comparison.is_tested
    first = ("test", "quartiles", "against full", "95 % interval", _HELD_OUT) if tested else (
        _HELD_OUT, "quartiles", "against full", "95 % interval"
    )  # fmt: skip
    more = (known_columns()[name] for name in _more_shares(group))
    strips = "seeds, test accuracy" if tested else "seeds, final held-out accuracy"
    return strips, (*first, "held out, best", "training, final", *more)


def accuracy(group: Group) -> list[Row]:
    """Accuracy on unseen rows at the end of training. Each seed is a dot, from 0 to 100 %."""
    lanes = _lanes(group)
    base = next((arm for arm in group.comparison.arms if arm.mechanism == BASE), None)
    table = []
    for arm in group.comparison.arms:
        final, quartiles = arm.unseen, arm.unseen.quartiles
        dots = [
            Dot(100 * value, lanes[seed], f"seed {seed}: {value:.1%}")
            for seed, value in zip(final.seeds, final.values.tolist(), strict=True)
        ]
        cells = [
            _share(final),
            Cell("" if quartiles is None else f"{quartiles[0]:.1%} to {quartiles[1]:.1%}", quartiles and quartiles[0]),
            *_difference(base, arm),
            *([_share(arm.final_heldout)] if group.comparison.is_tested else []),
            _share(arm.best_heldout),
            _share(arm.final_train),
            *(_share(arm.others.get(name, Accuracies.of({}))) for name in _more_shares(group)),
        ]
        middle = None if final.median is None else 100 * final.median
        table.append(Row(arm.mechanism, cells, dots, middle))
    return table


def baseline_marks(baselines: Mapping[str, float]) -> list[tuple[float, str]]:
    """(per cent, names) of the best accuracy that needs no learning."""
    best = best_baselines(baselines)
    return [(round(100 * max(best.values()), 1), ", ".join(best))] if best else []


def ticks(top: float, wanted: int = 4) -> list[float]:
    """Round numbers from 0 up to `top`."""
    raw = top / wanted
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= raw)
    return [round(step * i, 6) for i in range(int(top / step + 1e-9) + 1)]


def run_cells(record: Record) -> list[Cell]:
    """The cells of a run in the list of runs, after its id, group, mechanism, seed and state."""
    epoch, converged_at = record.final("epoch") or 0, record.converged_at
    train, heldout = record.final("train_accuracy"), record.final("heldout_accuracy")
    return [
        Cell(f"{epoch:g} of {record.horizon}", epoch),
        Cell("" if train is None else f"{train:.1%}", train),
        Cell("" if heldout is None else f"{heldout:.1%}", heldout),
        Cell("" if converged_at is None else f"{converged_at:g}", math.inf if converged_at is None else converged_at),
        Cell(duration(record.seconds), round(record.seconds, 1)),
    ]


def _more_shares(group: Group) -> list[str]:
    """The columns of shares beside accuracy: balanced accuracy, macro F1."""
    names = dict.fromkeys(name for arm in group.comparison.arms for name in arm.others)
    return [name for name in names if name != ACCURACY.column("test")]


def _lanes(group: Group) -> dict[int, float]:
    """The height of each seed's dots, in pixels."""
    seeds = sorted({record.seed for record in group.records})
    room = STRIP_HEIGHT - 10
    return {seed: round(5 + room * (place + 0.5) / len(seeds), 1) for place, seed in enumerate(seeds)}


def _difference(base: Arm | None, arm: Arm) -> Sequence[Cell]:
    """The paired difference to full attention in points, and its interval."""
    if base is None or arm is base:
        return Cell(""), Cell("")
    difference = accuracy_difference(base.unseen, arm.unseen)
    if difference.mean is None:
        return Cell(""), Cell("")
    mean = Cell(f"{100 * difference.mean:+.1f} points", difference.mean)
    if difference.interval is None:
        return mean, Cell("")
    return mean, Cell(
        f"{100 * difference.interval.low:+.1f} to {100 * difference.interval.high:+.1f}", difference.interval.low
    )


def _share(accuracies: Accuracies) -> Cell:
    return Cell(f"{accuracies.median:.1%}", accuracies.median) if len(accuracies) else Cell("")
