"""C1 and C5 under other settings: activations (C6), depth and heads (C7), and optimisation (C8)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from semfocus.analysis.records import Measurements
from semfocus.analysis.verdicts.evidence import Claim, Part, missing
from semfocus.analysis.verdicts.generalisation import as_well_and_earlier
from semfocus.analysis.verdicts.pairs import faster_on, learns_nothing, sooner_to_loss
from semfocus.analysis.verdicts.settings import FULL, TASKS, TOPK, Setting, choose, departures

LISTOPS = "listops"
FIRST_FOUR = ("listops", "parity", "even_pairs", "missing_duplicate")  # of figure 7, the only ones shown with Mish
ACTIVATIONS = {"relu": TASKS, "gelu": TASKS, "mish": FIRST_FOUR}
BLOCKS, HEADS = (6, 10, 15, 22), (2, 4, 8)  # one head is the ten-block model
RATES, DECAYS, ADAM_RATES = (0.66, 1.0, 1.5, 2.25), (0.9, 0.999, 0.9999), (1e-5, 1e-4, 1e-3, 1e-2)
ADAM_DECAY = 0.99999
FASTER, LOWER_LOSS = "faster", "sooner to a training loss"
Speed = Callable[[Sequence[Setting], str, Mapping[str, Any], str], Part]
Case = tuple[str, Mapping[str, Any]]  # a task, and the fields that differ from the paper's settings


def c6(settings: Sequence[Setting], measurements: Measurements) -> list[Part]:
    cases = [(task, {"model.activation": name}) for name, tasks in ACTIVATIONS.items() for task in tasks]

    def speed(fitting: Sequence[Setting], task: str, changes: Mapping[str, Any], name: str) -> Part:
        return faster_on(fitting, task, changes, f"{name}: {FASTER}", FASTER)

    return _under(settings, cases, speed)


def c7(settings: Sequence[Setting], measurements: Measurements) -> list[Part]:
    cases = [{"model.blocks": n} for n in BLOCKS] + [{"model.heads": n} for n in HEADS]
    return _under(settings, [(LISTOPS, case) for case in cases], _sooner_on)


def c8(settings: Sequence[Setting], measurements: Measurements) -> list[Part]:
    cases: list[dict[str, Any]] = [{"training.lr": rate} for rate in RATES]
    cases += [{"training.decay": decay} for decay in DECAYS]
    cases = [case | {"training.optimizer": "sgd"} for case in cases]
    adam = {"training.optimizer": "adam", "training.decay": ADAM_DECAY}
    cases += [adam | {"training.lr": rate} for rate in ADAM_RATES]
    return _under(settings, [(LISTOPS, case) for case in cases], _sooner_on)


def _sooner_on(settings: Sequence[Setting], task: str, changes: Mapping[str, Any], name: str) -> Part:
    """By training loss: under some settings neither arm reaches 95 % accuracy."""
    name = f"{name}: {LOWER_LOSS}"
    setting = choose(settings, task, changes, to_the_end=True)
    if setting is None:
        return missing(name, f"no pair of {FULL} and {TOPK} that trained to the last epoch", LOWER_LOSS)
    if learns_nothing(setting, "train"):
        runs = setting.ids(setting.seeds(FULL, TOPK), FULL, TOPK)
        return Part(name, "not applicable", runs=runs, why="neither arm learns its training set", aspect=LOWER_LOSS)
    return sooner_to_loss(name, setting, changes, LOWER_LOSS)


def _under(settings: Sequence[Setting], cases: Iterable[Case], speed: Speed) -> list[Part]:
    """Speed and C5 in each case; runs that differ from the paper in any other field do not count."""
    parts: list[Part] = []
    for task, changes in cases:
        fitting = [setting for setting in settings if not setting.differs(changes)[0]]
        name, known = f"{task}, {_text(changes)}", not departures(task, changes)
        own = [speed(fitting, task, changes, name), *as_well_and_earlier(fitting, task, changes, f"{name}: ")]
        parts += [replace(part, known=known) for part in own]
    return parts


def _text(changes: Mapping[str, Any]) -> str:
    """`blocks 15`, `gelu`, `adam lr 0.001`."""
    texts = []
    for name, value in changes.items():
        if name in ("model.activation", "training.optimizer"):
            texts += [] if value == "sgd" else [str(value)]
        elif value != ADAM_DECAY:
            texts.append(f"{name.partition('.')[2]} {value:g}")
    return " ".join(texts)


_ALONE = (
    "Runs that differ from the paper's settings in anything else do not count (the clean recipe is taken where the "
    "paper's was not run)."
)
_LOSS = (
    "sooner to a training loss: epochs to the larger of the lowest losses of the two runs of a seed, no lower than -ln "
    "0.95, compared by the exact paired log-rank test as in C1, from runs that trained to the last epoch; a run that "
    "diverged never gets there, and only the other one's loss counts; not applicable where neither arm's training "
    "accuracy is shown to end more than 2 points better than guessing"
)
CLAIMS = (
    Claim(
        "C6",
        "C1 and C5 hold for ReLU, GELU and Mish.",
        "Three aspects, for ReLU and GELU on the eight tasks and Mish on the four of figure 7: faster as in C1, as "
        f"well and earlier as in C5. {_ALONE} The parts of ReLU are known from C1 and C5.",
        c6,
    ),
    Claim(
        "C7",
        "C1 and C5 hold on ListOps with 6, 10, 15 and 22 blocks and with 1, 2, 4 and 8 heads.",
        "Three aspects, on ListOps, for each number of blocks (one head) and each of 2, 4 and 8 heads (ten blocks). Of "
        f"speed, {_LOSS}. As well and earlier as in C5. {_ALONE} The parts of ten blocks are the paper's own setting.",
        c7,
    ),
    Claim(
        "C8",
        "C1 and C5 hold on ListOps for initial rates 0.66 to 2.25, decays 0.9 to 0.9999, and Adam at 1e-5 to 1e-2.",
        "The three aspects of C7, on ListOps, for SGD at rates 0.66, 1, 1.5, 2.25 and decays 0.9, 0.999, 0.9999, and "
        "Adam at 1e-5, 1e-4, 1e-3, 1e-2 with decay 0.99999, each as in C7. The parts of rate 1 are the paper's own "
        "setting.",
        c8,
    ),
)
