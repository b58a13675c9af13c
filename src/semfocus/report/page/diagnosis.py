"""A diagnosis as one HTML page that needs no other file.

    write_model_page(diagnosis.to_dict(), Path("diagnosis.html"))
    write_runs_page(runs, rows, stabilities, Path("diagnosis.html"))

Documents are plain, as `Diagnosis.to_dict` and the measurements of a run give them. Their text is escaped, and the
page's content policy forbids scripts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from semfocus.report.diagnosis_text import (
    condition_table,
    layer_table,
    newest_rows,
    norm_table,
    spread_findings,
    spread_headline,
    spread_table,
)
from semfocus.report.figures.diagnosis import (
    draw_conditions,
    draw_dispersion_along_training,
    draw_heat_maps,
    draw_mask_stability,
)
from semfocus.report.page.markup import policy, style_sheet, template
from semfocus.report.page.pictures import PictureSpec, picture
from semfocus.report.text import run_label
from semfocus.store.atomic import write_text

Json = Mapping[str, Any]
MAPS_NOTE = (
    "One square a head. Weight, entropy, separation and the largest share of one key are those of the median query (or "
    "row; p50); dispersion and the number of keys are exceeded by one query in twenty (p95)."
)
CONDITIONS_NOTE = (
    "The paper's two conditions at the newest of these checkpoints, by percentile over queries, layers and rows; "
    "Delta_h is taken at the mirrored one. In the tables, sharper: the certified constant of heavy hitters over "
    "that of full attention, below 1 where they win. Vacuous: e^delta / keys, a bound on a probability, exceeds 1. "
    "In-degree < k: outside the theory, where its mean is k. Uneven rows: queries see different keys, or it is not "
    "known that they do not, and no constant in the tokens is certified."
)


def write_model_page(document: Json, path: Path) -> Path:
    """Write the page of `semfocus.diagnose`, and its heat maps beside it as .svg, .pdf and .png."""
    measured = any(layer["queries"] for layer in document["layers"])
    draw = partial(draw_heat_maps, document)
    values = {
        "title": _model_headline(document),
        "over": f"How {document['model']} attends, and what keeping {document['k']} keys would do",
        "findings": document["findings"],
        "pictures": [picture(PictureSpec("Layers and heads", MAPS_NOTE, draw), beside=_beside(path, "heads"))]
        if measured
        else [],
        "tables": [layer_table(document)],
    }
    return _write(path, values)


def write_runs_page(runs: Sequence[Json], rows: Sequence[Json], stabilities: Sequence[Json], path: Path) -> Path:
    """Write the page of `semfocus diagnose RUN ...`.

    It has Table 6, dispersion along training, stability of masks, weight norms, and attention by block of each run.

    runs          {"task", "mechanism", "seed", "checkpoints"} of each
    rows          of Table 6
    stabilities   the runs whose mask stability was measured, with "measured"
    """
    newest = newest_rows(rows)
    draw = partial(draw_conditions, newest)
    pictures = [picture(PictureSpec("W and X", CONDITIONS_NOTE, draw), beside=_beside(path, "conditions"))]
    several = [run for run in runs if len({c["epoch"] for c in run["checkpoints"].values()}) > 1]
    if several:
        note = "At the kept checkpoints, epoch 0 being the initialisation."
        draw = partial(draw_dispersion_along_training, several)
        pictures.append(picture(PictureSpec("Dispersion along training", note, draw), beside=_beside(path, "training")))
    if stabilities:
        note = "The share of the k heaviest keys that stay when noise is added to the input embeddings."
        draw = partial(draw_mask_stability, stabilities)
        pictures.append(picture(PictureSpec("Stability of the masks", note, draw), beside=_beside(path, "masks")))
    values = {
        "title": spread_headline(newest),
        "over": f"How trained runs attend: {', '.join(map(run_label, runs))}",
        "findings": spread_findings(newest),
        "pictures": pictures,
        "tables": [*map(condition_table, newest), norm_table(runs), *map(spread_table, runs)],
    }
    return _write(path, values)


def _model_headline(document: Json) -> str:
    """The first finding without its details, in plain words; the model's name where no query could be counted."""
    first = next(iter(document["findings"]), "")
    if not first or first.startswith("Warning") or not any(layer["queries"] for layer in document["layers"]):
        return f"{document['model']}, k = {document['k']}"
    return first.partition(":")[0].rstrip(".")


def _beside(page: Path, name: str) -> Path:
    return page.with_name(f"{page.stem}-{name}")


def _write(path: Path, values: Mapping[str, Any]) -> Path:
    from markupsafe import Markup

    from semfocus import __version__

    css = style_sheet()
    shared = {"policy": policy("", css), "css": Markup(css), "made": f"semfocus {__version__}"}
    write_text(path, template("diagnosis.html.j2").render(**values, **shared))
    return path
