"""Docstrings of the source as the site shows them: what is set in columns there stays in columns.

d_model    width          lines with a gap of two or more spaces are such a list, and become a block of code
heads      their number   that keeps them as they stand
"""

from __future__ import annotations

import re
from typing import Any

import griffe

COLUMNS = re.compile(r"\S {2,}\S")
INDENTED = re.compile(r"\s{4,}\S")


class Docstrings(griffe.Extension):
    """Applied to each object as it is read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.name == "__post_init__":
            obj.docstring = None  # how a value checks itself is nothing to call, and is not shown without one
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


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
