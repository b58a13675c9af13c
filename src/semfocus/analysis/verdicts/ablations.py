"""Do C1 and C5 survive other activations (C6), depths and heads (C7), rates and optimisers (C8)?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from semfocus.analysis.records import Measurements
from semfocus.analysis.verdicts.evidence import Claim, Part, merged
from semfocus.analysis.verdicts.generalisation import as_well_and_earlier
from semfocus.analysis.verdicts.pairs import faster_on
from semfocus.analysis.verdicts.settings import TASKS, Setting, departures

LISTOPS = "listops"
FIRST_FOUR = ("listops", "parity", "even_pairs", "missing_duplicate")  # figure 7's, the only ones shown with Mish
ACTIVATIONS = {"relu": TASKS, "gelu": TASKS, "mish": FIRST_FOUR}
BLOCKS, HEADS = (6, 10, 15, 22), (2, 4, 8)  # one head is the ten-block model again
RATES, DECAYS, ADAM_RATES = (0.66, 1.0, 1.5, 2.25), (0.9, 0.999, 0.9999), (1e-5, 1e-4, 1e-3, 1e-2)
ADAM_DECAY = 0.99999


def c6(settings: Sequence[Setting], measurements: Measurements) -> list[Part]:
    cases = [(task, {"model.activation": name}) for name, tasks in ACTIVATIONS.items() for task in tasks]
    return _both(settings, cases)


def c7(settings: Sequence[Setting], measurements: Measurements) -> list[Part]:
    cases = [{"model.blocks": n} for n in BLOCKS] + [{"model.heads": n} for n in HEADS]
    return _both(settings, [(LISTOPS, case) for case in cases])


def c8(settings: Sequence[Setting], measurements: Measurements) -> list[Part]:
    cases: list[dict[str, Any]] = [{"training.lr": rate} for rate in RATES]
    cases += [{"training.decay": decay} for decay in DECAYS]
    cases = [case | {"training.optimizer": "sgd"} for case in cases]
    adam = {"training.optimizer": "adam", "training.decay": ADAM_DECAY}
    cases += [adam | {"training.lr": rate} for rate in ADAM_RATES]
    return _both(settings, [(LISTOPS, case) for case in cases])


def _both(settings: Sequence[Setting], cases: Iterable[tuple[str, Mapping[str, Any]]]) -> list[Part]:
    """Those of C1 and C5 together, in each case; a run that departs from the paper in anything else is another case."""
    parts = []
    for task, changes in cases:
        fitting = [setting for setting in settings if not setting.differs(changes)[0]]
        found = [faster_on(fitting, task, changes, "faster"), *as_well_and_earlier(fitting, task, changes)]
        case = merged(f"{task}, {_shown(changes)}", found)
        parts.append(replace(case, known=not departures(task, changes)))
    return parts


def _shown(changes: Mapping[str, Any]) -> str:
    """`blocks 15`, `gelu`, `adam lr 0.001`."""
    texts = []
    for name, value in changes.items():
        if name in ("model.activation", "training.optimizer"):
            texts += [] if value == "sgd" else [str(value)]
        elif value != ADAM_DECAY:
            texts.append(f"{name.partition('.')[2]} {value:g}")
    return " ".join(texts)


_BOTH = (
    "a part that is shown if those of C1 and of C5 all are, and refuted if one is, from runs that differ from the "
    "paper's settings in nothing else (the clean recipe is taken where the paper's was not run)."
)
CLAIMS = (
    Claim(
        "C6",
        "C1 and C5 hold for ReLU, GELU and Mish.",
        f"For ReLU and GELU on the eight tasks and Mish on the four of figure 7, {_BOTH}",
        c6,
    ),
    Claim(
        "C7",
        "C1 and C5 hold on ListOps with 6, 10, 15 and 22 blocks and with 1, 2, 4 and 8 heads.",
        f"For each number of blocks (one head) and each of 2, 4 and 8 heads (ten blocks), on ListOps, {_BOTH}",
        c7,
    ),
    Claim(
        "C8",
        "C1 and C5 hold on ListOps for initial rates 0.66 to 2.25, decays 0.9 to 0.9999, and Adam at 1e-5 to 1e-2.",
        "For SGD at rates 0.66, 1, 1.5, 2.25 and decays 0.9, 0.999, 0.9999, and Adam at 1e-5, 1e-4, 1e-3, 1e-2 "
        f"with decay 0.99999, on ListOps, {_BOTH}",
        c8,
    ),
)
