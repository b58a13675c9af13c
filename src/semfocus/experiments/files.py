"""A user's own study, from a file: lists of values for fields of the configuration, crossed with each other.

    title = "Does focus still help wider models?"
    tasks = ["even_pairs", "parity"]
    mechanisms = ["full", "topk:5"]
    seeds = 5

    [overrides]                  # for every run
    training.epochs = 50

    [axes]                       # every combination of these
    model.d_model = [32, 64, 128]
    training.lr = [0.1, 0.3]

Also `asks`, `recipe` ("clean" unless told otherwise), `scale` and `metrics` (what the figures show). The file is data;
unknown keys are refused with the nearest name.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from semfocus.config import RunConfig
from semfocus.config_files import SUFFIXES, read_config
from semfocus.errors import UsageError, check_int, unknown
from semfocus.experiments.experiment import Change, Panel
from semfocus.experiments.study import CHOSEN_APART, MANY, Choices, Study, check_count, crossed
from semfocus.training.objective import known_columns

KEYS = ("title", "asks", "tasks", "mechanisms", "seeds", "recipe", "scale", "metrics", "overrides", "axes")
_FIELD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*(\.[A-Za-z_][A-Za-z_0-9]*)*")


def is_study_file(text: str) -> bool:
    """Whether this names a file rather than a study."""
    return os.sep in text or Path(text).suffix.lower() in SUFFIXES


def read_study(path: Path | str) -> Study:
    """The study that a file declares; its runs are checked when they are asked for."""
    path = Path(path)
    try:
        # The name becomes part of file names.
        return _declared(re.sub(r"[^A-Za-z0-9_-]+", "-", path.stem), read_config(path))
    except UsageError as error:
        text = str(error)
        raise UsageError(text if str(path) in text else f"{path}: {text}") from None


def _declared(name: str, content: Mapping[str, Any]) -> Study:
    for key in content:
        if key not in KEYS:
            raise unknown("key", key, KEYS)
    title = _text("title", content.get("title", name))
    asks = _text("asks", content.get("asks", title))
    defaults = Choices(
        seeds=check_int("seeds", content.get("seeds", 10), at_least=1), recipe=content.get("recipe", "clean")
    )
    if "scale" in content:
        defaults["scale"] = content["scale"]
    overrides = dict(_flat("overrides", content.get("overrides", {})))
    axes = {field: _values(f"axes.{field}", values) for field, values in _flat("axes", content.get("axes", {}))}
    for field in axes:
        if field in overrides:
            raise UsageError(f"{field} is both an axis and an override; it can be one of them")
    metrics = tuple(_names("metrics", content.get("metrics", ["train_loss", "heldout_accuracy"])))
    for metric in metrics:
        if metric not in known_columns():
            raise unknown("metric", metric, known_columns())
    runs = partial(
        _runs,
        tasks=_names("tasks", content.get("tasks", [])),
        mechanisms=_names("mechanisms", content.get("mechanisms", [])),
        axes=axes,
        common=[_override(field, value) for field, value in overrides.items()],
        defaults=defaults,
    )
    panel = Panel(" over ".join(metrics).replace("_", " "), metrics, each=("task.name", *axes))
    return Study(name, title, asks, runs, (panel,), recipe=defaults.get("recipe", "clean"))


def _runs(
    *,
    tasks: Sequence[str],
    mechanisms: Sequence[str],
    axes: Mapping[str, Sequence[Any]],
    common: Sequence[str],
    defaults: Choices,
    **choices: Any,
) -> list[RunConfig]:
    """Every task, mechanism, seed and combination of the axes' values; `choices` win over the file's own."""
    given: dict[str, Any] = {**defaults, **choices}
    given["overrides"] = [*common, *given.get("overrides", ())]
    combinations = math.prod(len(values) for values in axes.values())
    check_count(len(tasks) * len(mechanisms) * combinations, given["seeds"], given.get("most", MANY))
    changes: list[Change] = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    return crossed(tasks, mechanisms, changes, **given)


def _flat(section: str, value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """`{"training": {"lr": 0.3}}`, or the same with a dotted key, as ("training.lr", 0.3)."""
    if not isinstance(value, dict):
        raise UsageError(f"{section} = {value!r} must be a section of fields, such as training.lr")
    for key, item in value.items():
        name = f"{prefix}.{key}" if prefix else key
        if not _FIELD.fullmatch(name):
            raise UsageError(f"{section}: {name!r} is not a field of a configuration, such as training.lr")
        if name in CHOSEN_APART:
            raise UsageError(f"{section}.{name}: write that as {CHOSEN_APART[name]}, at the top of the file")
        if isinstance(item, dict):
            yield from _flat(section, item, name)
        else:
            yield name, item


def _values(name: str, values: Any) -> list[Any]:
    """The values of an axis, each once."""
    if not isinstance(values, list) or not values:
        raise UsageError(f"{name} = {values!r} must be a list of at least one value")
    return list({json.dumps(value, sort_keys=True): value for value in values}.values())


def _names(key: str, values: Any) -> list[str]:
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
        raise UsageError(f"{key} = {values!r} must be a list of at least one name")
    return list(dict.fromkeys(values))


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable() or len(value) > 500:
        raise UsageError(f"{key} = {str(value)[:80]!r} must be a text of at most 500 characters on one line")
    return value


def _override(field: str, value: Any) -> str:
    return f"{field}={json.dumps(value)}"
