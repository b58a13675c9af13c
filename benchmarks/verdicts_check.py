"""What verdicts come to when the truth is known: size and power of every rule, and of "as good" alone.

    python benchmarks/verdicts_check.py                       # the tables of docs/verdicts.md, some minutes on one core
    python benchmarks/verdicts_check.py --table claims --repetitions 20000
    python benchmarks/verdicts_check.py --table open          # the open questions alone, C15 to C22

`claims` and `open` judge simulated runs (simulated_runs.py, verdict_worlds*.py) with the functions that judge real
ones; `seeds` asks how many a speed-up takes. These take a twentieth of the repetitions. The others are about accuracy:
their data are those of statistics_check.py, and the rule that verdicts use is compared with the t interval alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from rich.console import Console
from rich.progress import track
from scipy.special import ndtri

from semfocus.analysis import Accuracies, accuracy_difference
from semfocus.analysis.accuracy import noninferiority_test
from semfocus.analysis.verdicts import CLAIMS, OUTCOMES
from semfocus.analysis.verdicts.evidence import conclude
from semfocus.analysis.verdicts.settings import TASKS
from simulated_runs import HOLDS, MIXED, NOT, OPEN, Cells, World, pair
from statistics_check import correlated_normals, print_table, print_tables, simulate_accuracies
from verdict_worlds import WORLDS
from verdict_worlds_measured import MEASURED_WORLDS
from verdict_worlds_open import OPEN_WORLDS
from verdict_worlds_text import OPEN_TEXT_WORLDS, TEXT_WORLDS

SHARE = 20  # of the repetitions that the tables of whole verdicts take
# What claims too much, by what an endless study would say. Where that is "mixed", "does not hold" is true of the claim
# as a whole; where it is "not decided", the truth lies on an edge.
WRONG = {HOLDS: (MIXED, NOT), MIXED: (HOLDS,), NOT: (HOLDS, MIXED), OPEN: (HOLDS, MIXED, NOT)}
CORRELATIONS = (0.0, 0.5, 0.9)


def called_as_good(full: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """Return the share of repetitions (rows) in which `other` is called as good: by our rule, by the interval alone."""
    seeds = tuple(range(full.shape[1]))
    ours = interval = 0
    for f, o in zip(full, other, strict=True):
        arms = Accuracies(f, seeds), Accuracies(o, seeds)
        ours += noninferiority_test(*arms).decision == "yes"
        interval += accuracy_difference(*arms).non_inferiority() == "yes"
    return ours / len(full), interval / len(full)


def wrongly(kind: str, n: int, correlation: float, repetitions: int) -> tuple[float, float]:
    """Return how often an arm that is worse by exactly 2 points (noise) or by 4.7 (stuck) is called as good."""
    worse, better, _ = simulate_accuracies(kind, n, correlation, repetitions)
    return called_as_good(better, worse)


def rightly(kind: str, n: int, correlation: float, repetitions: int) -> tuple[float, float]:
    """Return how often an arm that is better by 2 points (noise) or by 4.7 (stuck) is called as good."""
    worse, better, _ = simulate_accuracies(kind, n, correlation, repetitions)
    return called_as_good(worse, better)


def rarely_stuck(share: float, n: int, repetitions: int) -> tuple[float, float]:
    """Return how often an arm with this share of runs stuck at chance is called as good as one without."""
    z, y = correlated_normals(f"rare/{share}/{n}", repetitions, n, 0.0)
    full = np.clip(0.97 + 0.005 * z, 0, 1)
    stuck = np.abs(y) > -ndtri(share / 2)
    return called_as_good(full, np.where(stuck, 0.5, np.clip(0.97 + 0.005 * y, 0, 1)))


def compared_table(title: str, ask: Callable[..., tuple[float, float]], kinds: Sequence[str], repetitions: int) -> None:
    """Print the rule and the interval alone, by kind of data, seeds and correlation."""
    heads = [f"{name}, {correlation:g}" for correlation in CORRELATIONS for name in ("rule", "interval")]
    rows = [
        (n, kind, *(share for correlation in CORRELATIONS for share in ask(kind, n, correlation, repetitions)))
        for kind in kinds
        for n in (10, 20, 30)
    ]
    print_table(f"{title}, by correlation", ("seeds", "data", *heads), rows)


def worse_table(repetitions: int) -> None:
    """Print false claims. (`ceiling` can have none: its difference is within the margin.)"""
    compared_table("Worse, but called as good", wrongly, ("noise", "stuck"), repetitions)


def better_table(repetitions: int) -> None:
    """Print the power."""
    compared_table("Better, and called as good", rightly, ("noise", "ceiling", "stuck"), repetitions)


def rare_table(repetitions: int) -> None:
    """Print how often rare failures stay undetected."""
    rows = [
        (f"{share:.0%}", f"{47 * share:.1f}", *(rarely_stuck(share, n, repetitions)[0] for n in (10, 20, 30, 60)))
        for share in (0.05, 0.1, 0.2, 0.3)
    ]
    heads = ("stuck", "points worse", "10", "20", "30", "60")
    print_table("Runs that are stuck now and then, called as good", heads, rows)


def claims_table(repetitions: int) -> None:
    """Print how often each outcome is reached in each simulated study of the paper's claims."""
    worlds_table("Every rule, by what is true", WORLDS + MEASURED_WORLDS + TEXT_WORLDS, repetitions)


def open_table(repetitions: int) -> None:
    """Print the same of the open questions."""
    worlds_table("Every rule of an open question, by what is true", OPEN_WORLDS + OPEN_TEXT_WORLDS, repetitions)


def worlds_table(title: str, chosen: Sequence[World], repetitions: int) -> None:
    """Print how often each outcome is reached in these simulated studies."""
    rows = []
    worlds = sorted(chosen, key=lambda world: int(world.claim[1:]))
    for world in track(worlds, "claims", console=Console(stderr=True)):
        shares = outcomes(world, max(1, repetitions // SHARE))
        wrong = sum(shares[outcome] for outcome in WRONG[world.truth])
        rows.append(
            (world.claim, world.name, world.truth, *(f"{shares[name]:.3f}" for name in OUTCOMES), f"{wrong:.3f}")
        )
    print_table(title, ("claim", "what is true", "right", *OUTCOMES, "wrong"), rows)


def outcomes(world: World, repetitions: int) -> dict[str, float]:
    """The share of repetitions with each outcome, by the functions that judge real runs."""
    (claim,) = (known for known in CLAIMS if known.id == world.claim)
    counts = Counter(
        conclude(claim, claim.parts(settings, measurements)).outcome
        for settings, measurements in Cells(world.cells, world.key).worlds(repetitions)
    )
    return {outcome: counts[outcome] / repetitions for outcome in OUTCOMES}


def seeds_table(repetitions: int) -> None:
    """Print the power of C1 by the number of seeds: on one task, and on all eight at once."""
    (claim,) = (known for known in CLAIMS if known.id == "C1")
    cases = [(spread, ratio, n) for spread in (0.15, 0.25) for ratio in (1.15, 1.3, 1.5, 2.0) for n in (10, 20, 30)]
    count, rows = max(1, repetitions // SHARE), []
    for spread, ratio, n in track(cases, "seeds", console=Console(stderr=True)):
        cells = [pair(task, ratio, seeds=n, spread=spread) for task in TASKS]
        shown, whole = 0, 0
        for settings, measurements in Cells(cells, f"seeds/{spread}/{ratio}/{n}").worlds(count):
            parts = claim.parts(settings, measurements)
            shown += sum(part.decision == "yes" for part in parts)
            whole += conclude(claim, parts).outcome == "holds"
        rows.append((f"{spread:g}", f"{ratio:g}x", n, shown / count / len(TASKS), whole / count))
    heads = ("spread", "speed-up", "seeds", "shown on one task", "on all eight")
    print_table("C1: what ten, twenty and thirty seeds can show", heads, rows)


TABLES = {
    "claims": claims_table,
    "open": open_table,
    "seeds": seeds_table,
    "worse": worse_table,
    "better": better_table,
    "rare": rare_table,
}


if __name__ == "__main__":
    print_tables(TABLES, __doc__.splitlines()[0], 0.025, "2.5 %")
