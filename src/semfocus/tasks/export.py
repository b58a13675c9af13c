"""Examples as a file for other programs, with a manifest from which the file can be made again.

listops.jsonl                    {"text": "[MAX 2 [MIN 7 4 ] 3 ]", "label": "4"}
listops.jsonl.manifest.json      task, options, seed, split, n, and the hash of the rows
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semfocus import __version__
from semfocus.errors import CorruptData, DataError, MissingExtra, UsageError
from semfocus.store.atomic import replacing, write_json, write_text
from semfocus.tasks.base import Task
from semfocus.tasks.batch import Progress, Split
from semfocus.tasks.registry import get_task

FORMATS = (".jsonl", ".tsv", ".parquet")
Record = tuple[str, str]  # rendered example, rendered label


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings that decide the exported examples."""

    task: str
    options: dict[str, Any]
    n: int
    seed: int
    split: Split = "train"

    @staticmethod
    def read(path: Path) -> tuple[Recipe, str]:
        """The recipe in a manifest, and the hash of its examples."""
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            recipe = Recipe(**{name: stored[name] for name in ("task", "options", "n", "seed", "split")})
            return recipe, stored["rows_sha256"]
        except FileNotFoundError:
            raise DataError(f"{path} is not there; give the manifest that an export wrote") from None
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} is not the manifest of an export: {error!r}") from None


def export(recipe: Recipe, out: Path, progress: Progress | None = None) -> Path:
    """Write the examples to `out` (the suffix is the format) and a manifest beside it; return the manifest's path."""
    if out.suffix not in FORMATS:
        raise UsageError(f"--out {out} must end in one of {', '.join(FORMATS)}")
    task = get_task(recipe.task, **recipe.options)
    records = list(_records(task, recipe, progress))
    if out.suffix == ".jsonl":
        write_text(out, "".join(_json_line(record) for record in records))
    elif out.suffix == ".tsv":
        write_text(out, _tsv(records))
    else:
        _write_parquet(out, records)
    manifest = out.with_name(out.name + ".manifest.json")
    write_json(
        manifest,
        {
            "task": recipe.task,
            "options": task.options if task.name == recipe.task else recipe.options,
            "n": recipe.n,
            "seed": recipe.seed,
            "split": recipe.split,
            "generator_version": task.generator_version,
            "rows_sha256": _digest(records),
            "semfocus": __version__,
            "again": f"semfocus tasks export --manifest {manifest.name} --out {out.name}",
        },
    )
    return manifest


def export_again(manifest: Path, out: Path, progress: Progress | None = None) -> Path:
    """Export the examples of a manifest again; CorruptData if they differ from the recorded hash."""
    recipe, wanted = Recipe.read(manifest)
    written = export(recipe, out, progress)
    if Recipe.read(written)[1] != wanted:
        raise CorruptData(
            f"{out} was written, but its rows are not those of {manifest}: the generator or the data changed"
        )
    return written


def _records(task: Task, recipe: Recipe, progress: Progress | None) -> Iterator[Record]:
    batch = task.sample(recipe.n, seed=recipe.seed, split=recipe.split, progress=progress)
    for row, label, length in zip(batch.tokens, batch.labels.tolist(), batch.lengths.tolist(), strict=True):
        yield task.render(row, length), task.render_label(label)


def _json_line(record: Record) -> str:
    return json.dumps({"text": record[0], "label": record[1]}, ensure_ascii=False) + "\n"


def _digest(records: list[Record]) -> str:
    return hashlib.sha256("".join(_json_line(record) for record in records).encode()).hexdigest()


def _tsv(records: list[Record]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, delimiter="\t", lineterminator="\n")
    writer.writerow(("text", "label"))
    writer.writerows(records)
    return buffer.getvalue()


def _write_parquet(out: Path, records: list[Record]) -> None:
    try:
        import duckdb
    except ImportError:
        raise MissingExtra("duckdb", "analysis", "writing Parquet") from None
    with duckdb.connect() as connection, replacing(out) as draft:
        connection.execute("CREATE TABLE rows (text VARCHAR, label VARCHAR)")
        columns = {"text": [text for text, _ in records], "label": [label for _, label in records]}
        connection.execute("INSERT INTO rows SELECT unnest($text), unnest($label)", columns)
        connection.table("rows").write_parquet(str(draft))
