"""Real text that comes with scikit-learn: the descriptions of its data sets, cut into sentences."""

from __future__ import annotations

import re
from functools import cache

from sklearn import datasets

NAMES = ("breast_cancer", "diabetes", "digits", "iris", "linnerud", "wine")


@cache
def described() -> tuple[tuple[str, str], ...]:
    """(sentence, the data set that it describes), some 340 of them."""
    rows = []
    for name in NAMES:
        text = getattr(datasets, f"load_{name}")().DESCR
        for piece in re.split(r"(?<=[.:])\s+|\n\n+|\n(?=\s*[-*|])", text):
            sentence = " ".join(piece.split())
            if len(sentence) > 3:
                rows.append((sentence, name))
    return tuple(rows)
