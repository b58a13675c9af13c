"""What the tests of tasks share: the names of the paper's tasks, small files of a user's own, and real text."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from sklearn import datasets

NNCH_TASKS = [
    *("parity", "even_pairs", "missing_duplicate", "cycle_navigation", "stack_manipulation"),
    *("modular_arithmetic", "solve_equation"),
]
PAPER_TASKS = [*NNCH_TASKS, "listops"]
BITS = [f"{i:07b}" for i in range(100)]
DATA_SETS = ("breast_cancer", "diabetes", "digits", "iris", "linnerud", "wine")


def write_jsonl(path: Path, records: list[dict]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def write_csv(path: Path, rows: list[tuple], header: tuple = ("text", "label")) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def bits_file(folder: Path, extra: Sequence[dict] = (), name: str = "bits.jsonl") -> Path:
    return write_jsonl(folder / name, [{"text": t, "label": t.count("1") % 2} for t in BITS] + list(extra))


@cache
def descriptions() -> tuple[tuple[str, str], ...]:
    """Some 340 sentences of scikit-learn's descriptions of its data sets, each with the name of its data set."""
    rows = []
    for name in DATA_SETS:
        text = getattr(datasets, f"load_{name}")().DESCR
        for piece in re.split(r"(?<=[.:])\s+|\n\n+|\n(?=\s*[-*|])", text):
            sentence = " ".join(piece.split())
            if len(sentence) > 3:
                rows.append((sentence, name))
    return tuple(rows)
