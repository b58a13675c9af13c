"""Simulated studies with measurements or interventions, the truth being known: C9, C10, C12 and C13."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache, partial
from typing import Any

from scipy.special import ndtri

from semfocus.analysis.verdicts.interventions import HEATED_TASKS, LESS_NOISY, NOISY, NOISY_TASKS, TEMPERATURE
from semfocus.analysis.verdicts.measured import TABLE_TASKS
from semfocus.analysis.verdicts.settings import TASKS
from semfocus.measurements import Dispersion, MaskStability, Measurement, SurfaceMeta
from simulated_runs import BASE, FULL, HOLDS, MIXED, NOT, OPEN, SEQ_LEN, TOPK, Arm, Cell, Floats, World

PERCENTS = ("50", "75", "90", "95", "99", "100")


@cache
def lognormal(median: float, spread: float, uniform: float) -> float:
    return median * math.exp(spread * float(ndtri(uniform)))


def luck(own: Floats) -> float:
    """The first of a run's uniform numbers, to a whole percent: measurements are made once and shared."""
    return min(max(round(float(own[0]), 2), 0.005), 0.995)


def attends(delta: float, own: Floats, separation: float = 1.0) -> dict[str, Measurement]:
    return {Dispersion.NAME: _dispersion(lognormal(delta, 0.2, luck(own)), separation)}


@cache
def _dispersion(delta: float, separation: float) -> Dispersion:
    quantity = dict.fromkeys(PERCENTS, delta)
    at = {
        "epoch": 0, "keys": SEQ_LEN, "delta": quantity, "delta_full": quantity, "delta_heavy": quantity,
        "separation": dict.fromkeys(PERCENTS, separation), "in_degree": dict.fromkeys(PERCENTS, 5.0),
    }  # fmt: skip
    payload = {"k": 5, "split": "train", "rows": 100, "checkpoints": {"0": at, "last": at | {"epoch": 10}}}
    return Dispersion.from_payload(payload)


def c9() -> list[World]:
    def cells(full: float, topk: float, gap: float = 1.0) -> list[Cell]:
        return [
            Cell(
                task,
                {FULL: Arm(measure=partial(attends, full)), TOPK: Arm(measure=partial(attends, topk, separation=gap))},
                10,
            )
            for task in TABLE_TASKS
        ]

    world = partial(World, "C9")
    return [
        world("4x lower, conditions met", HOLDS, cells(20, 5)),
        world("1.15x lower, conditions not met", MIXED, cells(6, 6 / 1.15)),
        world("1.3x lower, conditions not met", MIXED, cells(6, 6 / 1.3)),
        world("alike, conditions not met", NOT, cells(6, 6)),
        world("2x higher, conditions not met", NOT, cells(6, 12)),
    ]


def slopes(slope: float, own: Floats) -> dict[str, Measurement]:
    return {SurfaceMeta.NAME: _surface(lognormal(slope, 0.3, luck(own)))}


@cache
def _surface(slope: float) -> SurfaceMeta:
    table = {percent: [slope, slope] for percent in ("50", "75", "95", "99")}
    payload = {
        "grid": 51, "extent": 1.0, "rows": 100, "directions": "random", "squares": [0.1, 0.7], "per_distance": table,
        "per_step": table,
    }  # fmt: skip
    return SurfaceMeta.from_payload(payload)


def c10() -> list[World]:
    def cells(ratio: float, first: float | None = None) -> list[Cell]:
        own = [first if first is not None and i == 0 else ratio for i in range(len(TABLE_TASKS))]
        return [
            Cell(task, {FULL: Arm(measure=partial(slopes, 1.0)), TOPK: Arm(measure=partial(slopes, 1 / r))}, 10)
            for task, r in zip(TABLE_TASKS, own, strict=True)
        ]

    world = partial(World, "C10")
    return [
        world("1x on all", NOT, cells(1.0)),
        world("1.15x on all", HOLDS, cells(1.15)),
        world("1.3x on all", HOLDS, cells(1.3)),
        world("2x on all", HOLDS, cells(2.0)),
        world("2x on one, 0.7x on three", NOT, cells(0.7, 2.0)),
    ]


def c12() -> list[World]:
    def stable(place: int, relation: float, own: Floats) -> dict[str, Measurement]:
        gap = lognormal(1 + place / 4, 0.05, luck(own))
        kept = 0.1 + 0.08 * (place if relation > 0 else 7 - place if relation < 0 else (3 * place) % 8)
        payload = {"k": 5, "split": "train", "rows": 100, "checkpoint": "last", "noise": [0.1], "kept": [kept],
                   "separation": {"50": gap}, "by_separation": {"borders": [], "kept": [[None]]}}  # fmt: skip
        return {MaskStability.NAME: MaskStability.from_payload(payload)}

    def cells(relation: float, noisy: float, **more: Any) -> list[Cell]:
        made = []
        for place, task in enumerate(TASKS):
            topk = Arm(**{"median": BASE / 2, **more})
            arms = {
                FULL: replace(topk, median=2 * topk.median),
                TOPK: replace(topk, measure=partial(stable, place, relation)),
            }
            if task in NOISY_TASKS:
                arms |= dict.fromkeys(LESS_NOISY, topk) | {NOISY: replace(topk, median=topk.median / noisy)}
            made.append(Cell(task, arms, 10))
        return made

    world = partial(World, "C12")
    return [
        world("stable where separated, noise 2x slower", HOLDS, cells(1, 0.5)),
        world("stable where separated, noise 1.3x slower", HOLDS, cells(1, 1 / 1.3)),
        world("stable where separated, noise changes nothing", MIXED, cells(1, 1.0)),
        world("stable where separated, noise at 0.8x: on the edge", OPEN, cells(1, 0.8)),
        world("the other way, noise changes nothing", NOT, cells(-1, 1.0)),
        world("noise 2x slower, 60 % censored", HOLDS, cells(1, 0.5, median=1.07)),
    ]


def c13() -> list[World]:
    def cells(gained: float, lost: float, lead: float = 3.0, **more: Any) -> list[Cell]:
        """A share of the lead is gained or lost by the time dispersion is that of the other arm."""
        base, made = Arm(**{"median": BASE, **more}), []
        for task in HEATED_TASKS:
            for t in (0.25, 0.5, 1.0, 2.0, 4.0):
                own = lead ** (-gained if t < 1 else 0.0)
                other = lead ** (-1 + (lost if t > 1 else 0.0))
                arms = {
                    FULL: replace(base, median=base.median * own, measure=partial(attends, 3.0 * t)),
                    TOPK: replace(base, median=base.median * other, measure=partial(attends, 1.1 * t)),
                }
                made.append(Cell(task, arms, 20 if t == 1 else 10, {TEMPERATURE: t}))
        return made

    world = partial(World, "C13")
    return [
        world("all of a 3x lead gained and lost", HOLDS, cells(1.0, 1.0)),
        world("none gained, none lost", NOT, cells(0.0, 0.0)),
        world("exactly half gained, half lost", OPEN, cells(0.5, 0.5)),
        world("all gained, none lost", MIXED, cells(1.0, 0.0)),
        world("none gained or lost of a 1.3x lead", NOT, cells(0.0, 0.0, 1.3)),
        world("no lead", OPEN, cells(0.0, 0.0, 1.0)),
        world("none gained or lost, 60 % of full censored", NOT, cells(0.0, 0.0, median=1.07)),
        world("all gained, all lost, 60 % of full censored", HOLDS, cells(1.0, 1.0, median=1.07)),
    ]


MEASURED_WORLDS = [world for worlds in (c9, c10, c12, c13) for world in worlds()]
