"""Reading a RunConfig from a file, a dictionary and `--set` overrides.

    parse_config(apply_overrides(read_config("run.toml"), ["training.lr=0.3"]))

    [task]                             task: {name: even_pairs}
    name = "even_pairs"                attention: {mechanism: "topk:5"}
    [attention]                        training: {lr: 1e-1}
    mechanism = "topk:5"

A file is plain data: strings, numbers, booleans, lists and tables. Nothing in it is imported, executed or expanded.
"""

from __future__ import annotations

import copy
import difflib
import json
import re
import reprlib
import tomllib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from semfocus.config import RunConfig
from semfocus.config.training import OLD_NAMES
from semfocus.errors import UsageError

if TYPE_CHECKING:
    import yaml
    from pydantic_core import ErrorDetails

MAX_BYTES = 2**14
MAX_DEPTH = 8
SUFFIXES = (".toml", ".yaml", ".yml")
ALIASES = {"learning_rate": "training.lr", "layers": "model.blocks", "k": "attention.mechanism"}  # names used elsewhere


def read_config(path: Path | str) -> dict[str, Any]:
    """Return the content of a TOML or YAML file as plain data."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{path} is not a configuration file: its name must end in {', '.join(SUFFIXES)}")
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read the configuration {path}: {error.strerror or error}") from error
    if len(data) > MAX_BYTES:
        raise UsageError(f"{path} is larger than {MAX_BYTES} bytes, which no configuration needs")
    try:
        text = data.decode("utf-8-sig")
        value = tomllib.loads(text) if path.suffix.lower() == ".toml" else _read_yaml(text)
    except RecursionError:
        raise UsageError(f"{path} is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:  # includes decoding errors of UTF-8 and TOML
        raise UsageError(f"{path}: {error}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{path} must hold a table of fields such as task and training, not {reprlib.repr(value)}")
    problem = _problem(value)
    if problem is not None:
        raise UsageError(f"{path}: {problem}")
    return value


def apply_overrides(config: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return a copy of `config` with overrides such as "training.lr=0.3"; values are JSON, otherwise strings."""
    changed = copy.deepcopy(dict(config))
    for text in overrides:
        name, equals, value = text.partition("=")
        parts = name.strip().split(".")
        if not equals or not all(parts):
            raise UsageError(f"override {text!r} must look like training.lr=0.3")
        if parts[0] == "training" and parts[-1] in OLD_NAMES:  # before it stands beside the new name
            parts[-1] = OLD_NAMES[parts[-1]]
            warnings.warn(f"{name.strip()} is now {'.'.join(parts)}", FutureWarning, stacklevel=2)
        section = changed
        for depth, part in enumerate(parts[:-1], start=1):
            section = section.setdefault(part, {})
            if not isinstance(section, dict):
                name = ".".join(parts[:depth])
                raise UsageError(f"override {text!r}: {name} = {reprlib.repr(section)} is a value, not a section")
        section[parts[-1]] = _parse_value(value.strip(), text)
    return changed


def parse_config(config: Mapping[str, Any]) -> RunConfig:
    """Return the RunConfig of plain data; raise a UsageError that names every invalid field, its value and a fix."""
    try:
        return RunConfig.model_validate(dict(config))
    except ValidationError as error:
        raise UsageError("; ".join(_explain(problem) for problem in error.errors())) from None


def _read_yaml(text: str) -> Any:
    """Return the plain values of YAML. Tags, aliases and depth are checked on the events, before anything is built."""
    import yaml

    loader = _yaml_loader()
    depth = 0
    try:
        for event in yaml.parse(text, Loader=loader):
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                raise ValueError(f"line {_line(event)}: anchors and aliases are not read; write the values out")
            if getattr(event, "tag", None):
                raise ValueError(
                    f"line {_line(event)}: the tag {event.tag!r} is not read; a configuration is data only"
                )
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise ValueError(f"line {_line(event)}: nested deeper than {MAX_DEPTH} levels")
        return yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        raise ValueError(f"not valid YAML: {' '.join(str(error).split())[:300]}") from None


def _yaml_loader() -> type[yaml.SafeLoader]:
    """Return a loader of YAML 1.2's plain types: in YAML 1.1 `1e-3` is a string, `no` false and `12:30` a number."""
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers: dict[str, Any] = {}

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            mapping = super().construct_mapping(node, deep=deep)
            if len(mapping) < len(node.value):
                raise ValueError(f"line {node.start_mark.line + 1}: a key appears twice in one section")
            return mapping

    for tag, pattern, first in (
        ("null", r"null|Null|NULL|~|", [*"nN~", ""]),
        ("bool", r"true|True|TRUE|false|False|FALSE", [*"tTfF"]),
        ("int", r"[-+]?(?:0|[1-9][0-9]*)", [*"-+0123456789"]),
        (
            "float",
            r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan",
            [*"-+.0123456789"],
        ),
    ):
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"^(?:{pattern})$"), first)
    return Loader


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 0


def _problem(value: Any) -> str | None:
    """Return why `value` is not a shallow tree of plain data; None when it is. Iterative: it may be deep."""
    waiting = [(value, "", 1)]
    while waiting:
        item, name, depth = waiting.pop()
        if depth > MAX_DEPTH:
            return f"{name[:80]} is nested deeper than {MAX_DEPTH} levels"
        if isinstance(item, dict):
            for key, part in item.items():
                if not isinstance(key, str):
                    return f"the key {key!r} is not a text; put it in quotes"
                waiting.append((part, f"{name}.{key}" if name else key, depth + 1))
        elif isinstance(item, list):
            waiting += [(part, name, depth + 1) for part in item]
        elif not (item is None or isinstance(item, (str, int, float))):
            return f"{name} = {item} is a {type(item).__name__}; put it in quotes to make it a text"
    return None


def _parse_value(text: str, override: str) -> Any:
    try:
        value = json.loads(text)
    except RecursionError:
        raise UsageError(f"override {override[:80]!r}... is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError:
        return text
    problem = _problem(value)
    if problem is not None:
        raise UsageError(f"override {reprlib.repr(override)}: {problem}")
    return value


def _explain(problem: ErrorDetails) -> str:
    """Return an error of pydantic as field, value and fix."""
    path = [str(part) for part in problem["loc"]]
    name, value = ".".join(path), reprlib.repr(problem["input"])
    kind = problem["type"]
    if kind == "extra_forbidden":
        return _unknown_key(path)
    if kind == "missing":
        return f"{name} is missing; give it a value"
    if kind in ("model_type", "dict_type"):
        return f"{name} = {value} must be a section with fields of its own"
    if kind == "value_error":
        text = str(problem.get("ctx", {}).get("error", problem["msg"]))
        return text if text.startswith(name) else f"{name}: {text}"
    return f"{name} = {value}: {problem['msg'].replace('Input should be', 'must be')}"


def _unknown_key(path: list[str]) -> str:
    *section, leaf = path
    fields = dict(_fields(RunConfig))
    siblings = [name for name, parent in fields.items() if parent == ".".join(section)]
    nearest = difflib.get_close_matches(leaf, [name.rpartition(".")[2] for name in siblings], n=1, cutoff=0.5)
    guesses = [name for name in siblings if name.rpartition(".")[2] in nearest]
    guesses += [name for name in fields if name.rpartition(".")[2] == leaf]
    guesses += [ALIASES[leaf]] if leaf in ALIASES else []
    guess = f"; did you mean {guesses[0]!r}?" if guesses else ";"
    return f"unknown key {'.'.join(path)!r}{guess} known: {', '.join(siblings)}"


def _fields(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted name, dotted name of its section) of every field."""
    for name, field in model.model_fields.items():
        dotted = f"{prefix}.{name}" if prefix else name
        yield dotted, prefix
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _fields(field.annotation, dotted)
