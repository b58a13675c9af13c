"""Which runs may be compared: those that agree in every setting except seed, label and mechanism.

    settings_of(config)["model.blocks"]       5
    comparability_key(config)                 equal for runs that may share a group, a pair or a test

`config` is the content of a run's config.json. Data are identified by their fingerprint (`config["data"]`), never by
their path. Groups, verdicts and the tables of diagnostics all use this key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from semfocus.config.fields import LATER

Settings = dict[str, Any]  # dotted field of config.json -> value: {"model.blocks": 5}
NOT_COMPARED = ("seed", "label", "sizes", "facts")  # the last two follow from the data
DEFAULTS = {"precision": "fp32", "objective": "classification"}  # of runs whose configuration does not record them
_TITLES = {"training.lr": "learning rate", "data.version": "data version", "data.task": "data"}
_MAX_VALUE_LENGTH = 24  # characters of a value in a group's name


def settings_of(config: Mapping[str, Any]) -> Settings:
    """All settings that comparable runs share, by dotted field name.

    Task options are `task.options.<name>`: the complete ones of the fingerprint if the configuration has one, else
    those that were given. Without a fingerprint the task's name or path stands for the data, as `data.place`.
    """
    task = _mapping(config.get("task"))
    data = config.get("data")
    data = dict(data) if isinstance(data, dict) else {"place": task.get("name"), "options": task.get("options")}
    options = dict(_mapping(data.pop("options", None)))
    if "sha256" in data:
        options.pop("metrics", None)  # of given data: the objective says the same
    rows = {name: value for name, value in task.items() if name not in ("name", "options")}
    attention = {name: value for name, value in _mapping(config.get("attention")).items() if name != "mechanism"}
    nested = ("task", "data", "attention")
    others = {name: value for name, value in config.items() if name not in (*NOT_COMPARED, *nested)}
    parts = {"data": data, "task": {"options": options, **rows}, "attention": attention, **others}
    settings = {**_flatten(parts), **{name: config.get(name, default) for name, default in DEFAULTS.items()}}
    if settings.get("training.tuned"):  # each mechanism at its own rate: how it was chosen is what they share
        settings.pop("training.lr", None)
    return settings


def comparability_key(config: Mapping[str, Any]) -> str:
    """A text that is equal for two runs exactly when they may be compared."""
    return json.dumps(settings_of(config), sort_keys=True, default=str)


def task_name(settings: Settings) -> str:
    """The task that the data belong to, as its fingerprint names it."""
    return str(settings.get("data.task", settings.get("data.place")))


def task_label(config: Mapping[str, Any]) -> str:
    """The name to show: a task's name, or a data file's name without folders and suffix."""
    name = str(config["task"]["name"])
    return PurePath(name).stem if "." in name else name


def differing(many: Sequence[Settings]) -> list[str]:
    """The dotted names whose values are not the same in all of these settings, in their order."""
    names = list(dict.fromkeys(name for settings in many for name in settings))
    texts = {name: {json.dumps(settings.get(name), default=str) for settings in many} for name in names}
    return [name for name in names if len(texts[name]) > 1]


def setting_text(name: str, value: Any) -> str:
    """`blocks 6`, `padding visible`, `padding visible: no`, `stop accuracy none`."""
    title = setting_title(name)
    value = default_of(name) if value is None else value
    if isinstance(value, bool):
        return title if value else f"{title}: no"
    text = f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)
    return f"{title} {text if len(text) <= _MAX_VALUE_LENGTH else text[: _MAX_VALUE_LENGTH - 1] + '…'}"


def default_of(name: str) -> Any:
    """What a field means that a run's configuration does not hold: its default, if it is one that came later."""
    part, _, field = name.partition(".")
    default = LATER.get(field) if part in ("model", "training", "task") else None
    return None if default == "" else default


def setting_title(name: str) -> str:
    """`model.head_width` is "head width"."""
    return _TITLES.get(name, name.rsplit(".", 1)[-1].replace("_", " "))


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Settings:
    flat: Settings = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _mapping(value: Any) -> dict[str, Any]:
    """`value` if it is an object, else an empty one: a config.json from elsewhere may hold anything."""
    return value if isinstance(value, dict) else {}
