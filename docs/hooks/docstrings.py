"""Docstrings of the source as the site shows them: what is set in columns there stays in columns.

d_model    width          lines with a gap of two or more spaces are such a list, and become a block of code
heads      their number   that keeps them as they stand

The parts of a configuration get a table of their fields, as `--set` names them, with the words of their comments.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

COLUMNS = re.compile(r"\S {2,}\S")
INDENTED = re.compile(r"\s{4,}\S")
COMMENT = re.compile(r"  # (.+)$", flags=re.MULTILINE)
LITERAL = re.compile(r"Literal\[(.+?)\]")


class Docstrings(griffe.Extension):
    """Applied to each object as it is read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.name == "__post_init__":
            obj.docstring = None  # how a value checks itself is nothing to call, and is not shown without one
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        if cls.docstring is not None and "Part" in map(str, cls.bases):
            cls.docstring.value += f"\n\n{field_table(cls)}"


def field_table(part: griffe.Class) -> str:
    """The fields of a part of the configuration: their names, defaults, and values or meaning."""
    prefix = "" if part.name == "RunConfig" else f"{part.name.removesuffix('Config').lower()}."
    rows = ["| field | default | |", "|---|---|---|"]
    for name, field in part.attributes.items():
        kind = str(field.annotation)
        if field.annotation is None or kind.endswith("Config") or "property" in field.labels:
            continue  # a part has a table of its own
        literal = LITERAL.search(kind)
        values = "" if literal is None else ", ".join(text.strip("'\" ") for text in literal[1].split(","))
        said = "; ".join(filter(None, (values, *COMMENT.findall(field.source))))
        default = "" if field.value is None else f"`{str(field.value).strip('()')}`"
        cells = (f"`{prefix}{name}`", default, said.replace("|", "&#124;"))
        rows.append(f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in cells)}|")  # no gap: that marks columns
    return "\n".join(rows)


def fenced(text: str) -> str:
    """The text, with each list in columns between fences."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if not inside and COLUMNS.search(line) and not INDENTED.match(line):
            lines += ["", "```text"]
            inside = True
        elif inside and not (COLUMNS.search(line) or line.startswith("  ")):
            lines += ["```", ""]
            inside = False
        lines.append(line)
    return "\n".join([*lines, "```"] if inside else lines)
