"""Small files of a user's own, as the tests of tasks write them."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path

BITS = [f"{i:07b}" for i in range(100)]


def write_jsonl(path: Path, records: list[dict]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def write_csv(path: Path, rows: list[tuple], header: tuple = ("text", "label")) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def bits_file(folder: Path, extra: Sequence[dict] = (), name: str = "bits.jsonl") -> Path:
    return write_jsonl(folder / name, [{"text": t, "label": t.count("1") % 2} for t in BITS] + list(extra))
