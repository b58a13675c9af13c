"""How loose each bound is: what a search attains, beside every form of the bound.

python -m semfocus.theory.looseness        # about two minutes on one core; prints the tables of docs/theory.md
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from semfocus.theory.attention_witnesses import steepest
from semfocus.theory.softmax import stability
from semfocus.theory.witnesses import nearest_softmax_pair

SOFTMAX_FORMS = ("paper", "simple", "sharp", "certified")
ATTENTION_FORMS = ("paper", "certified")
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


def softmax_looseness(
    norms: Sequence[int] = (2, 1),
    deltas: Sequence[float] = (0.05, 1.0, 3.0),
    ks: Sequence[int] = (5,),
    separations: Sequence[float | None] = (None, 0.1, 0.5, 1.0, 4.0),
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
