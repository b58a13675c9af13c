"""The looseness of each bound: the value that a search attains, as a share of every form of the bound.

python -m semfocus.theory.looseness        # about two minutes on one core; prints the tables of docs/theory.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from semfocus.theory.attention_witnesses import steepest
from semfocus.theory.softmax import stability
from semfocus.theory.witnesses import nearest_softmax_pair

SOFTMAX_FORMS = ("paper", "simple", "sharp", "certified")
ATTENTION_FORMS = ("paper", "certified")
NORMS, DELTAS, KS, SEPARATIONS = (2, 1), (0.05, 1.0, 3.0), (5,), (None, 0.1, 0.5, 1.0, 4.0)  # of the softmax
ATTENTION_SETTINGS = (
    ("full", "w", 1.0, 4),
    ("full", "x", 0.1, 4),
    ("full", "x", 1.0, 4),
    ("full", "x", 10.0, 4),
    ("heavy", "w", 1.0, 2),
    ("heavy", "x", 0.1, 2),
    ("heavy", "x", 1.0, 2),
    ("heavy", "x", 10.0, 2),
)


@dataclass(frozen=True)
class SoftmaxRow:
    """One setting of `stability`: the largest ratio attained, and attained / bound for each form (1 = tight)."""

    norm: int
    delta: float
    k: int
    separation: float | None
    attained: float
    shares: dict[str, float]


@dataclass(frozen=True)
class AttentionRow:
    """One setting of `lipschitz_w` or `lipschitz_x`: attained / bound for each form, each searched on its own."""

    mechanism: str
    of: str
    gamma: float
    k: int
    shares: dict[str, float]


@dataclass(frozen=True)
class Looseness:
    """What a search attains of every bound."""

    softmax: list[SoftmaxRow]
    attention: list[AttentionRow]

    def largest_shares(self) -> dict[str, float]:
        """The largest share of each form that was attained anywhere."""
        largest: dict[str, float] = {}
        for row in (*self.softmax, *self.attention):
            for form, share in row.shares.items():
                largest[form] = max(largest.get(form, 0.0), share)
        return largest


def search_looseness(*, seed: int = 0, steps: int = 300, progress: Callable[[int, int], None]) -> Looseness:
    """Search every setting of both tables; `progress` takes the settings done and the settings wanted."""
    found = Looseness([], [])
    wanted = len(NORMS) * len(DELTAS) * len(KS) * len(SEPARATIONS) + len(ATTENTION_SETTINGS)
    for row in softmax_looseness(seed=seed, steps=steps):
        found.softmax.append(row)
        progress(len(found.softmax), wanted)
    for row in attention_looseness(seed=seed, steps=steps):
        found.attention.append(row)
        progress(len(found.softmax) + len(found.attention), wanted)
    return found


def softmax_looseness(
    norms: Sequence[int] = NORMS,
    deltas: Sequence[float] = DELTAS,
    ks: Sequence[int] = KS,
    separations: Sequence[float | None] = SEPARATIONS,
    *,
    seed: int = 0,
    steps: int = 300,
) -> Iterator[SoftmaxRow]:
    """Search every combination."""
    for norm in norms:
        for delta in deltas:
            for k in ks:
                for gap in separations:
                    attained = nearest_softmax_pair(delta, k, gap, norm, seed=seed, steps=steps).ratio
                    shares = {form: attained / float(stability(delta, k, gap, norm, form)) for form in SOFTMAX_FORMS}
                    yield SoftmaxRow(norm, delta, k, gap, attained, shares)


def attention_looseness(*, seed: int = 0, steps: int = 300) -> Iterator[AttentionRow]:
    """Search four tokens of width 2: all four kept (full), or two of them (heavy hitters)."""
    for mechanism, of, gamma, k in ATTENTION_SETTINGS:
        shares = {
            form: steepest(mechanism, of, gamma=gamma, k=k, form=form, seed=seed, steps=steps).ratio
            for form in ATTENTION_FORMS
        }
        yield AttentionRow(mechanism, of, gamma, k, shares)


def main() -> None:
    """Print both tables as Markdown."""
    print("| norm | delta | k | separation | attained | " + " | ".join(SOFTMAX_FORMS) + " |")
    print("|---" * (5 + len(SOFTMAX_FORMS)) + "|")
    for row in softmax_looseness():
        gap = "fixed mask" if row.separation is None else f"{row.separation:g}"
        cells = " | ".join(f"{row.shares[form]:.3f}" for form in SOFTMAX_FORMS)
        print(f"| {row.norm} | {row.delta:g} | {row.k} | {gap} | {row.attained:.4f} | {cells} |", flush=True)
    print("\n| attention | in | gamma | k of 4 | " + " | ".join(ATTENTION_FORMS) + " |")
    print("|---" * (4 + len(ATTENTION_FORMS)) + "|")
    for row in attention_looseness():
        cells = " | ".join(f"{row.shares[form]:.3f}" for form in ATTENTION_FORMS)
        print(f"| {row.mechanism} | {row.of} | {row.gamma:g} | {row.k} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
